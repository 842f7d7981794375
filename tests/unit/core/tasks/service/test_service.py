"""The task service, one story each: what is ordered, what counts, what is refused."""

import dataclasses

import pytest

from tests.unit.core.tasks.service.policies import RestlessPolicy, first_come
from tests.unit.core.tasks.service.world import LARGE, SETTINGS, SMALL, World, app
from yarn_accel.core.tasks.commands import EndTask, EnqueueTask, TakeBackTask
from yarn_accel.core.tasks.events import EndReason
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies import make
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.service import commands as cmd
from yarn_accel.core.tasks.service import events as ev
from yarn_accel.core.tasks.service.journal import decode_journal
from yarn_accel.core.tasks.values import Form
from yarn_accel.master.tasks.settings import TaskSettings


def world_of(definition=None, **more):
    world = World(more.pop("policy", first_come), **more)
    if definition is not None:
        world.submit(definition)
    return world


def ends(world, reason):
    return [each.task for each in world.history if each.end is reason]


def hangs(order, worker):
    return "hang"


def test_an_application_runs_to_its_end():
    world = world_of(app("a", 7))
    world.calm()
    world.assert_ended_well()
    assert world.ended["a"].error == ""
    assert world.commits == {("a", "commit"): 1}
    assert sum(world.outputs.values()) == 7
    assert not world.service.snapshot()["apps"]
    assert {each.node for each in world.history} <= {f"node-w{i}" for i in range(1, 5)}
    assert all(each.started_s is not None and each.started_s <= each.ended_s for each in world.history)


def test_a_task_runs_when_its_predecessors_are_done():
    world = world_of(app("a", 4, chain={1: [0], 2: [0], 3: [1, 2]}, output=""))
    world.calm()
    assert world.history[0].task == "a/0"
    assert world.history[-1].task == "a/3"
    began = {each.task: each.started_s for each in world.history}
    ended = {each.task: each.ended_s for each in world.history}
    assert began["a/3"] >= max(ended["a/1"], ended["a/2"])
    assert not world.commits, "it has no output"


def test_nothing_leaves_before_the_journal_has_it():
    world = world_of()
    world.writes_by_itself = False
    world.submit(app("a", 2))
    world.add_worker(SMALL)
    world.run(5)
    assert not world.accepted
    assert not world.orders
    while world.unwritten:
        world.write_one()
    assert world.accepted == {"a"}
    assert len(world.orders["w1"].attempts) == 2


def test_only_what_starts_nothing_may_be_written_a_little_later():
    can_wait = {}

    class Noting(World):
        def _WriteJournal(self, command):
            for record in command.records:
                can_wait.setdefault(record["r"], []).append(command.can_wait)
            super()._WriteJournal(command)

    world = Noting(first_come)
    world.submit(app("a", 3, output=""))
    world.calm()
    assert can_wait["assigned"] == [False] * 3
    assert can_wait["settled"] == [True, True, False], "the owner waits for the end of the application"


def test_a_journal_that_could_not_be_written_is_written_anew():
    world = world_of()
    world.writes_by_itself = False
    world.submit(app("a", 2))
    world.unwritten.clear()
    world.apply(ev.JournalFailed(world.now_s))
    (replacement,) = world.unwritten
    assert isinstance(replacement, cmd.ReplaceJournal)
    world.writes_by_itself = True
    world.write_one()
    assert world.accepted == {"a"}
    world.calm()
    world.assert_ended_well()


def test_a_failed_task_runs_again_elsewhere_first():
    tried = []

    def behaviour(order, worker):
        tried.append(worker.name)
        return "fail" if len(tried) == 1 else "done"

    world = world_of(app("a", 1), behaviour=behaviour)
    world.add_worker(SMALL)
    world.add_worker(SMALL)
    world.calm()
    assert len(set(tried)) == 2
    assert world.ended["a"].error == ""


def test_a_task_that_failed_on_the_only_worker_runs_there_again():
    outcomes = iter(["fail", "fail", "done"])
    world = world_of(app("a", 1), behaviour=lambda order, worker: next(outcomes))
    world.grows = False
    world.add_worker(SMALL)
    world.run(60)
    assert world.ended["a"].error == ""


def test_a_place_that_is_reserved_until_the_end_of_a_pass_is_not_taken_back():
    """A policy that changes its mind in one pass: the task goes where it has not failed all the same."""

    class Fickle(TaskPolicy):
        def plan(self, table, figures, now_s):
            for app_ in table.apps.values():
                for task in list(app_.ready):
                    yield EnqueueTask(task, "w1", Form.CPU, 0, "first")
                    yield TakeBackTask(task, "w1", "second thoughts")
                    yield EndTask(task, "w1", "third")
                    if table.tasks[task].assignment.drop is not None:
                        return

    world = world_of(app("a", 1), policy=Fickle)
    world.grows = False
    world.add_worker(SMALL, "w1")
    world.add_worker(SMALL, "w2")
    world.run(2)
    task = world.service.table.tasks["a/0"]
    assert task.assignment is None or task.assignment.number >= 0
    task.avoid = {"w1"}
    world.run(6)
    assert [each.worker for each in world.history if each.end is EndReason.DONE] == ["w2"]


def test_an_application_fails_with_one_error_and_the_others_go_on():
    def behaviour(order, worker):
        return "fail" if order.task == "a/2" else "hang" if order.app == "a" else "done"

    world = world_of(app("a", 6, max_attempts=2), behaviour=behaviour)
    world.submit(app("b", 5, output="hdfs:///out/b"))
    world.calm()
    assert "a/2: failed 2 times, of 2 that are allowed" in world.ended["a"].error
    assert "it said no; exit status 1" in world.ended["a"].error
    assert not world.ended["a"].is_cancelled
    assert world.ended["b"].error == ""
    counts = world.service.snapshot()["ended"]["a"]["tasks"]
    assert (counts["failed"], counts["cancelled"]) == (1, 5)
    assert world.commits == {("a", "remove"): 1, ("b", "commit"): 1}


def test_preempted_containers_cost_no_attempt_of_a_task():
    world = world_of(app("a", 2, max_attempts=1), behaviour=hangs)
    for _ in range(15):
        world.run(4)
        for worker in list(world.workers.values()):
            world.kill(worker, by_itself=False)
    assert ends(world, EndReason.LOST)
    world.behaviour = lambda order, worker: "done"
    for worker in list(world.workers.values()):
        world.kill(worker)
    world.calm()
    assert world.ended["a"].error == ""


def test_a_task_that_ends_its_workers_fails_in_the_end():
    world = world_of(app("a", 1), behaviour=lambda order, worker: "crash")
    world.calm()
    assert "a/0: ended 10 workers" in world.ended["a"].error


def test_a_stuck_task_ends_by_its_limit():
    world = world_of(app("a", 1, time_limit_s=5.0, max_attempts=2), behaviour=hangs)
    world.calm()
    assert "it did not end within its 5 s" in world.ended["a"].error


def test_a_worker_that_stood_still_and_goes_on_doubles_nothing():
    world = world_of(app("a", 2), behaviour=hangs)
    first = world.add_worker(SMALL)
    world.run(3)
    assert len(first.running) == 2
    first.is_stopped = True
    world.behaviour = lambda order, worker: "done"
    # It is gone for the master, but its container does not end.
    world._ReleaseWorker = lambda command: None
    world.run(30)
    world.add_worker(SMALL)
    world.run(20)
    first.is_stopped = False
    for attempt, (_, order, _) in list(first.running.items()):
        first.running[attempt] = (world.now_s, order, "done")
    world.calm()
    world.assert_ended_well()
    assert sum(world.outputs.values()) == 2
    assert len(ends(world, EndReason.DONE)) == 2
    assert len(ends(world, EndReason.LOST)) == 2


def test_a_worker_that_was_lost_ends_what_it_ran_and_forgets_it():
    world = world_of(app("a", 2), behaviour=hangs)
    world._ReleaseWorker = lambda command: None
    first = world.add_worker(SMALL)
    world.run(3)
    ran = set(first.running)
    first.is_stopped = True
    world.run(30)
    first.is_stopped = False
    world.run(6)
    assert not ran & set(first.running)
    assert not ran & {each.attempt for each in first.state.report(world.now_s).attempts}


def test_the_next_master_keeps_what_runs_and_counts_what_ended_once():
    world = world_of(app("a", 4, output=""), behaviour=hangs)
    world.grows = False
    one, two = world.add_worker(SMALL), world.add_worker(SMALL)
    world.run(4)
    ran = {*one.running, *two.running}
    assert len(ran) == 4
    for attempt, (_, order, _) in list(one.running.items()):
        one.running[attempt] = (0.0, order, "done")
    one.step()  # which nobody heard of when the master died
    world.start_master()
    world.run(3)
    assert len(ends(world, EndReason.DONE)) == 2
    assert {*two.running} < ran
    for attempt, (_, order, _) in list(two.running.items()):
        two.running[attempt] = (0.0, order, "done")
    world.calm()
    assert len(world.begun_attempts) == 4, "nothing ran twice"


def test_a_policy_forgets_what_has_ended_also_what_another_master_began():
    world = world_of(app("a", 4, output=""), policy=lambda: make("fifo"), behaviour=hangs)
    world.grows = False
    world.submit(app("b", 2, output=""))
    worker = world.add_worker(SMALL)
    world.run(4)
    for attempt, (_, order, _) in list(worker.running.items()):
        worker.running[attempt] = (0.0, order, "done")
    world.run(4)
    assert ends(world, EndReason.DONE)
    world.behaviour = lambda order, worker: "done"
    world.start_master()
    world.cancel("b")
    for attempt, (_, order, _) in list(worker.running.items()):
        worker.running[attempt] = (0.0, order, "done")
    world.calm()
    assert set(world.ended) == {"a", "b"}
    assert world.service.table.apps == {}


def test_the_next_master_gives_up_workers_that_do_not_come_back():
    world = world_of(app("a", 2), behaviour=hangs)
    world.run(4)
    for worker in list(world.workers.values()):
        world.kill(worker, notices=False)
    world.behaviour = lambda order, worker: "done"
    world.start_master()
    world.calm()
    assert world.ended["a"].error == ""
    assert len(ends(world, EndReason.LOST)) == 2


def test_a_cancelled_application_ends_what_runs():
    world = world_of(app("a", 9), behaviour=hangs)
    world.run(5)
    world.cancel("a")
    world.cancel("a")
    world.cancel("nobody's")
    world.calm()
    assert world.ended["a"].is_cancelled
    assert world.commits == {("a", "remove"): 1}
    assert world.service.snapshot()["ended"]["a"]["tasks"]["cancelled"] == 9
    assert not any(worker.running for worker in world.workers.values())


def test_an_output_that_cannot_be_committed_is_tried_again_and_is_an_error_then():
    world = world_of(app("a", 1))
    world.commit_errors.extend(["no DataNode"] * 3)
    world.calm()
    assert world.ended["a"].error == ""
    assert world.commits["a", "commit"] == 1
    world.commit_errors.extend(["no space"] * 50)
    world.submit(app("b", 1, output="hdfs:///out/b"))
    world.calm()
    assert world.ended["b"].error == "hdfs:///out/b: no space"


def test_submitting_again_is_accepted_again_and_another_of_that_name_is_not():
    world = world_of(app("a", 2), behaviour=hangs)
    world.accepted.clear()
    world.submit(app("a", 2))
    assert world.accepted == {"a"}
    world.apply(ev.SubmitRequested(app("a", 3), world.now_s))
    assert "there is an application of this name: give it another name" in world.refused["a"]
    assert world.service.snapshot()["apps"]["a"]["tasks"]["ready"] == 2


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        (
            app("a", 3, chain={0: [2], 1: [0], 2: [1]}),
            "its tasks wait for each other: a/0 <- a/2 <- a/1 <- a/0",
        ),
        (app("a", 1, chain={0: [0]}), "a/0 <- a/0"),
        (app("a", 2, chain={1: [7]}), "a/1: its predecessor a/7 is no task of a"),
        (app("a", 2, chain={1: [0, 0]}), "a/1: names a predecessor twice"),
        (app("a", 5), "more than 4"),
        (app("../a", 1), "a name has letters"),
        (dataclasses.replace(app("a", 2), max_attempts=0), "max_attempts: expected a number from 1"),
        (dataclasses.replace(app("a", 2), tasks=(app("a", 1).tasks * 2)), "there are two tasks of this name"),
        (dataclasses.replace(app("a", 2), tasks=app("b", 2).tasks), "expected a/NAME"),
        (dataclasses.replace(app("a", 2), tasks=app("a", 1).tasks), "says that it has 2 tasks, and has 1"),
        (dataclasses.replace(app("a", 1), programs={}), "each form needs a demand and a program"),
        (
            dataclasses.replace(
                app("a", 1), tasks=(dataclasses.replace(app("a", 1).tasks[0], output="../x"),)
            ),
            "output '../x' is no name of a file",
        ),
        (
            dataclasses.replace(
                app("a", 2),
                tasks=tuple(dataclasses.replace(each, output="x") for each in app("a", 2).tasks),
            ),
            "a/1: another task also writes x",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_one_error(definition, words):
    world = world_of(settings=dataclasses.replace(SETTINGS, max_open_tasks=4))
    world.submit(definition)
    assert words in world.refused[definition.spec.app]
    assert not world.accepted
    assert not world.service.snapshot()["apps"]


def test_what_no_worker_is_large_enough_for_is_refused():
    world = world_of(settings=dataclasses.replace(SETTINGS, sizes=(SMALL,)))
    world.submit(app("a", 1, forms=(Form.GPU,)))
    assert "more than any worker has: small (2 cores, 0 GPUs)" in world.refused["a"]


def test_so_many_applications_and_no_more():
    world = world_of(app("a", 1), settings=dataclasses.replace(SETTINGS, max_apps=1), behaviour=hangs)
    world.submit(app("b", 1))
    assert "1 applications run already, which is the limit" in world.refused["b"]


def test_the_pool_grows_by_what_waits_and_shrinks_when_idle():
    world = world_of()
    world.run(4)
    assert world.wanted == {"small": 0, "large": 0}
    world.submit(app("a", 3))
    world.run(2)
    assert world.wanted == {"small": 2, "large": 0}
    world.submit(app("b", 200, output="hdfs:///out/b"))
    world.run(2)
    assert world.wanted == {"small": 4, "large": 2}
    world.calm()
    world.run(4)
    assert len(world.workers) == 6, "it may be needed again soon"
    world.run(80)
    assert world.wanted == {"small": 0, "large": 0}
    assert not world.workers


def test_idle_workers_are_given_back_before_yarn_takes_busy_ones():
    world = world_of(app("a", 8), behaviour=lambda order, worker: "hang" if order.task == "a/0" else "done")
    world.run(12)
    (busy,) = [each for each in world.workers.values() if each.running]
    idle = [each for each in world.workers.values() if each is not busy]
    assert len(idle) == 3
    world.apply(ev.WorkersAtRisk((busy.name, idle[2].name), world.now_s))
    assert set(world.workers) == {busy.name, *(each.name for each in idle[:2])} - {idle[0].name}
    assert not ends(world, EndReason.LOST)
    # It says so with each heartbeat; what has nothing idle left keeps what is busy.
    world.apply(ev.WorkersAtRisk((busy.name, idle[1].name), world.now_s))
    world.apply(ev.WorkersAtRisk((busy.name,), world.now_s))
    assert set(world.workers) == {busy.name}
    world.behaviour = lambda order, worker: "done"
    world.kill(busy)
    world.calm()
    assert world.ended["a"].error == ""


def test_gpu_tasks_get_workers_with_gpus():
    world = world_of(app("a", 4, forms=(Form.GPU,)))
    world.run(2)
    assert world.wanted == {"small": 0, "large": 2}
    assert all(worker.size is LARGE for worker in world.workers.values())
    world.calm()
    world.assert_ended_well()


def test_a_long_queue_lies_at_the_master():
    world = world_of(policy=lambda: RestlessPolicy(n_queued=50, restlessness=0.0), behaviour=hangs)
    world.grows = False
    world.add_worker(SMALL)
    world.submit(app("a", 40))
    world.run(3)
    listed = world.orders["w1"].attempts
    assert len(listed) == 2 + 2 * SMALL.cores
    assert world.service.snapshot()["apps"]["a"]["tasks"] == {
        "waiting": 0, "ready": 0, "queued": 38, "running": 2, "done": 0, "failed": 0, "cancelled": 0
    }  # fmt: skip


def test_a_task_that_started_is_not_taken_back():
    """The order to take it back and its start cross each other: it goes on, and the policy hears so."""
    world = world_of(policy=lambda: RestlessPolicy(n_queued=2, restlessness=0.0), behaviour=hangs)
    world.grows = False
    worker = world.add_worker(SMALL)
    world.submit(app("a", 3, output=""))
    world.run(3)
    (queued,) = world.service.snapshot()["workers"]["w1"]["queued"]
    decide = world.policy.decide
    world.policy.decide = lambda table: [TakeBackTask(queued, worker.name, "")]
    world.tick()
    world.policy.decide = decide
    assert [each.task for each in world.orders["w1"].attempts if each.take_back] == [queued]
    first, (_, order, _) = next(iter(worker.running.items()))
    worker.running[first] = (0.0, order, "done")
    worker.step()  # it ends, and the queued one starts before the order arrives
    assert queued in {order.task for _, order, _ in worker.running.values()}
    world.run(3)
    assert queued in world.service.snapshot()["workers"]["w1"]["running"]
    assert {each.end for each in world.history} == {EndReason.DONE}


def test_what_a_worker_was_given_stays_there_when_others_come_before_it():
    world = world_of(policy=lambda: RestlessPolicy(n_queued=50, restlessness=0.0), behaviour=hangs)
    world.grows = False
    worker = world.add_worker(SMALL)
    world.submit(app("a", 20))
    world.run(3)
    before = [each.attempt for each in world.orders["w1"].attempts]
    world.submit(app("b", 1, output="hdfs:///out/b"))
    world.policy.decide = lambda table: [EnqueueTask("b/0", worker.name, Form.CPU, 0, "urgent")]
    world.tick()
    after = world.orders["w1"].attempts
    assert set(before) < {each.attempt for each in after}
    assert [each.task for each in after].index("b/0") == SMALL.cores, "next after what runs"


def test_an_older_report_changes_nothing():
    world = world_of(app("a", 2, output=""))
    worker = world.add_worker(SMALL)
    older = ev.WorkerReported(worker.state.report(0.0), 0.0)
    world.run(1)
    newest = world.orders["w1"].report_sequence
    assert world.service.apply(older) == []
    assert world.service.apply(older) == []
    world.cancel("a")
    assert world.orders["w1"].report_sequence >= newest
    world.calm()
    world.assert_ended_well()


def test_a_worker_process_that_another_one_followed_is_heard_no_more():
    world = world_of(app("a", 2), behaviour=hangs)
    world.grows = False
    first = world.add_worker(SMALL)
    world.run(3)
    late = ev.WorkerReported(first.state.report(world.now_s), world.now_s)
    second = world.add_worker(SMALL, name="w1")
    world.run(3)
    assert len(second.running) == 2
    world.apply(late)
    world.run(1)
    assert len(second.running) == 2
    assert len(ends(world, EndReason.LOST)) == 2


def test_a_policy_hears_what_was_measured_and_explain_says_why():
    heard = []

    class Listener(RestlessPolicy):
        def learn(self, table, figures, assignment, measured, ran_s):
            heard.append(measured)

    world = world_of(app("a", 1), policy=lambda: Listener(n_queued=0, restlessness=0.0))
    assert world.service.explain("a/0") == "a/0 waits for a place"
    world.run(3)
    assert world.service.explain("a/0") == "a/0 is running on w1 (cpu): there is a core"
    assert "is not here" in world.service.explain("b/0")
    world.calm()
    assert heard[0].read_s == 0.5


def test_an_application_says_what_is_believed_of_it_beside_what_happened():
    figures = FigureStore()
    world = World(lambda: make("hdas"), figures=figures)
    world.submit(app("a", 40))
    assert world.service.explain("a").splitlines()[1] == (
        "no task of a was measured yet; nothing is known of its figures"
    )
    world.run(8)
    first, second = world.service.explain("a").splitlines()
    assert first.startswith("a (forms: cpu): ")
    assert "a cpu: believed of a task alone: reads 1e-06 MB in 0.5 s, computes 0.5 s;" in second
    assert "predicted 1 s, happened 1 s, mean error 0%" in second
    (shown,) = world.service.snapshot()["figures"]["a"]
    assert (shown["form"], shown["read_s"], shown["predicted_s"]) == ("cpu", 0.5, 1.0)
    world.calm()
    assert world.service.explain("a") == "a has ended"
    assert world.service.snapshot()["figures"]["a"][0]["n_measured"] == 40
    assert "is not here" in world.service.explain("b")


def test_the_journal_is_made_shorter_and_says_the_same():
    world = world_of(settings=dataclasses.replace(SETTINGS, compact_records=20))
    for number in range(6):
        world.submit(app(f"app{number}", 8, output=f"hdfs:///out/{number}"))
        world.run(6)
        assert len(decode_journal(world.disk, "journal").records) < 400
        before = world.service.snapshot()
        world.start_master()
        after = world.service.snapshot()
        assert after["ended"] == before["ended"]
        assert after["apps"].keys() == before["apps"].keys()
    world.calm()
    world.assert_ended_well()
    world.start_master()
    assert len(decode_journal(world.disk, "journal").records) == 1 + 2 * 6 + len(world.workers)


def test_a_service_whose_policy_uses_no_gpus_refuses_what_has_nothing_else():
    assert not TaskSettings(policy="hadoop").service_settings(1, 1).uses_gpus
    assert TaskSettings(policy="fifo").service_settings(1, 1).uses_gpus
    world = world_of(settings=dataclasses.replace(SETTINGS, uses_gpus=False))
    world.submit(app("a", forms=(Form.GPU,)))
    assert "a: it has the form gpu alone" in world.refused["a"]
    world.submit(app("b", forms=(Form.GPU, Form.CPU)))
    assert "b" in world.accepted
