"""Strict checks of header fields.

A *check* is a function of a value; it returns the value in the form the message object holds, or raises
`FieldError`, which collects the place, such as ``Request.inputs[1].shape``, on its way up.  Headers are small
JSON objects; numbers are bounded before Python makes an integer of them.
"""

import json
import math
import re
from typing import Any, Callable, Dict, List, Mapping, Tuple, Union

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError

Check = Callable[[Any], Any]
#: JSON nests at most this deep.
MAX_DEPTH = 32
_UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_DOUBTFUL = re.compile(rb"\\ud[89a-f]|[0-9]{21}")


class HeaderError(RemoteProtocolError):
    """A header breaks a rule.

    A type of its own: a signal handler of the caller may raise `RemoteProtocolError` within these functions,
    and that must not be taken for one of theirs.
    """


class FieldError(ValueError):
    """A value breaks the rule of its field."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.place = ""

    def inside(self, place: str) -> "FieldError":
        """The same error, seen from one level further out."""
        self.place = place + self.place
        return self


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
    """Parse header bytes as one JSON object.

    What JSON libraries disagree about is refused: huge numbers, NaN, half characters, more than `MAX_DEPTH`
    levels.
    """
    try:
        written = data.decode("utf-8").strip(" \t\r\n")
        header, end = _DECODER.raw_decode(written)
        if end != len(written):
            raise ValueError("something follows its end")
        if _may_be_deep(data):
            _check_depth(header, MAX_DEPTH)
        if b"\\u" in data:
            json.dumps(header, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        if not _is_of_json(error):
            raise
        raise HeaderError("{}: the header is not JSON ({})".format(place, error)) from None
    if not isinstance(header, dict):
        raise HeaderError("{}: the header is not a JSON object".format(place))
    return header


def dump_header(header: Mapping[str, Any], place: str) -> bytes:
    """Format a header as canonical JSON (sorted keys, no blanks, so no line end either).

    Raises:
        LocalProtocolError: it holds something that `load_header` would not take (NaN, a huge integer, an
            object of another library).
    """
    try:
        data = _encode(header).encode("ascii")
        if _may_be_deep(data) or _DOUBTFUL.search(data):
            load_header(data, place)
        return data
    except HeaderError as error:
        raise LocalProtocolError(error.message) from None
    except (TypeError, ValueError, RecursionError) as error:
        if not _is_of_json(error):
            raise
        raise LocalProtocolError("{}: cannot be written as JSON ({})".format(place, error)) from None


def _is_of_json(error: BaseException) -> bool:
    """Whether this module or JSON's raised an error; else a signal handler of the caller did, meanwhile."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return module == __name__ or module == "codecs" or module.partition(".")[0] == "json"


def read_fields(
    header: Mapping[str, Any], fields: Tuple[Field, ...], place: str, *, ignore_unknown: bool = False
) -> Dict[str, Any]:
    """Check every field of a header.

    Raises:
        RemoteProtocolError: a field breaks its rule, is missing, or is none of the known ones, which the
            message then names.
    """
    try:
        return _read(header, fields, ignore_unknown)
    except FieldError as error:
        raise HeaderError("{}{}: {}".format(place, error.place, error)) from None


def text(max_chars: int, min_chars: int = 0) -> Check:
    """A string of bounded length without control characters (line ends and tabs allowed)."""

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise _wrong("a string", value)
        if not min_chars <= len(value) <= max_chars:
            raise FieldError("{} characters, {} to {} allowed".format(len(value), min_chars, max_chars))
        if _UNWANTED.search(value):
            raise FieldError("contains a control character or half a character")
        return value

    return check


def pattern(expression: str, what: str) -> Check:
    """A string that matches the whole regular expression; `what` says in words what it should be."""
    compiled = re.compile(r"(?:{})\Z".format(expression))

    def check(value: Any) -> str:
        if not isinstance(value, str) or not compiled.match(value):
            raise _wrong(what, value)
        return value

    return check


def integer(low: int, high: int) -> Check:
    """An integer between two bounds, both allowed."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong("an integer", value)
        if not low <= value <= high:
            raise FieldError("{} is not between {} and {}".format(value, low, high))
        return value

    return check


def number(low: float, high: float) -> Check:
    """A finite number between two bounds, both allowed, as a float."""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong("a number", value)
        if not low <= value <= high:
            raise FieldError("{} is not between {} and {}".format(value, low, high))
        return float(value)

    return check


def boolean(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong("true or false", value)
    return value


def json_object(value: Any) -> Dict[str, Any]:
    """Any JSON object; its size is bounded by the header's."""
    if not isinstance(value, dict):
        raise _wrong("an object", value)
    return value


def optional(check: Check) -> Check:
    """Null, or what another check takes."""
    return lambda value: None if value is None else check(value)


def list_of(check_item: Check, max_items: int) -> Check:
    """A JSON list of bounded length, as a tuple; every entry passes one check."""

    def check(value: Any) -> Tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong("a list", value)
        if len(value) > max_items:
            raise FieldError("{} entries, at most {} allowed".format(len(value), max_items))
        items: List[Any] = []
        try:
            # `extend` keeps what came before a failure, so the length is the index of the bad entry.
            items.extend(map(check_item, value))
        except FieldError as error:
            raise error.inside("[{}]".format(len(items))) from None
        return tuple(items)

    return check


def record_of(make: Callable[..., Any], *fields: Field) -> Check:
    """A JSON object with exactly these fields, as the object that `make` makes of them."""

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong("an object with " + " and ".join(field.name for field in fields), value)
        values = _read(value, fields, False)
        try:
            return make(**values)
        except FieldError:
            raise
        except ValueError as error:
            raise FieldError(str(error)) from None

    return check


def _read(header: Mapping[str, Any], fields: Tuple[Field, ...], ignore_unknown: bool) -> Dict[str, Any]:
    if not ignore_unknown:
        _check_known(header, fields)
    values: Dict[str, Any] = {}
    for field in fields:
        value = header.get(field.name, field.default)
        if value is REQUIRED:
            raise FieldError("missing").inside("." + field.name)
        try:
            values[field.name] = field.check(value) if field.name in header else value
        except FieldError as error:
            raise error.inside("." + field.name) from None
    return values


def _check_known(header: Mapping[str, Any], fields: Tuple[Field, ...]) -> None:
    known = {field.name for field in fields}
    if not known.issuperset(header):
        unknown = next(name for name in header if name not in known)
        raise FieldError("unknown field; known: " + ", ".join(sorted(known))).inside("." + unknown[:64])


def _wrong(wanted: str, value: Any) -> FieldError:
    return FieldError("{} expected, not {}".format(wanted, repr(value)[:64]))


def _bounded_int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("an integer of {} digits".format(len(digits)))
    return int(digits)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number beyond every float")
    return value


def _may_be_deep(data: Union[bytes, bytearray]) -> bool:
    return data.count(b"[") + data.count(b"{") > MAX_DEPTH


def _check_depth(value: Any, levels: int) -> None:
    if not isinstance(value, (dict, list)):
        return
    if not levels:
        raise ValueError("more than {} levels".format(MAX_DEPTH))
    for item in value.values() if isinstance(value, dict) else value:
        _check_depth(item, levels - 1)


def _refuse_constant(name: str) -> Any:
    raise ValueError("{} is not allowed".format(name))


def json_encoder(*, sort_keys: bool) -> Callable[[Any], str]:
    """A function that writes strict JSON without blanks.

    `json.JSONEncoder.encode` makes its C part anew at every call, which takes longer than a small header.
    What it returns raises TypeError, ValueError or RecursionError for what JSON cannot say.
    """
    encoder = json.JSONEncoder(sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    quote = json.encoder.encode_basestring_ascii
    pieces = make(None, encoder.default, quote, None, ":", ",", sort_keys, False, False)
    return lambda value: "".join(pieces(value, 0))


# Kept, because json.dumps and json.loads make new ones at every call that has options.
_encode = json_encoder(sort_keys=True)
_DECODER = json.JSONDecoder(
    parse_int=_bounded_int, parse_float=_finite_float, parse_constant=_refuse_constant
)
