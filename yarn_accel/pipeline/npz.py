"""The ``.npz`` files of results and inputs: a zip archive of ``.npy`` members, stored and not compressed.

Since nothing is compressed, reading needs no copy (the arrays are views of the file's bytes) and writing
streams: a part for each header, and the array's own memory.  The headers written here are padded so that each
array begins at a multiple of 64 bytes of the file: who reads it into aligned memory can compute there.
"""

from __future__ import annotations

import ast
import io
import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.pipeline.arrays import ALIGNMENT_BYTES, flat_bytes
from yarn_accel.wire import ITEM_BYTES
from yarn_accel.wire.tensors import MAX_DIMENSIONS

__all__ = ["npz_parts", "read_npy", "read_npz"]

Array = np.ndarray[Any, Any]

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_NPY_PREFIX = struct.Struct("<6sBBH")
_MAX_MEMBERS = 64
_MAX_NPY_HEADER_BYTES = 16 * 1024

_BROKEN_ZIP = (
    zipfile.BadZipFile,
    struct.error,
    ValueError,
    NotImplementedError,
    OverflowError,
    EOFError,
    OSError,
)


class _Parts(io.RawIOBase):
    """A file that only remembers what was written to it, without copying large pieces."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.parts.append(view.cast("B") if view.nbytes > 4096 else view.tobytes())
        self._at += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return False


def npz_parts(arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The bytes of an ``.npz`` with these arrays, in pieces; large ones are views of the arrays' memory."""
    sink = _Parts()
    # Not seekable, so zipfile puts length and checksum behind each member and never goes back.
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(name + ".npy")
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(_npy_header(array, sink.tell()))
                for start in range(0, array.nbytes, 16 * 1024 * 1024):
                    member.write(flat_bytes(array)[start : start + 16 * 1024 * 1024])
            yield from sink.parts
            sink.parts.clear()
    yield from sink.parts


def read_npz(content: memoryview, place: str) -> dict[str, Array]:
    """The arrays of an uncompressed ``.npz``, in the order of the file, as views of `content`.

    Raises:
        RejectedError: not such a file; names the place and the member.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(_Readable(content)) as archive:
            members = archive.infolist()
            if len(members) > _MAX_MEMBERS:
                raise RejectedError("bad-npz", f"{place}: {len(members)} arrays, at most {_MAX_MEMBERS}")
            for member in members:
                name = member.filename.removesuffix(".npy")
                arrays[name] = read_npy(_stored(content, member, place), f"{place}[{name}]")
    except _BROKEN_ZIP as error:
        raise RejectedError("bad-npz", f"{place}: not an .npz file ({error})") from None
    return arrays


def read_npy(content: memoryview, place: str) -> Array:
    """The array of an ``.npy``, as a view of `content`; object arrays are refused.

    Raises:
        RejectedError: not such a file, or of an element type that is not allowed.
    """
    dtype, shape, is_fortran, start = _parse_npy_header(bytes(content[:_MAX_NPY_HEADER_BYTES]), place)
    data = content[start:]
    n_items = 1
    for size in shape:
        n_items *= size
    if n_items * ITEM_BYTES[dtype] != data.nbytes:
        raise RejectedError("bad-npy", f"{place}: {data.nbytes} bytes do not make shape {shape} of {dtype}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")


def _parse_npy_header(head: bytes, place: str) -> tuple[str, tuple[int, ...], bool, int]:
    """Element type, shape, order and length of an ``.npy`` header.

    numpy's own parser guesses at headers of Python 2 and raises what it stumbles over; this one does neither.
    """
    if not head.startswith(b"\x93NUMPY") or len(head) < 12 or head[6] not in (1, 2, 3):
        raise RejectedError("bad-npy", f"{place}: not an .npy file")
    start = 10 if head[6] == 1 else 12
    end = start + int.from_bytes(head[8:start], "little")
    try:
        fields = ast.literal_eval(head[start:end].decode("utf-8").strip())
        dtype, shape, is_fortran = fields["descr"], fields["shape"], fields["fortran_order"]
        if end > len(head) or not isinstance(shape, tuple) or not isinstance(is_fortran, bool):
            raise ValueError("a field of another type")
        if len(shape) > MAX_DIMENSIONS or any(
            isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in shape
        ):
            raise ValueError("a size that is none")
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise RejectedError(
            "bad-npy", f"{place}: not an .npy file ({type(error).__name__} in its header)"
        ) from None
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise RejectedError("bad-npy", f"{place}: arrays of type {str(dtype)[:40]} are not taken")
    return dtype, shape, is_fortran, end


def _npy_header(array: Array, at: int) -> bytes:
    """The header of an array's ``.npy`` that begins at that byte of the file."""
    fields = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": array.flags.f_contiguous and not array.flags.c_contiguous,
        "shape": array.shape,
    }
    text = repr(fields).encode("latin-1")
    n_bytes = len(text) + 1 + -(at + _NPY_PREFIX.size + len(text) + 1) % ALIGNMENT_BYTES
    return _NPY_PREFIX.pack(b"\x93NUMPY", 1, 0, n_bytes) + text.ljust(n_bytes - 1) + b"\n"


def _stored(content: memoryview, member: zipfile.ZipInfo, place: str) -> memoryview:
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise RejectedError(
            "bad-npz", f"{place}[{member.filename}]: compressed or encrypted; use numpy.savez"
        )
    fields = _LOCAL_HEADER.unpack_from(content, member.header_offset)
    if fields[0] != b"PK\3\4":
        raise RejectedError("bad-npz", f"{place}[{member.filename}]: no member begins where the list says")
    start = member.header_offset + _LOCAL_HEADER.size + fields[-2] + fields[-1]
    if start + member.file_size > len(content):
        raise RejectedError("bad-npz", f"{place}[{member.filename}]: cut short")
    return content[start : start + member.file_size]


class _Readable(io.RawIOBase):
    """A readable, seekable file over a buffer, without a copy of it."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, len(self._content))[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = len(self._content) if size is None or size < 0 else self._at + size
        part = bytes(self._content[self._at : end])
        self._at += len(part)
        return part
