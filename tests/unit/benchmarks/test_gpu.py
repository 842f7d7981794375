"""What of the benchmark `gpu` needs no GPU: time, overlaps, judgements, pictures, what it says without."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import gpu
from benchmarks.__main__ import main
from benchmarks.gpu import SECTIONS, draw, driver, images, machine
from benchmarks.gpu.cases import Case, answered, cases, judged, packed
from benchmarks.gpu.images import JPEG
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.overlap import common, overlap_of, union
from benchmarks.gpu.setting import SHARES, Budget, GpuSetting, SectionOverError, Servers, ended_after
from benchmarks.result import Report, Row, measured, observed
from tests.fixtures import fake_nvml
from yarn_accel.adapters.nvml import Gpu
from yarn_accel.errors import ConfigError, JobError, StartupError
from yarn_accel.operations import get
from yarn_accel.operations.registry import OPERATIONS

ROOT = Path(__file__).resolve().parents[3]
UUID = "GPU-00000000-0000-0000-0000-000000000000"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def emulated(is_emulated: bool = True) -> Machine:
    return Machine(Gpu("cuda:0", UUID, 0, memory_bytes=1 << 30), "emulated", is_emulated, {"CuPy": "14.2.0"})


# Time


def test_a_budget_refuses_what_does_not_fit_and_remembers_it() -> None:
    clock = Clock()
    budget = Budget(10.0, clock)
    assert budget.allows("short", 9.0)
    assert not budget.allows("long", 11.0)
    clock.now_s += 11.0
    assert not budget.allows("late")
    assert budget.left_s == 0.0
    assert budget.cut == ["long", "late"]
    assert budget.cut_row("late").n == 0


def test_rounds_end_before_one_that_would_not_fit() -> None:
    clock = Clock()
    budget = Budget(10.0, clock)
    done = []
    for at in budget.rounds("lu", 5):
        done.append(at)
        clock.now_s += 4.0
    assert done == [0, 1]
    assert budget.cut == ["lu: 2 of 5 rounds"]
    assert list(Budget(0.0, clock).rounds("lu", 3)) == [0]  # the first one in any case


def test_what_hangs_is_ended() -> None:
    with pytest.raises(SectionOverError), ended_after(0.01):
        time.sleep(60.0)


def test_the_sections_share_all_of_the_time() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert tuple(SHARES) == SECTIONS == tuple(gpu.table())


# Overlap


def test_spans_that_touch_become_one() -> None:
    assert union([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]
    assert common([(0, 4), (5, 6)], [(1, 2), (3, 5.5)]) == [(1, 2), (3, 4), (5, 5.5)]


def test_requests_at_once_are_seen() -> None:
    found = overlap_of([{"h2d": [(0, 1)], "kernel": [(1, 4)], "d2h": [(4, 5)]}] * 2)
    assert (found.copies, found.hidden, found.all_three, found.wall) == (2, 0, 0, 5)
    found = overlap_of(
        [
            {"h2d": [(0, 1)], "kernel": [(1, 3)], "d2h": [(3, 4), (4, 5)]},
            {"h2d": [(1, 2)], "kernel": [(3, 5)], "d2h": [(5, 6)]},
            {"h2d": [(4, 5.5)], "kernel": [(5, 7)], "d2h": [(7, 8)]},
        ]
    )
    assert found.copies == pytest.approx(1 + 1 + 3 + 1)
    assert found.hidden == pytest.approx(1 + 3)
    assert found.hidden_share == pytest.approx(4 / 6)
    assert found.both_ways == found.all_three == pytest.approx(1.5)
    assert overlap_of([]).hidden_share == 0.0


# Judgements


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_the_cpus_own_answer_is_right_and_a_wrong_one_is_not(case: Case) -> None:
    found = get(case.operation).run(case.copies(), case.params)
    assert judged(case, found.arrays, found.info).is_right
    arrays = {name: array.copy() for name, array in found.arrays.items()}
    for array in arrays.values():
        array.flat[0] += 1
    info = {**found.info, "residual": found.info.get("residual", 0.0) + 1.0}
    assert not judged(case, arrays, info).is_right


@pytest.mark.parametrize(
    "wrong",
    [np.full((40, 30), np.nan), np.zeros((40, 30), np.float32), np.zeros((30, 40)), None],
    ids=["nan", "another type", "another shape", "nothing"],
)
def test_an_answer_of_another_form_is_not_right(wrong: np.ndarray | None) -> None:
    case = next(case for case in cases() if case.operation == "gemm")
    assert not judged(case, {} if wrong is None else {"c": wrong}, {}).is_right


def test_every_operation_is_judged() -> None:
    assert {case.operation for case in cases()} == set(OPERATIONS) - {"infer", "chain"}, "of others"


# What is emulated


def test_an_emulated_gpus_figures_are_no_results(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="emulated"):
        machine.refuse_results(emulated(), ROOT / "benchmarks/results/gpu.json")
    machine.refuse_results(emulated(), tmp_path / "gpu.json")
    machine.refuse_results(emulated(is_emulated=False), ROOT / "benchmarks/results/gpu.json")


def test_rows_of_an_emulated_gpu_say_so_and_judge_no_speed() -> None:
    row = measured("lu", [1.0], "share", goal=">= 0.9")
    assert gpu._said(row, "batches", emulated()) == replace(row, what="EMULATED: lu", goal="", ok=None)
    assert gpu._said(row, "operations", emulated()).ok is True
    assert gpu._said(row, "batches", emulated(is_emulated=False)) == row


def test_a_section_that_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(setting: object) -> list[list[Row]]:
        raise RuntimeError("no libcusolver")

    table = dict.fromkeys(SECTIONS, lambda setting: [[observed("rate", 1.0, "x")]])
    monkeypatch.setattr(gpu, "table", lambda: {**table, "batches": failing})
    monkeypatch.setattr(gpu, "start_rows", table["paper"])
    report = Report("gpu")
    measured_rows = gpu.measure(True, lambda line: None, report, emulated(False), SECTIONS, 1.0)
    with pytest.raises(JobError, match="failed: batches"):
        deque(map(report.add, measured_rows))
    assert [row.what for row in report.rows].count("rate") == len(SECTIONS)
    assert "RuntimeError: no libcusolver" in next(row.note for row in report.rows if row.n == 0)


def test_a_section_that_hangs_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "table", lambda: {"paper": lambda setting: time.sleep(60.0)})
    monkeypatch.setattr(gpu, "start_rows", lambda setting: [])
    monkeypatch.setattr(gpu, "_GRACE_S", 0.01)
    report = Report("gpu")
    for rows in gpu.measure(True, lambda line: None, report, emulated(False), SECTIONS, 1e-4):
        report.add(rows)
    assert [(row.what, row.n) for row in report.rows] == [("paper: the rest", 0)]
    assert report.series["cut"] == {"start": [], "paper": ["paper: the rest"]}


def test_no_section_begins_after_the_most_time_of_a_loan(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = []

    def section(setting: GpuSetting) -> list[list[Row]]:
        budgets.append(setting.budget.left_s)
        return [[observed("rate", 1.0, "x")]]

    monkeypatch.setattr(gpu, "table", lambda: dict.fromkeys(SECTIONS, section))
    monkeypatch.setattr(gpu, "start_rows", section)
    monkeypatch.setattr(gpu, "_MOST_S", gpu._GRACE_S)
    for is_emulated in (False, True):
        deque(gpu.measure(True, lambda line: None, Report("gpu"), emulated(is_emulated), SECTIONS, 60.0))
    n_sections = len(SECTIONS) + 1
    assert budgets[:n_sections] == [0.0] * n_sections
    assert min(budgets[n_sections:]) > 60.0, "the emulated CUDA takes the time that it needs"


class NoTime:
    """A server that is asked for nothing."""

    def client(self, *_: str) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()


@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "operations"])
def test_a_section_without_time_names_all_it_leaves_out(section: str) -> None:
    servers: Any = SimpleNamespace(gpu=NoTime(), cpu=NoTime())
    budget = Budget(0.0)
    setting = GpuSetting(False, lambda line: None, emulated(), servers, budget)
    rows = [row for rows in gpu.table()[section](setting) for row in rows]
    assert len(rows) == len(budget.cut) >= 1
    assert all(row.n == 0 and "the section's time was over" in row.note for row in rows)


def test_without_nvimagecodec_its_decoding_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    setting: Any = None
    (row,) = images._decoding(setting, JPEG, [], [])
    assert (row.n, "nvImageCodec is not installed" in row.note) == (0, True)


def test_a_server_that_cannot_start_is_tried_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried = []

    def fail(*words: object, **settings: object) -> None:
        tried.append(words)
        raise StartupError("the GPU is gone")

    monkeypatch.setattr("benchmarks.gpu.setting.OwnServer", fail)
    with Servers(tmp_path, emulated(), 1.0) as servers:
        for _ in range(2):
            with pytest.raises(StartupError, match="the GPU is gone"):
                _ = servers.gpu
    assert len(tried) == 1


def test_an_answer_of_another_device_or_none_is_no_answer_of_the_gpu() -> None:
    class Client:
        takes_stacks, pack_bytes = False, 1

        def __init__(self) -> None:
            self.sent: list[object] = []

        @property
        def n_in_flight(self) -> int:
            return len(self.sent)

        def call(self, call: object) -> SimpleNamespace:
            return SimpleNamespace(device="cpu", info={})

        def submit(self, call: object) -> None:
            self.sent.append(call)

        def next_outcome(self) -> tuple[object, StartupError]:
            return self.sent.pop(), StartupError("nothing")

    client: Any = Client()
    with pytest.raises(JobError, match="cpu answered, not cuda:0"):
        answered(client, next(iter(cases())), "cuda:0")
    with pytest.raises(StartupError, match="nothing"):
        packed(client, "lu")


def test_pictures_of_a_trace_and_of_speedups(tmp_path: Path) -> None:
    report = Report("gpu")
    assert draw(report, str(tmp_path / "none")) == []
    report.setting["emulated"] = True
    spans = {"h2d": [[0.0, 1.0]], "kernel": [[1.0, 2.0]], "d2h": [[2.0, 3.0]]}
    report.series["trace"] = {"lu, 4 MB": [spans, spans], "qr, 4 MB": [spans]}
    report.rows += [observed(f"EMULATED: paper, lu, n = {n}: over this CPU", 2.0, "x") for n in (10, 20)]
    for file in draw(report, str(tmp_path / "gpu")):
        assert Path(file).stat().st_size > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu-speedup.png", "gpu-timeline.png"]


# Without a GPU


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_LIBRARY", "libno-nvidia-ml.so.1")
    machine.find.cache_clear()


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_it_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = CliRunner().invoke(main, ["gpu", "--json", str(tmp_path / "gpu.json")])
    assert ran.exit_code == 1
    assert ran.output.count("\n") == 1
    assert ran.output.startswith("benchmarks: there is no NVIDIA driver on this machine: install")
    assert not (tmp_path / "gpu.json").exists()
    assert driver.main() == machine.main() == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("no GPU to test on: there is no NVIDIA driver") for line in lines)
    monkeypatch.setattr("benchmarks.__main__.BENCHMARKS", {"gpu": "..."})
    ran = CliRunner().invoke(main, ["all"])
    assert (ran.exit_code, ran.output[:46]) == (0, "gpu is left out: there is no NVIDIA driver on ")


def on_node(node: fake_nvml.Node, library: Path, *words: str) -> subprocess.CompletedProcess[str]:
    node.write()
    environment = {**os.environ, **node.environment(library)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_driver_names_its_gpus(nvml_library: Path, tmp_path: Path) -> None:
    lost = fake_nvml.GpuRow(1, UUID.replace("0", "1"), state=fake_nvml.LOST)
    node = fake_nvml.Node(tmp_path / "nvml", [fake_nvml.GpuRow(0, UUID), lost])
    ran = on_node(node, nvml_library, "-m", "benchmarks.gpu.driver")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[:2] == [
        "NVIDIA driver 550.54.15",
        f"GPU 0: NVIDIA H100 (emulated), {UUID}",
    ]
    assert "error" in ran.stdout.splitlines()[2]


MACHINE = "import os, sys; {}; from benchmarks.gpu.machine import main; sys.exit(main())"
DRIVER = "from benchmarks.gpu.driver import main; raise SystemExit(main())"
LOST = [fake_nvml.GpuRow(0, UUID, state=fake_nvml.LOST)]


@pytest.mark.parametrize(
    ("change", "program", "said"),
    [
        ({"driver": "470.82.01"}, DRIVER, "the NVIDIA driver is 470.82.01; CUDA 12 needs 525 or newer"),
        ({"gpus": []}, DRIVER, "the NVIDIA driver 550.54.15 shows no GPU"),
        ({"init": 9}, DRIVER, "the NVIDIA driver does not answer (nvmlInit: 9): load it"),
        ({}, MACHINE.format("sys.modules['cupy'] = None"), "CuPy cannot be imported"),
        ({"gpus": LOST}, MACHINE.format("pass"), "no GPU can be used: cuda:0"),
        (
            *({}, MACHINE.format("os.environ['CUDA_VISIBLE_DEVICES'] = ''")),
            "no GPU can be used: CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_a_driver_or_gpu_that_will_not_do_is_named_in_one_line_with_the_cure(
    nvml_library: Path, tmp_path: Path, change: dict[str, Any], program: str, said: str
) -> None:
    node = replace(fake_nvml.Node(tmp_path / "nvml", [fake_nvml.GpuRow(0, UUID)]), **change)
    ran = on_node(node, nvml_library, "-c", program)
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stderr
    assert said in ran.stderr
    assert program == DRIVER or "make gpu-test" in ran.stderr or "docs/gpu.md" in ran.stderr


# The commands


def test_every_file_with_tests_for_a_gpu_is_run_by_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    run = next(line for line in makefile.splitlines() if line.startswith("ON_A_GPU")).split("=")[1].split()
    marked = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if "pytest.mark." + "gpu" in path.read_text()
    ]
    assert marked
    assert [path for path in marked if not any(path.startswith(each) for each in run)] == []
