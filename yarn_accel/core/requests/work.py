"""What the machine knows of a request, of a connection and of a tenant."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from yarn_accel.core.requests.commands import Command
from yarn_accel.core.requests.events import Needs, SharedInputs
from yarn_accel.core.requests.queues import QueueEntry, TenantQueue

if TYPE_CHECKING:
    from yarn_accel.core.requests.settings import TenantSettings


class WorkState(enum.Enum):
    """Where a request is."""

    #: Its referenced files are looked at.
    LOOKING = "looking"
    #: It waits for memory.
    WAITING = "waiting"
    #: Its payload is on the way.
    RECEIVING = "receiving"
    #: What lies where its output goes is looked at.
    CHECKING = "checking"
    #: Its referenced inputs are read.
    READING = "reading"
    QUEUED = "queued"
    RUNNING = "running"
    #: Its outputs are written to storage.
    WRITING = "writing"
    #: It was answered, or nobody waits for it any more; memory of it may still be in use.
    ENDED = "ended"


_S = WorkState
#: What may follow a state at once.
SUCCESSORS: dict[WorkState, frozenset[WorkState]] = {
    _S.LOOKING: frozenset({_S.WAITING, _S.CHECKING, _S.ENDED}),
    _S.WAITING: frozenset({_S.RECEIVING, _S.READING, _S.QUEUED, _S.RUNNING, _S.ENDED}),
    _S.RECEIVING: frozenset({_S.CHECKING, _S.READING, _S.QUEUED, _S.RUNNING, _S.ENDED}),
    _S.CHECKING: frozenset({_S.WAITING, _S.READING, _S.QUEUED, _S.RUNNING, _S.ENDED}),
    _S.READING: frozenset({_S.WAITING, _S.QUEUED, _S.RUNNING, _S.ENDED}),
    _S.QUEUED: frozenset({_S.RUNNING, _S.ENDED}),
    _S.RUNNING: frozenset({_S.QUEUED, _S.LOOKING, _S.WRITING, _S.ENDED}),
    _S.WRITING: frozenset({_S.ENDED}),
    _S.ENDED: frozenset(),
}
#: The stage that clients see, by state.
STAGES: dict[WorkState, str] = {
    _S.LOOKING: "read",
    _S.WAITING: "receive",
    _S.RECEIVING: "receive",
    _S.CHECKING: "read",
    _S.READING: "read",
    _S.QUEUED: "queue",
    _S.RUNNING: "compute",
    _S.WRITING: "write",
    _S.ENDED: "write",
}


@dataclass(slots=True, eq=False)
class SegmentRecord:
    """One piece of memory that requests lie in; `n_bytes` is its size class."""

    id: int
    n_bytes: int


@dataclass(slots=True, eq=False)
class Grant:
    """Shared memory of one connection.

    It never serves another connection, because the peer may keep its mapping.  It is with the client after
    `GrantMemory`, with the server from a request that names it until that request's answer, and with the
    client again.  One that was granted for a result is the client's until `MemoryReturned`.

    Attributes:
        n_users: requests under way whose inputs or outputs lie in it.
        n_leaving: requests whose answer is leaving, perhaps from it.
        is_exclusive: one of them may write into it, so no other may name it.
        is_returned: the client does not read it any more.
        is_known: the client has its descriptor.
        is_created: the segment is there.
    """

    id: int
    n_bytes: int
    connection: ConnectionRecord
    n_users: int = 0
    n_leaving: int = 0
    is_exclusive: bool = False
    is_returned: bool = False
    is_known: bool = False
    is_created: bool = False


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


class ConnectionRecord:
    """One connection.

    Attributes:
        waits: the requests it waits for, by its own numbers; another connection may have begun them.
        works: the requests it began that are not answered.
        n_leaving: replies that have not left.
        held_bytes: larger inputs of its requests until their replies have left, within its share.
        moved_s: when it was last heard of, took something, or got something to do.
        receiving: the request whose payload is on the way; None: none.
        grants: its shared memory, by segment.
        granted_bytes: of all of these.
        is_open: False once it is gone; replies may still be about to be reported.
        is_cut: it is being ended.
    """

    __slots__ = (
        "granted_bytes",
        "grants",
        "held_bytes",
        "id",
        "is_cut",
        "is_open",
        "moved_s",
        "n_leaving",
        "receiving",
        "tenant",
        "waits",
        "works",
    )

    def __init__(self, number: int, tenant: TenantRecord, now_s: float) -> None:
        self.id = number
        self.tenant = tenant
        self.waits: dict[int, WorkRecord] = {}
        self.works: dict[int, WorkRecord] = {}
        self.n_leaving = 0
        self.held_bytes = 0
        self.moved_s = now_s
        self.receiving: WorkRecord | None = None
        self.grants: dict[int, Grant] = {}
        self.granted_bytes = 0
        self.is_open = True
        self.is_cut = False

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
    """One request under way.

    Attributes:
        connection, request_id: who began it.
        owner: its tenant.
        name: tenant and key.
        waiters: who waits for its answer, with their own numbers for it.
        digest: of its inputs, once known.
        is_confirmed: it is the one that is computed for its key.
        is_announced: the shell knows it.
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
    output_segment = 0
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
        self,
        number: int,
        connection: ConnectionRecord,
        request_id: int,
        name: tuple[str, str],
        needs: Needs,
        state: WorkState,
        now_s: float,
    ) -> None:
        tenant = connection.tenant
        self.id = number
        self.owner = tenant
        self.tenant = tenant.queue
        self.connection = connection
        self.request_id = request_id
        self.name = name
        self.needs = needs
        self.state = state
        self.arrived_s = now_s
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
        assert (self.worker >= 0) == (state is WorkState.RUNNING)
        has_memory = self.arena is not None or self.output_segment > 0
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


class MachineState:
    """What the parts of the machine share.

    Attributes:
        out: the commands of this event so far.
        n_active: works that are not answered.
        departed: tenants whose last connection is gone.
        is_draining: nothing new is taken.
        is_unsettled: something is to be looked at after every event.
        counts: of rare things, for `stats`.
    """

    __slots__ = (
        "connections",
        "counts",
        "departed",
        "is_draining",
        "is_unsettled",
        "n_active",
        "now_s",
        "out",
        "tenants",
        "works",
    )

    def __init__(self) -> None:
        self.now_s = 0.0
        self.out: list[Command] = []
        self.connections: dict[int, ConnectionRecord] = {}
        self.tenants: dict[str, TenantRecord] = {}
        self.works: dict[int, WorkRecord] = {}
        self.n_active = 0
        self.departed: set[TenantRecord] = set()
        self.is_draining = False
        self.is_unsettled = False
        self.counts = {"abandoned": 0, "cancelled": 0, "cut_off": 0}
