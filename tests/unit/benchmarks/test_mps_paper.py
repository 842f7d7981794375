"""The worlds of the benchmark mps_paper, and the generator behind them."""

from __future__ import annotations

import random
import statistics

import pytest
from click.testing import CliRunner

from benchmarks.papers.mps_paper import (
    POLICIES,
    Cell,
    CellResult,
    _mixed_claims,
    _preemptive_claims,
    _same_claims,
    by_seed_row,
    example_rows,
    interval,
    world_of_cell,
)
from benchmarks.papers.mps_paper.scale import main as large_world_main
from benchmarks.papers.report.claims import CLAIMS
from tests.fixtures.dag_worlds import check_outcome
from yarn_accel.core.dags.heft import heft
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.dags.generator import DagShape, random_dag
from yarn_accel.errors import ConfigError
from yarn_accel.sim.dag_simulator import simulate_dags


def test_an_interval() -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert (mean, round(high - mean, 3), round(mean - low, 3)) == (2.0, 2.484, 2.484)


def test_worlds_of_one_seed_count_once() -> None:
    """The same DAGs at four points are no four experiments."""
    seeds = [0.1, -0.02, 0.06, 0.01]
    once, four = by_seed_row("w", [seeds], "0"), by_seed_row("w", [seeds] * 4, "0")
    assert (once.n, once.interval, once.value) == (four.n, four.interval, four.value)
    assert once.interval[0] < 0 < once.value
    assert four.note.startswith("16 worlds of 4 seeds")


def test_figure_3_comes_out() -> None:
    for row in example_rows():
        assert row.value == pytest.approx(float(row.goal.removeprefix("paper: ")), abs=5e-4)


def test_every_row_that_the_report_judges_is_made() -> None:
    results = [CellResult(1.0 + seed, 0.5, 0.5, 0, 36.0, 1.0) for seed in range(3)]
    found = {(policy, point): results for policy in POLICIES for point in (3, 10)}
    made = {row.what for row in (*_same_claims(found), *_mixed_claims(found), *_preemptive_claims(found))}
    made |= {row.what for row in example_rows()}
    named = {what for claim in CLAIMS if claim.result == "mps_paper" for _, what in claim.rows}
    assert named <= made


@pytest.mark.parametrize(("kind", "point"), [("same", 3), ("mixed", 3), ("preemptive", 10)])
def test_worlds_run(kind, point) -> None:
    world = world_of_cell(Cell(kind, "mps", point, 0))
    assert world == world_of_cell(Cell(kind, "fcfs", point, 0))
    check_outcome(world, simulate_dags(world, make_dag_policy("mps", 1.0)))


def test_the_preemptive_dag_takes_36_s_alone() -> None:
    world = world_of_cell(Cell("preemptive", "mps", 20, 3))
    first = world.dags[0]
    machines = [stay.machine for stay in world.machines]
    assert heft(first.dag, machines, 1.0).makespan_s == pytest.approx(36)
    assert (first.arrival_s, first.priority_class) == (20, PriorityClass.PREEMPTIVE)
    assert len(world.dags) == 12


def test_a_random_dag_has_its_shape() -> None:
    shape = DagShape(200, fat=0.5, density=0.5, regularity=1.0, ratio=2.0)
    dag = random_dag("d", shape, random.Random(1), 10.0, 1.0)
    depth = [0] * 200
    for number in dag.topological:
        depth[number] = max((depth[parent] + 1 for parent, _ in dag.parents[number]), default=0)
    sizes = [depth.count(level) for level in range(max(depth) + 1)]
    assert set(sizes[:-1]) == {14}
    assert statistics.fmean(task.runtime_s for task in dag.tasks) == pytest.approx(10)
    assert statistics.fmean(edge.n_bytes for edge in dag.edges) == pytest.approx(20)
    assert all(1 <= len(each) <= 8 for number, each in enumerate(dag.parents) if depth[number])


def test_classes_of_operations_differ_in_their_ratio() -> None:
    """d^3 operations on d^2 data: more computation per byte than op d^2."""

    def ratio(complexity: int) -> float:
        shape = DagShape(100, complexity=complexity)
        dag = random_dag("d", shape, random.Random(2), 10.0, 1e8)
        return statistics.fmean(edge.n_bytes for edge in dag.edges) / 1e8 / 10.0

    assert ratio(3) < ratio(2) < ratio(1)


@pytest.mark.parametrize(
    "wrong",
    [{"n_tasks": 0}, {"n_tasks": 5, "fat": 2}, {"n_tasks": 5, "complexity": 4}, {"n_tasks": 5, "ratio": -1}],
)
def test_an_impossible_shape_is_refused(wrong) -> None:
    with pytest.raises(ConfigError, match="shape of a DAG"):
        DagShape(**wrong)


def test_the_large_world_goes_on_where_it_was_stopped(tmp_path) -> None:
    options = ["--dags", "2", "--checkpoint", str(tmp_path / "large.checkpoint")]
    first = CliRunner().invoke(large_world_main, [*options, "--events", "40"])
    assert first.stdout.startswith("events 0 to 40, 3")
    rest = CliRunner().invoke(large_world_main, options)
    assert rest.stdout.startswith("events 40 to 201, 200 of 200 tasks ended")
