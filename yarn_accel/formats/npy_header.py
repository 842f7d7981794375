"""The header of an ``.npy``: element type, shape and order; nothing is ever unpickled.

It accepts the headers that ``numpy.load(allow_pickle=False)`` accepts, of arrays of plain numbers, with one
kind of error for all others. On purpose it refuses what `TensorSpec` cannot describe (other element types,
more than 8 axes) and records or subarrays of one field. numpy is imported only to read an element type in a
spelling that numpy itself does not write, such as ``=f8`` or ``float64``.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Any, NamedTuple, Tuple

from yarn_accel.wire.tensors import ITEM_BYTES, TensorSpec

MAGIC = b"\x93NUMPY"
_MAX_HEADER_CHARS = 10_000
"""numpy's own limit."""
MAX_HEADER_BYTES = 12 + 4 * _MAX_HEADER_CHARS
_ENCODINGS = {b"\1\0": "latin-1", b"\2\0": "latin-1", b"\3\0": "utf-8"}
"""Of the text of a header, by its version."""
_KEYS = {"descr", "fortran_order", "shape"}
_TYPE = re.compile(r"[<>=|]?[A-Za-z?][A-Za-z0-9_]{0,15}")
"""One element type; numpy would take a list of them for a record."""
_TRIES = 100


class BadNpyError(ValueError):
    """It is not such a header, or one of an element type that is not taken; the text says which."""


class NpyHeader(NamedTuple):
    """What an ``.npy`` holds.

    Attributes:
        spec: of the array, in the machine's (little-endian) order of bytes.
        stored_dtype: the element type in the file, as numpy writes it.
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
    encoding = _ENCODINGS.get(head[6:8])
    if not head.startswith(MAGIC) or len(head) < 12 or encoding is None:
        raise BadNpyError("not an .npy file")
    start = 10 if head[6] == 1 else 12
    end = start + int.from_bytes(head[8:start], "little")
    try:
        if end > len(head):
            raise ValueError("it is too long")
        text = head[start:end].decode(encoding)
        if len(text) > _MAX_HEADER_CHARS:
            raise ValueError("it is too long")
        fields = _fields(text, is_python_2=head[6] < 3)
        dtype, shape, is_fortran = fields["descr"], fields["shape"], fields["fortran_order"]
        if not isinstance(is_fortran, bool):
            raise ValueError("a field of another type")
        sizes = _sizes(shape)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, tokenize.TokenError) as error:
        raise BadNpyError("not an .npy file ({} in its header)".format(type(error).__name__)) from None
    stored = dtype if isinstance(dtype, str) and dtype in ITEM_BYTES else _plain_type(dtype)
    little = "<" + stored[1:] if stored[:1] == ">" else stored
    if little not in ITEM_BYTES:
        raise BadNpyError("arrays of type {} are not taken".format(str(dtype)[:40]))
    try:
        spec = TensorSpec(little, sizes, "F" if is_fortran else "C")
    except ValueError:
        raise BadNpyError("arrays of shape {} are not taken".format(str(sizes)[:80])) from None
    return NpyHeader(spec, stored, end)


def _fields(text: str, is_python_2: bool) -> Any:
    """The dictionary that a header is.

    Raises:
        ValueError, SyntaxError, TypeError: it is none, or has other keys.
    """
    try:
        fields = _parsed(text.rstrip(" \n"))
    except SyntaxError:
        if not is_python_2:
            raise
        fields = _parsed(_without_long_marks(text))
    if not isinstance(fields, dict) or fields.keys() != _KEYS:
        raise ValueError("no dictionary of the three fields")
    return fields


def _parsed(text: str) -> Any:
    """Before Python 3.13 threads that parse at the same time may meet SystemError: it is tried again."""
    for _ in range(_TRIES):
        try:
            return ast.literal_eval(text)
        except SystemError:
            continue
    raise ValueError("it cannot be parsed")


def _without_long_marks(text: str) -> str:
    """A header of Python 2, whose whole numbers may end in ``L``: ``(3L, 4L)``."""
    kept = []
    was_number = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if not (was_number and token.type == tokenize.NAME and token.string == "L"):
            kept.append(token)
            was_number = token.type == tokenize.NUMBER
    return tokenize.untokenize(kept)


def _sizes(shape: object) -> Tuple[int, ...]:
    if not isinstance(shape, tuple):
        raise ValueError("no shape")
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ValueError("a size that is none")
    return shape


def _plain_type(dtype: object) -> str:
    """The element type as numpy writes it, whatever its spelling; empty: it is no plain one."""
    if not isinstance(dtype, str):
        return ""
    if (dtype[:1] == ">" and "<" + dtype[1:] in ITEM_BYTES) or not _TYPE.fullmatch(dtype):
        return dtype
    import numpy as np

    try:
        return str(np.dtype(dtype).str)
    except (TypeError, ValueError):
        return ""
