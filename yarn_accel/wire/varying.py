"""The part of a header that differs between equal calls: deadline and key of a request, seconds of a result.

The functions that read write into the fields of a message under construction; all raise `FieldError`.
"""

import functools
import struct
from typing import Any, Dict, Iterable

from yarn_accel.wire.messages import Request, Result
from yarn_accel.wire.schema import FieldError, text

#: An idempotency key is 1 to this many bytes of UTF-8.
MAX_KEY_BYTES = 240
_MAX_SECONDS = 1e9
_DOUBLE = struct.Struct("!d")
_KEY = text(MAX_KEY_BYTES, 1)


def write_nothing(_message: Any) -> bytes:
    """The varying part of a message that has none."""
    return b""


def read_nothing(_fields: Dict[str, Any], varying: bytes) -> None:
    """See that there is no varying part."""
    if varying:
        raise FieldError("a varying part is not expected")


def write_request(request: Request) -> bytes:
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


def read_request(fields: Dict[str, Any], varying: bytes) -> None:
    """The inverse of `write_request`."""
    if len(varying) < _DOUBLE.size:
        raise FieldError("missing").inside(".deadline_s")
    fields["deadline_s"] = _check_seconds(_DOUBLE.unpack_from(varying), ".deadline_s")[0]
    try:
        fields["key"] = _KEY(varying[_DOUBLE.size :].decode("utf-8"))
    except UnicodeDecodeError:
        raise FieldError("not UTF-8").inside(".key") from None
    except FieldError as error:
        raise error.inside(".key") from None


def write_result(result: Result) -> bytes:
    """The seconds (binary64 each), in the order of their names in the fixed part."""
    seconds = result.seconds.values()
    _check_numbers(seconds, ".seconds")
    _check_seconds(seconds, ".seconds")
    return _doubles(len(seconds)).pack(*seconds)


def read_result(fields: Dict[str, Any], varying: bytes) -> None:
    """The inverse of `write_result`."""
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
