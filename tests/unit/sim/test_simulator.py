"""The simulator carries orders out, holds their limits, and gives tasks the time that they take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.task_policies import FirstComeFirstServed
from tests.unit.sim.test_world import SMALL
from yarn_accel.core.dags.events import Decide
from yarn_accel.core.tasks.commands import EndTask, EnqueueTask, StartTask, TakeBackTask, TaskCommand
from yarn_accel.core.tasks.events import IoSampled, TaskMeasurement
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.records import Assignment
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import Form, ResourceId, TaskId
from yarn_accel.errors import AccelError
from yarn_accel.sim.simulator import simulate
from yarn_accel.sim.world import World, world_of

N_1 = ResourceId("n-1")


class Scripted(TaskPolicy):
    """Gives the listed commands at the first decisions, one list each, and keeps what it sees."""

    def __init__(self, *decisions: list[TaskCommand]) -> None:
        self._decisions = list(decisions)
        self.heard: list[IoSampled | Decide] = []
        self.measured: list[TaskMeasurement] = []
        self.waiting: list[tuple[str, ...]] = []
        self.moved: set[str] = set()

    def learn(
        self,
        table: TaskTable,
        figures: FigureStore,
        assignment: Assignment,
        measured: TaskMeasurement,
        ran_s: float,
    ) -> None:
        self.measured.append(measured)

    def plan(self, table: TaskTable, figures: FigureStore, now_s: float) -> Iterator[TaskCommand]:
        self.waiting += [tuple(app.ready) for app in table.apps.values() if app.ready]
        self.moved |= {name for name, task in table.tasks.items() if task.n_moves}
        samples = (worker.sample for worker in table.resources.values())
        self.heard += [each for each in samples if each is not None and each not in self.heard]
        self.heard.append(Decide(now_s))
        yield from self._decisions.pop(0) if self._decisions else ()

    @property
    def samples(self) -> list[IoSampled]:
        return [event for event in self.heard if isinstance(event, IoSampled)]


def one_app(n_tasks: int = 1, **options: Any) -> World:
    return world_of({**SMALL, "apps": [{**SMALL["apps"][0], "tasks": n_tasks}], "options": options}, "w")


def start(task: str, form: Form = Form.GPU) -> StartTask:
    return StartTask(TaskId(task), N_1, form, "scripted")


def test_a_task_alone_takes_its_time_and_is_measured() -> None:
    policy = Scripted([start("a-1")])
    outcome = simulate(one_app(), policy, watched=["n-1"])
    assert (outcome.makespan_s, outcome.mean_delay) == (2.0, 1.0)
    assert policy.measured == [TaskMeasurement(100e6, 1.0, 1.0, alone=True)]
    assert [
        (use.at_s, use.io_bytes_per_s, use.n_gpus_held, use.n_gpus_computing) for use in outcome.use["n-1"]
    ] == [(0.0, 100e6, 1, 0), (1.0, 0.0, 1, 1), (2.0, 0.0, 0, 0)]
    assert outcome.as_json()["tasks"] == [
        {
            "app": "a",
            "task": "a-1",
            "node": "n-1",
            "form": "gpu",
            "start_s": 0.0,
            "end_s": 2.0,
            "reason": "scripted",
        }
    ]


def test_samples_are_exact_and_come_before_the_decision() -> None:
    policy = Scripted([start("a-1")])
    simulate(one_app(), policy)
    assert [(type(event).__name__, event.now_s) for event in policy.heard] == [
        ("Decide", 0.0),
        ("IoSampled", 1.0),
        ("Decide", 1.0),
        ("IoSampled", 2.0),
        ("Decide", 2.0),
    ]


def test_between_two_pieces_the_disk_is_idle_and_the_next_comes_in_time() -> None:
    # The form for cores takes 5 MB/s, the disk gives 100: 60 MB last for 12 s, and 40 come in 0.4 s.
    policy = Scripted([start("a-1", Form.CPU)])
    outcome = simulate(one_app(read_piece_mb=60, samples="given"), policy)
    samples = [(round(each.now_s, 6), each.io_bytes_per_s, each.readers) for each in policy.samples]
    assert samples == [(0.6, 0.0, 1), (11.6, 100e6, 1), (12.0, 0.0, 1), (20.0, 0.0, 0)]
    assert outcome.makespan_s == pytest.approx(20.0)
    [measured] = policy.measured
    assert (measured.read_s, measured.compute_s) == (pytest.approx(20.0), 0.0)


def test_a_sample_is_the_mean_of_an_interval_and_says_of_when() -> None:
    policy = Scripted([start("a-1")])
    simulate(one_app(sample_interval_s=0.8), policy)
    samples = [
        (round(each.sampled_s, 6), round(each.now_s, 6), round(each.io_bytes_per_s), each.readers)
        for each in policy.samples
        if each.resource == N_1
    ]
    assert samples[:2] == [(0.4, 0.8, 100_000_000, 1), (1.2, 1.6, 25_000_000, 0)]


def test_a_policy_that_never_starts_anything_ends_a_simulation_with_samples() -> None:
    with pytest.raises(AccelError, match="never starts"):
        simulate(one_app(sample_interval_s=1.0), Scripted())


def test_two_readers_share_the_disk() -> None:
    # 2 tasks want 100 and 5 MB/s; two readers get 100 / 1.1 = 90.9 in all.
    policy = Scripted([start("a-1"), start("a-2", Form.CPU)])
    outcome = simulate(one_app(2), policy)
    gpu, cpu = outcome.tasks
    assert gpu.end_s == pytest.approx(100 / (100 / 1.1 - 5) + 1)
    assert cpu.delay == pytest.approx(1.0)
    assert not policy.measured[0].alone


def test_what_is_given_may_be_sampled_instead_of_what_is_requested() -> None:
    def samples(kind: str) -> float:
        policy = Scripted([start("a-1"), start("a-2", Form.CPU)], [])
        simulate(one_app(2, samples=kind, overhead_s=1), policy)
        return max(event.io_bytes_per_s for event in policy.samples)

    assert samples("requested") == pytest.approx(105e6)
    assert samples("given") == pytest.approx(100e6 / 1.1)


def test_overhead_comes_first_and_is_no_delay() -> None:
    outcome = simulate(one_app(overhead_s=3), Scripted([start("a-1")]))
    assert (outcome.makespan_s, outcome.mean_delay) == (5.0, 1.0)


def test_with_heartbeats_ends_are_heard_at_the_next_one() -> None:
    policy = Scripted([start("a-1")], [], [start("a-2")])
    outcome = simulate(one_app(2, heartbeat_s=1.5), policy)
    assert [(task.start_s, task.end_s) for task in outcome.tasks] == [(1.5, 3.5), (4.5, 6.5)]


def test_a_queue_starts_its_next_task_by_itself_and_gives_back() -> None:
    orders: list[TaskCommand] = [
        EnqueueTask(TaskId(task), N_1, Form.GPU, position, "queued")
        for task, position in (("a-1", 0), ("a-2", 0), ("a-3", 0))
    ]
    policy = Scripted(orders, [TakeBackTask(TaskId("a-3"), N_1, "elsewhere")], [start("a-3", Form.CPU)])
    outcome = simulate(one_app(3), policy)
    first, third, second = outcome.tasks
    assert [(task.task, task.form.value) for task in (first, third, second)] == [
        ("a-1", "gpu"),
        ("a-3", "cpu"),
        ("a-2", "gpu"),
    ]
    assert (third.start_s, second.start_s) == (0.0, first.end_s)
    assert policy.moved == {"a-3"}


def test_a_task_that_is_ended_waits_again() -> None:
    policy = Scripted(
        [start("a-1"), start("a-2", Form.CPU)], [EndTask(TaskId("a-2"), N_1, "late")], [], [start("a-2")]
    )
    outcome = simulate(one_app(2), policy)
    assert [(task.task, task.form.value) for task in outcome.tasks] == [("a-1", "gpu"), ("a-2", "gpu")]
    assert list(dict.fromkeys(policy.waiting)) == [("a-1", "a-2"), ("a-2",)]


@pytest.mark.parametrize(
    ("orders", "why"),
    [
        ([start("a-9")], "the task does not wait"),
        ([start("a-1"), start("a-1")], "the task does not wait"),
        ([start("a-1"), start("a-2")], "it does not fit there now"),
        ([StartTask(TaskId("a-1"), ResourceId("x"), Form.GPU, "")], "there is no such node"),
    ],
)
def test_an_impossible_order_is_named(orders, why) -> None:
    with pytest.raises(AccelError, match=why):
        simulate(one_app(2), Scripted(orders))


@pytest.mark.parametrize("heartbeat_s", [0, 1])
def test_tasks_that_a_policy_never_starts_are_named(heartbeat_s) -> None:
    with pytest.raises(AccelError, match="never starts some tasks: 2 of a"):
        simulate(one_app(2, heartbeat_s=heartbeat_s), Scripted())


def test_applications_start_when_they_say() -> None:
    world = world_of({**SMALL, "apps": [SMALL["apps"][0], {**SMALL["apps"][1], "start_s": 7}]}, "w")
    outcome = simulate(world, FirstComeFirstServed())
    assert [each.start_s for each in outcome.apps.values()] == [0.0, 7.0]
    assert len(outcome.tasks) == 6
    assert outcome.makespan_s == max(task.end_s for task in outcome.tasks)
