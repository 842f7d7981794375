"""CUDA kernels and what we use of CuPy, on the CPU: numpy, scipy, and the kernels' text through C++.

Nothing here shows speed, or how threads of a block work together: a block has one thread. What it shows is
that layouts, names, counts and errors on the host's side are right, and the kernels' arithmetic.
"""

import ctypes
import functools
import io
import shutil
import subprocess
import tempfile
import types
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image
from scipy.linalg import blas, lapack

SHIM = """
#include <cmath>
#include <algorithm>
using std::max; using std::min; using std::floor; using std::fabs; using std::sqrt;
#define __global__
#define __device__ static
#define __shared__ static
#define __syncthreads()
#define SHARED_MATRIX static unsigned char memory[1 << 22] __attribute__((aligned(16)));
struct Triple { unsigned int x, y; };
static Triple threadIdx = {0, 0}, blockIdx = {0, 0}, blockDim = {1, 1}, gridDim = {1, 1};
template <class T> static void atomicAdd(T* place, T value) { *place += value; }
extern "C" void set_grid(unsigned x, unsigned y) { gridDim.x = x; gridDim.y = y; }
extern "C" void set_block(unsigned x, unsigned y) { blockIdx.x = x; blockIdx.y = y; }
"""
COMPILER = shutil.which("g++") or shutil.which("c++")


@functools.cache
def build(text, *options):
    """A library of a kernel's text."""
    folder = Path(tempfile.mkdtemp(prefix="kernels-"))
    try:
        source, library = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text(SHIM + text)
        flags = ["-O2", "-shared", "-fPIC", "-ffp-contract=off", "-w", *options]
        subprocess.run([COMPILER, *flags, str(source), "-o", str(library)], check=True, timeout=120)
        return ctypes.CDLL(str(library))
    finally:
        shutil.rmtree(folder)


def launch(library, name, grid, *arguments):
    """Every block of the grid, one after the other."""
    converted = [a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else a for a in arguments]
    library.set_grid(*grid)
    for y in range(grid[1]):
        for x in range(grid[0]):
            library.set_block(x, y)
            getattr(library, name)(*converted)


class DeviceArray(np.ndarray):
    """An array "on the device", with CuPy's two ways across."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)

    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__

    def set(self, host, stream=None):
        assert host.flags.c_contiguous
        assert host.shape == self.shape
        self[...] = host

    def get(self, stream=None, out=None, blocking=True):
        if out is None:
            return np.array(self)
        assert out.flags.c_contiguous
        assert self.flags.c_contiguous
        assert (out.shape, out.dtype) == (self.shape, self.dtype)
        if blocking:
            out[...] = self
        else:
            # Not before somebody waits for it, as on a GPU.
            stream.copies.append((out, np.array(self)))
        return out


FUNCTIONS = ("asarray", "empty", "zeros", "eye", "arange", "isfinite", "diagonal", "tril", "triu", "stack")
FUNCTIONS += ("ascontiguousarray", "matmul", "take_along_axis")


def _device(function):
    return lambda *args, **kwargs: np.asarray(function(*args, **kwargs)).view(DeviceArray)


class RawModule:
    def __init__(self, code, options):
        self._library = build(code, *(option for option in options if option.startswith("-D")))

    def get_function(self, name):
        def call(grid, block, arguments, shared_mem=0):
            sized = {np.int32: ctypes.c_int, np.int64: ctypes.c_longlong}
            values = [a if isinstance(a, np.ndarray) else sized[type(a)](int(a)) for a in arguments]
            launch(self._library, name, (*grid, 1)[:2], *values)

        return call


class Stream:
    current: ClassVar[list] = []

    def __init__(self, non_blocking=False):
        self.copies = []
        self.n_waited_for = 0
        self.ptr = id(self)

    def __enter__(self):
        self.current.append(self)
        return self

    def __exit__(self, *error):
        assert self.current.pop() is self

    def synchronize(self):
        for out, values in self.copies:
            out[...] = values
        self.copies.clear()
        self.n_waited_for += 1


class Event:
    """Passed once somebody waited for its stream."""

    def __init__(self, disable_timing):
        assert disable_timing

    def record(self, stream):
        self._stream, self._before = stream, stream.n_waited_for

    @property
    def done(self):
        return self._stream.n_waited_for > self._before


NULL_STREAM = Stream()


def _current_stream():
    return Stream.current[-1] if Stream.current else NULL_STREAM


def _at(address, shape, dtype):
    """The Fortran-ordered array at an address."""
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    flat = np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_uint8)), (n_bytes,))
    return flat.view(dtype).reshape(shape, order="F")


class Solver:
    """cuSOLVER's and cuBLAS's functions, by LAPACK."""

    CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER = 0, 1
    CUBLAS_SIDE_LEFT = 0
    CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C = 0, 1, 2
    CUBLAS_DIAG_NON_UNIT, CUBLAS_DIAG_UNIT = 0, 1

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        if name.endswith("_bufferSize"):
            return lambda *_: 1
        dtype = {"s": "<f4", "d": "<f8", "c": "<c8", "z": "<c16"}[name[0]]
        real_name = {"ungqr": "orgqr", "unmqr": "ormqr"}.get(name[1:], name[1:])
        assert (real_name != name[1:]) == (name[0] in "cz" and real_name in ("orgqr", "ormqr"))
        return functools.partial(getattr(self, "_" + real_name), dtype, name[0])

    def _getrf(self, dtype, letter, handle, m, n, a, ld, work, pivots, status):
        matrix = _at(a, (ld, n), dtype)
        factor, found, code = getattr(lapack, letter + "getrf")(matrix)
        matrix[...] = factor
        _at(pivots, (min(m, n),), "<i4")[...] = found + 1
        _at(status, (1,), "<i4")[0] = code

    def _getrfBatched(self, dtype, letter, handle, n, addresses, ld, pivots, status, n_items):
        for i, a in enumerate(_at(addresses, (n_items,), "<u8")):
            self._getrf(dtype, letter, handle, n, n, a, ld, 0, pivots + 4 * n * i, status + 4 * i)

    def _potrf(self, dtype, letter, handle, uplo, n, a, ld, work, n_work, status):
        matrix = _at(a, (ld, n), dtype)
        factor, code = getattr(lapack, letter + "potrf")(matrix, lower=1, clean=0)
        matrix[...] = factor
        _at(status, (1,), "<i4")[0] = code

    def _potrfBatched(self, dtype, letter, handle, uplo, n, addresses, ld, status, n_items):
        for i, a in enumerate(_at(addresses, (n_items,), "<u8")):
            self._potrf(dtype, letter, handle, uplo, n, a, ld, 0, 0, status + 4 * i)

    def _geqrf(self, dtype, letter, handle, m, n, a, ld, tau, work, n_work, status):
        matrix = _at(a, (ld, n), dtype)
        factor, scalars, _, code = getattr(lapack, letter + "geqrf")(matrix)
        matrix[...] = factor
        _at(tau, (min(m, n),), dtype)[...] = scalars
        _at(status, (1,), "<i4")[0] = code

    def _orgqr(self, dtype, letter, handle, m, n, k, a, ld, tau, work, n_work, status):
        matrix = _at(a, (ld, n), dtype)
        name = letter + ("ungqr" if letter in "cz" else "orgqr")
        matrix[...] = getattr(lapack, name)(matrix, np.array(_at(tau, (k,), dtype)))[0]
        _at(status, (1,), "<i4")[0] = 0

    def _trsm(self, dtype, letter, handle, side, uplo, trans, diag, m, n, alpha, a, ld, b, ld_b):
        assert side == self.CUBLAS_SIDE_LEFT
        assert _at(alpha, (1,), dtype)[0] == 1.0
        right = _at(b, (ld_b, n), dtype)
        factor = np.array(_at(a, (ld, m), dtype)[:m], order="F")
        # BLAS divides by a zero and says nothing, as cuBLAS does.
        trsm = getattr(blas, letter + "trsm")
        right[:m] = trsm(1.0, factor, right[:m], lower=uplo == 0, trans_a=trans, diag=diag)

    def _getrsBatched(
        self, dtype, letter, handle, trans, n, n_right, a, ld, pivots, b, ld_b, status, n_items
    ):
        assert pivots == 0
        _at(status, (1,), "<i4")[0] = 0
        for factor, right in zip(_at(a, (n_items,), "<u8"), _at(b, (n_items,), "<u8"), strict=True):
            lower, upper = (0, 0, trans, 1), (0, 1, trans, 0)
            for kind in (lower, upper) if trans == 0 else (upper, lower):
                one = np.ones(1, dtype)
                place = factor, ld, right, ld_b
                self._trsm(dtype, letter, handle, *kind, n, n_right, one.ctypes.data, *place)

    def _ormqr(self, dtype, letter, handle, side, trans, m, n, k, a, ld, tau, c, ld_c, work, n_work, status):
        is_complex = letter in "cz"
        assert (side, trans) == (self.CUBLAS_SIDE_LEFT, self.CUBLAS_OP_C if is_complex else self.CUBLAS_OP_T)
        right = _at(c, (ld_c, n), dtype)
        scalars = np.array(_at(tau, (k,), dtype))
        ormqr = getattr(lapack, letter + ("unmqr" if is_complex else "ormqr"))
        right[:m] = ormqr(
            "L",
            "C" if is_complex else "T",
            np.array(_at(a, (ld, k), dtype)[:m]),
            scalars,
            right[:m],
            lwork=64 * n,
        )[0]


class Codec(types.ModuleType):
    """nvImageCodec's Python package, by Pillow.

    Attributes:
        n_decoded: how many images came out of it.
        failing: sizes that it cannot decode.
        error: raised instead of decoding anything, if set.
    """

    def __init__(self):
        super().__init__("nvidia.nvimgcodec")
        self.n_decoded, self.failing, self.error = 0, (), None

    class CodeStream:
        def __init__(self, encoded):
            self.encoded = encoded
            self.width, self.height = Image.open(io.BytesIO(encoded)).size

    def DecodeParams(self, apply_exif_orientation=True):
        assert not apply_exif_orientation
        return "params"

    def Decoder(self, max_num_cpu_threads, options):
        assert max_num_cpu_threads > 0
        return types.SimpleNamespace(decode=self._decode)

    def _decode(self, streams, *, params, cuda_stream):
        assert (params, cuda_stream) == ("params", _current_stream().ptr)
        if self.error:
            raise self.error
        return [self._decode_one(stream) for stream in streams]

    def _decode_one(self, stream):
        if (stream.width, stream.height) in self.failing:
            return None
        self.n_decoded += 1
        return np.array(Image.open(io.BytesIO(stream.encoded))).view(DeviceArray)


def modules():
    """What to put into ``sys.modules`` for the CUDA forms to run."""
    cupy = types.ModuleType("cupy")
    for name in FUNCTIONS:
        setattr(cupy, name, _device(getattr(np, name)))
    cupy.RawModule = RawModule
    cupy.cuda = types.SimpleNamespace(Stream=Stream, Event=Event, get_current_stream=_current_stream)
    cupyx = types.ModuleType("cupyx")
    cupyx.empty_pinned = lambda shape, dtype: np.empty(shape, dtype)
    device = types.ModuleType("cupy.cuda.device")
    device.get_cublas_handle = device.get_cusolver_handle = lambda: 1
    found = {
        "nvidia.nvimgcodec": Codec(),
        "cupy": cupy,
        "cupyx": cupyx,
        "cupy.cuda": types.ModuleType("cupy.cuda"),
        "cupy.cuda.device": device,
    }
    for name in ("", ".cuda", ".cuda.libs"):
        found["cupy_backends" + name] = types.ModuleType("cupy_backends" + name)
    for name in ("cublas", "cusolver"):
        found["cupy_backends.cuda.libs." + name] = Solver()
    return found
