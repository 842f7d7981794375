"""What the seam asks of every policy, among them one that plans queues and takes back."""

import pytest

from tests.fixtures.task_world import TaskWorld, app_spec, resource_spec
from tests.fixtures.toy_policy import ToyQueuePolicy
from yarn_accel.core.dags.events import Decide
from yarn_accel.core.tasks.commands import EndTask, EnqueueTask, TakeBackTask
from yarn_accel.core.tasks.events import EndReason
from yarn_accel.core.tasks.policies import POLICIES, make
from yarn_accel.core.tasks.values import Form

MAKERS = {
    "toy": ToyQueuePolicy,
    **{name: (lambda name=name: make(name)) for name in POLICIES},
    **{f"{name}, queues": (lambda name=name: make(name, {"next_tasks_per_slot": 1})) for name in POLICIES},
}


@pytest.fixture(params=MAKERS)
def made(request):
    return TaskWorld(MAKERS[request.param]())


def both(name, n_tasks=12, **more):
    return app_spec(name, cpu=(0, 9), gpu=(1, 2), split=10e6, n_tasks=n_tasks, **more)


def test_all_tasks_end_once(made):
    made.join(resource_spec("n1", cores=2, gpus=1), resource_spec("n2", cores=3, gpus=0))
    made.submit(both("a"))
    made.submit(app_spec("b", cpu=(2, 3), n_tasks=9))
    made.run()
    assert len(made.done) == 21


def test_facts_give_no_commands_and_nothing_to_do_gives_none(made):
    made.join(resource_spec())
    assert made.policy.apply(Decide(0)) == ()
    made.submit(both("a"))
    made.cancel("a")
    assert made.policy.apply(Decide(1)) == ()


def test_a_cancelled_application_gives_up_what_runs_and_what_is_queued(made):
    made.join(resource_spec(cores=2, gpus=1))
    made.submit(both("a", n_tasks=6))
    made.submit(both("b", n_tasks=6))
    made.settle()
    made.cancel("a")
    made.settle()
    assert not [task for worker in made.workers.values() for task in worker.running if task[0] == "a"]
    assert not [entry for worker in made.workers.values() for entry in worker.queue if entry[0][0] == "a"]
    made.run()
    assert len([task for task in made.done if task[0] == "b"]) == 6


def test_a_failed_task_runs_again(made):
    made.join(resource_spec(cores=2, gpus=1))
    made.submit(both("a", n_tasks=3))
    made.settle()
    made.end(next(iter(made.workers["n1"].running)), EndReason.FAILED)
    made.run()
    assert len(made.done) == 3


def test_what_a_lost_resource_had_runs_elsewhere(made):
    made.join(resource_spec("n1"), resource_spec("n2"))
    made.submit(both("a", n_tasks=30))
    made.settle()
    made.leave("n1")
    made.run()
    assert len(made.done) == 30
    made.join(resource_spec("n1"))
    made.submit(both("b", n_tasks=14))
    made.run()
    assert len(made.done) == 44


@pytest.mark.parametrize("name", POLICIES)
def test_a_worker_that_joined_again_is_empty(name):
    made = TaskWorld(make(name, {"next_tasks_per_slot": 1}))
    made.join(resource_spec("n1"))
    made.submit(both("a", n_tasks=6))
    made.settle()
    tasks = [*made.workers["n1"].running, *(task for task, _ in made.workers["n1"].queue)]
    made.join(resource_spec("n1"))
    made.ready("a", tuple(tasks))
    made.run()
    assert len(made.done) == 6


@pytest.mark.parametrize("name", POLICIES)
def test_at_most_one_next_task_lies_at_a_slot(name):
    made = TaskWorld(make(name, {"next_tasks_per_slot": 1}))
    made.join(resource_spec("n1"))
    made.submit(both("a", n_tasks=30))
    made.settle()
    worker = made.workers["n1"]
    running = [form for form, _ in worker.running.values()]
    queued = [form for _, form in worker.queue]
    assert sorted(queued, key=str) == sorted(running, key=str)
    # Those for GPUs first: else a task for a core would take the core of a GPU that becomes free.
    assert queued == sorted(queued, key=lambda form: form is Form.CPU)
    made.end(next(task for task, (form, _) in worker.running.items() if form is running[0]))
    assert len(worker.running) == 6
    assert [type(command) for command in made.decide()] == [EnqueueTask]


def test_a_free_place_takes_back_what_is_queued_elsewhere():
    made = TaskWorld(make("fifo", {"next_tasks_per_slot": 1}))
    made.join(resource_spec("n1", cores=2, gpus=0))
    made.submit(app_spec("a", cpu=(0, 9), n_tasks=4))
    made.settle()
    made.join(resource_spec("n2", cores=1, gpus=0))
    (command,) = made.decide()
    assert (type(command), command.reason) == (TakeBackTask, "n2 can start it now")
    made.settle()
    assert list(made.workers["n2"].running) == [command.task]


def test_a_higher_priority_takes_the_place_of_next_tasks():
    made = TaskWorld(make("hdas", {"next_tasks_per_slot": 1}))
    made.join(resource_spec("n1", cores=2, gpus=0))
    made.submit(app_spec("low", cpu=(0, 9), n_tasks=9))
    made.settle()
    made.submit(app_spec("high", cpu=(0, 9), n_tasks=1, priority=5))
    made.settle()
    queued = sorted(task.split("-")[0] for task, _ in made.workers["n1"].queue)
    assert queued == ["high", "low"]
    assert [c.reason for _, c in made.log if isinstance(c, TakeBackTask)] == ["high has a higher priority"]


def test_a_task_that_started_before_it_could_be_taken_back_stays():
    made = TaskWorld(make("fifo", {"next_tasks_per_slot": 1}))
    made.join(resource_spec("n1", cores=1, gpus=0))
    made.submit(app_spec("a", cpu=(0, 9), n_tasks=2))
    made.settle()
    made.cancel("a")
    queued = made.workers["n1"].queue[0][0]
    made.end("a-0000")
    assert queued in made.workers["n1"].running
    made.settle()
    assert [c.task for _, c in made.log if isinstance(c, EndTask)] == [queued]
    assert made.workers["n1"].running == {}


def test_next_tasks_alternate_between_those_who_read_and_those_who_compute():
    """Chosen for the I/O when they start: of four in the queue one reads; four would starve each other."""
    made = TaskWorld(make("hdas", {"next_tasks_per_slot": 1}))
    made.join(resource_spec("n1", cores=4, gpus=4))
    made.submit(app_spec("bp", gpu=(0.04, 23.6), split=4e6, n_tasks=40))
    made.settle()
    made.submit(app_spec("knn", gpu=(13.0, 2.7), n_tasks=40))
    for _ in range(8):
        made.now_s += 5
        made.end(next(iter(made.workers["n1"].running)))
        made.settle()
    assert [task.split("-")[0] for task, _ in made.workers["n1"].queue].count("knn") == 1


def test_a_tail_guard_takes_back_what_waits_for_a_core():
    made = TaskWorld(make("hdas+", {"next_tasks_per_slot": 1}))
    made.join(resource_spec("n1", cores=2, gpus=1))
    made.submit(app_spec("a", cpu=(0, 100), gpu=(0, 10), n_tasks=14))
    made.settle()
    queued = [form for _, form in made.workers["n1"].queue]
    assert queued == [Form.GPU, Form.CPU]
    for _ in range(5):
        made.now_s += 10
        made.end(next(t for t, (form, _) in made.workers["n1"].running.items() if form is Form.GPU))
        made.settle()
    reasons = [c.reason for _, c in made.log if isinstance(c, TakeBackTask)]
    assert [reason.split(":")[0] for reason in reasons] == ["tail guard"]
    assert [form for _, form in made.workers["n1"].queue] == [Form.GPU]
