"""The live policy of DAGs, also with tasks that lie and runtimes that change."""

from __future__ import annotations

import pytest

from tests.fixtures.driven_policy import DrivenPolicy
from tests.fixtures.task_events import (
    AppCancelled,
    AppFinished,
    AppPaused,
    AppSubmitted,
    ResourceJoined,
    TaskEnded,
    TasksReady,
)
from yarn_accel.core.dags.events import Decide, TaskStarted
from yarn_accel.core.dags.live.policy import LiveDagPolicy
from yarn_accel.core.dags.live.queues import MOST_QUEUED
from yarn_accel.core.dags.model import Dag, DagEdge, DagTask, DagTerms, PriorityClass, SubmittedDag
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.dags.slowdown_series import LiveSlowdowns
from yarn_accel.core.tasks.commands import EnqueueTask, StartTask, TakeBackTask
from yarn_accel.core.tasks.durations import DurationKind, DurationStore
from yarn_accel.core.tasks.events import EndReason, TaskMeasurement
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, ResourceId, ResourceSpec, TaskId

WORKER = ResourceId("w1")


class OneWorker:
    """A policy, and a worker whose reports are written by hand."""

    def __init__(self, n_cores=1, policy="mps"):
        self.durations = DurationStore()
        self.policy = DrivenPolicy(LiveDagPolicy(make_dag_policy(policy, 1e6, {}), self.durations))
        self.now_s = 0.0
        self.policy.apply(ResourceJoined(ResourceSpec(WORKER, "n1", n_cores, 0, 1 << 30, 1e6), 0.0))

    def submit(
        self, name, n_tasks, chain=False, priority_class=PriorityClass.BASIC, done_s=1.0, is_declared=True
    ):
        tasks = tuple(DagTask(f"t{number}", done_s) for number in range(n_tasks))
        edges = tuple(DagEdge(f"t{n}", f"t{n + 1}", 0.0) for n in range(n_tasks - 1)) if chain else ()
        kinds = (DurationKind(name, "", is_declared),) * n_tasks
        dag = SubmittedDag(Dag(name, tasks, edges), DagTerms(priority_class), kinds, self.now_s)
        spec = AppSpec(AppId(name), name, 0, n_tasks, {Form.CPU: FormDemand()})
        self.policy.apply(AppSubmitted(spec, self.now_s, dag))
        self.ready(name, *range(1 if chain else n_tasks))

    def ready(self, name, *numbers):
        self.policy.apply(TasksReady(AppId(name), tuple(TaskId(f"{name}/t{n}") for n in numbers), self.now_s))

    def started(self, task):
        self.policy.apply(TaskStarted(TaskId(task), WORKER, Form.CPU, self.now_s))

    def ended(self, task, reason=EndReason.DONE):
        self.policy.apply(TaskEnded(TaskId(task), WORKER, reason, self.now_s))

    def decide(self):
        self.now_s += 0.1
        commands = self.policy.apply(Decide(self.now_s))
        self.policy.validate()
        return [(type(each), each.task) for each in commands]

    def crossed(self):
        """a/t1 lay at the worker and began, while b/t0 was ordered to start instead of it."""
        self.submit("a", 3)
        assert self.decide() == [(StartTask, "a/t0"), (EnqueueTask, "a/t1")]
        self.started("a/t0")
        self.decide()
        self.submit("b", 2, chain=True, priority_class=PriorityClass.PREEMPTIVE)
        self.ended("a/t0")
        assert {(TakeBackTask, "a/t1"), (StartTask, "b/t0")} <= set(self.decide())
        self.started("a/t1")


def test_what_began_before_its_worker_heard_of_another_start_ends_before_that():
    world = OneWorker()
    world.crossed()
    world.ended("a/t1")
    assert world.decide() == []
    world.started("b/t0")
    world.decide()
    world.ended("b/t0")
    world.ready("b", 1)
    assert world.decide() == [(StartTask, "b/t1"), (EnqueueTask, "a/t2")]
    world.ended("b/t1")
    world.started("a/t2")
    world.ended("a/t2")
    world.decide()
    assert world.policy.slowdowns() == {}


def test_what_began_and_ended_unseen_makes_its_successor_ready():
    world = OneWorker()
    world.submit("first", 1)
    world.decide()
    world.submit("chain", 2, chain=True)
    assert world.decide() == [(EnqueueTask, "chain/t0")]
    world.started("chain/t0")
    world.ended("chain/t0")
    world.ready("chain", 1)
    assert world.decide() == [(EnqueueTask, "chain/t1")]


def test_what_failed_behind_a_crossed_order_runs_again():
    world = OneWorker()
    world.crossed()
    world.decide()
    world.ended("a/t1", EndReason.FAILED)
    world.ready("a", 1)
    world.decide()
    world.ended("b/t0")
    world.ready("b", 1)
    assert world.decide() == [(StartTask, "b/t1"), (EnqueueTask, "a/t1")]


def test_what_began_and_failed_between_two_decisions_is_planned_again_where_it_can_run():
    world = OneWorker(n_cores=2, policy="merged_heft")
    world.submit("a", 4)
    orders = world.decide()
    assert orders[:2] == [(StartTask, "a/t0"), (StartTask, "a/t1")]
    assert set(orders[2:]) == {(EnqueueTask, "a/t2"), (EnqueueTask, "a/t3")}
    world.started("a/t0")
    world.started("a/t1")
    world.decide()
    world.ended("a/t0")
    world.started("a/t2")
    world.ended("a/t2", EndReason.FAILED)
    world.started("a/t3")
    world.ended("a/t1")
    world.ready("a", 2)
    assert world.decide() == [(StartTask, "a/t2")]


def test_many_dags_are_taken_in_by_and_by_and_high_classes_first():
    world = OneWorker()
    for number in range(45):
        world.submit(f"d{number:02d}", 100)
    world.submit("urgent", 1, priority_class=PriorityClass.PREEMPTIVE)
    world.policy.apply(AppPaused(AppId("d40"), True, 0.0))
    world.policy.apply(AppCancelled(AppId("d41"), 0.0))
    world.policy.apply(AppFinished(AppId("d41"), 0.0))
    assert world.decide()[0] == (StartTask, "urgent/t0")
    assert sorted(world.policy.slowdowns()) == [*(f"d{number:02d}" for number in range(20)), "urgent"]
    assert world.policy.facts(AppId("d43")) is None
    world.decide()
    assert len(world.policy.slowdowns()) == 41
    world.decide()
    assert len(world.policy.slowdowns()) == 45
    assert world.policy.explain(TaskId("d39/t0")).startswith("planned on w1#0")
    assert world.policy.explain(TaskId("d44/t99")).endswith("behind all that is planned")
    assert world.policy.explain(TaskId("d40/t0")) == ""


def test_a_dag_that_runs_already_is_taken_in_before_those_that_wait():
    world = OneWorker()
    for number in range(30):
        world.submit(f"d{number:02d}", 100)
    world.started("d29/t0")
    world.decide()
    assert "d29" in world.policy.slowdowns()
    assert "d28" not in world.policy.slowdowns()
    world.ended("d29/t0")
    assert (StartTask, "d29/t0") not in world.decide()


def test_own_makespans_are_computed_again_by_and_by_when_a_worker_joined():
    world = OneWorker()
    for number in range(30):
        world.submit(f"d{number:02d}", 100)
    world.decide()
    world.decide()
    world.policy.apply(ResourceJoined(ResourceSpec(ResourceId("w2"), "n2", 1, 0, 1 << 30, 1e6), world.now_s))
    world.decide()

    def own_s():
        return [world.policy.facts(AppId(f"d{number:02d}")).own_makespan_s for number in range(30)]

    assert own_s() == [100.0] * 30
    world.decide()
    assert own_s() == [50.0] * 20 + [100.0] * 10
    world.decide()
    assert own_s() == [50.0] * 30


def test_equal_tasks_stay_where_they_lie_whichever_runs_longest():
    world = OneWorker()
    world.policy.apply(ResourceJoined(ResourceSpec(ResourceId("w2"), "n2", 1, 0, 1 << 30, 1e6), 0.0))
    world.submit("a", 8)
    placed = {each.task: each.resource for each in world.policy.apply(Decide(0.1))}
    assert sorted(placed) == ["a/t0", "a/t1", "a/t2", "a/t3"]
    for task in ("a/t0", "a/t1"):
        world.policy.apply(TaskStarted(TaskId(task), placed[task], Form.CPU, 0.1))
    for late_s in (0.9, 1.3, 2.9, 4.0):
        assert world.policy.apply(Decide(late_s)) == ()
        world.policy.validate()
    now_s, last = 4.0, next(task for task in ("a/t2", "a/t3") if placed[task] == placed["a/t1"])
    world.policy.apply(TaskEnded(TaskId("a/t1"), placed["a/t1"], EndReason.DONE, now_s))
    world.policy.apply(TaskStarted(TaskId(last), placed["a/t1"], Form.CPU, now_s))
    assert [type(each) for each in world.policy.apply(Decide(now_s))] == [EnqueueTask]
    assert world.policy.facts(AppId("a")).n_moved == 0


def test_a_task_that_one_report_says_began_and_ended_is_learned_by_its_workers_clock():
    world = OneWorker()
    world.submit("a", 1, done_s=2.0)
    world.decide()
    task, measured = TaskId("a/t0"), TaskMeasurement(0.0, 0.0, 6.0, True)
    world.policy.apply(TaskStarted(task, WORKER, Form.CPU, world.now_s))
    world.policy.apply(TaskEnded(task, WORKER, EndReason.DONE, world.now_s, measured, 6.0))
    world.decide()
    [belief] = world.durations.beliefs(("a",))
    assert belief.happened_s == 6.0
    assert belief.factor > 1


def test_nothing_is_learned_of_a_task_whose_output_was_there_already():
    world = OneWorker()
    world.submit("a", 1)
    world.decide()
    world.policy.apply(TaskStarted(TaskId("a/t0"), WORKER, Form.CPU, world.now_s))
    world.policy.apply(TaskEnded(TaskId("a/t0"), WORKER, EndReason.DONE, world.now_s, None, 0.0))
    world.decide()
    assert not list(world.durations.beliefs(("a",)))


def test_what_a_dag_takes_alone_is_known_at_the_end_of_a_task_that_an_earlier_master_started():
    world = OneWorker()
    world.policy = DrivenPolicy(LiveDagPolicy(make_dag_policy("mps", 1e6, {}), world.durations))
    world.submit("a", 1, done_s=2.5)
    world.decide()
    assert world.policy.own_makespan_s(AppId("nobody")) is None
    assert world.policy.own_makespan_s(AppId("a")) is None
    world.policy.apply(ResourceJoined(ResourceSpec(WORKER, "n1", 2, 0, 1 << 30, 1e6), world.now_s))
    world.started("a/t0")
    measured = TaskMeasurement(0.0, 0.0, 2.5, True)
    world.policy.apply(TaskEnded(TaskId("a/t0"), WORKER, EndReason.DONE, world.now_s, measured, 2.5))
    assert world.policy.own_makespan_s(AppId("a")) == 2.5


def test_what_a_dag_of_unknown_times_takes_alone_is_known_when_its_last_task_ends():
    """The service asks before the next decision: the DAG is closed by then."""
    world = OneWorker()
    world.submit("a", 2, chain=True, is_declared=False)
    world.decide()
    for number, ran_s in enumerate((6.0, 8.0)):
        task, measured = TaskId(f"a/t{number}"), TaskMeasurement(0.0, 0.0, ran_s, True)
        world.policy.apply(TaskStarted(task, WORKER, Form.CPU, world.now_s))
        world.policy.apply(TaskEnded(task, WORKER, EndReason.DONE, world.now_s, measured, ran_s))
        if not number:
            world.ready("a", 1)
            world.decide()
    assert world.policy.own_makespan_s(AppId("a")) == 14.0
    world.policy.apply(AppFinished(AppId("a"), world.now_s))
    world.decide()
    [belief] = world.durations.beliefs(("a",))
    assert (belief.n_measured, belief.factor) == (2, 7.0)


# Short tasks that lie at a worker ahead: how many, behind what none lies, and when a new plan is made.


SHORT_S = 0.01


def lying(world, worker=WORKER):
    return [held.task.id for held in world.policy.table.workers[worker].queue]


def names(name, *numbers):
    return [f"{name}/t{number}" for number in numbers]


def submit(world, name, edges, n_tasks, done_s=SHORT_S):
    """A DAG of equal tasks with these edges; its first task is ready."""
    tasks = tuple(DagTask(f"t{number}", done_s) for number in range(n_tasks))
    made = Dag(name, tasks, tuple(DagEdge(f"t{one}", f"t{other}", 0.0) for one, other in edges))
    kinds = (DurationKind(name, "", True),) * n_tasks
    dag = SubmittedDag(made, DagTerms(PriorityClass.BASIC), kinds, world.now_s)
    spec = AppSpec(AppId(name), name, 0, n_tasks, {Form.CPU: FormDemand()})
    world.policy.apply(AppSubmitted(spec, world.now_s, dag))
    world.ready(name, *(n for n in range(n_tasks) if all(other != n for _, other in edges)))


def run_next(world):
    """The worker ends what runs, and begins the next of its queue by itself."""
    world.ended(world.policy.table.workers[WORKER].slots[0].task.id)
    world.started(lying(world)[0])


@pytest.mark.parametrize(("done_s", "n_lying"), [(SHORT_S, MOST_QUEUED), (0.06, 4), (0.2, 1), (1.0, 1)])
def test_as_many_lie_at_a_worker_as_start_soon_and_the_next_in_any_case(done_s, n_lying):
    world = OneWorker()
    world.submit("a", 100, done_s=done_s)
    assert world.decide()[0] == (StartTask, "a/t0")
    assert lying(world) == names("a", *range(1, n_lying + 1))


def test_a_new_plan_is_made_when_half_of_what_lay_there_has_begun():
    world = OneWorker()
    world.submit("a", 100, done_s=SHORT_S)
    world.decide()
    for _ in range(MOST_QUEUED // 2):
        run_next(world)
        assert world.policy.apply(Decide(world.now_s)) == ()
    run_next(world)
    found = [each.task for each in world.policy.apply(Decide(world.now_s))]
    assert found == names("a", *range(17, 17 + MOST_QUEUED // 2 + 1))
    assert lying(world)[0] == "a/t10", "what lies stays before what comes"
    assert world.policy.facts(AppId("a")).n_moved == 0


def test_what_lies_stays_with_several_workers_that_are_not_equally_quick():
    world = OneWorker()
    world.policy.apply(ResourceJoined(ResourceSpec(ResourceId("w2"), "n2", 1, 0, 1 << 30, 1e6), 0.0))
    world.submit("a", 200, done_s=SHORT_S)
    world.decide()
    other = lying(world, "w2")
    for _ in range(60):
        run_next(world)
        commands = world.policy.apply(Decide(world.now_s))
        assert not any(isinstance(each, TakeBackTask) for each in commands)
        world.policy.validate()
    assert lying(world, "w2") == other


def test_none_lies_behind_ends_that_make_something_ready():
    world = OneWorker()
    # t3 needs the first three; the rest are ready.
    submit(world, "a", [(0, 3), (1, 3), (2, 3)], 30)
    world.decide()
    assert set(lying(world)) == {"a/t1", "a/t2"}
    for _ in range(2):
        run_next(world)
        assert world.decide() == [], "t3 comes when t2 has ended"
    assert lying(world) == []
    world.ended("a/t2")
    world.ready("a", 3)
    assert world.decide()[0][0] is StartTask
    assert len(lying(world)) == MOST_QUEUED


def test_what_comes_of_a_higher_class_is_next_though_much_lies_there():
    world = OneWorker()
    world.submit("a", 100, done_s=SHORT_S)
    world.decide()
    world.submit("b", 1, done_s=SHORT_S, priority_class=PriorityClass.PREEMPTIVE)
    found = world.policy.apply(Decide(world.now_s))
    assert [(type(each), each.task, each.position) for each in found] == [(EnqueueTask, "b/t0", 0)]
    assert lying(world)[:2] == ["b/t0", "a/t1"]
    assert found[0].reason.startswith("rank 0.01; class preemptive; SD 1.000; finish by machine: w1#0 ")


def test_all_that_lies_leaves_when_its_dag_is_paused():
    world = OneWorker()
    world.submit("a", 100, done_s=SHORT_S)
    world.decide()
    world.policy.apply(AppPaused(AppId("a"), True, world.now_s))
    assert world.decide() == [(TakeBackTask, task) for task in names("a", *range(1, MOST_QUEUED + 1))]


def test_the_reason_of_each_has_its_finish():
    world = OneWorker()
    world.submit("a", 100, done_s=SHORT_S)
    found = world.policy.apply(Decide(0.0))[1:]
    for number, each in enumerate(found, 2):
        assert f"finish by machine: w1#0 {number * SHORT_S:.6g}" in each.reason


# SD of DAGs that run: about once a second, and never more than so many points of one.


def test_a_dag_keeps_its_first_and_its_last_points():
    kept = LiveSlowdowns()
    for second in range(10_000):
        assert kept.is_due(float(second))
        kept.note(float(second), {"a": second / 10_000}, ["a"])
        assert not kept.is_due(second + 0.5)
    points = kept.of("a")
    assert 100 <= len(points) <= 240
    assert points[0] == (0.0, 0.0)
    assert points[-1][0] > 9_800
    assert points == sorted(points)


def test_what_is_forgotten_elsewhere_is_forgotten_here():
    kept = LiveSlowdowns()
    kept.note(0.0, {"a": 1.0, "b": 0.5}, ["a", "b"])
    kept.note(1.0, {"b": 0.6}, ["a", "b"])
    assert kept.of("a") == [(0.0, 1.0)], "it has ended, and is remembered"
    kept.note(2.0, {}, ["b"])
    assert kept.of("a") == []
    assert kept.of("b") == [(0.0, 0.5), (1.0, 0.6)]
