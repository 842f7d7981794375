"""Messages to headers and back.

A header of an open connection has four parts, in the order of how their content comes about::

    number (8 bytes) | varying part | fixed part (JSON) | line end, open part (JSON)

The *number* is the message's `id`, `token` or `segment`.  The *varying part* differs between equal calls
(module `varying`); its length is in the prefix.  The *fixed part* repeats bit for bit between equal calls, so
writing and reading it is remembered.  The *open part* is the one field whose content the protocol does not
know (`params`, `info`, `stats`); it is parsed anew every time, so each receiver owns what it gets.  A message
without such a field has no line end, one without other fields no fixed part.
"""

import dataclasses
import functools
from typing import Any, Dict, List, Tuple

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire.frames import Limits
from yarn_accel.wire.layouts import BY_CLASS, BY_KIND, MAX_NUMBER, Layout
from yarn_accel.wire.messages import Message, NamedTensor, Placement, RemoteInput
from yarn_accel.wire.schema import FieldError, dump_header, json_object, load_header, read_fields
from yarn_accel.wire.tensors import TensorSpec

_NUMBER_BYTES = 8
# Remembered for the process, not for each connection: so the memory is bounded however many there are.  What
# is remembered are names and shapes of tensors, no keys and no data.
_N_REMEMBERED = 512
_MAX_REMEMBERED_BYTES = 4096
_MAX_REMEMBERED_TENSORS = 8


def encode(message: Message) -> Tuple[int, int, bytes, int]:
    """Frame kind, length of the varying part, header, and payload length of a message.

    Raises:
        LocalProtocolError: the message breaks its own field rules; better here than at the peer.
    """
    layout = BY_CLASS.get(type(message))
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
    check_header_bytes(message, header, Limits.header_bytes)
    return decode(kind, varying_bytes, header)[0]


def check_header_bytes(message: Message, header: bytes, most: int) -> None:
    """Raise `LocalProtocolError` for a header that the peer would not take."""
    if len(header) > most:
        raise LocalProtocolError("{}: a header of {} bytes".format(type(message).__name__, len(header)))


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
    except RemoteProtocolError as error:
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
    if isinstance(value, _RECORDS):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


_RECORDS = (TensorSpec, RemoteInput, Placement)
