"""`mps_live` without a cluster: what is run, what runs amount to, how they compare, how one goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks.papers import mps_live
from benchmarks.papers.mps_live import cluster, setting, steps
from benchmarks.papers.mps_live.cluster import dag_definition
from benchmarks.papers.mps_live.dask_peer import dask_step, dask_up
from benchmarks.papers.mps_live.runs import (
    DASK,
    LIVE,
    DagRun,
    DagTimes,
    OverheadKey,
    OverheadRun,
    RunKey,
    TaskSpan,
    costs_of,
    gaps_s,
    mix_rows,
    overhead_rows,
    own_makespans,
    peer_rows,
    percentile,
    preemption_rows,
    read_notes,
    run_of_answers,
    run_of_spans,
    simulated_run,
    tasks_per_s,
)
from benchmarks.papers.mps_live.setting import (
    FILES,
    FUNCTIONS,
    LEAST_S,
    URGENT,
    Costs,
    EmulatedDag,
    EmulatedTask,
    OverheadPlan,
    declared,
    mix_dags,
    preemption_dags,
    step_words,
)
from benchmarks.result import Report, Row
from benchmarks.tables import TABLES
from tests.unit.benchmarks.pretended import Pretended
from yarn_accel.core.tasks.applications import check_definition
from yarn_accel.core.tasks.history import EndedTask
from yarn_accel.core.tasks.service.submission import app_document, check_orders, parse_app
from yarn_accel.errors import JobError

COSTS = Costs(0.2, 20e6)


# ---- what is run


@pytest.mark.parametrize("number", range(5))
def test_a_mix_has_six_dags_of_two_classes_and_no_short_task(number: int) -> None:
    dags = mix_dags(number)
    assert sorted(dag.priority_class.word for dag in dags) == ["basic"] * 4 + ["high"] * 2
    assert len({dag.name for dag in dags}) == 6
    assert all(task.wait_s >= LEAST_S for dag in dags for task in dag.tasks)
    assert dags == mix_dags(number)
    assert dags != mix_dags(number + 1)


@pytest.mark.parametrize("task_s", [0.2, 0.5])
@pytest.mark.parametrize("number", range(5))
def test_the_preemptive_dag_meets_a_full_cluster_whose_tasks_last_a_tenth_of_its_makespan(
    number: int, task_s: float
) -> None:
    dags = preemption_dags(number)
    run = simulated_run("preemption", number, dags, replace(COSTS, task_s=task_s))
    urgent = run.dags[URGENT]
    running = [each for each in run.tasks if each.start_s <= urgent.arrival_s < each.end_s]
    assert len(running) == setting.N_MACHINES
    basic_s = max(each.end_s - each.start_s for each in run.tasks if each.dag != URGENT)
    assert basic_s <= 0.09 * (urgent.end_s - urgent.arrival_s)
    assert urgent.slowdown >= 0.8
    assert max(run.dags[name].end_s for name in ("filling-1", "filling-2")) >= urgent.end_s - 3


def test_tasks_come_after_those_they_need_and_cost_what_is_declared() -> None:
    dag = EmulatedDag("d", (EmulatedTask("a", 2.0), EmulatedTask("b", 3.0, ("a",))))
    assert [task.runtime_s for task in declared(dag, COSTS).tasks] == [2.25, 3.3]
    assert own_makespans([dag], COSTS) == {"d": pytest.approx(5.55)}
    for dag in [*mix_dags(0), *preemption_dags(0), *setting.cost_dags(10)]:
        seen: set[str] = set()
        for task in dag.tasks:
            assert seen >= set(task.after)
            seen.add(task.task)


# ---- what a task does


def test_a_command_reads_waits_leaves_its_file_and_notes_its_times(tmp_path: Path) -> None:
    dag = EmulatedDag("d", (EmulatedTask("a", 0.01), EmulatedTask("b", 0.02, ("a",))), file_bytes=1000)
    notes = tmp_path / "notes"
    for task in dag.tasks:
        command = [sys.executable, "-I", "-S", steps.__file__, *step_words(dag, task, str(notes))]
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "NM_HOST": "w1"}, check=True)
    first, second = read_notes(notes.read_text())
    assert (first.dag, first.task, second.task, second.machine) == ("d", "a", "b", "w1")
    assert second.start_s >= first.end_s >= first.start_s + 0.01
    assert (tmp_path / "b.out").stat().st_size == 1000
    (tmp_path / "a.out").write_bytes(b"short")
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (refused.returncode, len(read_notes(notes.read_text()))) == (1, 2)
    assert "read 5 bytes of a, not 1000" in refused.stderr


@pytest.mark.parametrize("file_bytes", [0, 1000])
def test_the_service_takes_a_dag_with_and_without_files(file_bytes: int) -> None:
    for dag in (replace(each, file_bytes=file_bytes) for each in mix_dags(0)):
        places = Path("/notes"), "hdfs:///live/run-1", "hdfs:///zip"
        found = dag_definition(dag, f"{dag.name}-1", COSTS, *places)
        check_definition(found)
        assert parse_app(json.loads(json.dumps(app_document(found)))) == found
        check_orders(found)
        assert found.dag is not None
        assert found.dag.priority_class is dag.priority_class
        times = [task.runtime_s for task in declared(dag, COSTS).tasks]
        assert [task.runtime_s for task in found.tasks] == times


def test_a_worker_of_dask_reads_waits_writes_and_notes_its_times(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes", f"file://{tmp_path}/files"
    place = {"notes": str(notes), "folder": folder, "conf_dir": str(tmp_path)}
    dask_step(place, "d", "a", 0.01, 1000, ())
    dask_step(place, "d", "b", 0.01, 1000, ("a",), None)
    dask_step({**place, "folder": "file:///nowhere"}, "d", "c", 0.0, 0, ("a",), None)
    assert [each.task for each in read_notes(notes.read_text())] == ["a", "b", "c"]
    assert (tmp_path / "files/d/b.out").stat().st_size == 1000
    (tmp_path / "files/d/a.out").write_bytes(b"short")
    with pytest.raises(ValueError, match="read 5 bytes of a"):
        dask_step(place, "d", "b", 0.0, 1000, ("a",), None)


class PretendedDistributed(ModuleType):
    """Of `distributed` what the peer uses; a function runs where it is submitted."""

    def __init__(self) -> None:
        super().__init__("distributed")
        self.Client = self.LocalCluster = self.pretended

    @contextmanager
    def pretended(self, *values: object, **options: object) -> Iterator[PretendedDistributed]:
        yield self

    def as_current(self) -> AbstractContextManager[PretendedDistributed]:
        return self.pretended()

    def wait_for_workers(self, n_workers: int) -> None:
        assert n_workers == setting.N_MACHINES

    def submit(self, function: Callable[..., None], *values: Any, key: str, priority: int, pure: bool) -> str:
        function(*values)
        return key

    def wait(self, futures: Sequence[str], timeout: float) -> None:
        pass

    def gather(self, futures: Sequence[str]) -> None:
        pass


def test_dask_that_starts_again_in_the_same_folder_notes_its_own_tasks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dask = ModuleType("dask")
    dask.config = SimpleNamespace(set=lambda values: nullcontext())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dask", dask)
    monkeypatch.setitem(sys.modules, "distributed", PretendedDistributed())
    tasks = EmulatedTask("a", 0.01), EmulatedTask("b", 0.01, ("a",))
    dags = [EmulatedDag("d", tasks, file_bytes=0), EmulatedDag("e", tasks[:1], file_bytes=0)]
    for repeat in range(2):
        with dask_up(tmp_path, tmp_path) as peer:
            run = peer.run(RunKey("mix", DASK, repeat), dags, COSTS)
            assert sorted((each.dag, each.task) for each in run.tasks) == [("d", "a"), ("d", "b"), ("e", "a")]


# ---- what runs amount to


DAG = EmulatedDag("d", (EmulatedTask("a", 2.0), EmulatedTask("b", 2.0, ("a",))))


def spans(*rows: tuple[str, str, float, float]) -> list[TaskSpan]:
    return [TaskSpan("d", task, machine, start_s, end_s) for task, machine, start_s, end_s in rows]


def test_a_run_is_summed_up() -> None:
    both = spans(("b", "w 1", 12.5, 14.5), ("a", "w 1", 10.2, 12.2))
    found = run_of_spans(RunKey("mix", DASK, 0), [DAG], both, {"d": (10.0, 15.0)}, {"d": 4.0}, 1.5)
    assert found.makespan_s == 5.0
    assert found.dags["d"].slowdown == 0.8
    assert [each.task for each in found.tasks] == ["a", "b"]
    again = DagRun.from_mapping(json.loads(json.dumps(found.to_mapping())))
    assert (again.key, again.dags, again.load_average) == (found.key, found.dags, 1.5)
    assert [each.start_s for each in again.tasks] == [pytest.approx(0.2), 2.5]


def test_a_run_is_what_the_service_says() -> None:
    rows = [
        list(EndedTask(task, "w1", "cpu", 100.0 + at, 102.0 + at, 0.0, 2.0, 2.0, 2.0, ""))
        for task, at in (("a", 0.5), ("b", 3.0))
    ]
    answers = {"d": {"begun_at": 100.0, "rows": rows, "dag": {"own_makespan_s": 4.0}}}
    found = run_of_answers(RunKey("mix", LIVE, 0), [DAG], answers, 0.5)
    assert (found.makespan_s, found.dags["d"].slowdown) == (5.0, 0.8)
    assert [(each.machine, each.start_s) for each in found.tasks] == [("w1", 0.5), ("w1", 3.0)]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([("a", "w", 0.0, 2.0)], "each once"),
        ([("a", "w", 0.0, 2.0), ("b", "w", 2.0, 4.0), ("b", "w", 4.0, 6.0)], "each once"),
        ([("a", "w", 0.0, 2.0), ("b", "v", 1.5, 4.0)], "before their parents"),
    ],
)
def test_a_run_that_lost_doubled_or_hurried_a_task_is_none(
    rows: list[tuple[str, str, float, float]], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        run_of_spans(RunKey("mix", LIVE, 0), [DAG], spans(*rows), {"d": (0.0, 6.0)}, {"d": 4.0}, 0.0)


def test_gaps_rates_and_percentiles_are_of_what_was_seen() -> None:
    found = spans(("a", "w", 0.0, 1.0), ("b", "v", 1.5, 2.0), ("c", "w", 1.1, 2.5))
    assert gaps_s(found) == [pytest.approx(0.1)]  # of one machine
    assert tasks_per_s(found) == pytest.approx(3 / 2.5)
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile(list(map(float, range(1, 201))), 0.99) == 198.0


def test_costs_are_what_lies_between_ends_beside_the_wait() -> None:
    small = spans(("a", "w", 0.5, 2.5), ("b", "w", 2.7, 4.7), ("c", "w", 4.9, 6.9))
    large = spans(("a", "w", 0.5, 2.5), ("b", "w", 3.1, 5.1), ("c", "w", 5.7, 7.7))
    assert costs_of(small, large, 8e6) == Costs(0.2, 20e6)


# ---- how runs compare


def live_run(
    world: str, repeat: int, dags: Sequence[EmulatedDag], factor: float, system: str = LIVE
) -> DagRun:
    """As simulated, but longer by a factor."""
    run = simulated_run(world, repeat, dags, COSTS)
    times = {
        name: DagTimes(each.arrival_s, each.arrival_s + factor * (each.end_s - each.arrival_s), each.own_s)
        for name, each in run.dags.items()
    }
    return replace(run, key=RunKey(world, system, repeat), dags=times)


def by_name(rows: Sequence[Row]) -> dict[str, Row]:
    return {row.what: row for row in rows}


def test_the_simulator_is_judged_by_the_error_of_its_makespans() -> None:
    pairs = [
        (live_run("mix", n, dags := mix_dags(n), 1.05), simulated_run("mix", n, dags, COSTS), dags)
        for n in range(5)
    ]
    rows = by_name(mix_rows(pairs))
    error = rows["mix: error of the simulated makespan"]
    assert (error.n, error.ok, error.note.split(";")[0]) == (5, True, "holds")
    assert error.value < 0.06
    assert rows["mix: mean SD of high DAGs, live"].value < rows["mix: mean SD of high DAGs, simulated"].value
    longer = [(live_run("mix", 0, dags, 1.3), simulated, dags) for _, simulated, dags in pairs[:1]]
    row = by_name(mix_rows(longer))["mix: error of the simulated makespan"]
    assert (row.ok, row.note.split(";")[0]) == (False, "does not hold")


def test_the_preemptive_dag_is_judged_by_its_slowdown() -> None:
    dags = preemption_dags(0)
    simulated = simulated_run("preemption", 0, dags, COSTS)
    rows = by_name(preemption_rows([(live_run("preemption", 0, dags, 1.02), simulated, dags)]))
    assert [row.ok for row in rows.values() if row.goal] == [True] * 4
    assert rows["preemption: basic tasks that began while the preemptive DAG ran"].value > 10
    rows = by_name(preemption_rows([(live_run("preemption", 0, dags, 1.3), simulated, dags)]))
    assert not rows["preemption: SD of the preemptive DAG, live"].ok
    assert not rows["preemption: SD, live less simulated"].ok


def test_dask_stands_beside_ours_of_the_same_repeat() -> None:
    dags = preemption_dags(1)
    simulated = simulated_run("preemption", 1, dags, COSTS)
    pairs = {
        RunKey("preemption", LIVE, 1): (live_run("preemption", 1, dags, 1.0), simulated, dags),
        RunKey("preemption", DASK, 1): (live_run("preemption", 1, dags, 1.25, DASK), simulated, dags),
        RunKey("mix", DASK, 0): (live_run("mix", 0, mix_dags(0), 1.0, DASK), simulated, mix_dags(0)),
    }
    rows = by_name(peer_rows(pairs))
    assert set(rows) == {
        "preemption: makespan, Dask",
        "preemption: makespan, ours / Dask",
        "preemption: SD of the preemptive DAG, Dask",
    }
    assert rows["preemption: makespan, ours / Dask"].value < 1


def overhead(kind: str, system: str, gap_s: float) -> OverheadRun:
    return OverheadRun(OverheadKey(kind, system), [0.1, 0.2], [gap_s] * 200, 1 / gap_s, 1000, 0.5)


def test_overhead_is_judged_for_functions_of_ours_alone() -> None:
    kinds = ((FUNCTIONS, LIVE, 0.004), (FUNCTIONS, DASK, 0.002), (FILES, LIVE, 0.3))
    runs = [overhead(*each) for each in kinds]
    found = overhead_rows({run.key: run for run in runs})
    rows = by_name(found)
    assert [row.ok for row in found if row.goal] == [True] * 4
    assert rows["functions: gap between tasks, ours / Dask"].value == pytest.approx(2.0)
    assert rows["files: end to successor's start, ours"].goal == ""
    assert OverheadRun.from_mapping(json.loads(json.dumps(runs[0].to_mapping()))) == runs[0]


# ---- the whole run over a pretended cluster


class PretendedCluster(Pretended):
    """Answers with what was simulated."""

    conf_dir = Path("nowhere")

    def measure_costs(self) -> Costs:
        self.n_measured += 1
        return COSTS

    def run(self, key: RunKey, dags: Sequence[EmulatedDag], costs: Costs) -> DagRun:
        self.note(key)
        return live_run(key.world, key.repeat, dags, 1.0, key.system)

    def measure(self, key: OverheadKey, plan: OverheadPlan) -> OverheadRun:
        self.note(key)
        return overhead(key.kind, key.system, 0.01)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> PretendedCluster:
    found = PretendedCluster()
    monkeypatch.setattr(cluster, "cluster_up", found.up)
    monkeypatch.setattr(mps_live, "dask_up", found.up)
    monkeypatch.setattr(mps_live, "is_installed", lambda: True)
    return found


def run_all(path: Path, only: Sequence[str] = (), **options: Any) -> Report:
    report = Report("mps_live", path=path)
    mps_live.run(False, lambda line: None, report, only=only, **options)
    return report


def test_five_repeats_of_ours_stand_beside_three_of_the_peer() -> None:
    keys = mps_live.plan(mps_live.SECTIONS, is_quick=False)
    assert len(keys) == len(set(keys)) == 2 * 5 + 2 * 3 + 4
    assert [str(key) for key in keys[:2]] == ["overhead of functions, live", "overhead of files, live"]
    listed = ["mix 1, live", "preemption 1, live", "mix 1, dask", "preemption 1, dask"]
    assert [str(key) for key in keys[4:8]] == listed
    assert mps_live.plan(("mix",), is_quick=True) == [RunKey("mix", LIVE, 0)]


def test_a_run_that_breaks_keeps_what_it_has_and_another_one_adds_the_rest(
    pretended: PretendedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    pretended.break_at = 6
    with pytest.raises(JobError):
        run_all(path)
    assert len(json.loads(path.read_text())["series"]["runs"]) == 2
    pretended.break_at = -1
    report = run_all(path, resume=True)
    assert pretended.ran == mps_live.plan(mps_live.SECTIONS, is_quick=False)
    assert pretended.n_measured == 1
    rows = by_name(report.rows)
    assert rows["mix: error of the simulated makespan"].n == 5
    assert rows["mix: makespan, ours / Dask"].n == 3
    drawn = mps_live.draw(report, str(tmp_path / "r"))
    assert [Path(each).name for each in drawn] == ["r-mix.png", "r-preemption.png"]


def test_without_dask_the_rest_is_measured(
    pretended: PretendedCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mps_live, "is_installed", lambda: False)
    report = run_all(tmp_path / "r.json", only=("overhead", "peer"))
    assert pretended.ran == [OverheadKey(FUNCTIONS, LIVE), OverheadKey(FILES, LIVE)]
    assert pretended.n_measured == 0
    row = by_name(report.rows)["peer: Dask distributed"]
    assert (row.n, row.note) == (0, "not measured: install [peers]")


def test_the_table_has_every_figure_with_its_verdict(pretended: PretendedCluster, tmp_path: Path) -> None:
    run_all(tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    lines = TABLES["mps-live"]({"mps_live": document})
    assert len(lines) == 1 + len(document["rows"]) + 3
    [error] = [line for line in lines if line.startswith("mix: error of the simulated makespan")]
    assert error.split()[-4:] == ["5", "<=", "0.1", "holds"]
    assert max(map(len, lines)) < 140
