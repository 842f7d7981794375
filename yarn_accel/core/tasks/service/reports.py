"""Takes in what workers report, and what becomes of workers that do not.

A worker that was lost and reports again begins anew: what it still runs is in no order for it, and it ends
that.
"""

from __future__ import annotations

from collections import deque

from yarn_accel.core.tasks.attempt_orders import AttemptId
from yarn_accel.core.tasks.events import EndReason, IoSampled
from yarn_accel.core.tasks.records import Assignment, Drop, TaskWorker
from yarn_accel.core.tasks.service.attempts import Attempts
from yarn_accel.core.tasks.service.commands import ReleaseWorker
from yarn_accel.core.tasks.service.events import WorkerReported
from yarn_accel.core.tasks.service.records import WorkerForgotten, WorkerKnown
from yarn_accel.core.tasks.service.use_samples import UseSamples
from yarn_accel.core.tasks.values import ResourceId, ResourceSpec
from yarn_accel.core.tasks.worker_messages import (
    AttemptEnd,
    AttemptOutcome,
    AttemptPhase,
    AttemptReport,
    OrderNumber,
    WorkerReport,
)

#: Whose late reports may still come.
_MAX_FORMER = 16
_FAILURES = {
    AttemptOutcome.FAILED: "",
    AttemptOutcome.TIMED_OUT: "it exceeded its time limit",
    AttemptOutcome.OUT_OF_MEMORY: "it exceeded its memory",
}


class Reports:
    """Compares what workers have with what they should have."""

    def __init__(self, attempts: Attempts, use: UseSamples) -> None:
        self._attempts = attempts
        self._table = attempts.table
        self._use = use
        #: Processes that another one has followed in the same container; a late report of one is nothing.
        self._former: dict[ResourceId, deque[str]] = {}

    def reported(self, event: WorkerReported) -> None:
        """A worker says what it has."""
        table, report = self._table, event.report
        worker = table.workers.get(report.worker)
        if report.incarnation in self._former.get(report.worker, ()):
            return
        if worker is not None and worker.incarnation != report.incarnation:
            former = self._former.setdefault(report.worker, deque(maxlen=_MAX_FORMER))
            former.append(worker.incarnation)
            self.lost(worker, "its process was replaced by another one", by_itself=True)
            worker = None
        if worker is None:
            self._attempts.commit(WorkerKnown(report.worker, report.incarnation))
            worker = table.workers[report.worker]
        elif report.sequence <= worker.report_sequence:
            return
        worker.report_sequence = report.sequence
        worker.problem = report.problem
        table.see(worker.id, table.now_s)
        if worker.has_reported:
            self._compare(worker, report)
        else:
            self._join(worker, report)
        self._note_use(worker, report)
        if report.io is not None and worker.is_usable:
            io, now_s = report.io, table.now_s
            table.sample(worker, IoSampled(worker.id, io.bytes_per_s, io.readers, now_s - io.age_s, now_s))

    def _note_use(self, worker: TaskWorker, report: WorkerReport) -> None:
        used = worker.used()
        worker.bytes_per_s = None if report.io is None else report.io.bytes_per_s
        at = self._attempts.unix_time(self._table.now_s)
        self._use.note(worker.spec, at, used.cores, used.gpus, worker.bytes_per_s)

    def lost(self, worker: TaskWorker, reason: str, by_itself: bool) -> None:
        """A worker is gone, with all that it had."""
        for assignment in list(worker.held()):
            # An end may end the application, and with it what others of it had.
            if assignment.task.assignment is assignment:
                is_crash = by_itself and assignment.started_s is not None
                self._attempts.lose(assignment, f"{worker.id} was lost: {reason}", is_crash)
        self._attempts.there.left(worker.id, self._table.now_s)
        self._attempts.commit(WorkerForgotten(worker.id))

    def end_silent(self) -> None:
        """Lose the workers that have not reported for too long."""
        table = self._table
        limit_s = table.now_s - self._attempts.settings.silence_s
        while table.seen:
            name, seen_s = next(iter(table.seen.items()))
            if seen_s > limit_s:
                return
            self.lost(table.workers[name], "it did not report", by_itself=True)
            self._attempts.outbox.put(ReleaseWorker(name))

    def _join(self, worker: TaskWorker, report: WorkerReport) -> None:
        """A worker reports to this master for the first time."""
        attempts, table = self._attempts, self._table
        spec = ResourceSpec(
            worker.id,
            report.node,
            report.cores,
            report.gpus,
            report.memory_bytes,
            report.bandwidth_bytes_per_s or attempts.settings.bandwidth_bytes_per_s,
            report.accelerator,
        )
        worker.busy_s = table.now_s
        attempts.there.joined(worker.id, spec.cores, table.now_s)
        table.order_due[worker.id] = worker
        table.join(worker, spec)
        table.are_servers_due = True
        self._compare(worker, report)
        for assignment in list(worker.held()):
            self._adopt(assignment)

    def _adopt(self, assignment: Assignment) -> None:
        """An attempt that an earlier master assigned: what is to run stays, what waits is taken back."""
        if assignment.drop is not None or assignment.is_counted:
            return
        if assignment.is_start:
            self._table.note_start(assignment, self._table.now_s)
        else:
            self._attempts.drop(assignment, Drop.TAKE_BACK)

    def _compare(self, worker: TaskWorker, report: WorkerReport) -> None:
        """Take in what became of the attempts that the worker has or had."""
        held = {assignment.attempt: assignment for assignment in worker.held()}
        reported: set[AttemptId] = set()
        for each in sorted(report.attempts, key=_by_end):
            reported.add(each.attempt)
            assignment = held.get(each.attempt)
            if each.phase is AttemptPhase.ENDED:
                self._table.order_due[worker.id] = worker  # which may forget it then
            if assignment is not None:
                self._take(assignment, each)
        for attempt, assignment in held.items():
            if attempt not in reported and self._has_left(assignment, report.order):
                self._attempts.lose(assignment, f"{worker.id} has it no more")

    def _take(self, assignment: Assignment, report: AttemptReport) -> None:
        now_s = self._table.now_s
        if report.end is not None:
            if report.end.outcome is not AttemptOutcome.TAKEN_BACK:
                self._attempts.started(assignment, now_s - report.since_s - report.end.wall_s)
            self._ended(assignment, report.end, now_s - report.since_s)
        elif report.phase is AttemptPhase.RUNNING:
            self._attempts.started(assignment, now_s - report.since_s)

    def _ended(self, assignment: Assignment, end: AttemptEnd, ended_s: float) -> None:
        attempts, outcome = self._attempts, end.outcome
        if outcome is AttemptOutcome.DONE:
            attempts.settle(
                assignment,
                EndReason.DONE,
                end.error,
                measured=end.measured,
                counters=end.counters,
                ran_s=(ended_s - end.wall_s, ended_s),
                result=end.result,
            )
        elif assignment.drop is not None or outcome not in _FAILURES:
            attempts.lose(assignment, end.error or "its worker gave it up")
        else:
            status = "" if end.exit_status is None else f"exit status {end.exit_status}"
            words = [each for each in (_FAILURES[outcome], end.error, status) if each]
            attempts.settle(assignment, EndReason.FAILED, "; ".join(words), counters=end.counters)

    def _has_left(self, assignment: Assignment, order: OrderNumber | None) -> bool:
        """Whether a worker that does not report an attempt had been ordered to have it, or to drop it."""
        if order is None or order.master_attempt != self._attempts.settings.master_attempt:
            return False
        since = assignment.listed_in if assignment.drop is None else assignment.dropped_in
        return bool(since) and order.sequence >= (since or 0)


def _by_end(report: AttemptReport) -> tuple[bool, float]:
    """What ended comes first, in the order in which it ended, as each freed a core for the next."""
    return report.phase is not AttemptPhase.ENDED, -report.since_s
