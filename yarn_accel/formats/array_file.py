"""Reads ``.npy`` and ``.npz`` files in two steps: a look at their headers, then elements into given memory.

`describe` reads the directory and the headers, a few KiB, so a file is judged, and memory for it reserved,
before its elements are read. `load` then fills that memory: from a stored member byte by byte, from a
compressed one inflated, and no further than the header says. Nothing is ever unpickled.

Headers that ``numpy.load(allow_pickle=False)`` accepts are accepted, of arrays of plain numbers, with one
kind of error for all others. On purpose records or subarrays of one field are refused, and arrays that
`TensorSpec` cannot describe (other element types, more than 8 axes). numpy is imported only to read an
element type in a spelling that numpy itself does not write, such as ``=f8`` or ``float64``, and to swap
bytes.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import zlib
from typing import Any, Callable, Dict, Iterable, Iterator, NamedTuple, Protocol, Sequence, Tuple

from yarn_accel.errors import RejectedError
from yarn_accel.formats.zip_directory import (
    NOT_AN_ARCHIVE,
    BadZipError,
    ZipMember,
    data_start,
    read_directory,
)
from yarn_accel.uris import split_member
from yarn_accel.wire import ITEM_BYTES, TensorSpec

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
_NPY_CURE = "write it again as plain numbers with numpy.save"
_NPZ_CURE = "write it again with numpy.savez or numpy.savez_compressed"
_CAUSED_BY_BYTES = ("wrong-dtype", "wrong-inputs", "wrong-length", "wrong-shape")
_TAIL_BYTES = 64 * 1024
_HEAD_BYTES = 1024
_CHUNK_BYTES = 1 << 20
_Read = Callable[[int, int], bytes]


class ByteSource(Protocol):
    """A file that can be read from any place."""

    @property
    def n_bytes(self) -> int:
        """Its length."""
        ...

    def read_into(self, start: int, view: memoryview) -> None:
        """Fill a flat buffer with the bytes from ``start`` on."""
        ...


class BytesInMemory:
    """A file whose content is in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content).cast("B")
        self.n_bytes = len(self._content)

    def read_into(self, start: int, view: memoryview) -> None:
        """Fill a flat buffer with the bytes from ``start`` on."""
        view[:] = self._content[start : start + len(view)]


class StoredArray(NamedTuple):
    """One array in a file.

    Attributes:
        place: file and array, for messages.
        spec: of the array as `load` gives it.
        stored_dtype: the element type in the file.
        start: where in the file its ``.npy`` begins, compressed or not.
        n_stored: bytes of the file that it takes.
        header_bytes: of the header before the elements.
        is_deflated: whether it is compressed.
        crc: CRC-32 of the ``.npy``; -1: the file has none.
    """

    place: str
    spec: TensorSpec
    stored_dtype: str
    start: int
    n_stored: int
    header_bytes: int
    is_deflated: bool
    crc: int


def is_array_file(uri: str) -> bool:
    """Whether the name says that the file describes its arrays itself."""
    return split_member(uri)[0].endswith((".npz", ".npy"))


def describe(source: ByteSource, uri: str) -> Tuple[StoredArray, ...]:
    """The arrays of a file in its order, or the one that the URI names.

    Raises:
        RejectedError: ``bad-npz`` or ``bad-npy``: damaged, not such a file, or with something in it that is
            not taken; ``no-such-array``. The message names file and array.
    """
    file_uri, wanted = split_member(uri)
    read = _Window(source).read
    if not file_uri.endswith(".npz"):
        return (_npy(read, source.n_bytes, uri),)
    try:
        members = read_directory(read, source.n_bytes)
    except BadZipError as error:
        why = _read_as(".npz") if str(error).startswith(NOT_AN_ARCHIVE) else ""
        raise RejectedError("bad-npz", "{}: {}{}".format(file_uri, error, why), cure=_NPZ_CURE) from None
    by_name = {_array_name(member): member for member in members}
    if wanted:
        if wanted not in by_name:
            raise RejectedError(
                "no-such-array",
                "{}: there is no array {!r}; there are {}".format(file_uri, wanted, _names(by_name)),
            )
        by_name = {wanted: by_name[wanted]}
    return tuple(
        _member_array(read, member, "{}[{}]".format(file_uri, name)) for name, member in by_name.items()
    )


def load(array: StoredArray, source: ByteSource, view: memoryview) -> None:
    """Fill a flat writable buffer of ``array.spec.nbytes`` with the elements, in little-endian order.

    Raises:
        RejectedError: ``bad-npz``: the bytes are not what directory and header say.
    """
    fill = _inflate if array.is_deflated else _read_stored
    crc = fill(array, source, view)
    if array.crc not in (-1, crc):
        raise RejectedError(
            "bad-npz", "{}: damaged, its checksum does not match".format(array.place), cure=_NPZ_CURE
        )
    if array.stored_dtype[0] == ">" and array.spec.nbytes:
        import numpy as np

        np.frombuffer(view, dtype=array.spec.dtype).byteswap(inplace=True)


def conversions(arrays: Sequence[StoredArray]) -> str:
    """The changes that `load` makes to elements, in words for ``info["converted"]``; empty: none."""
    return "; ".join(
        [
            "{}: {} to {}".format(array.place, array.stored_dtype, array.spec.dtype)
            for array in arrays
            if array.stored_dtype != array.spec.dtype
        ]
    )


def name_plain_bytes(error: RejectedError, uris: Iterable[str]) -> RejectedError:
    """The rejection, which also says which file counts as plain bytes because of its name, if one does.

    Args:
        error: only what an array that is plain bytes may cause is changed.
        uris: of the inputs that come without a description of their own.
    """
    plain = [uri for uri in uris if not is_array_file(uri)]
    if error.code not in _CAUSED_BY_BYTES or not plain:
        return error
    message = "{}; {} is read as plain bytes because its name ends neither in .npy nor in .npz".format(
        error.message, plain[0]
    )
    return RejectedError(error.code, message, cure=error.cure)


class _Window:
    """Reads parts of a file of which the last KiB, where the directory is, are read once."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._tail_at = max(0, source.n_bytes - _TAIL_BYTES)
        self._tail = b""

    def read(self, start: int, n_bytes: int) -> bytes:
        """At most so many bytes from there."""
        n_bytes = max(0, min(n_bytes, self._source.n_bytes - start))
        if start < self._tail_at:
            return self._fetch(start, n_bytes)
        if not self._tail:
            self._tail = self._fetch(self._tail_at, self._source.n_bytes - self._tail_at)
        return self._tail[start - self._tail_at : start - self._tail_at + n_bytes]

    def _fetch(self, start: int, n_bytes: int) -> bytes:
        content = bytearray(n_bytes)
        if n_bytes:
            self._source.read_into(start, memoryview(content))
        return bytes(content)


def _npy(read: _Read, n_bytes: int, place: str) -> StoredArray:
    head = read(0, _HEAD_BYTES)
    if _is_short(head):
        head = read(0, MAX_HEADER_BYTES)
    header = _parsed(head, place, _read_as(".npy"))
    _check_length(header, n_bytes, place)
    return StoredArray(place, header.spec, header.stored_dtype, 0, n_bytes, header.n_bytes, False, -1)


def _member_array(read: _Read, member: ZipMember, place: str) -> StoredArray:
    head = read(member.offset, _HEAD_BYTES)
    try:
        start = data_start(head, member)
    except BadZipError as error:
        raise RejectedError("bad-npz", "{}: {}".format(place, error), cure=_NPZ_CURE) from None
    skipped = start - member.offset
    content = head[skipped : skipped + member.n_stored]
    if member.is_deflated or _is_short(content):
        content = read(start, min(member.n_stored, MAX_HEADER_BYTES))
    if member.is_deflated:
        try:
            content = _inflated_head(content)
        except zlib.error as error:
            raise RejectedError("bad-npz", "{}: damaged ({})".format(place, error), cure=_NPZ_CURE) from None
    header = _parsed(content, place)
    _check_length(header, member.n_bytes, place)
    spec, dtype, n_header = header
    return StoredArray(place, spec, dtype, start, member.n_stored, n_header, member.is_deflated, member.crc)


def _inflated_head(content: bytes) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    head = inflater.decompress(content, _HEAD_BYTES)
    if len(head) == _HEAD_BYTES and _is_short(head):
        head += inflater.decompress(inflater.unconsumed_tail, MAX_HEADER_BYTES - len(head))
    return head


def _is_short(head: bytes) -> bool:
    """Whether the header goes on behind these bytes."""
    n_bytes = int.from_bytes(head[8:10] if head[6:7] == b"\1" else head[8:12], "little")
    return len(head) < 12 or n_bytes + 12 > len(head)


def _parsed(head: bytes, place: str, why: str = "") -> NpyHeader:
    """The header; an error of a file that is none ends with why it was taken for one."""
    try:
        return parse_header(head)
    except BadNpyError as error:
        why = "" if head.startswith(MAGIC) else why
        raise RejectedError("bad-npy", "{}: {}{}".format(place, error, why), cure=_NPY_CURE) from None


def _read_as(ending: str) -> str:
    return "; it is read as {} because of its name".format(ending)


def _check_length(header: NpyHeader, n_bytes: int, place: str) -> None:
    """Refuse a header that says more or less than there is."""
    if header.n_bytes + header.spec.nbytes != n_bytes:
        raise RejectedError(
            "bad-npy",
            "{}: {} bytes do not make shape {} of {}".format(
                place, n_bytes - header.n_bytes, header.spec.shape, header.stored_dtype
            ),
            cure=_NPY_CURE,
        )


def _read_stored(array: StoredArray, source: ByteSource, view: memoryview) -> int:
    """Read the elements where they belong; the CRC of all, 0 where nothing is to be compared with it."""
    if array.spec.nbytes:
        source.read_into(array.start + array.header_bytes, view)
    if array.crc == -1:
        return -1
    head = bytearray(array.header_bytes)
    source.read_into(array.start, memoryview(head))
    return zlib.crc32(view, zlib.crc32(head))


def _inflate(array: StoredArray, source: ByteSource, view: memoryview) -> int:
    """Inflate the elements to where they belong, never beyond; the CRC of all."""
    left = array.header_bytes
    crc = at = 0
    try:
        for part in _inflated(array, source):
            crc = zlib.crc32(part, crc)
            if left >= len(part):
                left -= len(part)
                continue
            part, left = part[left:], 0
            if at + len(part) > len(view):
                raise _lying(array, "more")
            view[at : at + len(part)] = part
            at += len(part)
    except zlib.error as error:
        raise RejectedError(
            "bad-npz", "{}: damaged ({})".format(array.place, error), cure=_NPZ_CURE
        ) from None
    if at != len(view) or left:
        raise _lying(array, "fewer")
    return crc


def _inflated(array: StoredArray, source: ByteSource) -> Iterator[bytes]:
    """The content in pieces of at most 1 MiB, so that a small file cannot make much of itself at once."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    start, end = array.start, array.start + array.n_stored
    pending = b""
    while not inflater.eof:
        if not pending and start < end:
            chunk = bytearray(min(_CHUNK_BYTES, end - start))
            source.read_into(start, memoryview(chunk))
            start += len(chunk)
            pending = bytes(chunk)
        part = inflater.decompress(pending, _CHUNK_BYTES)
        if not part and not inflater.eof and start >= end:
            return
        pending = inflater.unconsumed_tail
        yield part
    if inflater.unused_data or start < end:
        raise RejectedError(
            "bad-npz",
            "{}: bytes follow the end of its compressed content".format(array.place),
            cure=_NPZ_CURE,
        )


def _lying(array: StoredArray, how: str) -> RejectedError:
    return RejectedError(
        "bad-npz",
        "{}: its compressed content makes {} bytes than its header says".format(array.place, how),
        cure=_NPZ_CURE,
    )


def _array_name(member: ZipMember) -> str:
    return member.name[:-4] if member.name.endswith(".npy") else member.name


def _names(by_name: Dict[str, ZipMember]) -> str:
    names = list(by_name)
    return ", ".join(names[:8]) + (" and {} more".format(len(names) - 8) if len(names) > 8 else "")


# ---- the header of an .npy


class BadNpyError(ValueError):
    """It is not such a header, or one of an element type that is not taken; the text says which."""


class NpyHeader(NamedTuple):
    """The content of an ``.npy`` header.

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
        fields = _evaluated(text.rstrip(" \n"))
    except SyntaxError:
        if not is_python_2:
            raise
        fields = _evaluated(_without_long_marks(text))
    if not isinstance(fields, dict) or fields.keys() != _KEYS:
        raise ValueError("no dictionary of the three fields")
    return fields


def _evaluated(text: str) -> Any:
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
