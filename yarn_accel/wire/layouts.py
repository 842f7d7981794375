"""Frame kinds and the fields of each message's header, as data; `codec` says how the parts go together."""

import operator
from dataclasses import dataclass
from typing import Any, Callable, Dict, Tuple, Type

from yarn_accel.wire import messages as msg
from yarn_accel.wire.schema import (
    Field,
    FieldError,
    boolean,
    integer,
    list_of,
    number,
    optional,
    pattern,
    record_of,
    tensor_spec,
    text,
)
from yarn_accel.wire.varying import (
    read_nothing,
    read_request,
    read_result,
    write_nothing,
    write_request,
    write_result,
)

#: The largest id, token or segment.
MAX_NUMBER = 2**53

_CODE = pattern(r"[a-z0-9][a-z0-9-]{0,63}", "a code in lower case")
_NAME = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", "a plain name")
_REASON = text(512)
_SECONDS = number(0, 1e9)
_BYTES = integer(0, 2**53)
_SEGMENT = integer(0, MAX_NUMBER)


def _aligned(value: Any) -> int:
    offset: int = _BYTES(value)
    if offset % msg.ALIGNMENT_BYTES:
        raise FieldError("{} is not a multiple of {}".format(offset, msg.ALIGNMENT_BYTES))
    return offset


def _input(value: Any) -> Any:
    return _REMOTE(value) if isinstance(value, dict) and "uri" in value else tensor_spec(value)


_REMOTE = record_of(msg.RemoteInput, Field("uri", text(4096, 1)), Field("spec", optional(tensor_spec)))
_NAMED_TENSOR = record_of(msg.NamedTensor, Field("name", _NAME), Field("spec", tensor_spec))
_OFFSETS = list_of(_aligned, msg.MAX_TENSORS)
_PLACEMENT = optional(record_of(msg.Placement, Field("segment", _SEGMENT), Field("offsets", _OFFSETS)))


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
    write_varying: Callable[[Any], bytes] = write_nothing
    read_varying: Callable[[Dict[str, Any], bytes], None] = read_nothing


def _plain(kind: int, make: Type[Any], number_field: str, *fixed: Field, open_field: str = "") -> Layout:
    names = [field.name for field in fixed]
    return Layout(
        kind, make, number_field, fixed, open_field, lambda message: tuple([vars(message)[n] for n in names])
    )


_REQUEST = (
    Field("inputs", list_of(_input, msg.MAX_TENSORS)),
    Field("operation", _NAME),
    Field("output_uri", text(4096)),
    Field("priority", integer(*msg.PRIORITIES)),
    Field("placement", _PLACEMENT),
    Field("keep_inputs", boolean),
)
_RESULT = (
    Field("tensors", list_of(_NAMED_TENSOR, msg.MAX_TENSORS)),
    Field("server", text(256)),
    Field("device", text(64)),
    Field("bytes_in", _BYTES),
    Field("bytes_out", _BYTES),
    Field("placement", _PLACEMENT),
    Field("seconds", list_of(text(32), 16)),
)
_REQUEST_VALUES = operator.attrgetter(*[field.name for field in _REQUEST])
_RESULT_VALUES = operator.attrgetter(*[field.name for field in _RESULT[:-1]])


def _result_values(result: msg.Result) -> Tuple[Any, ...]:
    return (*_RESULT_VALUES(result), tuple(result.seconds))


_LAYOUTS = (
    Layout(16, msg.Request, "id", _REQUEST, "params", _REQUEST_VALUES, write_request, read_request),
    Layout(17, msg.Result, "id", _RESULT, "info", _result_values, write_result, read_result),
    _plain(
        18,
        msg.Failed,
        "id",
        Field("kind", pattern("|".join(msg.ERROR_KINDS), "one of " + ", ".join(msg.ERROR_KINDS))),
        Field("code", _CODE),
        Field("message", text(4096)),
        Field("cure", text(1024)),
        Field("transient", boolean),
    ),
    _plain(19, msg.Busy, "id", Field("retry_after_s", _SECONDS), Field("reason", _REASON)),
    _plain(20, msg.Progress, "id", Field("stage", _CODE), Field("seconds", _SECONDS)),
    _plain(21, msg.Cancel, "id"),
    _plain(22, msg.Cancelled, "id"),
    _plain(23, msg.Ping, "token"),
    _plain(24, msg.Pong, "token"),
    _plain(25, msg.Drain, "", Field("reason", _REASON)),
    _plain(26, msg.StatsRequest, "id"),
    _plain(27, msg.Stats, "id", open_field="stats"),
    _plain(28, msg.Goodbye, "", Field("code", _CODE), Field("message", text(4096))),
    _plain(29, msg.Lend, "id", Field("n_bytes", integer(1, 2**53))),
    _plain(30, msg.Lent, "id", Field("segment", _SEGMENT), Field("n_bytes", integer(1, 2**53))),
    _plain(31, msg.GiveBack, "segment"),
)
BY_KIND = {layout.kind: layout for layout in _LAYOUTS}
BY_CLASS = {layout.make: layout for layout in _LAYOUTS}
#: Frame kind -> message class.  Kinds below 16 belong to the handshake.
KINDS: Dict[int, Type[Any]] = {layout.kind: layout.make for layout in _LAYOUTS}
