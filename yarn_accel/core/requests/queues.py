"""What waits for a worker, tenant by tenant, in the order in which it would be taken.

A tenant has a `KindQueue` for each set of device kinds its entries can run on; that has a `BatchQueue` for
each batch key; that has entries, best rank first.  The heap of a `KindQueue` holds its batch queues by the
rank of their first entry, so the next entry of a tenant is found in O(log n) however many kinds of requests
wait.  What was taken or cancelled stays in the heaps as a dead entry until it is first or the dead outnumber
the living.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

#: Dead entries and empty queues tolerated beside as many living ones.
_SLACK = 64
_LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much may be computed together, and how long an entry may wait for company."""

    max_size: int
    max_bytes: int
    max_delay_s: float


class QueueEntry:
    """One request as far as its order matters.

    Attributes:
        tenant: whose it is.
        expected_s: seconds it should take, by the device kinds it can run on, at least one; replaced, never
            changed, and not while it is queued or running.
        batch_key: entries of one tenant with equal keys may be computed together; None: always alone.
        n_bytes: bytes of the inputs.
        memory_bytes: memory it uses while it runs, within the tenant's bound.
        priority: -8..7, higher first, within the tenant only.
        due_s: not started from then on; 0: no deadline.
        arrived_s: its place in the queue; the past for one that was queued before.
        rank, serial, entered_s: its order, a number that breaks ties, and when it was queued.
        queue: where it waits or has waited.
        is_queued: whether it can still be taken, cancelled or expire.
        worker: the one that has it; -1: none.
    """

    # Most entries never differ from these, and setting them takes time.
    priority = 0
    due_s = 0.0
    rank = 0.0
    serial = 0
    entered_s = 0.0
    queue: BatchQueue | None = None
    is_queued = False
    worker = -1

    def __init__(
        self,
        number: int,
        tenant: TenantQueue,
        expected_s: Mapping[str, float],
        arrived_s: float,
        batch_key: Hashable | None = None,
        n_bytes: int = 0,
        memory_bytes: int = 0,
    ) -> None:
        self.id = number
        self.tenant = tenant
        self.expected_s = expected_s
        self.arrived_s = arrived_s
        self.batch_key = batch_key
        self.n_bytes = n_bytes
        self.memory_bytes = memory_bytes


class BatchQueue:
    """Entries of one tenant that may share a batch.

    A batch is ready when it is full or its first entry has waited long enough; an entry that is always alone
    is full by itself.
    """

    __slots__ = (
        "_heap",
        "_limits",
        "_max_size",
        "alarm_s",
        "goes_at_once",
        "n_bytes",
        "n_entries",
        "owner",
        "published",
    )

    def __init__(self, owner: KindQueue, limits: BatchLimits, is_single: bool) -> None:
        self.owner = owner
        #: Whether no entry waits for others to come.
        self.goes_at_once = is_single or limits.max_delay_s <= 0.0
        self._max_size = 1 if is_single else limits.max_size
        self.n_entries = 0
        self.n_bytes = 0
        #: The serial of the entry under which this queue stands in its owner's heap; -1: it does not.
        self.published = -1
        #: When the scheduler looks at it again by itself; 0: never.
        self.alarm_s = 0.0
        self._limits = limits
        self._heap: list[tuple[float, int, QueueEntry]] = []

    def push(self, entry: QueueEntry) -> None:
        """Add an entry."""
        self.n_entries += 1
        self.n_bytes += entry.n_bytes
        heapq.heappush(self._heap, (entry.rank, entry.serial, entry))

    def head(self) -> QueueEntry | None:
        """The entry that would be taken first."""
        heap = self._heap
        while heap:
            _, serial, entry = heap[0]
            if entry.is_queued and entry.serial == serial:
                return entry
            heapq.heappop(heap)
        return None

    def forget(self, entry: QueueEntry) -> None:
        """Count an entry out that was cancelled or has expired; in the heap it is dead already."""
        self.n_entries -= 1
        self.n_bytes -= entry.n_bytes
        if len(self._heap) > 2 * self.n_entries + _SLACK:
            self._heap = [(entry.rank, entry.serial, entry) for entry in self]
            heapq.heapify(self._heap)

    def ready_s(self) -> float:
        """When its first batch is ready: long ago if it is full."""
        limits = self._limits
        if self.goes_at_once or self.n_entries >= limits.max_size or self.n_bytes >= limits.max_bytes:
            return _LONG_AGO
        head = self.head()
        return head.entered_s + limits.max_delay_s if head is not None else float("inf")

    def take(self, worker: int) -> list[QueueEntry]:
        """Give the worker the next batch."""
        batch: list[QueueEntry] = []
        n_bytes = 0
        while self.n_entries and len(batch) < self._max_size and (entry := self.head()) is not None:
            n_bytes += entry.n_bytes
            if batch and n_bytes > self._limits.max_bytes:
                break
            heapq.heappop(self._heap)
            entry.is_queued = False
            entry.worker = worker
            batch.append(entry)
            self.n_entries -= 1
            self.n_bytes -= entry.n_bytes
        return batch

    def __iter__(self) -> Iterator[QueueEntry]:
        return (entry for _, serial, entry in self._heap if entry.is_queued and entry.serial == serial)


class KindQueue:
    """The batch queues of one tenant whose entries can run on the same device kinds."""

    __slots__ = ("_heap", "_limits", "kinds", "queues")

    def __init__(self, kinds: tuple[str, ...], limits: BatchLimits) -> None:
        self.kinds = kinds
        self.queues: dict[Hashable, BatchQueue] = {}
        self._limits = limits
        self._heap: list[tuple[float, int, BatchQueue]] = []

    def queue(self, batch_key: Hashable | None) -> BatchQueue:
        """The queue of a batch key; None: of those that are always alone."""
        queue = self.queues.get(batch_key)
        if queue is None:
            if len(self.queues) > _SLACK:
                self._sweep()
            queue = self.queues[batch_key] = BatchQueue(self, self._limits, batch_key is None)
        return queue

    def publish(self, queue: BatchQueue) -> None:
        """Put a queue into the order, under its present first entry."""
        head = queue.head()
        if head is None or queue.published == head.serial:
            return
        queue.published = head.serial
        heapq.heappush(self._heap, (head.rank, head.serial, queue))
        if len(self._heap) > 2 * len(self.queues) + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].published == entry[1]]
            heapq.heapify(self._heap)

    def top(self, now_s: float) -> QueueEntry | None:
        """The first entry of the ready queue that comes first."""
        heap = self._heap
        while heap:
            _, serial, queue = heap[0]
            if queue.published != serial:
                heapq.heappop(heap)
                continue
            head = queue.head()
            if head is not None and head.serial == serial and queue.ready_s() <= now_s:
                return head
            heapq.heappop(heap)
            queue.published = -1
            if head is not None and head.serial != serial:
                self.publish(queue)
        return None

    def _sweep(self) -> None:
        for key in [key for key, queue in self.queues.items() if not queue.n_entries]:
            self.queues.pop(key).published = -1


@dataclass(slots=True, eq=False)
class FairShare:
    """How far a tenant is on one device kind, in virtual seconds: device-seconds divided by weight.

    Attributes:
        start_v: the tenant with the smallest is served next.
        floor_v: where it began when it last had nothing waiting; no refund goes below.
    """

    start_v: float = 0.0
    floor_v: float = 0.0
    n_queued: int = 0

    def lift(self, virtual_s: float) -> None:
        """Let go of what was not asked for: idle time earns no credit."""
        if virtual_s > self.start_v:
            self.start_v = virtual_s
        if virtual_s > self.floor_v:
            self.floor_v = virtual_s

    def charge(self, virtual_s: float) -> None:
        """Add to what was had, or give back what was charged too much."""
        start_v = self.start_v + virtual_s
        self.start_v = start_v if start_v > self.floor_v else self.floor_v


@dataclass(slots=True, eq=False)
class TenantQueue:
    """One tenant's queues and what it has had.

    Attributes:
        bound_bytes: nothing is started while `used_bytes` is not below it.
        used_bytes: memory of what runs, and of results that wait to leave.
        device_s: seconds of devices it has had, by kind.
        n_users: who refers to it from outside; it is not forgotten before they let go.
    """

    name: str
    weight: float
    limits: BatchLimits
    bound_bytes: int
    used_bytes: int = 0
    kinds: dict[Hashable, KindQueue] = field(default_factory=dict)
    shares: dict[str, FairShare] = field(default_factory=dict)
    device_s: dict[str, float] = field(default_factory=dict)
    n_queued: int = 0
    n_running: int = 0
    n_users: int = 0

    def kind_queue(self, expected_s: Mapping[str, float]) -> KindQueue:
        """The queue of an entry; which kind it would rather have makes a difference, too."""
        kinds = tuple(expected_s)
        key: Hashable = kinds
        if len(kinds) > 1:
            key = (kinds, min(kinds, key=expected_s.__getitem__))
        queue = self.kinds.get(key)
        if queue is None:
            queue = self.kinds[key] = KindQueue(kinds, self.limits)
            for kind in kinds:
                self.shares.setdefault(kind, FairShare())
        return queue

    def entries(self) -> Iterator[QueueEntry]:
        """What is queued, in no order."""
        return (e for kinds in self.kinds.values() for queue in kinds.queues.values() for e in queue)

    def validate(self) -> None:
        """Check that the counts agree with the queues.

        Raises:
            AssertionError: they do not.
        """
        entries = list(self.entries())
        assert self.n_queued == len(entries)
        for kind, share in self.shares.items():
            assert share.n_queued == sum(kind in entry.expected_s for entry in entries)
        for kinds in self.kinds.values():
            for queue in kinds.queues.values():
                assert queue.n_entries == sum(1 for _ in queue)
                assert queue.n_bytes == sum(entry.n_bytes for entry in queue)
                is_looked_at = queue.published >= 0 or queue.alarm_s > 0
                assert not queue.n_entries or is_looked_at, "a queue nobody looks at"
