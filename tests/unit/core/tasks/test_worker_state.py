"""One worker: which attempts it starts, stops and reports, on which nodes, and how its use is measured."""

from __future__ import annotations

import math
from typing import Any

from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder, attempt_id
from yarn_accel.core.tasks.outcome import NodeUse
from yarn_accel.core.tasks.use_over_time import use_over_time
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, ResourceId, TaskId
from yarn_accel.core.tasks.worker_messages import (
    AttemptEnd,
    AttemptOutcome,
    AttemptPhase,
    OrderNumber,
    WorkerOrder,
)
from yarn_accel.core.tasks.worker_nodes import WorkerNodes
from yarn_accel.core.tasks.worker_state import (
    AttemptProgress,
    ClockTicked,
    MemoryMeasured,
    OrderReceived,
    ProcessesEnded,
    RunEnded,
    SendReport,
    StartAttempt,
    StopAttempt,
    StopForce,
    WorkerAction,
    WorkerCapacity,
    WorkerState,
)

INCARNATION = "0" * 16
DONE = AttemptEnd(AttemptOutcome.DONE, 0)


def attempt(partition: int, number: int = 0) -> AttemptId:
    return attempt_id(1, 1, partition, number)


def task(partition: int, cores: int = 1, gpus: int = 0, memory_bytes: int = 0, **more: Any) -> AttemptOrder:
    demand = FormDemand(cores, gpus, memory_bytes)
    return AttemptOrder(
        attempt(partition), AppId("a"), TaskId(f"a/{partition}"), Form.CPU, ("x",), demand, **more
    )


class Worker:
    def __init__(self, cores: int = 2, gpus: int = 1, memory_bytes: int = 100) -> None:
        self.state = WorkerState(WorkerCapacity(ResourceId("w"), "w", INCARNATION, cores, gpus, memory_bytes))
        self.now_s = 0.0
        self.sequence = 0

    def order(self, *tasks: AttemptOrder, seen: int = 0, sequence: int = 0) -> tuple[WorkerAction, ...]:
        self.sequence = sequence or self.sequence + 1
        number = OrderNumber(1, self.sequence)
        return self.apply(OrderReceived(WorkerOrder(number, INCARNATION, seen, tasks), self.now_s))

    def apply(self, fact: Any) -> tuple[WorkerAction, ...]:
        actions = self.state.apply(fact)
        self.state.validate()
        return actions

    def end(self, partition: int, end: AttemptEnd = DONE) -> tuple[WorkerAction, ...]:
        return self.apply(RunEnded(attempt(partition), end, self.now_s))

    def write(self, partition: int) -> tuple[WorkerAction, ...]:
        """Its processes have ended, and its output is written."""
        return self.apply(ProcessesEnded(attempt(partition), self.now_s))

    def tick(self, seconds: float) -> tuple[WorkerAction, ...]:
        self.now_s += seconds
        return self.apply(ClockTicked(self.now_s))

    def phases(self) -> dict[int, str]:
        report = self.state.report(self.now_s)
        return {int(each.attempt.split("_")[4]): each.phase.value for each in report.attempts}

    def outcome(self, partition: int) -> AttemptEnd:
        report = self.state.report(self.now_s)
        (end,) = (each.end for each in report.attempts if each.attempt == attempt(partition))
        assert end is not None
        return end


def started(actions: tuple[WorkerAction, ...]) -> dict[AttemptId, tuple[int, ...]]:
    return {each.order.attempt: each.devices for each in actions if isinstance(each, StartAttempt)}


def test_what_fits_starts_and_the_next_follows_at_once() -> None:
    worker = Worker()
    assert started(worker.order(task(1), task(2), task(3), task(4))) == {attempt(1): (), attempt(2): ()}
    assert worker.phases() == {1: "running", 2: "running", 3: "queued", 4: "queued"}
    actions = worker.end(1)
    assert started(actions) == {attempt(3): ()}
    assert SendReport(is_urgent=False) in actions, "what follows is reported with it"


def test_the_next_one_starts_while_an_output_is_written() -> None:
    worker = Worker(cores=1, gpus=1, memory_bytes=10)
    needs = {"gpus": 1, "memory_bytes": 10}
    worker.order(*(task(n, **needs) for n in range(1, 6)))
    assert started(worker.write(1)) == {attempt(2): (0,)}, "it has left its core, memory and GPU"
    assert worker.write(1) == (), "it has done so once"
    assert worker.phases() == {1: "running", 2: "running", 3: "queued", 4: "queued", 5: "queued"}
    assert started(worker.write(2)) == {attempt(3): (0,)}
    assert started(worker.write(3)) == {}, "while two write, a third one keeps its place"
    assert started(worker.end(1)) == {attempt(4): (0,)}, "one of the two has ended, and it leaves its place"
    assert started(worker.write(4)) == {}
    assert started(worker.end(3)) == {attempt(5): (0,)}
    assert (worker.write(3), worker.write(9)) == ((), ()), "nothing of these is there"


def test_an_attempt_whose_output_is_written_is_stopped_as_others_are() -> None:
    worker = Worker(cores=1)
    first, second = task(1, time_limit_s=10), task(2)
    worker.order(first, second)
    worker.write(1)
    assert worker.tick(11) == (StopAttempt(attempt(1), StopForce.TERMINATE),)
    assert worker.order(first) == (StopAttempt(attempt(2), StopForce.TERMINATE),)
    worker.end(1, AttemptEnd(AttemptOutcome.FAILED))
    assert worker.outcome(1).outcome is AttemptOutcome.TIMED_OUT


def test_inputs_are_of_what_waits_in_its_order_and_of_what_runs() -> None:
    worker = Worker(cores=1)
    worker.order(*(task(n, inputs=(("in", f"file:///{n}"), ("all", "file:///all"))) for n in (1, 3, 2)))
    waiting, running = worker.state.inputs()
    assert waiting == ["file:///3", "file:///all", "file:///2", "file:///all"]
    assert running == ["file:///1", "file:///all"]


def test_news_is_urgent_where_nothing_waits_here_or_an_attempt_failed() -> None:
    worker = Worker(cores=1)
    urgent, soon = SendReport(), SendReport(is_urgent=False)
    assert Worker(cores=2).order(task(1))[-1] == soon, "another one can start here"
    assert len(worker.order(task(1), task(2), task(3), task(4))) == 1, "nothing can: its end may come before"
    assert worker.end(1)[-1] == soon
    assert worker.end(2, AttemptEnd(AttemptOutcome.FAILED))[-1] == urgent
    assert worker.end(3)[-1] == urgent
    assert worker.end(4) == (urgent,)


def test_who_waits_for_a_gpu_holds_back_only_those_who_want_one() -> None:
    worker = Worker(cores=4, gpus=2)
    found = worker.order(task(1, gpus=1), task(2, gpus=2), task(3, gpus=1), task(4))
    assert started(found) == {attempt(1): (0,), attempt(4): ()}
    assert started(worker.end(1)) == {attempt(2): (0, 1)}


def test_who_waits_for_cores_or_memory_holds_back_all() -> None:
    worker = Worker(cores=2, gpus=1)
    assert started(worker.order(task(1), task(2, cores=2), task(3, gpus=1))) == {attempt(1): ()}
    worker = Worker(memory_bytes=100)
    found = worker.order(task(1, memory_bytes=60), task(2, memory_bytes=60), task(3, memory_bytes=1))
    assert started(found) == {attempt(1): ()}


def test_a_device_is_the_lowest_free_one() -> None:
    worker = Worker(cores=8, gpus=3)
    worker.order(task(1, gpus=1), task(2, gpus=1))
    worker.end(1)
    found = worker.order(task(2, gpus=1), task(3, gpus=2))
    assert started(found) == {attempt(3): (0, 2)}


def test_what_is_to_be_taken_back_goes_on_where_it_runs() -> None:
    worker = Worker(cores=1)
    worker.order(task(1), task(2))
    back = [task(each, take_back=True) for each in (1, 2, 3)]
    assert worker.order(*back) == (SendReport(),)
    assert worker.phases() == {1: "running", 2: "ended", 3: "ended"}
    assert worker.outcome(2).outcome is AttemptOutcome.TAKEN_BACK
    assert worker.outcome(3).outcome is AttemptOutcome.TAKEN_BACK, "it came late, and never starts"
    assert worker.end(1) == (SendReport(),)


def test_what_is_listed_no_more_is_taken_back_or_ended() -> None:
    worker = Worker(cores=1)
    worker.order(task(1), task(2))
    assert worker.order() == (StopAttempt(attempt(1), StopForce.TERMINATE),)
    assert worker.outcome(2).outcome is AttemptOutcome.TAKEN_BACK
    assert worker.tick(4.9) == ()
    assert worker.tick(0.2) == (StopAttempt(attempt(1), StopForce.KILL),)
    assert worker.tick(60) == ()
    worker.end(1, AttemptEnd(AttemptOutcome.FAILED, -9, "killed"))
    assert worker.outcome(1) == AttemptEnd(AttemptOutcome.CANCELLED, -9)


def test_one_that_committed_before_it_was_ended_is_done() -> None:
    worker = Worker()
    worker.order(task(1))
    worker.order()
    worker.end(1)
    assert worker.outcome(1).outcome is AttemptOutcome.DONE


def test_an_end_is_reported_until_an_order_shows_that_it_was_seen() -> None:
    worker = Worker()
    worker.order(task(1))
    worker.state.report(0.0)
    worker.end(1)
    worker.order(seen=1)
    assert worker.phases() == {1: "ended"}
    worker.order(seen=1)
    assert worker.phases() == {1: "ended"}
    worker.order(task(1), seen=3)
    assert worker.phases() == {1: "ended"}
    worker.order(seen=3)
    assert worker.phases() == {}
    assert started(worker.order(task(1))) == {}
    assert worker.outcome(1).error == "it was here before: an attempt runs once"


def test_orders_of_the_past_and_for_others_change_nothing() -> None:
    worker = Worker()
    worker.order(task(1), sequence=5)
    assert worker.order(sequence=4) == ()
    other = WorkerOrder(OrderNumber(9, 9), "f" * 16, 0)
    assert worker.apply(OrderReceived(other, 0.0)) == ()
    assert "another incarnation" in worker.state.report(0.0).problem
    assert worker.phases() == {1: "running"}
    assert worker.order(task(1), sequence=6) == ()
    assert worker.state.report(0.0).problem == ""


def test_what_can_never_fit_fails_at_once() -> None:
    worker = Worker(cores=2, gpus=1, memory_bytes=100)
    assert SendReport() in worker.order(task(1, gpus=2), task(2, cores=3), task(3, memory_bytes=101), task(4))
    assert worker.outcome(1).error == "it wants 2 GPUs, and worker w has 1"
    assert worker.outcome(2).error == "it wants 3 cores, and worker w has 2"
    assert worker.outcome(3).error == "it wants 101 bytes of memory, and worker w has 100"
    assert worker.phases()[4] == "running"


def test_the_time_limit_ends_an_attempt() -> None:
    worker = Worker()
    worker.order(task(1, time_limit_s=10.0))
    assert worker.tick(9.9) == ()
    assert worker.tick(0.2) == (StopAttempt(attempt(1), StopForce.TERMINATE),)
    worker.end(1, AttemptEnd(AttemptOutcome.FAILED, -15))
    assert worker.outcome(1).outcome is AttemptOutcome.TIMED_OUT
    assert worker.outcome(1).error == "it did not end within its 10 s"


def test_silence_counts_from_the_last_progress_and_not_while_the_worker_stood_still() -> None:
    worker = Worker()
    worker.order(task(1, silence_limit_s=3.0))
    for _ in range(8):
        assert worker.tick(0.5) == ()
        worker.apply(AttemptProgress(attempt(1), "reading", 7, worker.now_s))
    assert worker.tick(1000.0) == ()
    for _ in range(5):
        assert worker.tick(0.5) == ()
    assert worker.tick(0.5) == (StopAttempt(attempt(1), StopForce.TERMINATE),)


def test_memory_above_the_limit_ends_an_attempt_once() -> None:
    worker = Worker()
    worker.order(task(1, memory_bytes=50), task(2))
    assert worker.apply(MemoryMeasured(attempt(1), 50, 0.0)) == ()
    assert worker.apply(MemoryMeasured(attempt(2), 10**12, 0.0)) == ()
    assert worker.apply(MemoryMeasured(attempt(1), 51, 0.0)) == (
        StopAttempt(attempt(1), StopForce.TERMINATE),
    )
    assert worker.apply(MemoryMeasured(attempt(1), 52, 0.0)) == ()
    worker.end(1, AttemptEnd(AttemptOutcome.FAILED, -9))
    assert worker.outcome(1).error == "its processes occupied 51 bytes, 50 are its limit"


def test_a_report_has_everything_with_its_age() -> None:
    worker = Worker(cores=1)
    worker.order(task(1), task(2))
    worker.now_s = 2.0
    worker.apply(AttemptProgress(attempt(1), "half", 7, 2.0))
    report = worker.state.report(3.0)
    assert [(each.phase, each.since_s, each.status, each.read_bytes) for each in report.attempts] == [
        (AttemptPhase.RUNNING, 3.0, "half", 7),
        (AttemptPhase.QUEUED, 3.0, "", 0),
    ]
    assert worker.state.report(3.0).sequence == report.sequence + 1
    assert report.order == OrderNumber(1, 1)


# Nodes for workers: as many as wanted, kept, released, and others where no worker starts.


NODES = ("n1", "n2", "n3")


def nodes():
    return WorkerNodes(patience_s=10.0)


def test_the_best_nodes_are_chosen_and_kept():
    chosen = nodes()
    assert chosen.choose(2, NODES, (), 0.0) == {"n1", "n2"}
    assert chosen.choose(2, ("n3", "n2", "n1"), ("n1",), 1.0) == {"n1", "n2"}
    assert chosen.choose(5, NODES, ("n1",), 2.0) == {"n1", "n2", "n3"}


def test_fewer_are_wanted_who_reports_stays_until_it_is_released():
    chosen = nodes()
    chosen.choose(3, NODES, (), 0.0)
    assert chosen.choose(1, NODES, ("n2", "n3"), 1.0) == {"n2", "n3"}
    chosen.release("n3")
    assert chosen.choose(1, NODES, ("n2",), 2.0) == {"n2"}
    assert chosen.choose(0, NODES, (), 3.0) == set()


def test_a_node_on_which_no_worker_starts_gives_way_to_another_one():
    chosen = nodes()
    assert chosen.choose(1, NODES, (), 0.0) == {"n1"}
    assert chosen.choose(1, NODES, (), 9.9) == {"n1"}
    assert chosen.choose(1, NODES, (), 10.0) == {"n2"}
    assert chosen.choose(1, NODES, (), 20.0) == {"n3"}
    assert chosen.choose(1, NODES, (), 30.0) == {"n1"}
    assert chosen.choose(1, NODES, ("n1",), 99.0) == {"n1"}


def test_a_worker_that_dies_late_is_awaited_on_its_node_again():
    chosen = nodes()
    chosen.choose(1, NODES, (), 0.0)
    assert chosen.choose(1, NODES, ("n1",), 99.0) == {"n1"}
    assert chosen.choose(1, NODES, (), 100.0) == {"n1"}
    assert chosen.choose(1, NODES, (), 109.0) == {"n2"}


def test_the_only_node_is_kept_however_long_it_takes():
    chosen = nodes()
    assert chosen.choose(1, ("n1",), (), 0.0) == {"n1"}
    assert chosen.choose(1, ("n1",), (), 99.0) == {"n1"}


def test_a_node_that_is_gone_is_chosen_no_more():
    chosen = nodes()
    chosen.choose(2, NODES, (), 0.0)
    assert chosen.choose(2, ("n2", "n3"), (), 1.0) == {"n2", "n3"}


def test_a_worker_of_an_earlier_master_is_taken_over():
    assert nodes().choose(1, NODES, ("n3",), 0.0) == {"n3"}


# Means of what a node did, in equal steps.


def test_a_step_is_a_mean_of_what_happened_in_it():
    use = [NodeUse(0.0, 100e6, 1, 1, 0), NodeUse(1.5, 0.0, 2, 1, 1), NodeUse(3.0, 0.0, 0, 0, 0)]
    steps = use_over_time(use, 4.0, 4)
    assert steps.step_s == 1.0
    assert steps.io_bytes_per_s == (100e6, 50e6, 0.0, 0.0)
    assert steps.gpus_computing == (0.0, 0.5, 1.0, 0.0)
    assert steps.gpus == (1.0, 1.0, 1.0, 0.0)
    assert steps.cores == (1.0, 1.5, 2.0, 0.0)


def test_io_that_is_not_known_is_no_part_of_a_mean():
    use = [NodeUse(0.0, math.nan, 1, 0, 0), NodeUse(1.5, 8.0, 1, 0, 0)]
    assert use_over_time(use, 3.0, 3).io_bytes_per_s == (None, 8.0, 8.0)


def test_what_was_after_the_end_is_left_out():
    use = [
        NodeUse(0.0, 1.0, 1, 0, 0),
        NodeUse(1.5, 3.0, 1, 0, 0),
        NodeUse(2.5, 9.0, 9, 9, 9),
        NodeUse(7.0, 9.0, 9, 9, 9),
    ]
    assert use_over_time(use, 2.0, 2).io_bytes_per_s == (1.0, 2.0)
