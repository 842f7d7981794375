"""What waits, tenant by tenant, in the order in which it would be taken.

A tenant has lanes, one for each set of device kinds its items can run on; a lane has lines, one for each
batch key; a line has items, best rank first.  A lane's heap holds its lines by the rank of their first item,
so the next item of a tenant is found in O(log n) however many shapes wait.  What was taken or cancelled stays
in the heaps as a dead entry until it comes up or the dead outnumber the living.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from yarn_accel.core.scheduling_events import Item

__all__ = ["BatchLimits", "Lane", "Line", "Record", "Share", "Tenant"]

#: Dead entries and empty lines tolerated beside as many living ones.
_SLACK = 64
_LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much may be computed together, and how long an item may wait for company."""

    max_size: int
    max_bytes: int
    max_delay_s: float


@dataclass(slots=True, eq=False)
class Record:
    """An item in the scheduler; `worker` is the one that has it, None while it is queued."""

    item: Item
    rank: float
    serial: int
    entered_s: float
    line: Line
    worker: int | None = None
    is_over: bool = False

    @property
    def is_queued(self) -> bool:
        """Whether it can still be taken, cancelled or expire."""
        return self.worker is None and not self.is_over


class Line:
    """Items of one tenant that may share a batch.

    A batch is ready when it is full or its first item has waited long enough; an item that is always alone
    is full by itself.
    """

    __slots__ = (
        "_heap",
        "_limits",
        "_max_size",
        "alarm_s",
        "entry",
        "goes_at_once",
        "lane",
        "n_bytes",
        "n_items",
    )

    def __init__(self, lane: Lane, limits: BatchLimits, is_single: bool) -> None:
        self.lane = lane
        #: Whether no item waits for others to come.
        self.goes_at_once = is_single or limits.max_delay_s <= 0.0
        self._max_size = 1 if is_single else limits.max_size
        self.n_items = 0
        self.n_bytes = 0
        #: The serial of the item under which the line stands in its lane's heap; -1: it does not.
        self.entry = -1
        #: When the scheduler looks at it again by itself; 0: never.
        self.alarm_s = 0.0
        self._limits = limits
        self._heap: list[tuple[float, int, Record]] = []

    def push(self, record: Record) -> None:
        """Add an item."""
        self.n_items += 1
        self.n_bytes += record.item.n_bytes
        heapq.heappush(self._heap, (record.rank, record.serial, record))

    def head(self) -> Record | None:
        """The item that would be taken first."""
        heap = self._heap
        while heap:
            record = heap[0][2]
            if record.worker is None and not record.is_over:
                return record
            heapq.heappop(heap)
        return None

    def forget(self, record: Record) -> None:
        """Count an item out that was cancelled or has expired; its entry in the heap is dead already."""
        self.n_items -= 1
        self.n_bytes -= record.item.n_bytes
        if len(self._heap) > 2 * self.n_items + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].is_queued]
            heapq.heapify(self._heap)

    def ready_s(self) -> float:
        """When its first batch is ready: long ago if it is full."""
        limits = self._limits
        if self.goes_at_once or self.n_items >= limits.max_size or self.n_bytes >= limits.max_bytes:
            return _LONG_AGO
        head = self.head()
        return head.entered_s + limits.max_delay_s if head is not None else float("inf")

    def take(self, worker: int) -> list[Record]:
        """Give the worker the next batch."""
        batch: list[Record] = []
        n_bytes = 0
        while self.n_items and len(batch) < self._max_size and (record := self.head()) is not None:
            n_bytes += record.item.n_bytes
            if batch and n_bytes > self._limits.max_bytes:
                break
            heapq.heappop(self._heap)
            record.worker = worker
            batch.append(record)
            self.n_items -= 1
            self.n_bytes -= record.item.n_bytes
        return batch

    def __iter__(self) -> Iterator[Record]:
        return (entry[2] for entry in self._heap if entry[2].is_queued)


class Lane:
    """The lines of one tenant whose items can run on the same device kinds."""

    __slots__ = ("_heap", "_limits", "kinds", "lines")

    def __init__(self, kinds: tuple[str, ...], limits: BatchLimits) -> None:
        self.kinds = kinds
        self.lines: dict[Hashable, Line] = {}
        self._limits = limits
        self._heap: list[tuple[float, int, Line]] = []

    def line(self, batch_key: Hashable | None) -> Line:
        """The line of a batch key; None: of those that are always alone."""
        line = self.lines.get(batch_key)
        if line is None:
            if len(self.lines) > _SLACK:
                self._sweep()
            line = self.lines[batch_key] = Line(self, self._limits, batch_key is None)
        return line

    def publish(self, line: Line) -> None:
        """Put a line into the order of the lane, under its present first item."""
        head = line.head()
        if head is None or line.entry == head.serial:
            return
        line.entry = head.serial
        heapq.heappush(self._heap, (head.rank, head.serial, line))
        if len(self._heap) > 2 * len(self.lines) + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapq.heapify(self._heap)

    def top(self, now_s: float) -> Record | None:
        """The first item of the ready line that comes first."""
        heap = self._heap
        while heap:
            _, serial, line = heap[0]
            if line.entry != serial:
                heapq.heappop(heap)
                continue
            head = line.head()
            if head is not None and head.serial == serial and line.ready_s() <= now_s:
                return head
            heapq.heappop(heap)
            line.entry = -1
            if head is not None and head.serial != serial:
                self.publish(line)
        return None

    def _sweep(self) -> None:
        for key in [key for key, line in self.lines.items() if not line.n_items]:
            self.lines.pop(key).entry = -1


@dataclass(slots=True, eq=False)
class Share:
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
class Tenant:
    """One tenant's queues and what it has had; `device_s` is by device kind."""

    name: str
    weight: float
    limits: BatchLimits
    lanes: dict[Hashable, Lane] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    device_s: dict[str, float] = field(default_factory=dict)
    n_queued: int = 0
    n_running: int = 0

    def lane(self, item: Item) -> Lane:
        """The lane of an item; which kind it would rather have makes a difference, too."""
        kinds = tuple(item.expected_s)
        key: Hashable = kinds
        if len(kinds) > 1:
            key = (kinds, min(kinds, key=item.expected_s.__getitem__))
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(kinds, self.limits)
            for kind in kinds:
                self.shares.setdefault(kind, Share())
        return lane

    def records(self) -> Iterator[Record]:
        """What is queued, in no order."""
        return (record for lane in self.lanes.values() for line in lane.lines.values() for record in line)

    def validate(self) -> None:
        """Check that the counts agree with the queues.

        Raises:
            AssertionError: they do not.
        """
        assert self.n_queued == sum(1 for _ in self.records())
        for kind, share in self.shares.items():
            assert share.n_queued == sum(kind in record.item.expected_s for record in self.records())
        for lane in self.lanes.values():
            for line in lane.lines.values():
                assert line.n_items == sum(1 for _ in line)
                assert line.n_bytes == sum(record.item.n_bytes for record in line)
                assert not line.n_items or line.entry >= 0 or line.alarm_s > 0, "a line nobody looks at"
