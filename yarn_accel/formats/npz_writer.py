"""Writes ``.npz`` files: a zip archive of ``.npy`` members, stored and not compressed.

Writing streams: a part for each header, and the array's own memory. The headers are padded so that each array
begins at a multiple of 64 bytes of the file: who maps it into aligned memory can compute there.
"""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any, Iterator, List, Mapping, Union

__all__ = ["npz_parts"]

Array = Any
_ALIGNMENT_BYTES = 64
_NPY_PREFIX = struct.Struct("<6sBBH")
_PIECE_BYTES = 16 * 1024 * 1024


class _Parts(io.RawIOBase):
    """A file that only remembers what was written to it, without copying large pieces."""

    def __init__(self) -> None:
        self.parts: List[Union[bytes, memoryview]] = []
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


def npz_parts(arrays: Mapping[str, Array]) -> Iterator[Union[bytes, memoryview]]:
    """The bytes of an ``.npz`` with these arrays of plain numbers, in pieces.

    Large pieces are views of the memory of the arrays, which are contiguous in either order.
    """
    sink = _Parts()
    # Not seekable, so zipfile puts length and checksum behind each member and never goes back.
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(name + ".npy")
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(_npy_header(array, sink.tell()))
                for start in range(0, array.nbytes, _PIECE_BYTES):
                    member.write(_flat_bytes(array)[start : start + _PIECE_BYTES])
            yield from sink.parts
            sink.parts.clear()
    yield from sink.parts


def _npy_header(array: Array, at: int) -> bytes:
    """The header of an array's ``.npy`` that begins at that byte of the file."""
    fields = {
        "descr": array.dtype.str,
        "fortran_order": array.flags.f_contiguous and not array.flags.c_contiguous,
        "shape": array.shape,
    }
    text = repr(fields).encode("latin-1")
    n_bytes = len(text) + 1 + -(at + _NPY_PREFIX.size + len(text) + 1) % _ALIGNMENT_BYTES
    return _NPY_PREFIX.pack(b"\x93NUMPY", 1, 0, n_bytes) + text.ljust(n_bytes - 1) + b"\n"


def _flat_bytes(array: Array) -> memoryview:
    """The memory of a contiguous array; no copy."""
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat: memoryview = array.reshape(-1, order=order).view("u1").data
    return flat
