"""Events of the request machine: all that it learns of the world.

All times are monotonic seconds; `now_s` is the time of the event. Events name requests, connections and
segments by their records (`records`), and workers by whatever the shell has for them.

The life of a request::

    Received ──> [memory] ──> Arrived ───────────────────────────┐
        │ with digest: the payload is in the shell's hands ──────┤
        └ with reads: Looked ──> [memory] ──> InputsRead ────────┴──> Finished ──> Written ──> Sent
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from yarn_accel.core.requests.records import ConnectionRecord, Failure, Needs, SegmentRecord, WorkRecord


class ConnectionOpened(NamedTuple):
    """A connection proved the credential of a tenant.

    Attributes:
        tenant: whose requests these are; the principal where the client handed over a user's tokens.
        account: see `MachineSettings.tenant`; empty: the tenant is no principal.
    """

    connection: ConnectionRecord
    tenant: str
    now_s: float
    account: str = ""


class ConnectionClosed(NamedTuple):
    """A connection is gone, for whatever reason; replies not reported by `Sent` yet still will be."""

    connection: ConnectionRecord
    now_s: float


class Received(NamedTuple):
    """The header of a request has arrived, and was found sound.

    Answered by `Receive` (there is memory: the payload goes there), by `Skip` (it was answered, or joined
    another), or by `Admit`.  After `Admit` the connection is not read from until `Receive` or `Skip` names
    the request, unless the request has neither a payload nor inputs in shared memory.

    Attributes:
        work: new; it belongs to the machine from now on.
        digest: of the payload, when the shell has all of it already, and of inputs in shared memory; no
            `Arrived` follows then.  None: `Arrived` follows, or `Looked` for a request without a payload.
        deadline_s: not started later than so many seconds from now; 0: no deadline.
    """

    work: WorkRecord
    digest: bytes | None
    now_s: float
    deadline_s: float = 0.0


class Arrived(NamedTuple):
    """The payload of a work is complete; `digest` also covers the files that were looked at for it."""

    work: WorkRecord
    digest: bytes
    now_s: float


class Looked(NamedTuple):
    """The referenced files of a work were looked at, in answer to `Look`.

    Attributes:
        digest: of what tells these files from others; with a payload still to come it is not looked at.
        needs: as of the work, now with the sizes of the files.
    """

    work: WorkRecord
    digest: bytes
    needs: Needs
    now_s: float


class OutputLooked(NamedTuple):
    """The file where the output of a work goes, in answer to `LookAtOutput`; None: none, or unknown."""

    work: WorkRecord
    stamp: Hashable | None
    now_s: float


class InputsRead(NamedTuple):
    """The referenced inputs of a work, `bytes_in` in all, are in its memory."""

    work: WorkRecord
    bytes_in: int
    now_s: float


class StorageFailed(NamedTuple):
    """`Look`, `Read` or `Write` of a work failed for good."""

    work: WorkRecord
    failure: Failure
    now_s: float


class Written(NamedTuple):
    """The output of a work is stored; `stamp` is what it looks like there."""

    work: WorkRecord
    stamp: Hashable | None
    now_s: float


class WorkerStarted(NamedTuple):
    """A worker takes works from now on; commands name it as this does, and no other is ever named so."""

    worker: Hashable
    kind: str
    now_s: float


class LostWork(NamedTuple):
    """A work whose worker is gone.

    Attributes:
        overwritten: its inputs may no longer be what they were.
        is_suspect: the worker was at this work, so it may be the cause.
    """

    work: WorkRecord
    overwritten: bool
    is_suspect: bool


class WorkerLost(NamedTuple):
    """A worker died, hangs or is sick.  Works it had that are not in `lost` were never begun.

    Attributes:
        detail: for people: what happened, e.g. "the worker on cuda:0 died: signal 9".
        code: of the failure of a work that has cost too many workers, a key of `machine.COSTLY`.
        is_running: it could not be ended, so it may still write to the memory of all in `lost`: nobody else
            gets that before `WorkerEnded`.
    """

    worker: Hashable
    lost: tuple[LostWork, ...]
    detail: str
    now_s: float
    code: str = "worker-lost"
    is_running: bool = False


class WorkerEnded(NamedTuple):
    """A lost worker that could not be ended has ended after all."""

    worker: Hashable
    now_s: float


class WorkResult(NamedTuple):
    """A worker's answer about one work.

    Attributes:
        failure: set when there is no result.
        compute_s: seconds of the device the work is charged for.
        bytes_out: of the outputs.
        answer_bytes: about how much memory it takes to remember the message, without the payload.
        segments: the numbers of the segments the outputs lie in; used only for inputs in shared memory.
        is_aligned: whether each output begins at a multiple of 64 bytes, so that a client can map it.
    """

    work: WorkRecord
    failure: Failure | None
    compute_s: float
    bytes_out: int
    answer_bytes: int = 0
    segments: tuple[int, ...] = ()
    is_aligned: bool = True


class Finished(NamedTuple):
    """A worker answered for works of one batch.  What it no longer has (late, twice) changes nothing."""

    worker: Hashable
    results: tuple[WorkResult, ...]
    now_s: float


class Sent(NamedTuple):
    """A reply has left, or never will (`was_sent` False); once for each `ReplyResult` and `Repeat`.

    A reply is over when no view of its memory is in use any more.
    """

    reply: int
    was_sent: bool
    now_s: float


class RequestCancelled(NamedTuple):
    """The client no longer wants the answer of a request."""

    connection: ConnectionRecord
    request_id: int
    now_s: float


class MemoryWanted(NamedTuple):
    """The client wants shared memory; answered by `GrantMemory` or `ReplyBusy`."""

    connection: ConnectionRecord
    request_id: int
    n_bytes: int
    now_s: float


class MemoryReturned(NamedTuple):
    """The client neither reads nor writes a segment granted to it any more."""

    connection: ConnectionRecord
    segment: int
    now_s: float


class SegmentCreated(NamedTuple):
    """The segment of a `CreateSegment` is there."""

    segment: SegmentRecord
    now_s: float


class SegmentFailed(NamedTuple):
    """The segment of a `CreateSegment` could not be made: no descriptor or no memory left."""

    segment: SegmentRecord
    now_s: float


class Moved(NamedTuple):
    """Bytes of a payload or of a reply that is still under way were moved; every 0.1 s is often enough."""

    connection: ConnectionRecord
    now_s: float


class DrainStarted(NamedTuple):
    """Take nothing new; `Drained` follows when all that was admitted is answered and has left."""

    now_s: float


class RateMeasured(NamedTuple):
    """A calibration found how long an amount of an operation takes on a kind of device."""

    operation: str
    amount: float
    kind: str
    seconds: float
    now_s: float


class Tick(NamedTuple):
    """Time has passed: the answer to `WakeAt`, harmless at any other time."""

    now_s: float


Event = (
    ConnectionOpened
    | ConnectionClosed
    | Received
    | Arrived
    | Looked
    | OutputLooked
    | InputsRead
    | StorageFailed
    | Written
    | WorkerStarted
    | WorkerLost
    | WorkerEnded
    | Finished
    | Sent
    | RequestCancelled
    | MemoryWanted
    | MemoryReturned
    | SegmentCreated
    | SegmentFailed
    | Moved
    | DrainStarted
    | RateMeasured
    | Tick
)
