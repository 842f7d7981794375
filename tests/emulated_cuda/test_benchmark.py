"""The benchmark `gpu` from end to end, so that none of its lines is run for the first time on a GPU."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import SECTIONS
from benchmarks.gpu.overlap import STAGES
from tests.emulated_cuda.build import environment
from tests.fixtures.programs import ran

ROOT = Path(__file__).resolve().parents[2]


def benchmark(*words):
    return ran([sys.executable, "-m", "benchmarks", "gpu", *words], cwd=ROOT, env=environment(), timeout=7000)


@pytest.mark.timeout(7200)  # where every kernel has to be compiled on a busy machine
def test_the_whole_benchmark_runs_and_says_that_it_is_emulated(cupy, tmp_path):
    ran = benchmark("--quick", "--minutes", "600", "--json", str(tmp_path / "gpu.json"))
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["state"] == "complete"
    assert found["machine"]["emulated"] is True
    assert found["machine"]["versions"]["CuPy"] == cupy.__version__
    assert found["series"]["cut"] == {section: [] for section in ("start", *SECTIONS)}
    rows = found["rows"]
    left_out = {row["what"].partition(": ")[2]: row["note"] for row in rows if row["n"] == 0}
    assert (
        left_out.pop("killed, lu: GPU memory lost") == "each process has an emulated GPU's memory of its own"
    )
    assert all("geqrfBatched" in what and "not" in why for what, why in left_out.items()), left_out
    assert all(row["what"].startswith("EMULATED: ") for row in rows)
    judged = [row for row in rows if row["goal"]]
    assert judged
    assert [row for row in judged if not row["ok"]] == []
    assert all(row["what"].startswith("EMULATED: operation ") for row in judged)
    for trace in found["series"]["trace"].values():
        assert trace
        for request in trace:
            ends = [end for stage in STAGES for span in request[stage] for end in span]
            assert ends == sorted(ends), "copied in, computed, copied out"
            assert len(ends) >= 6
    for name in ("timeline", "speedup"):
        assert (tmp_path / f"gpu-{name}.png").exists()


def test_what_there_is_no_time_for_is_named(cupy, tmp_path):
    words = ("--quick", "--minutes", "0.1", "--only", "operations", "--only", "paper")
    ran = benchmark(*words, "--json", str(tmp_path / "gpu.json"))
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    cut = {f"EMULATED: {what}" for section in found["series"]["cut"].values() for what in section}
    left_out = {row["what"] for row in found["rows"] if row["n"] == 0}
    assert left_out
    assert left_out <= cut


def test_the_machine_is_named_before_the_tests_of_make_gpu_test(cupy):
    done = ran([sys.executable, "-m", "benchmarks.gpu.machine"], cwd=ROOT, env=environment(), check=True)
    assert done.stdout.startswith("EMULATED, no GPU: cuda:0")


def test_it_refuses_to_be_a_result(cupy):
    recorded = (ROOT / "benchmarks/results/gpu.json").read_bytes()
    ran = benchmark("--quick", "--json", "benchmarks/results/gpu.json")
    assert ran.returncode == 2
    assert "this GPU is emulated: write to another folder" in ran.stderr
    assert (ROOT / "benchmarks/results/gpu.json").read_bytes() == recorded
