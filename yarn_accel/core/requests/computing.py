"""The way of a request through the workers: queued, started, finished, lost, expired."""

from __future__ import annotations

from yarn_accel.core.requests.commands import Look, Run, Write
from yarn_accel.core.requests.events import (
    Failure,
    Finished,
    Needs,
    RateMeasured,
    WorkerLost,
    WorkerStarted,
    WorkResult,
    Written,
)
from yarn_accel.core.requests.idempotency import Idempotency
from yarn_accel.core.requests.memory import MemoryPool
from yarn_accel.core.requests.queues import QueueEntry
from yarn_accel.core.requests.rates import Rate, RateTable
from yarn_accel.core.requests.replies import Replies
from yarn_accel.core.requests.scheduling import Scheduler
from yarn_accel.core.requests.settings import MachineSettings
from yarn_accel.core.requests.work import MachineState, WorkRecord, WorkState

_ON_CPU = "send it to a server that computes on its CPU, and report the message"
#: What a request that has cost too many workers is answered, by code.
COSTLY = {
    failure.code: failure
    for failure in (
        Failure("internal", "worker-lost", ""),
        Failure("rejected", "gpu-failed", "", _ON_CPU),
    )
}

#: A request goes down with no more workers than this, even if it is suspected of nothing.
_MOST_LOSSES = 8
#: Kinds of requests whose expected seconds are remembered.
_MAX_KINDS = 1024
_LOOKING = WorkState.LOOKING
_QUEUED = WorkState.QUEUED
_RUNNING = WorkState.RUNNING
_WRITING = WorkState.WRITING
_EXPIRED = Failure("rejected", "deadline-exceeded", "the deadline passed before the computation began")


class Computing:
    """The workers, and the works that are theirs.

    Attributes:
        scheduler: which worker computes what.
        busy_s: seconds all workers together were busy.
    """

    def __init__(
        self,
        settings: MachineSettings,
        memory: MemoryPool,
        idempotency: Idempotency,
        replies: Replies,
        state: MachineState,
    ) -> None:
        self.scheduler = Scheduler(settings)
        self.busy_s = 0.0
        self._max_attempts = settings.max_attempts
        self._memory = memory
        self._idempotency = idempotency
        self._replies = replies
        self._state = state
        self._rates = RateTable()
        self._expected: dict[Needs, dict[str, float]] = {}
        self._measured: dict[tuple[Needs, str], tuple[Rate, float]] = {}

    def queue(self, work: WorkRecord) -> None:
        """All inputs are there: have it computed."""
        needs = work.needs
        work.expected_s = self._expected.get(needs) or self._expect(needs)
        work.n_crashes = self._idempotency.n_crashes(work)
        if work.n_crashes:
            work.batch_key = None
        scheduler = self.scheduler
        state = self._state
        worker = scheduler.start_at_once(work, state.now_s)
        if worker >= 0:
            work.state = _RUNNING
            if work.reading_bytes:
                self._memory.stop_reading(work)
            for seconds in work.expected_s.values():
                state.out.append(Run(worker, (work.id,), seconds, work.n_crashes > 0))
        else:
            work.state = _QUEUED
            scheduler.add(work, state.now_s)

    def worker_started(self, event: WorkerStarted) -> None:
        """A worker takes works from now on."""
        self.scheduler.add_worker(event.worker, event.kind, event.now_s)

    def finished(self, event: Finished) -> None:
        """A worker has answered for some of its works."""
        worker = event.worker
        works = self._state.works
        done: list[QueueEntry] = []
        answers: list[tuple[WorkRecord, WorkResult]] = []
        busy_s = 0.0
        for result in event.results:
            work = works.get(result.work)
            if work is None or work.worker != worker or work.state is not _RUNNING or work in done:
                continue
            busy_s += result.compute_s
            done.append(work)
            answers.append((work, result))
        if not done:
            return
        self.busy_s += busy_s
        kind = self.scheduler.finish(worker, done, busy_s, event.now_s)
        if self.scheduler.waiting:
            # The worker's next batch comes before anything else, unless the results stop their tenant.
            for work, result in answers:
                work.tenant.used_bytes += result.bytes_out
            self.dispatch()
            for work, result in answers:
                work.tenant.used_bytes -= result.bytes_out
        for work, result in answers:
            self._pass_on(work, result)
            if result.failure is None:
                self._learn(work.needs, kind, result.compute_s)

    def written(self, event: Written) -> None:
        """The output of a work is stored."""
        work = self._state.works.get(event.work)
        if work is not None and work.state is _WRITING:
            self._replies.count(work.tenant, -work.bytes_out)
            work.stamp = event.stamp
            self._replies.result(work, None)

    def worker_lost(self, event: WorkerLost) -> None:
        """A worker is gone: compute again what it had."""
        reported = {lost.work: lost for lost in event.lost}
        for entry in self.scheduler.remove_worker(event.worker, event.now_s):
            assert isinstance(entry, WorkRecord)
            lost = reported.get(entry.id)
            is_overwritten = lost is not None and lost.overwritten
            self._retry(entry, is_overwritten, lost is not None and lost.is_suspect, event)

    def measured(self, event: RateMeasured) -> None:
        """Learn from a calibration."""
        self._rates.observe(event.operation, event.amount, event.kind, event.seconds)

    def expire(self) -> None:
        """Refuse what was not started before its deadline."""
        for entry in self.scheduler.advance(self._state.now_s):
            assert isinstance(entry, WorkRecord)
            self._replies.failure(entry, _EXPIRED)

    def dispatch(self) -> bool:
        """Start what can be started; whether anything was."""
        starts = self.scheduler.dispatch()
        for worker, entries, expected_s in starts:
            is_alone = False
            for entry in entries:
                assert isinstance(entry, WorkRecord)
                is_alone = entry.n_crashes > 0
                entry.state = _RUNNING
                if entry.reading_bytes:
                    self._memory.stop_reading(entry)
            numbers = tuple([entry.id for entry in entries])
            # One that may have cost a worker is never in a batch with others.
            self._state.out.append(Run(worker, numbers, expected_s, is_alone))
        return bool(starts)

    def _expect(self, needs: Needs) -> dict[str, float]:
        """By kind of device; renewed with each computation of these needs."""
        if len(self._expected) >= _MAX_KINDS:
            self._expected.clear()
            self._measured.clear()
        expected = {kind: self._rates.expected_s(needs.operation, needs.amount, kind) for kind in needs.kinds}
        self._expected[needs] = expected
        return expected

    def _pass_on(self, work: WorkRecord, result: WorkResult) -> None:
        if result.failure is not None:
            self._replies.failure(work, result.failure)
            return
        work.compute_s, work.bytes_out = result.compute_s, result.bytes_out
        if result.answer_bytes:
            work.answer_bytes = result.answer_bytes
        if work.writes and work.waiters:
            work.state = _WRITING
            self._replies.count(work.tenant, work.bytes_out)
            self._state.out.append(Write(work.id))
        else:
            self._replies.result(work, result)

    def _learn(self, needs: Needs, kind: str, compute_s: float) -> None:
        known = self._expected.get(needs)
        if known is None or compute_s <= 0.0:
            return
        measured = self._measured.get((needs, kind))
        if measured is None:
            amount = max(needs.amount, 1.0)
            measured = self._rates.rate(needs.operation, needs.amount, kind), amount
            self._measured[needs, kind] = measured
        rate, amount = measured
        rate.learn(compute_s / amount)
        # In place of the one before, never changed: entries that are queued were counted with it.
        self._expected[needs] = {**known, kind: rate.s_per_unit * amount}

    def _retry(self, work: WorkRecord, is_overwritten: bool, is_suspect: bool, event: WorkerLost) -> None:
        """Compute again what still can be, so often as the settings say."""
        work.n_lost += 1
        if is_suspect:
            work.n_crashes = self._idempotency.crashed(work)
        if not work.waiters:
            self._replies.drop(work)
        elif work.n_crashes >= self._max_attempts or work.n_lost >= _MOST_LOSSES:
            n_lost = max(work.n_lost, work.n_crashes)
            text = f"{event.detail}; this request was with {n_lost} workers that are gone"
            self._replies.failure(work, COSTLY[event.code]._replace(message=text))
        elif not is_overwritten:
            self.queue(work)
        elif work.needs.reads and not work.needs.payload_bytes:
            self._memory.give_up(work)
            work.state = _LOOKING
            self._state.out.append(Look(work.id))
        else:
            self._replies.again(work, event.detail)
