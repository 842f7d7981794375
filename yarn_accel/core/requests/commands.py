"""Orders of the request machine; the shell carries them out at once, in this order.

They name requests, connections and segments by their records; a record may have gone on already when its
command is carried out, so a command says itself which segment it means.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from yarn_accel.core.requests.records import ConnectionRecord, Failure, Grant, SegmentRecord, WorkRecord


class Admit(NamedTuple):
    """The request just received was taken: its files are to be looked at, or it waits for memory.

    Only for requests that do not get `Receive` at once.  The connection is read from again after `Receive` or
    `Skip`; at once if the request has neither a payload nor inputs in shared memory.
    """

    work: WorkRecord


class CreateSegment(NamedTuple):
    """Make a segment and report `SegmentCreated` or `SegmentFailed`, best right after these commands.

    A `Grant` will be shared with its connection: fresh memory that no other ever used.
    """

    segment: SegmentRecord


class DestroySegment(NamedTuple):
    """Give a segment back to the system and have the workers unmap it."""

    segment: SegmentRecord


class Receive(NamedTuple):
    """There is memory for a work: its payload goes to `segment`, from byte 0 on as its plan lays it out.

    Then go on reading the connection.  For a `Received` with a digest: copy the payload there now; the
    commands behind this one may be `Run`.  With inputs in shared memory, `segment` is where these lie, and
    there is nothing to copy.
    """

    work: WorkRecord
    segment: SegmentRecord


class Skip(NamedTuple):
    """Read past the payload of a request, if it has one, and go on reading the connection.

    The request was answered, or waits for the answer of another with the same key.
    """

    connection: ConnectionRecord
    request_id: int


class Look(NamedTuple):
    """Look at the referenced files of a work; answered by `Looked` or `StorageFailed`."""

    work: WorkRecord


class LookAtOutput(NamedTuple):
    """Look at what lies where the output of a work goes; answered by `OutputLooked`."""

    work: WorkRecord


class Read(NamedTuple):
    """Read the referenced inputs of a work into its memory; answered by `InputsRead` or `StorageFailed`."""

    work: WorkRecord
    segment: SegmentRecord


class Write(NamedTuple):
    """Write the outputs of a work to storage; answered by `Written` or `StorageFailed`."""

    work: WorkRecord


class Run(NamedTuple):
    """Send these works to the worker as one batch; it may still be busy with the one before.

    Attributes:
        worker: as `WorkerStarted` named it.
        is_alone: it may have cost a worker, so that nothing is to be computed beside it.
    """

    worker: Any
    works: tuple[WorkRecord, ...]
    expected_s: float
    is_alone: bool = False


class ReplyResult(NamedTuple):
    """Answer a request with the result of a work; report `Sent`, unless `reply` is 0.

    Attributes:
        segment: the result lies in this segment, which is shared with the client, and the message says where:
            no payload travels; `reply` is 0 then.  0: the payload travels.
        is_duplicate: others got the same answer before; for counting.
    """

    reply: int
    connection: ConnectionRecord
    request_id: int
    work: WorkRecord
    segment: int
    is_duplicate: bool


class Repeat(NamedTuple):
    """Answer a request with an answer remembered from before; report `Sent`."""

    reply: int
    connection: ConnectionRecord
    request_id: int
    answer: int


class ReplyFailure(NamedTuple):
    """Answer a request with a failure.

    Attributes:
        work: whose failure it is; None: the request was refused at once, or repeats a failure.
        is_duplicate: others got the same answer before; for counting.
    """

    connection: ConnectionRecord
    request_id: int
    failure: Failure
    work: WorkRecord | None
    is_duplicate: bool


class ReplyBusy(NamedTuple):
    """Ask the client to send the same request again after so many seconds."""

    connection: ConnectionRecord
    request_id: int
    retry_after_s: float
    reason: str


class ReplyCancelled(NamedTuple):
    """Confirm that a request was cancelled."""

    connection: ConnectionRecord
    request_id: int


class Remember(NamedTuple):
    """Keep the result of a work as `answer` until `Forget`.

    Attributes:
        is_copy: copy its payload now, its memory will be used for something else; else it stays where it is.
    """

    work: WorkRecord
    answer: int
    is_copy: bool


class Forget(NamedTuple):
    """Let go of a remembered answer; one that is just being sent is over with its `Sent`."""

    answer: int


class GrantMemory(NamedTuple):
    """Share a segment with the client; its descriptor travels with the message.

    Attributes:
        request_id: the request this answers; 0: it holds the result of the `ReplyResult` that follows.
    """

    connection: ConnectionRecord
    request_id: int
    segment: Grant


class Release(NamedTuple):
    """Nothing about a work is needed any more; its memory may serve others from now on."""

    work: WorkRecord


class Disconnect(NamedTuple):
    """End a connection with a last word, if it still listens; report `ConnectionClosed`."""

    connection: ConnectionRecord
    code: str
    reason: str


class WakeAt(NamedTuple):
    """Send a `Tick` at this time or soon after; replaces the time named before."""

    at_s: float


class Drained(NamedTuple):
    """After `DrainStarted`: all that was admitted is answered, and every reply is over."""


Command = (
    Admit
    | CreateSegment
    | DestroySegment
    | Receive
    | Skip
    | Look
    | LookAtOutput
    | Read
    | Write
    | Run
    | ReplyResult
    | Repeat
    | ReplyFailure
    | ReplyBusy
    | ReplyCancelled
    | Remember
    | Forget
    | GrantMemory
    | Release
    | Disconnect
    | WakeAt
    | Drained
)
