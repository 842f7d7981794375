"""A batch system as the daemon, the grid and the commands use it: looked at, given orders, listened to.

An adapter (`batch.torque`) has the words and ways of one batch system: its commands, its wire protocol, its
names of hosts and GPUs. A look is whole or fails. An order says what is wanted of a job or a node, in values
of the model; its result has one of a closed set of kinds. The truth about a start is the next look: a batch
system may accept what its node then refuses.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torque_sched.errors import RecordError
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Look:
    """One look: the snapshot, the outputs it came from, and the records in them that were damaged."""

    snapshot: Snapshot
    outputs: Mapping[str, bytes]
    """The answers as they came, by names that the adapter knows: the journal keeps them."""
    problems: tuple[RecordError, ...] = ()
    query_s: float = 0.0
    """The time that the server took to answer."""
    read_s: float = 0.0
    """The time that reading the answers took, while the server had nothing to do with them."""
    clock_ahead_s: float = 0.0
    """How far this host's clock is ahead of the server's where that matters (`ClusterClock.ahead_s`)."""
    transport: str = ""
    """By which way it was taken, and why by that, in words; empty: by commands, which was not chosen."""

    @property
    def clock_text(self) -> str:
        """How far this host's clock is off, in words; empty: not so far that it matters."""
        if not self.clock_ahead_s:
            return ""
        how = "ahead of" if self.clock_ahead_s > 0 else "behind"
        return f"this host's clock is {abs(self.clock_ahead_s):.0f} s {how} the server's, whose time counts"

    def clock_troubles(self, dead_after_s: float) -> Iterator[str]:
        """Sentences that `status` shows and the log has once.

        Args:
            dead_after_s: while nothing new comes from any node for so long, none gets a job; 0: never mind.
        """
        if self.clock_text:
            yield f"clock: {self.clock_text} (run chrony or ntpd on both)"
        silent_s = self.snapshot.silent_s
        if dead_after_s and silent_s > dead_after_s:
            yield (
                f"reports of nodes: nothing new for {silent_s:.0f} s: no node gets a job (see the moms' logs)"
            )


class OrderKind(enum.Enum):
    """How a batch system answered to an order; the values stand in journals."""

    STARTED = "started"
    """Accepted. The start itself may still fail; the next look shows it."""
    UNKNOWN_JOB = "unknown-job"
    BAD_ID = "bad-id"
    UNAUTHORISED = "unauthorised"
    ALREADY_RUNNING = "already-running"
    WRONG_STATE = "wrong-state"
    """Waiting for its time, exiting, or a whole array with running members."""
    ARRAY_PARENT = "array-parent"
    ARRAY_LIMIT = "array-limit"
    QUEUE_STOPPED = "queue-stopped"
    NEVER = "never"
    """Too much for the node, no such node, or a malformed list of nodes."""
    NOT_NOW = "not-now"
    """Full, down and offline nodes alike."""
    NO_REQUEST = "no-request"
    """The job has no request for nodes of its own, and the order named none."""
    SERVER_GONE = "server-gone"
    USAGE = "usage"
    """The order was written in a way that the batch system does not know: a fault of ours."""
    OTHER = "other"

    @property
    def is_transient(self) -> bool:
        """Whether the same order may work later without anybody changing anything."""
        return self in _TRANSIENT

    @property
    def stops_all(self) -> bool:
        """Whether every other order would be answered so, too."""
        return self in {OrderKind.SERVER_GONE, OrderKind.UNAUTHORISED}


_TRANSIENT = frozenset(
    {
        OrderKind.NOT_NOW, OrderKind.ARRAY_LIMIT, OrderKind.SERVER_GONE, OrderKind.QUEUE_STOPPED,
        OrderKind.WRONG_STATE,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OrderResult:
    """The kind of answer and its words, for the log and the job's comment."""

    kind: OrderKind
    text: str = ""
    """The server's words on one line; at most 300 characters."""


class BatchSystem(ABC):
    """One batch system, by whatever way it is asked and given orders."""

    @property
    def one_order_at_a_time(self) -> bool:
        """Whether nothing is gained by orders given together, nor by one comment for many jobs."""
        return False

    @property
    def joins_equal_starts(self) -> bool:
        """Whether starts on the same nodes that are given at the same time become one order."""
        return False

    @abstractmethod
    async def look(self) -> Look:
        """One complete look at the cluster.

        Raises:
            SnapshotError: there is none to be had now.
        """

    async def n_holding(self) -> int | None:
        """How many jobs hold nodes by the server's own count; None: that costs a look, or failed."""
        return None

    @abstractmethod
    def forget(self) -> None:
        """Read every job anew next time."""

    @abstractmethod
    async def start(self, job: Job, allocation: Sequence[NodeShare], lock: int | None = None) -> OrderResult:
        """Start a job on these nodes without waiting for them.

        A batch system takes the order for the whole of the job's request, so an adapter writes out what the
        job asks for of each node besides the shares (GPU modes, memory of each chunk). A start without an
        answer counts as ``OTHER``: whether it took effect, the next look shows.

        Args:
            job: as the look showed it.
            allocation: the share of each node; the first one leads the job.
            lock: the descriptor of a lock that must not be free before the order is over, even where this
                process is killed.
        """

    @abstractmethod
    async def comment(self, jobs: Sequence[JobId], text: str) -> OrderResult:
        """Set one comment on many jobs; those that are gone do not hinder the others."""

    @abstractmethod
    async def delete(self, job: JobId, why: str) -> OrderResult:
        """Delete a job that can never run, where the administrator wants that."""

    @abstractmethod
    async def set_offline(self, node: NodeName, note: str) -> OrderResult:
        """Take a node that swallows jobs out of service, where the administrator wants that."""

    async def close(self) -> None:  # noqa: B027 -- commands leave nothing open
        """Leave the server."""


class EventSource(ABC):
    """The place where a batch system reports that something happened.

    Attributes:
        n_events: reports taken until now.
    """

    n_events: int

    @abstractmethod
    async def start(self) -> None:
        """Begin to listen."""

    @abstractmethod
    async def stop(self) -> None:
        """Listen no more."""
