"""The records of the request machine: requests, where they wait, and whose they are.

A request is one object from its header to the end of its memory. The shell makes a `WorkRecord` when the
header has arrived (its own subclass, which knows the bytes) and hands it over with `Received`; from then on
the machine alone changes what is described here, and events and commands name the object. It is the same with
connections (`ConnectionRecord`) and memory (`SegmentRecord`, which the machine makes).

What waits for a worker waits in the order in which it would be taken. A tenant has a `KindQueue` for each set
of device kinds its entries can run on; that has a `BatchQueue` for each batch key; that has entries, best
rank first. The heap of a `KindQueue` holds its batch queues by the rank of their first entry, so the next
entry of a tenant is found in O(log n) however many kinds of requests wait. An entry that was taken or
cancelled stays in the heaps, dead, until it is first or the dead outnumber the living.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from yarn_accel.core.requests.settings import TenantSettings

#: Dead entries and empty queues tolerated beside as many living ones.
_SLACK = 64
_LONG_AGO = float("-inf")


class Failure(NamedTuple):
    """Why a request has no result, in the words of the wire's ``Failed``."""

    kind: str
    code: str
    message: str
    cure: str = ""
    transient: bool = False


#: Of a request whose time was over before it began, wherever it waited.
EXPIRED = Failure("rejected", "deadline-exceeded", "the deadline passed before the computation began")


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """The needs of requests of one kind: same operation, parameters and inputs.  One object serves them all.

    Attributes:
        operation: its name.
        content: equal for requests that ask the same: operation, parameters and descriptions of inputs.
        kinds: of devices that can compute it, at least one.
        amount: what computing costs: flops, or bytes moved where flops say nothing.
        batch_key: requests with equal keys may be computed together; None: always alone.
        payload_bytes: inputs that come by value, 0 if none.
        input_bytes: the inputs laid out one behind the other; the outputs begin there.  With `reads`: only
            what is known, 0 before the files were looked at.
        output_bytes: upper bound of the outputs that do not lie in the inputs, with space for a copy of the
            inputs where these must stay as they are and the operation works in place.
        keep_inputs: inputs in shared memory must be the same after the answer as before.
        reads: URIs of the inputs to be read, each normalised to ``scheme://authority/path``.
        remember_bytes: about how much memory it takes to remember such a request, beside its answer.
    """

    operation: str
    content: Hashable
    kinds: tuple[str, ...] = ("cpu",)
    amount: float = 1.0
    batch_key: Hashable | None = None
    payload_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    keep_inputs: bool = False
    reads: tuple[str, ...] = ()
    remember_bytes: int = 256


class SharedInputs(NamedTuple):
    """The inputs lie in shared memory granted to the connection, within the first `n_bytes` of `segment`."""

    segment: int
    n_bytes: int


class WorkState(enum.Enum):
    """Where a request is."""

    #: Its referenced files are looked at.
    LOOKING = "looking"
    #: It waits for memory.
    WAITING = "waiting"
    #: Its payload is on the way.
    RECEIVING = "receiving"
    #: The file where its output goes is looked at.
    CHECKING = "checking"
    #: Its referenced inputs are read.
    READING = "reading"
    QUEUED = "queued"
    RUNNING = "running"
    #: Its outputs are written to storage.
    WRITING = "writing"
    #: It was answered, or nobody waits for it any more; memory of it may still be in use.
    ENDED = "ended"


#: The stage that clients see, by state.
STAGES: dict[WorkState, str] = {
    WorkState.LOOKING: "read",
    WorkState.WAITING: "receive",
    WorkState.RECEIVING: "receive",
    WorkState.CHECKING: "read",
    WorkState.READING: "read",
    WorkState.QUEUED: "queue",
    WorkState.RUNNING: "compute",
    WorkState.WRITING: "write",
    WorkState.ENDED: "write",
}


# Queues for workers


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much may be computed together, and how long an entry may wait for company.

    Attributes:
        max_bytes: of inputs, on a device whose kind `kind_bytes` does not name.
    """

    max_size: int
    max_bytes: int
    max_delay_s: float
    kind_bytes: Mapping[str, int] = field(default_factory=dict)

    def bytes_on(self, kind: str) -> int:
        """Inputs of one batch on a device of that kind."""
        return self.kind_bytes.get(kind, self.max_bytes)


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
        worker: the one that has it; None: none.
    """

    # Most entries never differ from these, and setting them takes time.
    priority = 0
    due_s = 0.0
    rank = 0.0
    serial = 0
    entered_s = 0.0
    queue: BatchQueue | None = None
    is_queued = False
    worker: Hashable | None = None

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

    def __init__(self, owner: KindQueue, limits: BatchLimits, is_single: bool) -> None:
        self.owner = owner
        #: Whether no entry waits for others to come.
        self.goes_at_once = is_single or limits.max_delay_s <= 0.0
        self._max_size = 1 if is_single else limits.max_size
        self._full_bytes = max([limits.bytes_on(kind) for kind in owner.kinds])
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
        if self.goes_at_once or self.n_entries >= limits.max_size or self.n_bytes >= self._full_bytes:
            return _LONG_AGO
        head = self.head()
        return head.entered_s + limits.max_delay_s if head is not None else float("inf")

    def take(self, worker: Hashable, kind: str, memory_bytes: int) -> list[QueueEntry]:
        """Give the worker the next batch: one entry at least.

        Args:
            kind: of the worker's device.
            memory_bytes: bound of what all entries but the first may use.
        """
        batch: list[QueueEntry] = []
        n_bytes, most_bytes = 0, self._limits.bytes_on(kind)
        while self.n_entries and len(batch) < self._max_size and (entry := self.head()) is not None:
            n_bytes += entry.n_bytes
            memory_bytes -= entry.memory_bytes
            if batch and (n_bytes > most_bytes or memory_bytes < 0):
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
        """The queued entries, in no order."""
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


# Requests, and whose they are


@dataclass(slots=True, eq=False)
class SegmentRecord:
    """One piece of memory that requests lie in.

    Attributes:
        id: its number, never used again; worker processes and clients name it so.
        n_bytes: its size class.
        is_created: the shell has made it.
        n_leaks: works computed into it by workers that could not be ended; nobody uses it until they are.
        wanted_by: the work that waits until it is made.
        memory: the shell's own.
    """

    id: int
    n_bytes: int
    is_created: bool = False
    n_leaks: int = 0
    wanted_by: WorkRecord | None = None
    memory: Any = None


@dataclass(slots=True, eq=False)
class Grant(SegmentRecord):
    """Shared memory of one connection.

    It never serves another connection, because the peer may keep its mapping.  It is with the client after
    `GrantMemory`, with the server from a request that names it until that request's answer, and with the
    client again.  One that was granted for a result is the client's until `MemoryReturned`.

    Attributes:
        request_id: of the client's that asked for it; 0: it was made for a result.
        n_users: requests under way whose inputs or outputs lie in it.
        n_leaving: requests whose answer is leaving, perhaps from it.
        is_pending: it is being made.
        is_exclusive: one of its users may write into it, so no other may name it.
        is_returned: the client does not read it any more.
        is_known: the client has its descriptor.
    """

    connection: ConnectionRecord = field(kw_only=True)
    request_id: int = 0
    n_users: int = 0
    n_leaving: int = 0
    is_pending: bool = False
    is_exclusive: bool = False
    is_returned: bool = False
    is_known: bool = False


@dataclass(slots=True, eq=False)
class TenantRecord:
    """One tenant: its memory and its rights.

    Attributes:
        queue: what waits for a worker.
        held_bytes: segments in use by its requests or replies, and its shared memory.
        reading_bytes: inputs that no worker has yet.
        n_connections: open ones.
        n_works: its requests of which anything is left.
        waiting: requests that wait for memory, the first one first.
    """

    name: str
    settings: TenantSettings
    queue: TenantQueue
    held_bytes: int = 0
    reading_bytes: int = 0
    n_connections: int = 0
    n_works: int = 0
    waiting: deque[WorkRecord] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class ConnectionRecord:
    """One connection, made by the shell and kept by the machine from `ConnectionOpened` on.

    Attributes:
        session: the shell's own.
        tenant: whose it is, once it is open.
        waits: the requests it waits for, by its own numbers; another connection may have begun them.
        works: the requests it began that are not answered, likewise.
        n_leaving: replies that have not left.
        held_bytes: larger inputs of its requests until their replies have left, within its share.
        moved_s: when it was last heard of, took something, or got something to do.
        receiving: the request whose payload is on the way; None: none.
        grants: its shared memory, by the number that the client uses.
        granted_bytes: of all of these.
        is_open: the machine has it; after its end replies may still be about to be reported.
        is_cut: it is being ended.
    """

    session: Any = None
    tenant: TenantRecord = field(init=False)
    waits: dict[int, WorkRecord] = field(default_factory=dict)
    works: dict[int, WorkRecord] = field(default_factory=dict)
    n_leaving: int = 0
    held_bytes: int = 0
    moved_s: float = 0.0
    receiving: WorkRecord | None = None
    grants: dict[int, Grant] = field(default_factory=dict)
    granted_bytes: int = 0
    is_open: bool = False
    is_cut: bool = False

    def validate(self) -> None:
        """Check that what it holds agrees with what is counted.

        Raises:
            AssertionError: it does not.
        """
        assert self.granted_bytes == sum(grant.n_bytes for grant in self.grants.values())
        assert self.held_bytes >= 0
        assert all(work.connection is self for work in self.works.values())
        assert all(work.state is not WorkState.ENDED for work in self.works.values())
        assert self.receiving is None or self.receiving.state is WorkState.RECEIVING


class WorkRecord(QueueEntry):
    """One request, made by the shell; the machine numbers it when it takes it.

    Attributes:
        connection, request_id: who began it.
        owner: its tenant.
        name: tenant and key.
        needs: what it needs; replaced once its referenced files were looked at.
        writes: the URI its output goes to, normalised; empty: to the client.
        shared: where its inputs lie in shared memory; None: they do not.
        waiters: who waits for its answer, with their own numbers for it.
        digest: of its inputs, once known.
        is_confirmed: it is the one that is computed for its key.
        is_announced: the shell got `Admit` or `Receive` for it.
        is_placed: its payload may come, or has come.
        is_read: its referenced inputs are in its memory.
        arena: its own memory; None: none yet, or its inputs lie in shared memory and it needs no other.
        input_grant, output_grant: the shared memory its inputs lie in, and that was taken for its outputs.
        is_input_free: the client may use `input_grant` again, while the answer leaves.
        is_shown: the client knows what lies in `output_grant`, and will return it.
        output_segment, output_offset, output_bytes: where the outputs go.
        share_bytes, reading_bytes: what it counts in the share of its connection, and in the inputs that no
            worker has.
        n_holders: replies of it that have not left.
        is_charged: its memory counts in what its tenant holds.
        is_kept: its answer is remembered where it lies.
        n_crashes: workers it may have cost.
        n_lost: workers that were lost while they had it, whoever was the reason.
        pending: segments that are being made for it.
        waits_since_s: when it began to wait for memory.
        stamp: what its written output looks like.
    """

    # Most requests never differ from these, and setting them takes time.
    state = WorkState.RECEIVING
    digest: bytes | None = None
    writes = ""
    shared: SharedInputs | None = None
    is_confirmed = False
    is_announced = False
    is_placed = False
    is_read = False
    arena: SegmentRecord | None = None
    input_grant: Grant | None = None
    output_grant: Grant | None = None
    is_input_free = False
    is_shown = False
    output_segment: SegmentRecord | None = None
    output_offset = 0
    output_bytes = 0
    share_bytes = 0
    reading_bytes = 0
    n_holders = 0
    is_charged = False
    is_kept = False
    n_crashes = 0
    n_lost = 0
    compute_s = 0.0
    bytes_out = 0
    answer_bytes = 0
    stamp: Hashable | None = None
    pending = 0
    waits_since_s = 0.0

    def __init__(
        self, connection: ConnectionRecord, request_id: int, key: str, needs: Needs, arrived_s: float
    ) -> None:
        tenant = connection.tenant
        self.owner = tenant
        self.tenant = tenant.queue
        self.connection = connection
        self.request_id = request_id
        self.name = (tenant.name, key)
        self.needs = needs
        self.arrived_s = arrived_s
        self.batch_key = needs.batch_key
        self.n_bytes = needs.payload_bytes
        self.memory_bytes = needs.input_bytes + needs.output_bytes
        self.waiters: list[tuple[ConnectionRecord, int]] = [(connection, request_id)]

    @property
    def segment_bytes(self) -> int:
        """Memory of its own that it holds."""
        return 0 if self.arena is None else self.arena.n_bytes

    def validate(self) -> None:
        """Check that it has what its state asks for.

        Raises:
            AssertionError: it does not.
        """
        state = self.state
        assert self.is_queued == (state is WorkState.QUEUED)
        assert (self.worker is not None) == (state is WorkState.RUNNING)
        has_memory = self.arena is not None or self.output_segment is not None
        if state in (WorkState.QUEUED, WorkState.RUNNING, WorkState.READING, WorkState.WRITING):
            assert has_memory
            assert self.is_confirmed
        if state in (WorkState.RECEIVING, WorkState.QUEUED) and not self.needs.reads:
            assert self.is_placed
        if state in (WorkState.QUEUED, WorkState.WAITING):
            assert self.waiters, "nobody waits for it, and nobody is at it"
        if state is WorkState.ENDED:
            assert not self.waiters
            assert self.n_holders or self.is_kept or self.pending, "nothing holds it"


@dataclass(slots=True)
class MachineState:
    """The state that the parts of the machine share.

    Attributes:
        out: the commands of this event so far.
        connections: those that are open, in the order in which they came.
        tenants: by name.
        works: by number, which is how worker processes name them.
        n_active: works that are not answered.
        departed: tenants whose last connection is gone.
        is_draining: nothing new is taken.
        is_unsettled: something is to be looked at after every event.
        counts: of rare things, for `stats`.
    """

    now_s: float = 0.0
    out: list[Any] = field(default_factory=list)
    connections: dict[ConnectionRecord, None] = field(default_factory=dict)
    tenants: dict[str, TenantRecord] = field(default_factory=dict)
    works: dict[int, WorkRecord] = field(default_factory=dict)
    n_active: int = 0
    departed: set[TenantRecord] = field(default_factory=set)
    is_draining: bool = False
    is_unsettled: bool = False
    counts: dict[str, int] = field(default_factory=lambda: {"abandoned": 0, "cancelled": 0, "cut_off": 0})
