"""The sampler as a process, and mom's script that prints what it wrote."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import torque_sched.sampler
from benchmarks.papers.torque_profiles import WORKLOADS, profiles, watched
from tests.fixtures.waiting import until
from tests.unit.torque.sampler.test_proc import parse_sample
from torque_sched.sampler.__main__ import main
from torque_sched.sampler.daemon import file_text, write_atomically
from torque_sched.sampler.form import JobSample, NodeSample

SCRIPT = Path(torque_sched.sampler.__file__).with_name("varattr.sh")


def printed(*arguments: str) -> str:
    """Mom waits for it, so it starts no program: without a PATH it works as well."""
    argv, env = ["/bin/sh", str(SCRIPT), *arguments], {"PATH": "/nowhere"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_sampler_writes_until_it_is_told_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "a sample"
    sampler = subprocess.Popen(
        [sys.executable, "-m", "torque_sched.sampler", "--file", str(path), "--interval", "0.1"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(path.exists, "the first sample")
        sample = parse_sample(printed(str(path)))
        assert sample is not None
        assert abs(sample.at_s - time.time()) < 60
        assert path.stat().st_mode & 0o777 == 0o644
    finally:
        sampler.send_signal(signal.SIGTERM)
        _, errors = sampler.communicate(timeout=120)
    assert (sampler.returncode, errors) == (0, "")
    # Without the sampler its last figures would be taken for the present ones.
    assert not list(tmp_path.iterdir())


def uptime_s() -> int:
    return int(Path("/proc/uptime").read_text(encoding="ascii").partition(".")[0])


def test_the_script_prints_a_fresh_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a sample"
    assert printed(str(path)) == ""
    text = file_text(NodeSample(5.0, 1.5, 10.0, (), (JobSample("1[2].head", 1.0, 2.0),)), uptime_s())
    path.write_text(text, encoding="ascii")
    assert printed(str(path)) == text
    old = file_text(NodeSample(5.0, 1.5, 10.0), uptime_s() - 100)
    path.write_text(old, encoding="ascii")
    assert printed(str(path)) == ""
    assert printed(str(path), "1000") == old
    # Written before the last boot.
    path.write_text(file_text(NodeSample(5.0, 1.5, 10.0), uptime_s() + 100), encoding="ascii")
    assert printed(str(path)) == ""


@pytest.mark.parametrize("text", ["", "\n", "ts.up:\n", "ts.up:$(touch x)\n", "-n\n", "ts.up:9999 9\n"])
def test_the_script_prints_nothing_of_another_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sample"
    path.write_text(text, encoding="ascii")
    assert printed(str(path)) == ""


def test_the_script_never_prints_more_than_moms_buffer_holds(tmp_path: Path) -> None:
    path = tmp_path / "sample"
    path.write_text(f"ts.up:{uptime_s()}\n" + "ts.job.1:1\n" * 10_000, encoding="ascii")
    assert 4000 < len(printed(str(path))) <= 4096


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sample"
    texts = ["a" * 50_000, "b" * 70_000]
    write_atomically(path, texts[0])
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            write_atomically(path, texts[n % 2])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(path.read_text(encoding="ascii") in texts for _ in range(300))
    finally:
        stop.set()
        writer.join()


def test_a_missing_folder_or_a_wrong_interval_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--file", str(tmp_path / "none" / "sample")]) == 3
    with pytest.raises(SystemExit) as wrong:
        main(["--file", str(tmp_path / "sample"), "--interval", "0"])
    assert wrong.value.code == 2
    assert "0.05 to 3600" in capsys.readouterr().err


def test_the_sampler_needs_nothing_but_the_standard_library() -> None:
    """Nodes carry no click, no pydantic."""
    program = "import sys; sys.path.insert(0, '.'); import torque_sched.sampler.__main__"
    argv = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, cwd=SCRIPT.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# The measured profiles: what was committed, and that the watching counts processes and their children.


CHILDREN = """
import subprocess, sys
work = "import time; x = bytearray(40_000_000)\\nwhile time.process_time() < 0.7: pass"
children = [subprocess.Popen([sys.executable, "-c", work]) for _ in range(3)]
sys.exit(sum(child.wait() for child in children))
"""


def test_the_committed_profiles_say_what_they_are() -> None:
    found = profiles()
    names = {workload.name for workload in WORKLOADS}
    measured = [each for each in found if each.origin == "measured"]
    assert {each.name for each in measured} <= names
    assert measured
    for each in measured:
        assert 0.2 < each.cpu_cores <= each.ppn * 1.1
        assert (each.n >= 1, each.mem_bytes > 10e6, each.gpus) == (True, True, 0)
    # Nobody may take an assumed GPU job for a measured one.
    assert all(each.origin == "synthetic" and "no GPU here" in each.how for each in found if each.gpus)


def test_watching_sums_a_job_and_its_children() -> None:
    run = watched([sys.executable, "-c", CHILDREN])
    # Children of which each burns 0.6 s; the sampler may begin late, never count twice.
    assert 0.5 < run.cpu_cores * run.runtime_s < 3.5
    assert run.mem_bytes > 40e6


def test_a_program_that_fails_gives_no_profile() -> None:
    with pytest.raises(RuntimeError, match="ended with 3"):
        watched([sys.executable, "-c", "import time; time.sleep(1.2); raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match="too soon"):
        watched(["true"])
