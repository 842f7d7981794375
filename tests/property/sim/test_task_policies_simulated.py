"""What a reader of the HDAS paper may expect of each policy in the simulator, of any applications."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.hdas_paper.paper import MIXES, SETS, mix_world
from tests.examples import examples
from yarn_accel.core.tasks.outcome import RunOutcome, TaskOutcome
from yarn_accel.core.tasks.policies import registry
from yarn_accel.core.tasks.values import Form
from yarn_accel.sim.simulator import Simulation, simulate
from yarn_accel.sim.world import World, world_of

PAPERS = ("fifo", "model", "hdas")
ALL = (*PAPERS, "hdas+")


def run(values: dict[str, Any], policy: str, *, learns: bool = False) -> RunOutcome:
    world = world_of({**values, "policy": policy}, "test")
    decider = registry.make(policy, {"learns": learns})
    simulation = Simulation(world, decider)
    outcome = simulation.run()
    simulation.table.validate()
    return outcome


def mix(letter: str, policy: str, **changes: Any) -> RunOutcome:
    return run(mix_world(MIXES[letter], SETS["S2"], policy, **changes), policy)


# Any world


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    seconds = st.floats(0.1, 100.0)
    bandwidth_mb_s = draw(st.floats(50.0, 500.0))
    apps = []
    for number in range(draw(st.integers(1, 4))):
        forms = draw(st.sampled_from(["both", "both", "cpu", "gpu"]))
        app: dict[str, Any] = {
            "name": f"app-{number}",
            "tasks": draw(st.integers(1, 12)),
            "split_mb": draw(st.floats(1.0, 1000.0)),
            "priority": draw(st.integers(0, 1)),
            "is_learned": draw(st.booleans()),
        }
        # No task reads faster than the disk gives.
        least_s = 1.001 * app["split_mb"] / bandwidth_mb_s
        if forms != "gpu":
            app["cpu"] = {"read_s": max(draw(seconds), least_s)}
        if forms != "cpu":
            app["gpu"] = {"read_s": max(draw(seconds), least_s), "compute_s": draw(seconds)}
        apps.append(app)
    nodes = [
        {"name": "first", "count": draw(st.integers(1, 3)), "cores": draw(st.integers(2, 4)), "gpus": 2},
        {"name": "other", "cores": draw(st.integers(1, 4)), "gpus": draw(st.integers(0, 1))},
    ]
    return {
        "disks": {"disk": {"bandwidth_mb_s": bandwidth_mb_s, "gamma": 0.1}},
        "nodes": nodes,
        "apps": apps,
        "options": {
            "overhead_s": draw(st.sampled_from([0, 0.5])),
            "heartbeat_s": draw(st.sampled_from([0, 1])),
        },
    }


def busy(tasks: list[TaskOutcome], world: World) -> Iterator[tuple[int, int]]:
    """(cores, GPUs) that are held after each start on one node."""
    demands = {app.spec.app: app.spec.demands for app in world.apps}
    changes = []
    for task in tasks:
        demand = demands[task.app][task.form]
        changes += [(task.start_s, 1, demand.cores, demand.gpus)]
        changes += [(task.end_s, 0, -demand.cores, -demand.gpus)]
    cores = gpus = 0
    for _, _, more_cores, more_gpus in sorted(changes):
        cores, gpus = cores + more_cores, gpus + more_gpus
        yield cores, gpus


@pytest.mark.parametrize("policy", ALL)
@given(values=worlds())
@settings(max_examples=examples(150), deadline=None)
def test_every_task_runs_once_within_its_nodes_limits(policy, values) -> None:
    world = world_of(values, "test")
    outcome = run(values, policy, learns=True)
    assert len({task.task for task in outcome.tasks}) == len(outcome.tasks)
    assert {app.name: app.tasks for app in world.apps} == {
        app: sum(task.app == app for task in outcome.tasks) for app in outcome.apps
    }
    on_node = defaultdict(list)
    for task in outcome.tasks:
        on_node[task.node].append(task)
        disk = world.disks["disk"]
        app = next(app for app in world.apps if app.name == task.app)
        request_mb_s = app.split_mb / app.forms[task.form].read_s
        assert task.delay >= 1 - 1e-9 or request_mb_s > disk.bandwidth_mb_s
    for spec, _ in world.resources():
        for cores, gpus in busy(on_node[spec.node], world):
            assert 0 <= cores <= spec.cores
            assert 0 <= gpus <= spec.gpus


@pytest.mark.parametrize("policy", ALL)
@given(values=worlds())
@settings(max_examples=examples(50), deadline=None)
def test_nobody_is_delayed_where_the_disk_gives_all_that_is_requested(policy, values) -> None:
    values["disks"]["disk"] = {"bandwidth_mb_s": 1e6}
    assert all(task.delay == pytest.approx(1.0) for task in run(values, policy).tasks)


def permuted(key: int) -> Callable[[list[Callable[[], None]]], None]:
    """Puts what one heartbeat says into another order; starts stay before ends."""

    def rank(fact: Any) -> tuple[bool, int]:
        text = f"{fact.func.__name__}{fact.args}{key}"
        return fact.func.__name__ == "_note_end", zlib.crc32(text.encode())

    return lambda facts: facts.sort(key=rank)


@pytest.mark.parametrize("policy", ALL)
@given(values=worlds(), key=st.integers(0, 1000))
@settings(max_examples=examples(50), deadline=None)
def test_the_order_of_events_of_one_moment_changes_nothing(policy, values, key) -> None:
    # At once each report comes alone; at a heartbeat, and where applications start together, several do.
    values = {**values, "options": {"heartbeat_s": 5, "apps_start_every_s": 0}}
    world = world_of({**values, "policy": policy}, "test")
    plain = simulate(world, registry.make(policy, {"learns": False}))
    shuffled = Simulation(world, registry.make(policy, {"learns": False}), shuffle=permuted(key)).run()
    assert plain == shuffled


# The paper's mixes


def test_i_is_the_same_under_the_papers_policies_and_undisturbed() -> None:
    outcomes = [mix("I", policy) for policy in PAPERS]
    times_s = [outcome.makespan_s for outcome in outcomes]
    assert max(times_s) <= 1.01 * min(times_s)
    assert all(outcome.mean_delay <= 1.02 for outcome in outcomes)
    assert mix("I", "hadoop").makespan_s > 21 * max(times_s)


def test_c_cannot_be_helped() -> None:
    hadoop_s = mix("C", "hadoop").makespan_s
    for policy in PAPERS:
        outcome = mix("C", policy)
        assert hadoop_s / outcome.makespan_s < 2.95
        assert outcome.mean_delay == pytest.approx(3.0, abs=0.25)


def test_readers_and_others_are_kept_apart_in_p() -> None:
    fifo, model, hdas, guarded = (mix("P", policy) for policy in ALL)
    assert min(fifo.mean_delay, model.mean_delay) > 1.5
    assert max(hdas.mean_delay, guarded.mean_delay) <= 1.06
    assert fifo.makespan_s > model.makespan_s > hdas.makespan_s > guarded.makespan_s


def test_hdas_loses_its_lead_where_the_bandwidth_it_is_given_is_tiny() -> None:
    disks = {"sata": {"bandwidth_mb_s": 128.0, "gamma": SETS["S2"].gamma, "declared_mb_s": 1.0}}
    model, hdas, misled = mix("P", "model"), mix("P", "hdas"), mix("P", "hdas", disks=disks)
    assert hdas.makespan_s < model.makespan_s < misled.makespan_s
    assert hdas.mean_delay < 1.1 < model.mean_delay < misled.mean_delay


@pytest.mark.parametrize("name", ["KNN", "BP"])
def test_with_one_application_hdas_is_fifo(name) -> None:
    world = mix_world((name,), SETS["S2"], "fifo")
    assert run(world, "hdas").makespan_s == run(world, "fifo").makespan_s


@pytest.mark.parametrize("letter", ["P", "Y"])
def test_hdas_serves_every_application_as_soon_as_a_task_ends(letter) -> None:
    outcome = mix(letter, "hdas")
    longest_s = max(task.end_s - task.start_s for task in outcome.tasks if task.form is Form.GPU)
    for app, each in outcome.apps.items():
        first_s = min(task.start_s for task in outcome.tasks if task.app == app)
        assert first_s - each.start_s <= longest_s
