"""What a task service keeps for reports: what became of tasks, over masters and shortened journals."""

import dataclasses

import pytest

from tests.unit.core.tasks.service.policies import first_come
from tests.unit.core.tasks.service.world import SETTINGS, SMALL, STARTED_AT, World, app
from yarn_accel.core.tasks.history import EndedTask
from yarn_accel.core.tasks.service import events as ev
from yarn_accel.core.tasks.values import AppFigures, AppId, Form, FormFigures


def declared(definition, read_s=0.25, compute_s=0.25):
    """The application with figures of its owner."""
    figures = AppFigures(1.0, {Form.CPU: FormFigures(read_s, compute_s)})
    return dataclasses.replace(definition, spec=dataclasses.replace(definition.spec, declared=figures))


def outcome(world, name="a", first=0):
    return world.service.outcome(AppId(name), first)


def ran(*definitions, settings=SETTINGS):
    world = World(first_come, settings=settings)
    for definition in definitions:
        world.submit(definition)
    world.calm()
    return world


def test_what_became_of_each_task_is_kept():
    world = ran(declared(app("a", 5)))
    found = outcome(world)
    assert (found["state"], found["n_rows"], found["demands"]) == ("done", 5, [["cpu", 1, 0]])
    assert found["begun_at"] == STARTED_AT
    assert STARTED_AT < found["ended_at"] <= STARTED_AT + world.now_s
    tasks = [EndedTask(*row) for row in found["rows"]]
    assert sorted(task.name for task in tasks) == [str(number) for number in range(5)]
    for task in tasks:
        assert task.node.startswith("node-w")
        assert (task.form, task.reason) == ("cpu", "there is a core")
        assert STARTED_AT <= task.started_at < task.ended_at <= found["ended_at"]
        # 1 s of wall time, of which reading and computing took half a second each; declared is half of that.
        assert task.ended_at - task.started_at == pytest.approx(1.0)
        assert (task.overhead_s, task.compute_s, task.alone_s) == (0.0, 0.5, 0.5)
        assert task.delay == pytest.approx(2.0)


def test_a_delay_is_not_known_where_nobody_said_or_measured_what_a_task_takes_alone():
    tasks = [EndedTask(*row) for row in outcome(ran(app("a", 2)))["rows"]]
    assert [(task.alone_s, task.delay) for task in tasks] == [(None, None)] * 2


def test_the_overhead_of_a_task_is_no_delay():
    task = EndedTask("0", "n1", "gpu", 100.0, 110.0, 4.0, 3.0, 3.0, 4.5, "")
    assert task.delay == pytest.approx(10 / 7)
    assert task.predicted_delay == pytest.approx(1.5)
    assert task._replace(overhead_s=None).delay is None
    assert task._replace(predicted_s=None).predicted_delay is None


def known(world):
    """All but the counts: what runs is known to run when its worker has reported."""
    found = {name: outcome(world, name) for name in "abc"}
    return {name: {**each, "tasks": each["tasks"]["done"]} for name, each in found.items()}


@pytest.mark.parametrize("is_shortened", [False, True])
def test_a_later_master_knows_the_same(is_shortened):
    world = ran(declared(app("a", 4)), declared(app("b", 3)))
    world.submit(app("c", 6, output=""))
    world.run(6)
    if is_shortened:
        world.apply(ev.JournalFailed(world.now_s))
    before = known(world)
    assert before["c"]["n_rows"]
    world.start_master()
    assert known(world) == before
    world.calm()
    assert outcome(world, "c")["n_rows"] == 6


def test_long_answers_come_in_parts(monkeypatch):
    monkeypatch.setattr("yarn_accel.core.tasks.service.views.MAX_OUTCOME_TASKS", 3)
    world = ran(app("a", 5))
    rows = outcome(world)["rows"] + outcome(world, first=3)["rows"]
    assert len(outcome(world)["rows"]) == 3
    assert {row[0] for row in rows} == {str(number) for number in range(5)}
    assert outcome(world, first=5)["rows"] == []


def test_the_tasks_of_the_applications_that_ended_longest_ago_are_dropped():
    world = World(first_come, settings=dataclasses.replace(SETTINGS, n_ended_tasks=6))
    world.add_worker(SMALL)
    for name in "abc":
        world.submit(app(name, 3))
        world.calm()
    assert [outcome(world, name)["n_rows"] for name in "abc"] == [0, 3, 3]
    assert outcome(world)["tasks"]["done"] == 3
    world.submit(app("d", 9))
    world.calm()
    assert [outcome(world, name)["n_rows"] for name in "abcd"] == [0, 0, 0, 9]


def test_an_application_that_is_not_known_has_none():
    assert outcome(World(first_come), "nobody") is None


def test_one_that_runs_or_was_cancelled_says_so():
    world = World(first_come)
    world.submit(app("a", 5))
    world.run(4)
    assert (outcome(world)["state"], outcome(world)["ended_at"]) == ("running", None)
    world.cancel("a")
    world.calm()
    assert outcome(world)["state"] == "cancelled"
    assert outcome(world)["n_rows"] == outcome(world)["tasks"]["done"]
