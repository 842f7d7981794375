"""Writes ``.npz`` files: a zip archive of ``.npy`` members, stored and not compressed.

Writing streams: a part for each header, and the array's own memory. The headers are padded so that each array
begins at a multiple of 64 bytes of the file: who maps it into aligned memory can compute there.
"""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any, Iterable, Iterator, List, Mapping, Tuple, Union

from yarn_accel.wire import TensorSpec

Array = Any
Buffer = Union[bytes, memoryview]
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
    yield from tensor_npz_parts((name, _spec_of(array), _flat_bytes(array)) for name, array in arrays.items())


def tensor_npz_parts(tensors: Iterable[Tuple[str, TensorSpec, Buffer]]) -> Iterator[Union[bytes, memoryview]]:
    """As `npz_parts`, of descriptions and flat bytes; numpy is not needed."""
    sink = _Parts()
    # Not seekable, so zipfile puts length and checksum behind each member and never goes back.
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, spec, flat in tensors:
            info = zipfile.ZipInfo(name + ".npy")
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(_npy_header(spec, sink.tell()))
                for start in range(0, spec.nbytes, _PIECE_BYTES):
                    member.write(flat[start : start + _PIECE_BYTES])
            yield from sink.parts
            sink.parts.clear()
    yield from sink.parts


def _npy_header(spec: TensorSpec, at: int) -> bytes:
    """The header of an array's ``.npy`` that begins at that byte of the file."""
    fields = {"descr": spec.dtype, "fortran_order": spec.order == "F", "shape": spec.shape}
    text = repr(fields).encode("latin-1")
    n_bytes = len(text) + 1 + -(at + _NPY_PREFIX.size + len(text) + 1) % _ALIGNMENT_BYTES
    return _NPY_PREFIX.pack(b"\x93NUMPY", 1, 0, n_bytes) + text.ljust(n_bytes - 1) + b"\n"


def _spec_of(array: Array) -> TensorSpec:
    return TensorSpec(array.dtype.str, array.shape, _order_of(array))


def _order_of(array: Array) -> str:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _flat_bytes(array: Array) -> memoryview:
    """The memory of a contiguous array; no copy."""
    flat: memoryview = array.reshape(-1, order=_order_of(array)).view("u1").data
    return flat
