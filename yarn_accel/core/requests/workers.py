"""The workers of one device kind: what each has, which can take more, and for how long they are busy."""

from __future__ import annotations

from dataclasses import dataclass, field

from yarn_accel.core.requests.queues import QueueEntry, TenantQueue


@dataclass(slots=True, eq=False)
class Batch:
    """What a worker was sent; `left` are the entries it has not answered for, by id."""

    tenant: TenantQueue
    left: dict[int, QueueEntry]
    expected_s: float
    started_s: float


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """One worker; of its batches it computes as many as it has lanes, and has one more ready at most."""

    number: int
    group: WorkerGroup
    batches: list[Batch] = field(default_factory=list)

    def left_s(self, now_s: float) -> float:
        """For how long it is still busy; one that should be done is believed to need as long again."""
        if not self.batches:
            return 0.0
        first = self.batches[0]
        left_s = abs(first.started_s + first.expected_s - now_s)
        return left_s + sum(batch.expected_s for batch in self.batches[1:])


@dataclass(slots=True, eq=False)
class WorkerGroup:
    """The workers of one device kind, what is queued for them, and the virtual time of that queue.

    Attributes:
        prefetch_below_s: while a worker is busy for shorter than that, the next batch may be sent ahead.
        n_lanes: batches that a worker computes at a time.
        idle: those with nothing to do, the one that was busy last at the end.
        ready: those with a free lane, or busy for so short that the next batch may be sent ahead, the longest
            busy first.
        queued_s: what all queued entries together should take here.
        virtual_s: the start of the batch that was started last, or was furthest ahead of all before it.
        furthest_v: the largest virtual time any tenant has reached.
    """

    kind: str
    prefetch_below_s: float
    n_lanes: int = 1
    workers: dict[int, WorkerRecord] = field(default_factory=dict)
    idle: dict[int, WorkerRecord] = field(default_factory=dict)
    ready: dict[int, WorkerRecord] = field(default_factory=dict)
    n_queued: int = 0
    n_running: int = 0
    queued_s: float = 0.0
    virtual_s: float = 0.0
    furthest_v: float = 0.0

    def place(self, worker: WorkerRecord) -> None:
        """Put a worker among the idle, the ready, or neither."""
        number = worker.number
        self.idle.pop(number, None)
        self.ready.pop(number, None)
        batches = worker.batches
        if not batches:
            self.idle[number] = worker
        elif len(batches) < self.n_lanes or (
            len(batches) == 1 and batches[0].expected_s < self.prefetch_below_s
        ):
            self.ready[number] = worker

    def next_worker(self, now_s: float) -> WorkerRecord | None:
        """Who gets the next batch: the idle come before the ready."""
        return self.next_idle() if self.idle else self.next_ready(now_s)

    def next_idle(self) -> WorkerRecord:
        """Of the idle, if there are any, the one whose memory is still warm."""
        return self.idle[next(reversed(self.idle))]

    def next_ready(self, now_s: float) -> WorkerRecord | None:
        """Of the ready one with the fewest batches.

        Nothing is put behind a batch that turns out to be long, only beside it.
        """
        best: WorkerRecord | None = None
        for worker in self.ready.values():
            n_batches = len(worker.batches)
            is_behind = n_batches >= self.n_lanes
            if is_behind and now_s - worker.batches[0].started_s >= self.prefetch_below_s:
                continue
            if n_batches == 1:
                return worker
            if best is None or n_batches < len(best.batches):
                best = worker
        return best

    def remove(self, worker: WorkerRecord) -> None:
        """Let go of a worker."""
        for group in (self.workers, self.idle, self.ready):
            group.pop(worker.number, None)

    def free_in_s(self, now_s: float) -> float:
        """When the first of the workers has done what it was sent."""
        return 0.0 if self.idle else min(worker.left_s(now_s) for worker in self.workers.values())

    def validate(self) -> None:
        """Check that the sets agree with the workers.

        Raises:
            AssertionError: they do not.
        """
        assert set(self.idle) == {number for number, worker in self.workers.items() if not worker.batches}
        most = max(2, self.n_lanes)
        assert all(0 < len(worker.batches) < most for worker in self.ready.values())
        assert all(len(worker.batches) <= most for worker in self.workers.values())
        assert all(batch.left for worker in self.workers.values() for batch in worker.batches)
        n_running = sum(len(batch.left) for worker in self.workers.values() for batch in worker.batches)
        assert self.n_running == n_running
