"""`mps` is fair where equation (3), read as the paper has it, was not; `high` is no disadvantage."""

from __future__ import annotations

import random

import pytest

from benchmarks.papers.fair import layers
from tests.fixtures.dag_worlds import check_outcome
from yarn_accel.core.dags.model import Dag, DagEdge, DagId, DagTask, Machine, PriorityClass
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.dags.generator import DagShape, random_dag
from yarn_accel.sim.dag_simulator import simulate_dags
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay


def machines(*speeds: float) -> tuple[MachineStay, ...]:
    return tuple(MachineStay(Machine(ResourceId(f"m{n}"), speed)) for n, speed in enumerate(speeds))


def chain(n_tasks: int, seconds: float) -> Dag:
    tasks = tuple(DagTask(f"t{n}", seconds) for n in range(n_tasks))
    return Dag("chain", tasks, tuple(DagEdge(f"t{n}", f"t{n + 1}") for n in range(n_tasks - 1)))


def bag(n_tasks: int, seconds: float) -> Dag:
    return Dag("bag", tuple(DagTask(f"b{n}", seconds) for n in range(n_tasks)))


def run(world: DagWorld, policy: str = "mps") -> RunOutcome:
    outcome = simulate_dags(world, make_dag_policy(policy, world.bandwidth_bytes_per_s))
    check_outcome(world, outcome)
    return outcome


def test_a_deep_dag_does_not_starve_beside_a_wide_one() -> None:
    """Its tasks that wait for parents once counted as if they could start at once: unfairness was .381."""
    dags = (DagArrival(DagId("chain"), chain(50, 10.0)), DagArrival(DagId("bag"), bag(200, 20.0)))
    world = DagWorld(1e9, machines(1, 1, 1, 1), dags)
    outcome = run(world)
    assert outcome.fairness.unfairness <= 0.15
    assert outcome.makespan_s <= 1.02 * run(world, "merged_heft").makespan_s


@pytest.mark.parametrize("n_dags", [25, 50])
def test_equal_dags_at_once_move_little_and_leave_none_behind(n_dags: int) -> None:
    """25 of them once made 1,436 moves for 500 tasks."""
    dag = layers(random.Random(5))
    arrivals = tuple(DagArrival(DagId(f"d{n}"), dag) for n in range(n_dags))
    world = DagWorld(1e6, machines(1, 1, 2, 0.5, 1, 1, 2, 0.5), arrivals)
    outcome, first_come = run(world), run(world, "fcfs")
    found, others = ([each.slowdown for each in one.apps.values()] for one in (outcome, first_come))
    assert outcome.moved <= len(outcome.tasks)
    assert min(found) >= 0.98 * min(others)
    assert sum(found) > sum(others)


@pytest.mark.parametrize("seed", range(4))
def test_a_dag_does_not_end_later_as_high_than_as_basic(seed: int) -> None:
    """Planned basic tasks once kept their times against it, though not against their peers."""

    def slowdown(priority_class: PriorityClass) -> float:
        rng = random.Random(seed)
        dags = [random_dag(f"d{n}", DagShape(20), rng, 10.0, 1e8) for n in range(8)]
        classes = [priority_class, *[PriorityClass.BASIC] * 7]
        arrivals = tuple(
            DagArrival(DagId(dag.name), dag, rng.uniform(0, 100), its)
            for dag, its in zip(dags, classes, strict=True)
        )
        return run(DagWorld(1e8, machines(1, 1, 2, 0.5), arrivals)).apps["d0"].slowdown

    basic, high, preemptive = map(
        slowdown, (PriorityClass.BASIC, PriorityClass.HIGH, PriorityClass.PREEMPTIVE)
    )
    assert high >= basic
    assert preemptive >= high


def test_a_gap_loses_against_an_idle_machine() -> None:
    """The preemptive DAG leaves a gap on m0 while its second task's input travels; m1 has nothing to do."""
    fork = Dag(
        "p",
        (DagTask("a", 10.0), DagTask("b", 10.0), DagTask("c", 10.0)),
        (DagEdge("a", "c", 0.0), DagEdge("b", "c", 30.0)),
    )
    arrivals = (
        DagArrival(DagId("p"), fork, 0.0, PriorityClass.PREEMPTIVE),
        DagArrival(DagId("basic"), bag(2, 5.0), 10.0),
    )
    outcome = run(DagWorld(1.0, machines(1, 1, 1), arrivals))
    assert max(task.start_s for task in outcome.tasks if task.app == "basic") == 10.0


@pytest.mark.parametrize(("moves_when_placed", "start_s"), [(False, 40.0), (True, 50.0)])
def test_files_move_when_they_are_made_or_when_a_task_is_placed(
    moves_when_placed: bool, start_s: float
) -> None:
    """`b` is queued at m1 when `y` starts there, at 20 s; what it takes is made at 5 s on m0."""
    there, here = (
        {ResourceId("m0"): 1000.0, ResourceId("m1"): 20.0},
        {
            ResourceId("m0"): 5.0,
            ResourceId("m1"): 1000.0,
        },
    )
    tasks = (DagTask("a", None, here), *(DagTask(name, None, there) for name in "xyb"))
    dag = Dag("d", tasks, (DagEdge("a", "b", 30.0),))
    world = DagWorld(1.0, machines(1, 1), (DagArrival(DagId("d"), dag),), moves_when_placed)
    assert {task.task: task.start_s for task in run(world, "fcfs").tasks}["b"] == start_s
