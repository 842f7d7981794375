"""Strict checks of header fields.

A *check* is a function of a value and the place it stands at; it returns the value in the form the message
object holds, or raises `RemoteProtocolError` naming the place, such as ``request.inputs[1].shape``.  Headers
are small JSON objects; numbers are bounded before Python makes an integer of them.
"""

import json
import re
from typing import Any, Callable, Dict, Mapping, Tuple, Union

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire.tensors import TensorSpec

__all__ = [
    "REQUIRED",
    "Check",
    "Field",
    "boolean",
    "dump_header",
    "integer",
    "json_object",
    "list_of",
    "load_header",
    "mapping_of",
    "number",
    "pattern",
    "read_fields",
    "tensor_spec",
    "text",
]

Check = Callable[[Any, str], Any]
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class _Required:
    """Marks a field without a default."""


REQUIRED = _Required()


class Field:
    """One field of a header: its name, its check, and its default (`REQUIRED` when it must be there)."""

    def __init__(self, name: str, check: Check, default: Any = REQUIRED) -> None:
        self.name = name
        self.check = check
        self.default = default


def load_header(data: Union[bytes, bytearray], place: str) -> Dict[str, Any]:
    """Parse header bytes as one JSON object; huge integers, NaN and Infinity are refused."""
    try:
        header = json.loads(data.decode("utf-8"), parse_int=_bounded_int, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("{}: the header is not JSON ({})".format(place, error)) from None
    if not isinstance(header, dict):
        raise RemoteProtocolError("{}: the header is not a JSON object".format(place))
    return header


def dump_header(header: Mapping[str, Any], place: str) -> bytes:
    """Format a header as canonical JSON (sorted keys, no blanks).

    Raises:
        LocalProtocolError: it holds something that JSON cannot say (NaN, an object of another library).
    """
    try:
        return json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError("{}: cannot be written as JSON ({})".format(place, error)) from None


def read_fields(
    header: Mapping[str, Any], fields: Tuple[Field, ...], place: str, *, ignore_unknown: bool = False
) -> Dict[str, Any]:
    """Check every field of a header; a missing or unknown one is an error that names the known ones."""
    known = {field.name for field in fields}
    unknown = [name for name in header if name not in known]
    if unknown and not ignore_unknown:
        raise RemoteProtocolError(
            "{}.{}: unknown field; known: {}".format(place, str(unknown[0])[:64], ", ".join(sorted(known)))
        )
    values: Dict[str, Any] = {}
    for field in fields:
        if field.name in header:
            values[field.name] = field.check(header[field.name], "{}.{}".format(place, field.name))
        elif field.default is REQUIRED:
            raise RemoteProtocolError("{}.{}: missing".format(place, field.name))
        else:
            values[field.name] = field.default
    return values


def text(max_chars: int, min_chars: int = 0) -> Check:
    """A string of bounded length without control characters (line ends and tabs allowed)."""

    def check(value: Any, place: str) -> str:
        if not isinstance(value, str):
            raise _wrong(place, "a string", value)
        if not min_chars <= len(value) <= max_chars:
            raise RemoteProtocolError(
                "{}: {} characters, {} to {} allowed".format(place, len(value), min_chars, max_chars)
            )
        if _UNWANTED.search(value):
            raise RemoteProtocolError("{}: contains a control character or half a character".format(place))
        return value

    return check


def pattern(expression: str, what: str) -> Check:
    """A string that matches the whole regular expression; `what` says in words what it should be."""
    compiled = re.compile(r"(?:{})\Z".format(expression))

    def check(value: Any, place: str) -> str:
        if not isinstance(value, str) or not compiled.match(value):
            raise _wrong(place, what, value)
        return value

    return check


def integer(low: int, high: int) -> Check:
    """An integer between two bounds, both allowed."""

    def check(value: Any, place: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(place, "an integer", value)
        if not low <= value <= high:
            raise RemoteProtocolError("{}: {} is not between {} and {}".format(place, value, low, high))
        return value

    return check


def number(low: float, high: float) -> Check:
    """A finite number between two bounds, both allowed, as a float."""

    def check(value: Any, place: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong(place, "a number", value)
        if not low <= value <= high:
            raise RemoteProtocolError("{}: {} is not between {} and {}".format(place, value, low, high))
        return float(value)

    return check


def boolean(value: Any, place: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong(place, "true or false", value)
    return value


def json_object(value: Any, place: str) -> Dict[str, Any]:
    """Any JSON object; its size is bounded by the header's."""
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    return value


def mapping_of(check_value: Check, max_items: int) -> Check:
    """A JSON object whose values all pass one check."""

    def check(value: Any, place: str) -> Dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(place, "an object", value)
        if len(value) > max_items:
            raise RemoteProtocolError(
                "{}: {} entries, at most {} allowed".format(place, len(value), max_items)
            )
        return {name: check_value(item, "{}.{}".format(place, name[:64])) for name, item in value.items()}

    return check


def list_of(check_item: Check, max_items: int) -> Check:
    """A JSON list of bounded length, as a tuple; every entry passes one check."""

    def check(value: Any, place: str) -> Tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(place, "a list", value)
        if len(value) > max_items:
            raise RemoteProtocolError(
                "{}: {} entries, at most {} allowed".format(place, len(value), max_items)
            )
        return tuple(check_item(item, "{}[{}]".format(place, index)) for index, item in enumerate(value))

    return check


def tensor_spec(value: Any, place: str) -> TensorSpec:
    """An object with exactly dtype, shape and order, as a `TensorSpec`."""
    if not isinstance(value, dict):
        raise _wrong(place, "an object with dtype, shape and order", value)
    fields = read_fields(value, _SPEC_FIELDS, place)
    try:
        return TensorSpec(fields["dtype"], fields["shape"], fields["order"])
    except ValueError as error:
        raise RemoteProtocolError("{}: {}".format(place, error)) from None


def _wrong(place: str, wanted: str, value: Any) -> RemoteProtocolError:
    return RemoteProtocolError("{}: {} expected, not {}".format(place, wanted, repr(value)[:64]))


def _bounded_int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("an integer of {} digits".format(len(digits)))
    return int(digits)


def _refuse_constant(name: str) -> Any:
    raise ValueError("{} is not allowed".format(name))


_SPEC_FIELDS = (
    Field("dtype", text(8)),
    Field("shape", list_of(integer(0, 2**48 - 1), 8)),
    Field("order", text(1)),
)
