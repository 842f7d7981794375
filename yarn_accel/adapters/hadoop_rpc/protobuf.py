"""Protocol Buffers (proto2) for the few messages that this package uses, without the protobuf library.

A message is a frozen dataclass whose fields say how they travel::

    @dataclass(frozen=True, slots=True)
    class NodeId:
        host: str = string(1, "")
        port: int = int32(2, 0)

One rule covers presence: **None is absent, everything else is written**, the proto's own defaults included.
Hadoop often asks whether a field was sent at all, so a missing field and its default are not the same to it;
a field that was not received has the default declared here, None unless said otherwise.  What else differs
from the library: unknown fields and unknown enum values are stepped over and forgotten; a message field that
comes twice is replaced, not merged; text that is not UTF-8 is repaired, because one bad name must not hide
the rest.

Nothing is copied before its length was compared with what is there, nesting ends at `MAX_DEPTH`, and one
message holds at most `MAX_FIELDS` fields in all: two bytes on the wire can become an object of a hundred.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError

MAX_DEPTH = 24
MAX_FIELDS = 1 << 21
_MAX_NUMBER = (1 << 29) - 1
_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1
_KEY = "proto"
_FLOAT = struct.Struct("<f")
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

M = TypeVar("M")


class FieldType(Enum):
    """How a value travels; the names are the proto's."""

    INT32 = "int32"
    INT64 = "int64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    SINT32 = "sint32"
    BOOL = "bool"
    FLOAT = "float"
    STRING = "string"
    BYTES = "bytes"
    ENUM = "enum"
    MESSAGE = "message"


_WIRE_TYPES = {
    FieldType.FLOAT: _FIXED32,
    FieldType.STRING: _LENGTH,
    FieldType.BYTES: _LENGTH,
    FieldType.MESSAGE: _LENGTH,
}


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a message on the wire.

    Attributes:
        number: the field number, 1 to 2**29 - 1.
        kind: how a single value travels.
        is_repeated: the attribute is a tuple of values.
        is_required: a message without it is refused, in both directions.
        type: the class of the values, for enums and messages.
        proto_name: the field's name in Hadoop's own definition, where it is not the attribute's.
        wire_type: how the bytes of a single value are delimited.
    """

    number: int
    kind: FieldType
    is_repeated: bool = False
    is_required: bool = False
    type: type[Any] | None = None
    proto_name: str = ""
    wire_type: int = 0


def _spec(
    kind: FieldType,
    number: int,
    default: Any,
    repeated: bool,
    required: bool,
    name: str,
    cls: type[Any] | None = None,
) -> Any:
    spec = FieldSpec(number, kind, repeated, required, cls, name, _WIRE_TYPES.get(kind, _VARINT))
    return field(default=() if repeated else default, metadata={_KEY: spec})


def _scalar(kind: FieldType) -> Callable[..., Any]:
    def declare(
        number: int, default: Any = None, *, repeated: bool = False, required: bool = False, name: str = ""
    ) -> Any:
        return _spec(kind, number, default, repeated, required, name)

    declare.__name__ = kind.value
    declare.__doc__ = f"Declare a field of kind {kind.value}."
    return declare


int32 = _scalar(FieldType.INT32)
int64 = _scalar(FieldType.INT64)
uint32 = _scalar(FieldType.UINT32)
uint64 = _scalar(FieldType.UINT64)
sint32 = _scalar(FieldType.SINT32)
boolean = _scalar(FieldType.BOOL)
float32 = _scalar(FieldType.FLOAT)
string = _scalar(FieldType.STRING)
binary = _scalar(FieldType.BYTES)


def _typed(kind: FieldType) -> Callable[..., Any]:
    def declare(
        number: int,
        cls: type[Any],
        default: Any = None,
        *,
        repeated: bool = False,
        required: bool = False,
        name: str = "",
    ) -> Any:
        return _spec(kind, number, default, repeated, required, name, cls)

    declare.__name__ = kind.value
    declare.__doc__ = f"Declare a field whose values are of a class: an {kind.value}."
    return declare


enum = _typed(FieldType.ENUM)
message = _typed(FieldType.MESSAGE)


def schema_of(cls: type[Any]) -> dict[str, FieldSpec]:
    """How each attribute of a message class travels."""
    return {each.name: each.metadata[_KEY] for each in fields(cls)}


# ---- writing


def varint(value: int) -> bytes:
    """A number of 0 to 2**64 - 1 in base 128, the least significant seven bits first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(content: bytes) -> bytes:
    """The content after its own length."""
    return varint(len(content)) + content


def encode(value: Any) -> bytes:
    """The bytes of a message.

    Raises:
        LocalProtocolError: a required field is None, or a value does not fit its field.
    """
    out: list[bytes] = []
    _encode_into(out, value)
    return b"".join(out)


def _encode_into(out: list[bytes], value: Any) -> None:
    for name, spec in _layout(type(value)).specs.items():
        content = getattr(value, name)
        try:
            if spec.is_repeated:
                out.extend(_encode_one(spec, item) for item in content)
            elif content is not None:
                out.append(_encode_one(spec, content))
            elif spec.is_required:
                raise ValueError("missing")
        except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
            raise LocalProtocolError(f"{type(value).__name__}.{name}: {error}") from None


def _encode_one(spec: FieldSpec, item: Any) -> bytes:
    kind = spec.kind
    if kind is FieldType.MESSAGE:
        if type(item) is not spec.type:
            raise TypeError(f"{getattr(spec.type, '__name__', '')} expected, not {type(item).__name__}")
        return varint(spec.number << 3 | spec.wire_type) + delimited(encode(item))
    if kind is FieldType.STRING:
        return varint(spec.number << 3 | spec.wire_type) + delimited(item.encode("utf-8"))
    if kind is FieldType.BYTES:
        return varint(spec.number << 3 | spec.wire_type) + delimited(bytes(memoryview(item)))
    if kind is FieldType.FLOAT:
        return varint(spec.number << 3 | spec.wire_type) + _FLOAT.pack(item)
    return varint(spec.number << 3 | spec.wire_type) + varint(_to_unsigned(kind, item))


_RANGES = {
    FieldType.INT32: (-(1 << 31), (1 << 31) - 1),
    FieldType.SINT32: (-(1 << 31), (1 << 31) - 1),
    FieldType.ENUM: (-(1 << 31), (1 << 31) - 1),
    FieldType.INT64: (-(1 << 63), (1 << 63) - 1),
    FieldType.UINT32: (0, _MASK32),
    FieldType.UINT64: (0, _MASK64),
    FieldType.BOOL: (0, 1),
}


def _to_unsigned(kind: FieldType, item: int) -> int:
    low, high = _RANGES[kind]
    if not isinstance(item, int) or not low <= item <= high:
        raise ValueError(f"{item!r} is no {kind.value}")
    if kind is FieldType.SINT32:
        return (item << 1) ^ (item >> 31)
    return int(item) & _MASK64


# ---- reading


def decode(cls: type[M], data: bytes) -> M:
    """The message of class `cls` that exactly these bytes are.

    Raises:
        RemoteProtocolError: damaged, too deep, too many fields, or a required field is missing; the message
            names class and byte offset, never a value.
    """
    return _Reader(data).message(_layout(cls), 0, len(data), 0)  # type: ignore[no-any-return]


def decode_delimited(cls: type[M], data: bytes, start: int = 0) -> tuple[M, int]:
    """A message that stands after its own length at `start`, and where it ends; errors as in `decode`."""
    length, at = _read_varint(data, start, len(data))
    if length > len(data) - at:
        raise RemoteProtocolError(f"{cls.__name__}: {length} bytes announced, {len(data) - at} are there")
    return _Reader(data).message(_layout(cls), at, at + length, 0), at + length


class _MessageLayout:
    """The fields of one class, in the order and by the numbers that reading and writing need."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.specs = dict(sorted(schema_of(cls).items(), key=lambda item: item[1].number))
        self.by_number = {spec.number: (name, spec) for name, spec in self.specs.items()}
        self.required = [name for name, spec in self.specs.items() if spec.is_required]
        self.repeated = [name for name, spec in self.specs.items() if spec.is_repeated]


_layouts: dict[type[Any], _MessageLayout] = {}


def _layout(cls: type[Any]) -> _MessageLayout:
    layout = _layouts.get(cls)
    if layout is None:
        layout = _layouts[cls] = _MessageLayout(cls)
    return layout


class _Reader:
    """Reads one message with all that is inside it; counts its fields."""

    __slots__ = ("_data", "_fields_left")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields_left = MAX_FIELDS

    def message(self, layout: _MessageLayout, at: int, end: int, depth: int) -> Any:
        values: dict[str, Any] = {}
        data, by_number = self._data, layout.by_number
        while at < end:
            start = at
            tag, at = _read_varint(data, at, end)
            self._count(layout, start)
            wire_type, number = tag & 7, 0
            if wire_type == _VARINT:
                number, at = _read_varint(data, at, end)
                stop = at
            else:
                at, stop = self._extent(layout, wire_type, at, end)
            known = by_number.get(tag >> 3)
            if known is not None:
                name, spec = known
                if wire_type == spec.wire_type:
                    value = self._value(spec, number, at, stop, depth)
                    if spec.is_repeated:
                        values.setdefault(name, []).append(value)
                    elif value is not None:
                        values[name] = value
                elif wire_type == _LENGTH and spec.is_repeated and spec.wire_type == _VARINT:
                    values.setdefault(name, []).extend(self._packed(layout, spec, at, stop))
            elif not 0 < tag >> 3 <= _MAX_NUMBER:
                raise _damaged(layout, start, f"field number {tag >> 3}")
            at = stop
        return self._made(layout, values, end)

    def _made(self, layout: _MessageLayout, values: dict[str, Any], end: int) -> Any:
        for name in layout.required:
            if name not in values:
                raise _damaged(layout, end, f"{name} is missing")
        for name in layout.repeated:
            if name in values:  # an unknown enum value is None here
                values[name] = tuple(value for value in values[name] if value is not None)
        return layout.cls(**values)

    def _count(self, layout: _MessageLayout, at: int) -> None:
        self._fields_left -= 1
        if self._fields_left < 0:
            raise _damaged(layout, at, f"more than {MAX_FIELDS} fields")

    def _extent(self, layout: _MessageLayout, wire_type: int, at: int, end: int) -> tuple[int, int]:
        """Where the content of a field that is no number begins and stops."""
        if wire_type == _LENGTH:
            size, at = _read_varint(self._data, at, end)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise _damaged(layout, at, f"wire type {wire_type}")
        if size > end - at:
            raise _damaged(layout, at, f"{size} bytes announced, {end - at} are there")
        return at, at + size

    def _value(self, spec: FieldSpec, number: int, at: int, stop: int, depth: int) -> Any:
        """One value; None for an enum value that is not known."""
        kind = spec.kind
        if kind is FieldType.STRING:
            return str(self._data[at:stop], "utf-8", "replace")
        if kind is FieldType.MESSAGE and spec.type is not None:
            layout = _layout(spec.type)
            if depth >= MAX_DEPTH:
                raise _damaged(layout, at, f"more than {MAX_DEPTH} levels")
            return self.message(layout, at, stop, depth + 1)
        if kind is FieldType.BYTES:
            return bytes(self._data[at:stop])
        if kind is FieldType.FLOAT:
            return _FLOAT.unpack_from(self._data, at)[0]
        return _from_unsigned(spec, number)

    def _packed(self, layout: _MessageLayout, spec: FieldSpec, at: int, stop: int) -> Iterator[Any]:
        while at < stop:
            number, at = _read_varint(self._data, at, stop)
            self._count(layout, at)
            yield _from_unsigned(spec, number)


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for position in range(at, min(end, at + 10)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, position + 1
        shift += 7
    what = "longer than ten bytes" if end - at >= 10 else "cut short"
    raise RemoteProtocolError(f"protobuf: the number at offset {at} is {what}")


def _from_unsigned(spec: FieldSpec, raw: int) -> Any:
    kind = spec.kind
    if kind is FieldType.INT64:
        return raw - (1 << 64) if raw >> 63 else raw
    if kind is FieldType.UINT64:
        return raw
    if kind is FieldType.BOOL:
        return raw != 0
    raw &= _MASK32
    if kind is FieldType.UINT32:
        return raw
    if kind is FieldType.SINT32:
        return (raw >> 1) ^ -(raw & 1)
    signed = raw - (1 << 32) if raw >> 31 else raw
    if kind is FieldType.ENUM and spec.type is not None:
        return spec.type._value2member_map_.get(signed)
    return signed


def _damaged(layout: _MessageLayout, at: int, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{layout.cls.__name__} at offset {at}: {what}")
