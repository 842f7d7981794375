"""Short tasks that lie at a worker ahead: how many, behind what none lies, and when a new plan is made."""

import pytest

from tests.unit.core.dags.test_live_policy import WORKER, OneWorker
from yarn_accel.core.dags.live.lying import MOST_LYING
from yarn_accel.core.dags.model import Dag, DagEdge, DagTask, DagTerms, PriorityClass, SubmittedDag
from yarn_accel.core.tasks.commands import EnqueueTask, StartTask, TakeBackTask
from yarn_accel.core.tasks.durations import DurationKind
from yarn_accel.core.tasks.events import AppPaused, AppSubmitted, Decide, ResourceJoined
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, ResourceId, ResourceSpec

SHORT_S = 0.01


def lying(world, worker=WORKER):
    return list(world.policy._table.workers[worker].queue)


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
    world.ended(world.policy._table.workers[WORKER].slots[0].occupant)
    world.started(lying(world)[0])


@pytest.mark.parametrize(("done_s", "n_lying"), [(SHORT_S, MOST_LYING), (0.06, 4), (0.2, 1), (1.0, 1)])
def test_as_many_lie_at_a_worker_as_start_soon_and_the_next_in_any_case(done_s, n_lying):
    world = OneWorker()
    world.submit("a", 100, done_s=done_s)
    assert world.decide()[0] == (StartTask, "a/t0")
    assert lying(world) == names("a", *range(1, n_lying + 1))


def test_a_new_plan_is_made_when_half_of_what_lay_there_has_begun():
    world = OneWorker()
    world.submit("a", 100, done_s=SHORT_S)
    world.decide()
    for _ in range(MOST_LYING // 2):
        run_next(world)
        assert world.policy.apply(Decide(world.now_s)) == ()
    run_next(world)
    found = [each.task for each in world.policy.apply(Decide(world.now_s))]
    assert found == names("a", *range(17, 17 + MOST_LYING // 2 + 1))
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
    assert len(lying(world)) == MOST_LYING


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
    assert world.decide() == [(TakeBackTask, task) for task in names("a", *range(1, MOST_LYING + 1))]


def test_the_reason_of_each_has_its_finish():
    world = OneWorker()
    world.submit("a", 100, done_s=SHORT_S)
    found = world.policy.apply(Decide(0.0))[1:]
    for number, each in enumerate(found, 2):
        assert f"finish by machine: w1#0 {number * SHORT_S:.6g}" in each.reason
