"""The header of an ``.npy``: element type, shape and order, without numpy and without pickle.

numpy's own parser guesses at headers of Python 2 and raises whatever it stumbles over; this one does neither.
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple, Tuple

from yarn_accel.wire.tensors import ITEM_BYTES, MAX_DIMENSIONS, TensorSpec

__all__ = ["MAX_HEADER_BYTES", "BadNpyError", "NpyHeader", "parse_header"]

MAX_HEADER_BYTES = 16 * 1024
_TRIES = 100


class BadNpyError(ValueError):
    """It is not such a header, or one of an element type that is not taken; the text says which."""


class NpyHeader(NamedTuple):
    """What an ``.npy`` holds.

    Attributes:
        spec: of the array, in the machine's (little-endian) order of bytes.
        stored_dtype: the element type in the file.
        n_bytes: length of the header; the elements follow.
    """

    spec: TensorSpec
    stored_dtype: str
    n_bytes: int


def parse_header(head: bytes) -> NpyHeader:
    """The header at the beginning of these bytes, at most `MAX_HEADER_BYTES` of which belong to it.

    Raises:
        BadNpyError: it is none, or the element type is an object, a record, text, or of a size that no
            operation takes.
    """
    if not head.startswith(b"\x93NUMPY") or len(head) < 12 or head[6] not in (1, 2, 3):
        raise BadNpyError("not an .npy file")
    start = 10 if head[6] == 1 else 12
    end = start + int.from_bytes(head[8:start], "little")
    try:
        if end > min(len(head), MAX_HEADER_BYTES):
            raise ValueError("it is too long")
        fields = _parsed(head[start:end].decode("utf-8").strip())
        dtype, shape, is_fortran = fields["descr"], fields["shape"], fields["fortran_order"]
        if not isinstance(is_fortran, bool):
            raise ValueError("a field of another type")
        sizes = _sizes(shape)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise BadNpyError("not an .npy file ({} in its header)".format(type(error).__name__)) from None
    # "|O" would be pickle, which is never loaded; a list is a record.
    plain = "<" + dtype[1:] if isinstance(dtype, str) and dtype[:1] == ">" else dtype
    if not isinstance(plain, str) or plain not in ITEM_BYTES:
        raise BadNpyError("arrays of type {} are not taken".format(str(dtype)[:40]))
    return NpyHeader(TensorSpec(plain, sizes, "F" if is_fortran else "C"), dtype, end)


def _parsed(text: str) -> Any:
    """Before Python 3.13 threads that parse at the same time may meet SystemError: it is tried again."""
    for _ in range(_TRIES):
        try:
            return ast.literal_eval(text)
        except SystemError:
            continue
    raise ValueError("it cannot be parsed")


def _sizes(shape: object) -> Tuple[int, ...]:
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS:
        raise ValueError("no shape")
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**48:
            raise ValueError("a size that is none")
    return shape
