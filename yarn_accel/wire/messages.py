"""The messages of an open connection, one immutable value each.

The two that come with every call, and what they hold of each tensor, are named tuples: to make one takes a
third of the time of a frozen dataclass.

Tensor data is not part of a message: it is the payload of the same frame, in the order of the specs, one
after the other without padding; or it lies in a granted segment where the message's `Placement` says, and
then the frame has no payload.  How messages become headers is in `codec`.
"""

from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Optional, Tuple, Union

from yarn_accel.wire.tensors import TensorSpec

MAX_TENSORS = 64
#: Tensors in shared memory begin at multiples of this.
ALIGNMENT_BYTES = 64
#: Lowest and highest priority of a request; 0 is the ordinary one.
PRIORITIES = (-8, 7)
#: What a `Failed` is about: this record, the storage behind a URI, the server's own condition, a bug in the
#: server.
ERROR_KINDS = ("rejected", "storage", "unavailable", "internal")


@dataclass(frozen=True)
class RemoteInput:
    """An input the server reads itself: a URI, and its spec (None: .npy, .npz, .npz#array or plain bytes)."""

    uri: str
    spec: Optional[TensorSpec] = None


class NamedTensor(NamedTuple):
    """One output tensor of a `Result`."""

    name: str
    spec: TensorSpec


@dataclass(frozen=True)
class Placement:
    """Where tensors lie in a granted segment: one offset in bytes per tensor by value, each a multiple of
    `ALIGNMENT_BYTES`.  That they lie inside the segment is for the owner of the segment to check."""

    segment: int
    offsets: Tuple[int, ...]


class Request(NamedTuple):
    """Compute `operation` on the inputs; the payload holds the inputs that are plain specs.

    Attributes:
        id: number of this request on this connection; every answer repeats it.
        key: idempotency key, scoped to the tenant; a resubmission carries the same one.
        output_uri: where the server writes the outputs as one .npz; empty: they come back in the result.
        deadline_s: seconds from now after which the answer is useless; 0: none.
        priority: within `PRIORITIES`; the higher goes first among the requests of one tenant.
        placement: where the inputs by value lie in a granted segment; None: they are the payload.
        keep_inputs: the inputs in the granted segment must be the same after the answer as before.
    """

    id: int
    key: str
    operation: str
    params: Mapping[str, Any]
    inputs: Tuple[Union[TensorSpec, RemoteInput], ...]
    output_uri: str = ""
    deadline_s: float = 0.0
    priority: int = 0
    placement: Optional[Placement] = None
    keep_inputs: bool = False


class Result(NamedTuple):
    """The answer to a request; the payload holds the tensors in order.

    Attributes:
        seconds: time spent in ``read``, ``queue``, ``compute``, ``write`` and ``total``.
        placement: where the tensors lie in a granted segment; None: they are the payload.
    """

    id: int
    info: Mapping[str, Any]
    tensors: Tuple[NamedTensor, ...]
    server: str
    device: str
    seconds: Mapping[str, float]
    bytes_in: int
    bytes_out: int
    placement: Optional[Placement] = None


@dataclass(frozen=True)
class Failed:
    """The request cannot be answered: `kind` is one of `ERROR_KINDS`, `code` a stable word within it."""

    id: int
    kind: str
    code: str
    message: str
    cure: str = ""
    transient: bool = False


@dataclass(frozen=True)
class Busy:
    """The request was not taken; it may be sent again after `retry_after_s`, here or to another server.

    A reason that begins with ``again:`` means that a worker was lost after it had overwritten the inputs: the
    same request, with the same key and the inputs as they were, should be sent again at once.
    """

    id: int
    retry_after_s: float
    reason: str


@dataclass(frozen=True)
class Progress:
    """The request is still being worked on: its stage, and seconds since it arrived."""

    id: int
    stage: str
    seconds: float


@dataclass(frozen=True)
class Cancel:
    """The client no longer wants the answer; it gets `Cancelled`, or what was already under way."""

    id: int


@dataclass(frozen=True)
class Cancelled:
    """The request was dropped as the client asked."""

    id: int


@dataclass(frozen=True)
class Lend:
    """Asks the server for shared memory of at least this size; answered by `Lent`, `Busy` or `Failed`."""

    id: int
    n_bytes: int


@dataclass(frozen=True)
class Lent:
    """A segment of shared memory is the client's until `GiveBack` or the end of the connection.

    One descriptor travels with the first byte of the frame.

    Attributes:
        id: the `Lend` this answers; 0: it holds the tensors of a result to come.
        n_bytes: size of the segment.
    """

    id: int
    segment: int
    n_bytes: int


@dataclass(frozen=True)
class GiveBack:
    """The client neither reads nor writes the segment any more."""

    segment: int


@dataclass(frozen=True)
class Ping:
    """Asks for a `Pong` with the same token."""

    token: int


@dataclass(frozen=True)
class Pong:
    """Answers a `Ping`."""

    token: int


@dataclass(frozen=True)
class Drain:
    """The server finishes what it has taken and takes nothing new."""

    reason: str


@dataclass(frozen=True)
class StatsRequest:
    """Asks for the server's counters."""

    id: int


@dataclass(frozen=True)
class Stats:
    """The server's counters."""

    id: int
    stats: Mapping[str, Any]


@dataclass(frozen=True)
class Goodbye:
    """The sender closes the connection, and why: the last frame of a connection that broke the protocol."""

    code: str
    message: str


Message = Union[
    Request,
    Result,
    Failed,
    Busy,
    Progress,
    Cancel,
    Cancelled,
    Lend,
    Lent,
    GiveBack,
    Ping,
    Pong,
    Drain,
    StatsRequest,
    Stats,
    Goodbye,
]


def payload_bytes(message: Message) -> int:
    """How many payload bytes the frame of this message must have."""
    if isinstance(message, Request):
        return 0 if message.placement else sum(i.nbytes for i in message.inputs if isinstance(i, TensorSpec))
    if isinstance(message, Result):
        return 0 if message.placement else sum(tensor.spec.nbytes for tensor in message.tensors)
    return 0
