"""What holds for every policy over DAGs, in any small world."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fixtures.dag_worlds import check_outcome, random_world
from tests.fixtures.plain_mps import PlainMpsPolicy, plain_slowdown
from yarn_accel.core.dags.model import Dag, DagId, DagTask, Machine, PriorityClass
from yarn_accel.core.dags.policies.base import DagPolicy, DagPolicyOptions
from yarn_accel.core.dags.policies.mps import MpsPolicy
from yarn_accel.core.dags.policies.registry import DAG_POLICIES, make_dag_policy
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.sim.dag_simulator import DagSimulation, simulate_dags
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

CLASSES = st.sampled_from(
    [
        (PriorityClass.BASIC,),
        (PriorityClass.HIGH, PriorityClass.BASIC),
        tuple(PriorityClass),
    ]
)
worlds = st.builds(
    lambda seed, n_dags, n_machines, classes, is_elastic, moves_when_placed: replace(
        random_world(
            random.Random(seed),
            n_dags=n_dags,
            n_machines=n_machines,
            classes=classes,
            is_elastic=is_elastic,
        ),
        moves_when_placed=moves_when_placed,
    ),
    st.integers(0, 10**9),
    st.integers(1, 6),
    st.integers(1, 4),
    CLASSES,
    st.booleans(),
    st.booleans(),
)
NEAR = "mps that plans one task a machine"
policies = st.sampled_from([NEAR, *sorted(DAG_POLICIES)])


class NearMpsPolicy(MpsPolicy):
    """Estimates all but the next tasks, and seldom orders DAGs."""

    most_far = 0
    order_every = 3

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        super().__init__(bandwidth_bytes_per_s)
        self.horizon = 1


def make_policy(name: str, world: DagWorld) -> DagPolicy:
    bandwidth = world.bandwidth_bytes_per_s
    return NearMpsPolicy(bandwidth) if name == NEAR else make_dag_policy(name, bandwidth)


def drawn(seed: int, n_dags: int, n_machines: int, classes=tuple(PriorityClass)) -> DagWorld:
    """A world whose machines come and go."""
    rng = random.Random(seed)
    return random_world(rng, n_dags=n_dags, n_machines=n_machines, classes=classes, is_elastic=True)


@settings(max_examples=examples(120), deadline=None)
@given(worlds, policies)
# A machine leaves whose task has a parent on the last one; a parent of no length, its child beside it.
@example(drawn(65, 2, 3), "mps")
@example(drawn(103, 5, 3), "merged_heft")
def test_precedence_transfers_and_machines_are_kept(world, name) -> None:
    policy = make_policy(name, world)
    simulation = DagSimulation(world, policy)
    while simulation.step():
        policy.validate()
    check_outcome(world, simulation.outcome())


@settings(max_examples=examples(100), deadline=None)
@given(worlds, policies, st.integers(0, 10**6))
def test_the_order_of_simultaneous_events_changes_nothing(world, name, seed) -> None:
    def run(shuffle=None):
        return DagSimulation(world, make_policy(name, world), shuffle).run()

    assert run().as_json() == run(random.Random(seed).shuffle).as_json()


@settings(max_examples=examples(120), deadline=None)
@given(worlds, st.sampled_from([0, 1, 8]), st.sampled_from([0.5, 10.0]))
# An overdue task ran on a machine that left, and was planned no more.
@example(drawn(249, 4, 2), 1, 0.5)
# A task that fits exactly into a gap was kept out by a rounding.
@example(drawn(2688, 4, 2), 8, 0.5)
def test_mps_equals_the_plain_r1_task_by_task(world, most_moves, overdue_after) -> None:
    options = DagPolicyOptions(most_moves=most_moves, overdue_after=overdue_after)
    fast, plain = (
        simulate_dags(world, kind(world.bandwidth_bytes_per_s, options))
        for kind in (MpsPolicy, PlainMpsPolicy)
    )
    assert [(t.app, t.task, t.node, t.start_s, t.end_s) for t in fast.tasks] == [
        (t.app, t.task, t.node, t.start_s, t.end_s) for t in plain.tasks
    ]
    assert fast.moved == plain.moved


@settings(max_examples=examples(100), deadline=None)
@given(worlds)
def test_slowdown_by_equation_3_becomes_that_of_equation_2(world) -> None:
    policy = make_dag_policy("mps", world.bandwidth_bytes_per_s)
    simulation = DagSimulation(world, policy)
    last = {}
    while simulation.step():
        last.update(policy.state.dags)
    outcome = simulation.outcome()
    for name, dag in last.items():
        end_s = outcome.apps[name].end_s
        assert plain_slowdown(dag, end_s) == pytest.approx(outcome.apps[name].slowdown, abs=1e-6)


@settings(max_examples=examples(100), deadline=None)
@given(worlds, st.integers(0, 4))
def test_take_back_is_bounded(world, most_moves) -> None:
    options = DagPolicyOptions(most_moves=most_moves)
    outcome = simulate_dags(world, MpsPolicy(world.bandwidth_bytes_per_s, options))
    n_left = sum(stay.leaves_s < float("inf") for stay in world.machines)
    assert outcome.moved <= (most_moves + n_left) * len(outcome.tasks)


def test_take_back_is_bounded_where_all_slowdowns_are_equal() -> None:
    dag = Dag("d", tuple(DagTask(f"t{n}", 3.0) for n in range(5)))
    machines = tuple(MachineStay(Machine(ResourceId(f"m{n}"))) for n in range(2))
    world = DagWorld(1.0, machines, tuple(DagArrival(DagId(f"d{n}"), dag) for n in range(6)))
    outcome = simulate_dags(world, MpsPolicy(1.0, DagPolicyOptions(most_moves=1)))
    check_outcome(world, outcome)
    assert outcome.moved <= 30


@settings(max_examples=min(10, examples(60)), deadline=None)
@given(worlds, policies, st.integers(0, 10**6))
# It forgot in which queue a task had been that waits for parents.
@example(drawn(0, 4, 3, (PriorityClass.BASIC,)), "fairness-fpct", 1)
def test_a_run_that_is_resumed_ends_the_same(world, name, seed) -> None:
    rng = random.Random(seed)
    whole = simulate_dags(world, make_policy(name, world))
    lines: list[str] = []
    is_over = False
    while not is_over:
        simulation = DagSimulation(world, make_policy(name, world))
        simulation.restore(lines)
        is_over = not all(simulation.step() for _ in range(rng.randint(10, 60)))
        lines.append(simulation.checkpoint())
    found, expected = simulation.outcome().as_json(), whole.as_json()
    # What was planned before a stop no longer knows when it would have ended elsewhere.
    for task in (*found["tasks"], *expected["tasks"]):
        task.pop("reason")
    assert found == expected


@settings(max_examples=min(10, examples(40)), deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 3))
def test_no_class_starves_and_none_takes_more_than_its_share(seed, n_machines) -> None:
    """A basic DAG beside preemptive ones that leave no machine idle.

    Each of its tasks waits `overdue_after` own makespans, then until the share of the machines' time that is
    saved pays for the overdue tasks before it and itself, and for what runs: the bound of docs/mps.md.
    """
    rng = random.Random(seed)
    stream = Dag("s", (DagTask("t", 2.0),))
    preemptive = PriorityClass.PREEMPTIVE
    arrivals = [
        DagArrival(DagId(f"s{n:03}"), stream, n // n_machines, preemptive) for n in range(120 * n_machines)
    ]
    basic = Dag("basic", tuple(DagTask(f"b{n}", rng.uniform(0.5, 2)) for n in range(4)))
    machines = tuple(MachineStay(Machine(ResourceId(f"m{n}"))) for n in range(n_machines))
    world = DagWorld(1.0, machines, (*arrivals, DagArrival(DagId("basic"), basic, 3.0)))
    outcome = simulate_dags(world, MpsPolicy(1.0, DagPolicyOptions(overdue_after=2.0)))
    overdue_s = 3.0 + 2.0 * outcome.apps["basic"].own_makespan_s
    share = DagPolicyOptions().overdue_share * n_machines
    tasks = [task for task in outcome.tasks if task.app == "basic"]
    work_s = sum(task.end_s - task.start_s for task in tasks)
    longest_s = 2.0
    # Half of the share may be the preemptive class's, whose tasks become overdue, too.
    bound_s = overdue_s + work_s / (share / 2) + 2 * longest_s
    busy_until_s = max(task.end_s for task in outcome.tasks if task.app != "basic")
    assert bound_s < busy_until_s, "the stream would have to go on longer"
    assert all(task.start_s <= bound_s for task in tasks)
    taken_s = 0.0
    for task in tasks:
        taken_s += task.end_s - task.start_s
        assert taken_s <= share * (task.start_s - overdue_s) + 1e-6, "more than the share, or too early"


@given(worlds, policies, st.integers(0, 10**6))
@settings(max_examples=examples(100))
def test_what_a_policy_keeps_may_be_dropped_at_any_moment(world, name, seed) -> None:
    expected = simulate_dags(world, make_policy(name, world)).as_json()
    rng, policy = random.Random(seed), make_policy(name, world)
    simulation = DagSimulation(world, policy)
    while simulation.step():
        for dag in policy.state.dags.values():
            if rng.random() < 0.5:
                dag.drop_caches()
    assert simulation.outcome().as_json() == expected
