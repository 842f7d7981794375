"""The messages of an open connection, one frozen dataclass each, and their headers.

`encode` and `decode` are inverse to each other for every message of the table at the end of this module; that
table is also the list of frame kinds.  Tensor data is not part of a message: it is the payload of the same
frame, in the order of the specs, one after the other without padding.
"""

from dataclasses import dataclass, fields
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, Union

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire.schema import (
    Check,
    Field,
    boolean,
    dump_header,
    integer,
    json_object,
    list_of,
    load_header,
    mapping_of,
    number,
    pattern,
    read_fields,
    tensor_spec,
    text,
)
from yarn_accel.wire.tensors import TensorSpec

__all__ = [
    "ERROR_KINDS",
    "KINDS",
    "MAX_TENSORS",
    "Busy",
    "Cancel",
    "Cancelled",
    "Drain",
    "Failed",
    "Goodbye",
    "Message",
    "NamedTensor",
    "Ping",
    "Pong",
    "Progress",
    "RemoteInput",
    "Request",
    "Result",
    "Stats",
    "StatsRequest",
    "decode",
    "encode",
    "payload_bytes",
]

MAX_TENSORS = 64
#: What a `Failed` is about: this record, the storage behind a URI, the server's own condition, a bug in the
#: server.
ERROR_KINDS = ("rejected", "storage", "unavailable", "internal")


@dataclass(frozen=True)
class RemoteInput:
    """An input the server reads itself: a URI, and its spec (None: .npy, .npz or plain bytes)."""

    uri: str
    spec: Optional[TensorSpec] = None


@dataclass(frozen=True)
class NamedTensor:
    """One output tensor of a `Result`."""

    name: str
    spec: TensorSpec


@dataclass(frozen=True)
class Request:
    """Compute `operation` on the inputs; the payload holds the inputs that are plain specs.

    Attributes:
        id: number of this request on this connection; every answer repeats it.
        key: idempotency key, scoped to the tenant; a resubmission carries the same one.
        output_uri: where the server writes the outputs as one .npz; empty: they come back in the result.
        deadline_s: seconds from now after which the answer is useless; 0: none.
    """

    id: int
    key: str
    operation: str
    params: Mapping[str, Any]
    inputs: Tuple[Union[TensorSpec, RemoteInput], ...]
    output_uri: str = ""
    deadline_s: float = 0.0


@dataclass(frozen=True)
class Result:
    """The answer to a request; the payload holds the tensors in order.

    Attributes:
        seconds: time spent in ``read``, ``queue``, ``compute``, ``write`` and ``total``.
    """

    id: int
    info: Mapping[str, Any]
    tensors: Tuple[NamedTensor, ...]
    server: str
    device: str
    seconds: Mapping[str, float]
    bytes_in: int
    bytes_out: int


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
    """The request was not taken; it may be sent again after `retry_after_s`, here or to another server."""

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
    Ping,
    Pong,
    Drain,
    StatsRequest,
    Stats,
    Goodbye,
]

_ID = integer(0, 2**53)
_CODE = pattern(r"[a-z0-9][a-z0-9-]{0,63}", "a code in lower case")
_NAME = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", "a plain name")
_URI = text(4096)
_REASON = text(512)
_SECONDS = number(0, 1e9)
_BYTES = integer(0, 2**53)


def _input(value: Any, place: str) -> Union[TensorSpec, RemoteInput]:
    if isinstance(value, dict) and "uri" in value:
        values = read_fields(value, (Field("uri", text(4096, 1)), Field("spec", tensor_spec, None)), place)
        return RemoteInput(**values)
    spec: TensorSpec = tensor_spec(value, place)
    return spec


def _named_tensor(value: Any, place: str) -> NamedTensor:
    if not isinstance(value, dict):
        raise RemoteProtocolError("{}: an object with name and spec expected".format(place))
    return NamedTensor(**read_fields(value, (Field("name", _NAME), Field("spec", tensor_spec)), place))


def _one_of(words: Tuple[str, ...]) -> Check:
    return pattern("|".join(words), "one of " + ", ".join(words))


_REQUEST = (
    Field("id", _ID),
    Field("key", text(256, 1)),
    Field("operation", _NAME),
    Field("params", json_object),
    Field("inputs", list_of(_input, MAX_TENSORS)),
    Field("output_uri", _URI, ""),
    Field("deadline_s", _SECONDS, 0.0),
)
_RESULT = (
    Field("id", _ID),
    Field("info", json_object),
    Field("tensors", list_of(_named_tensor, MAX_TENSORS)),
    Field("server", text(256)),
    Field("device", text(64)),
    Field("seconds", mapping_of(_SECONDS, 16)),
    Field("bytes_in", _BYTES),
    Field("bytes_out", _BYTES),
)
_FAILED = (
    Field("id", _ID),
    Field("kind", _one_of(ERROR_KINDS)),
    Field("code", _CODE),
    Field("message", text(4096)),
    Field("cure", text(1024), ""),
    Field("transient", boolean, False),
)

#: Frame kind, message class, fields of its header.  Kinds below 16 belong to the handshake.
_TABLE: Tuple[Tuple[int, Type[Any], Tuple[Field, ...]], ...] = (
    (16, Request, _REQUEST),
    (17, Result, _RESULT),
    (18, Failed, _FAILED),
    (19, Busy, (Field("id", _ID), Field("retry_after_s", _SECONDS), Field("reason", _REASON))),
    (20, Progress, (Field("id", _ID), Field("stage", _CODE), Field("seconds", _SECONDS))),
    (21, Cancel, (Field("id", _ID),)),
    (22, Cancelled, (Field("id", _ID),)),
    (23, Ping, (Field("token", _ID),)),
    (24, Pong, (Field("token", _ID),)),
    (25, Drain, (Field("reason", _REASON),)),
    (26, StatsRequest, (Field("id", _ID),)),
    (27, Stats, (Field("id", _ID), Field("stats", json_object))),
    (28, Goodbye, (Field("code", _CODE), Field("message", text(4096)))),
)
KINDS: Dict[int, Type[Any]] = {kind: message for kind, message, _ in _TABLE}
_BY_KIND = {kind: (message, header_fields) for kind, message, header_fields in _TABLE}
_BY_CLASS = {message: (kind, header_fields) for kind, message, header_fields in _TABLE}


def payload_bytes(message: Message) -> int:
    """How many payload bytes the frame of this message must have."""
    if isinstance(message, Request):
        return sum(item.nbytes for item in message.inputs if isinstance(item, TensorSpec))
    if isinstance(message, Result):
        return sum(item.spec.nbytes for item in message.tensors)
    return 0


def encode(message: Message) -> Tuple[int, bytes]:
    """The frame kind and header bytes of a message.

    Raises:
        LocalProtocolError: the message breaks its own field rules; better here than at the peer.
    """
    if type(message) not in _BY_CLASS:
        raise LocalProtocolError("{!r} is not a message".format(type(message).__name__))
    kind, header_fields = _BY_CLASS[type(message)]
    place = type(message).__name__
    header = {field.name: _plain(getattr(message, field.name)) for field in fields(message)}
    try:
        read_fields(header, header_fields, place)
    except RemoteProtocolError as error:
        raise LocalProtocolError(error.message) from None
    return kind, dump_header(header, place)


def decode(kind: int, header: Union[bytes, bytearray]) -> Message:
    """The message of a frame.

    Raises:
        RemoteProtocolError: unknown kind, or a header field that breaks its rule; the message names the
            field.
    """
    if kind not in _BY_KIND:
        raise RemoteProtocolError("frame kind {} is unknown".format(kind))
    make, header_fields = _BY_KIND[kind]
    place = make.__name__
    message: Message = make(**read_fields(load_header(header, place), header_fields, place))
    return message


def _plain_spec(spec: TensorSpec) -> Dict[str, Any]:
    return {"dtype": spec.dtype, "shape": list(spec.shape), "order": spec.order}


def _plain_remote(item: RemoteInput) -> Dict[str, Any]:
    return {"uri": item.uri} if item.spec is None else {"uri": item.uri, "spec": _plain_spec(item.spec)}


def _plain_tuple(items: Tuple[Any, ...]) -> List[Any]:
    return [_plain(item) for item in items]


def _plain_named(item: NamedTensor) -> Dict[str, Any]:
    return {"name": item.name, "spec": _plain_spec(item.spec)}


_PLAIN: Dict[type, Callable[[Any], Any]] = {
    tuple: _plain_tuple,
    TensorSpec: _plain_spec,
    RemoteInput: _plain_remote,
    NamedTensor: _plain_named,
}


def _plain(value: Any) -> Any:
    convert = _PLAIN.get(type(value))
    return value if convert is None else convert(value)
