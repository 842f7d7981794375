"""The messages of an open connection, and how each is written as the header of a frame, and read again.

A message is one immutable value.  The two that come with every call, and what they hold of each tensor, are
named tuples: to make one takes a third of the time of a frozen dataclass.

Tensor data is not part of a message: it is the payload of the same frame, in the order of the specs, one
after the other without padding; or it lies in a granted segment where the message's `Placement` says, and
then the frame has no payload.

A header of an open connection has four parts, in the order of how their content comes about::

    number (8 bytes) | varying part | fixed part (JSON) | line end, open part (JSON)

The *number* is the message's `id`, `token` or `segment`.  The *varying part* differs between equal calls:
deadline and key of a request, seconds of a result; its length is in the prefix.  The *fixed part* repeats bit
for bit between equal calls, so writing and reading it is remembered.  The *open part* is the one field whose
content the protocol does not know (`params`, `info`, `stats`); it is parsed anew every time, so each receiver
owns what it gets.  A message without such a field has no line end, one without other fields no fixed part.
Which field belongs where is data, in `BY_KIND`.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import operator
import struct
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Type, Union

from yarn_accel.core.ended_applications import APPLICATION_ID
from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire.schema import (
    Check,
    Field,
    FieldError,
    HeaderError,
    boolean,
    dump_header,
    integer,
    json_object,
    list_of,
    load_header,
    number,
    optional,
    pattern,
    read_fields,
    record_of,
    text,
)

#: Bytes per element of every element type that may travel; numpy's names, little-endian only, no objects.
ITEM_BYTES = {
    "|b1": 1,
    "|i1": 1,
    "|u1": 1,
    "<i2": 2,
    "<u2": 2,
    "<f2": 2,
    "<i4": 4,
    "<u4": 4,
    "<f4": 4,
    "<i8": 8,
    "<u8": 8,
    "<f8": 8,
    "<c8": 8,
    "<c16": 16,
}
MAX_DIMENSIONS = 8
MAX_TENSORS = 64
#: Tensors in shared memory begin at multiples of this.
ALIGNMENT_BYTES = 64
#: Lowest and highest priority of a request; 0 is the ordinary one.
PRIORITIES = (-8, 7)
#: The subject of a `Failed`: this record, the storage behind a URI, the server's own condition, a bug in the
#: server.
ERROR_KINDS = ("rejected", "storage", "unavailable", "internal")
#: The largest header of a message.
MAX_HEADER_BYTES = 1024 * 1024
#: An idempotency key is 1 to this many bytes of UTF-8.
MAX_KEY_BYTES = 240
#: The largest id, token or segment.
MAX_NUMBER = 2**53
#: Bounds of a `UserTokens`: of the tokens, and of the parts of each.
MAX_HDFS_TOKENS = 16
MAX_IDENTIFIER_BYTES = 4096
MAX_PASSWORD_BYTES = 256
MAX_SERVICE_CHARS = 256


@dataclass(frozen=True)
class TensorSpec:
    """Element type (a key of `ITEM_BYTES`), shape, and order: ``C`` (last index fastest) or ``F`` (first
    fastest).

    Raises:
        ValueError: one of the three is not allowed; the message names it.
    """

    dtype: str
    shape: Tuple[int, ...]
    order: str = "C"

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError("dtype {!r} is not one of {}".format(self.dtype, ", ".join(ITEM_BYTES)))
        if self.order not in ("C", "F"):
            raise ValueError("order {!r} is neither 'C' nor 'F'".format(self.order))
        if len(self.shape) > MAX_DIMENSIONS:
            raise ValueError(
                "shape has {} dimensions, at most {} allowed".format(len(self.shape), MAX_DIMENSIONS)
            )
        for size in self.shape:
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**48:
                raise ValueError("shape {!r} has an entry that is not a size".format(self.shape))

    @property
    def size(self) -> int:
        """Number of elements."""
        product = 1
        for size in self.shape:
            product *= size
        return product

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return self.size * ITEM_BYTES[self.dtype]


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
class HdfsToken:
    """An HDFS delegation token of the job's user: who has it acts as that user in HDFS.

    Attributes:
        service: the file system it was given for, as the job's token file says; nobody has authenticated it.
    """

    identifier: bytes = dataclasses.field(repr=False)
    password: bytes = dataclasses.field(repr=False)
    service: str = ""


@dataclass(frozen=True)
class UserTokens:
    """The first message of a client that said it has tokens: its requests are to run as the job's user.

    It is answered by `UserAccepted` or `Failed`, and only sent to a server that the client has authenticated
    by more than the credential (SPEC.md).

    Attributes:
        tokens: all of one owner.
        application: the application the client belongs to, which ends the session when it ends; may be empty.
    """

    id: int
    tokens: Tuple[HdfsToken, ...]
    application: str = ""


@dataclass(frozen=True)
class UserAccepted:
    """From now on the requests of this connection run as `principal`."""

    id: int
    principal: str


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
    UserTokens,
    UserAccepted,
]


_NUMBER_BYTES = 8
_MAX_SECONDS = 1e9
_DOUBLE = struct.Struct("!d")
# Remembered for the process, not for each connection: so the memory is bounded however many there are.  What
# is remembered are names and shapes of tensors, no keys and no data.
_N_REMEMBERED = 512
_MAX_REMEMBERED_BYTES = 4096
_MAX_REMEMBERED_TENSORS = 8


def encode(message: Message, max_header_bytes: int = MAX_HEADER_BYTES) -> Tuple[int, int, bytes, int]:
    """Frame kind, length of the varying part, header, and payload length of a message.

    Raises:
        LocalProtocolError: the message breaks its own field rules, or its header is longer than the peer
            takes; better here than at the peer.
    """
    layout = _BY_CLASS.get(type(message))
    if layout is None:
        raise LocalProtocolError("{!r} is not a message".format(type(message).__name__))
    try:
        number = getattr(message, layout.number) if layout.number else 0
        if type(number) is not int or not 0 <= number <= MAX_NUMBER:
            raise FieldError("{!r} is not between 0 and {}".format(number, MAX_NUMBER)).inside(
                "." + layout.number
            )
        varying = layout.write_varying(message)
        fixed, n_bytes = _write_fixed(layout, layout.values(message))
        opened = _write_open(layout, message)
    except FieldError as error:
        raise LocalProtocolError("{}{}: {}".format(layout.make.__name__, error.place, error)) from None
    except (AttributeError, TypeError) as error:
        raise LocalProtocolError("{}: {}".format(layout.make.__name__, error)) from None
    header = b"".join((number.to_bytes(_NUMBER_BYTES, "big"), varying, fixed, opened))
    if len(header) > max_header_bytes:
        raise LocalProtocolError("{}: a header of {} bytes".format(layout.make.__name__, len(header)))
    return layout.kind, len(varying), header, n_bytes


def decode(kind: int, varying_bytes: int, header: bytes) -> Tuple[Message, int]:
    """The message of a frame, and how many bytes its payload must have.

    Raises:
        RemoteProtocolError: unknown kind, or a part or field that breaks its rule; the error names the field.
    """
    layout = BY_KIND.get(kind)
    if layout is None:
        raise RemoteProtocolError("frame kind {} is unknown".format(kind))
    split = _NUMBER_BYTES + varying_bytes
    if len(header) < split:
        raise RemoteProtocolError("{}: the header is shorter than its parts".format(layout.make.__name__))
    fixed, line_end, opened = header[split:].partition(b"\n")
    try:
        values, n_bytes = _read_fixed(layout, fixed)
        fields = values.copy()
        layout.read_varying(fields, header[_NUMBER_BYTES:split])
        number = int.from_bytes(header[:_NUMBER_BYTES], "big")
        if number > (MAX_NUMBER if layout.number else 0):
            raise FieldError("{} is too large".format(number)).inside("." + layout.number)
        if bool(line_end) is not bool(layout.open):
            raise FieldError("an open part too many or too few")
    except FieldError as error:
        raise RemoteProtocolError("{}{}: {}".format(layout.make.__name__, error.place, error)) from None
    if layout.number:
        fields[layout.number] = number
    if layout.open:
        fields[layout.open] = {} if opened == b"{}" else load_header(opened, layout.make.__name__)
    return layout.make(**fields), n_bytes


def as_received(message: Message) -> Message:
    """A message as the peer would get it, for who computes without one: no other requests are answered there.

    Raises:
        LocalProtocolError: it could not be sent.
    """
    kind, varying_bytes, header, _ = encode(message)
    return decode(kind, varying_bytes, header)[0]


def _write_open(layout: Layout, message: Message) -> bytes:
    if not layout.open:
        return b""
    value = json_object(getattr(message, layout.open))
    if not value:
        return b"\n{}"
    name = layout.make.__name__
    return b"\n" + dump_header(value, name + "." + layout.open)


def _write_fixed(layout: Layout, values: Tuple[Any, ...]) -> Tuple[bytes, int]:
    # Messages with an open part are those with tensors, which come first.
    if layout.open and values and len(values[0]) <= _MAX_REMEMBERED_TENSORS:
        return _remembered_text(layout.kind, values)
    return _fixed_text(layout.kind, values)


def _fixed_text(kind: int, values: Tuple[Any, ...]) -> Tuple[bytes, int]:
    layout = BY_KIND[kind]
    if not layout.fixed:
        return b"", 0
    header = {field.name: _plain(value) for field, value in zip(layout.fixed, values)}  # noqa: B905
    name = layout.make.__name__
    text = dump_header(header, name)
    try:
        return text, _fixed_values(kind, text)[1]
    except HeaderError as error:
        raise LocalProtocolError(error.message) from None


def _read_fixed(layout: Layout, fixed: bytes) -> Tuple[Dict[str, Any], int]:
    if layout.open and len(fixed) <= _MAX_REMEMBERED_BYTES:
        return _remembered_values(layout.kind, fixed)
    return _fixed_values(layout.kind, fixed)


def _fixed_values(kind: int, fixed: bytes) -> Tuple[Dict[str, Any], int]:
    """The checked fields of a fixed part, and the payload length they imply."""
    layout = BY_KIND[kind]
    name = layout.make.__name__
    if not layout.fixed:
        if fixed:
            raise FieldError("a fixed part is not expected")
        return {}, 0
    values = read_fields(load_header(fixed, name), layout.fixed, name)
    specs = _specs_by_value(values)
    placement = values.get("placement")
    if placement is None:
        return values, sum(spec.nbytes for spec in specs)
    if len(placement.offsets) != len(specs):
        raise FieldError("{} offsets for {} tensors".format(len(placement.offsets), len(specs))).inside(
            ".placement"
        )
    return values, 0


_remembered_text = functools.lru_cache(_N_REMEMBERED)(_fixed_text)
_remembered_values = functools.lru_cache(_N_REMEMBERED)(_fixed_values)


def _specs_by_value(values: Dict[str, Any]) -> List[TensorSpec]:
    if "tensors" in values:
        return [tensor.spec for tensor in values["tensors"]]
    return [item for item in values.get("inputs", ()) if isinstance(item, TensorSpec)]


def _plain(value: Any) -> Any:
    if isinstance(value, NamedTensor):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, _RECORDS):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


_RECORDS = (TensorSpec, RemoteInput, Placement, HdfsToken)


# Headers

_CODE = pattern(r"[a-z0-9][a-z0-9-]{0,63}", "a code in lower case")
_NAME = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", "a plain name")
_REASON = text(512)
_SECONDS = number(0, 1e9)
_BYTES = integer(0, 2**53)
_SEGMENT = integer(0, MAX_NUMBER)
_KEY = text(MAX_KEY_BYTES, 1)


def _aligned(value: Any) -> int:
    offset: int = _BYTES(value)
    if offset % ALIGNMENT_BYTES:
        raise FieldError("{} is not a multiple of {}".format(offset, ALIGNMENT_BYTES))
    return offset


def _secret(max_bytes: int) -> Check:
    """One to so many bytes in base64; unlike other checks it never repeats the value that it refuses."""
    max_chars = 4 * -(-max_bytes // 3)

    def check(value: Any) -> bytes:
        raw = b""
        if isinstance(value, str) and len(value) <= max_chars:
            try:
                raw = base64.b64decode(value.encode("ascii"), validate=True)
            except ValueError:
                raw = b""
        if not 1 <= len(raw) <= max_bytes:
            raise FieldError("1 to {} bytes in base64 expected".format(max_bytes))
        return raw

    return check


def _input(value: Any) -> Any:
    return _REMOTE(value) if isinstance(value, dict) and "uri" in value else _TENSOR_SPEC(value)


_TENSOR_SPEC: Check = record_of(
    TensorSpec,
    Field("dtype", text(8)),
    Field("shape", list_of(integer(0, 2**48 - 1), MAX_DIMENSIONS)),
    Field("order", text(1)),
)
_REMOTE = record_of(RemoteInput, Field("uri", text(4096, 1)), Field("spec", optional(_TENSOR_SPEC)))
_NAMED_TENSOR = record_of(NamedTensor, Field("name", _NAME), Field("spec", _TENSOR_SPEC))
_OFFSETS = list_of(_aligned, MAX_TENSORS)
_HDFS_TOKEN = record_of(
    HdfsToken,
    Field("identifier", _secret(MAX_IDENTIFIER_BYTES)),
    Field("password", _secret(MAX_PASSWORD_BYTES)),
    Field("service", text(MAX_SERVICE_CHARS)),
)
_TOKEN_LIST = list_of(_HDFS_TOKEN, MAX_HDFS_TOKENS)


def _tokens(value: Any) -> Any:
    """One or more tokens; what is none of the form is not repeated in the error either."""
    if not isinstance(value, list) or not value or not all([isinstance(item, dict) for item in value]):
        raise FieldError("a list of 1 to {} tokens expected".format(MAX_HDFS_TOKENS))
    return _TOKEN_LIST(value)


_APPLICATION = pattern("({})?".format(APPLICATION_ID), "the id of an application")
_PLACEMENT = optional(record_of(Placement, Field("segment", _SEGMENT), Field("offsets", _OFFSETS)))


def _write_nothing(_message: Any) -> bytes:
    """The varying part of a message that has none."""
    return b""


def _read_nothing(_fields: Dict[str, Any], varying: bytes) -> None:
    """See that there is no varying part."""
    if varying:
        raise FieldError("a varying part is not expected")


def _write_request(request: Request) -> bytes:
    """The deadline (binary64) and the key."""
    _check_numbers((request.deadline_s,), ".deadline_s")
    _check_seconds((request.deadline_s,), ".deadline_s")
    try:
        key: bytes = _KEY(request.key).encode("utf-8")
    except FieldError as error:
        raise error.inside(".key") from None
    if len(key) > MAX_KEY_BYTES:
        raise FieldError("{} bytes, at most {} allowed".format(len(key), MAX_KEY_BYTES)).inside(".key")
    return _DOUBLE.pack(request.deadline_s) + key


def _read_request(fields: Dict[str, Any], varying: bytes) -> None:
    """The inverse of `_write_request`."""
    if len(varying) < _DOUBLE.size:
        raise FieldError("missing").inside(".deadline_s")
    fields["deadline_s"] = _check_seconds(_DOUBLE.unpack_from(varying), ".deadline_s")[0]
    try:
        fields["key"] = _KEY(varying[_DOUBLE.size :].decode("utf-8"))
    except UnicodeDecodeError:
        raise FieldError("not UTF-8").inside(".key") from None
    except FieldError as error:
        raise error.inside(".key") from None


def _write_result(result: Result) -> bytes:
    """The seconds (binary64 each), in the order of their names in the fixed part."""
    seconds = result.seconds.values()
    _check_numbers(seconds, ".seconds")
    _check_seconds(seconds, ".seconds")
    return _doubles(len(seconds)).pack(*seconds)


def _read_result(fields: Dict[str, Any], varying: bytes) -> None:
    """The inverse of `_write_result`."""
    names = fields["seconds"]
    if len(varying) != _DOUBLE.size * len(names):
        raise FieldError("{} names, but {} bytes".format(len(names), len(varying))).inside(".seconds")
    seconds = _doubles(len(names)).unpack(varying)
    fields["seconds"] = dict(zip(names, _check_seconds(seconds, ".seconds")))  # noqa: B905


@functools.lru_cache(32)
def _doubles(n: int) -> struct.Struct:
    return struct.Struct("!{}d".format(n))


def _check_numbers(given: Iterable[Any], place: str) -> None:
    """Of values that a caller gave; those that were read are numbers."""
    for value in given:
        if type(value) is not float and not isinstance(value, (int, float)):
            raise FieldError("a number expected, not {}".format(repr(value)[:64])).inside(place)


def _check_seconds(seconds: Iterable[float], place: str) -> Any:
    for value in seconds:
        if not 0 <= value <= _MAX_SECONDS:
            raise FieldError("{} is not between 0 and {:g}".format(value, _MAX_SECONDS)).inside(place)
    return seconds


@dataclass(frozen=True)
class Layout:
    """How one kind of message is written.

    Attributes:
        number: the field that is the number of the header; empty: the number is 0.
        fixed: the fields of the fixed part, tensors first if there are any.
        open: the field that is the open part; empty: there is none.
        values: the values of the fixed fields, hashable.
        write_varying, read_varying: the varying part of a message, and back into its fields.
    """

    kind: int
    make: Type[Any]
    number: str = ""
    fixed: Tuple[Field, ...] = ()
    open: str = ""
    values: Callable[[Any], Tuple[Any, ...]] = lambda _: ()
    write_varying: Callable[[Any], bytes] = _write_nothing
    read_varying: Callable[[Dict[str, Any], bytes], None] = _read_nothing


def _simple(kind: int, make: Type[Any], number_field: str, *fixed: Field, open_field: str = "") -> Layout:
    names = [field.name for field in fixed]
    return Layout(
        kind, make, number_field, fixed, open_field, lambda message: tuple([vars(message)[n] for n in names])
    )


_REQUEST = (
    Field("inputs", list_of(_input, MAX_TENSORS)),
    Field("operation", _NAME),
    Field("output_uri", text(4096)),
    Field("priority", integer(*PRIORITIES)),
    Field("placement", _PLACEMENT),
    Field("keep_inputs", boolean),
)
_RESULT = (
    Field("tensors", list_of(_NAMED_TENSOR, MAX_TENSORS)),
    Field("server", text(256)),
    Field("device", text(64)),
    Field("bytes_in", _BYTES),
    Field("bytes_out", _BYTES),
    Field("placement", _PLACEMENT),
    Field("seconds", list_of(text(32), 16)),
)
_REQUEST_VALUES = operator.attrgetter(*[field.name for field in _REQUEST])
_RESULT_VALUES = operator.attrgetter(*[field.name for field in _RESULT[:-1]])


def _result_values(result: Result) -> Tuple[Any, ...]:
    return (*_RESULT_VALUES(result), tuple(result.seconds))


_LAYOUTS = (
    Layout(16, Request, "id", _REQUEST, "params", _REQUEST_VALUES, _write_request, _read_request),
    Layout(17, Result, "id", _RESULT, "info", _result_values, _write_result, _read_result),
    _simple(
        18,
        Failed,
        "id",
        Field("kind", pattern("|".join(ERROR_KINDS), "one of " + ", ".join(ERROR_KINDS))),
        Field("code", _CODE),
        Field("message", text(4096)),
        Field("cure", text(1024)),
        Field("transient", boolean),
    ),
    _simple(19, Busy, "id", Field("retry_after_s", _SECONDS), Field("reason", _REASON)),
    _simple(20, Progress, "id", Field("stage", _CODE), Field("seconds", _SECONDS)),
    _simple(21, Cancel, "id"),
    _simple(22, Cancelled, "id"),
    _simple(23, Ping, "token"),
    _simple(24, Pong, "token"),
    _simple(25, Drain, "", Field("reason", _REASON)),
    _simple(26, StatsRequest, "id"),
    _simple(27, Stats, "id", open_field="stats"),
    _simple(28, Goodbye, "", Field("code", _CODE), Field("message", text(4096))),
    _simple(29, Lend, "id", Field("n_bytes", integer(1, 2**53))),
    _simple(30, Lent, "id", Field("segment", _SEGMENT), Field("n_bytes", integer(1, 2**53))),
    _simple(31, GiveBack, "segment"),
    _simple(
        32,
        UserTokens,
        "id",
        Field("tokens", _tokens),
        Field("application", _APPLICATION),
    ),
    _simple(33, UserAccepted, "id", Field("principal", text(512, 1))),
)
#: By the kind of their frame; kinds below 16 belong to the handshake.
BY_KIND = {layout.kind: layout for layout in _LAYOUTS}
_BY_CLASS = {layout.make: layout for layout in _LAYOUTS}
