"""CUDA kernels and what we use of CuPy, on the CPU: numpy, scipy, and the kernels' text through C++.

Nothing here shows speed, or how threads of a block work together: a block has one thread. What it shows is
that layouts, names, counts and errors on the host's side are right, and the kernels' arithmetic.
"""

import ctypes
import functools
import shutil
import subprocess
import tempfile
import types
from pathlib import Path

import numpy as np
from scipy.linalg import lapack

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

    def set(self, host, stream=None):
        assert host.flags.c_contiguous
        assert host.shape == self.shape
        self[...] = host

    def get(self, stream=None, out=None, blocking=True):
        if out is None:
            return np.array(self)
        assert out.flags.c_contiguous
        assert (out.shape, out.dtype) == (self.shape, self.dtype)
        out[...] = self
        return out


FUNCTIONS = ("asarray", "empty", "zeros", "eye", "arange", "isfinite", "diagonal", "tril", "triu")
FUNCTIONS += ("ascontiguousarray", "matmul")


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
    def __init__(self, non_blocking=False):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def synchronize(self):
        pass


def _at(address, shape, dtype):
    """The Fortran-ordered array at an address."""
    kind = {"<f4": ctypes.c_float, "<f8": ctypes.c_double, "<i4": ctypes.c_int, "<u8": ctypes.c_uint64}[dtype]
    flat = np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(kind)), (int(np.prod(shape)),))
    return flat.reshape(shape, order="F")


class Solver:
    """cuSOLVER's and cuBLAS's functions, by LAPACK."""

    CUBLAS_FILL_MODE_LOWER = 0

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        if name.endswith("_bufferSize"):
            return lambda *_: 1
        dtype = {"s": "<f4", "d": "<f8"}[name[0]]
        return functools.partial(getattr(self, "_" + name[1:]), dtype, name[0])

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
        matrix[...] = getattr(lapack, letter + "orgqr")(matrix, np.array(_at(tau, (k,), dtype)))[0]
        _at(status, (1,), "<i4")[0] = 0


def modules():
    """What to put into ``sys.modules`` for `cuda_linalg` and `cuda_images` to run."""
    cupy = types.ModuleType("cupy")
    for name in FUNCTIONS:
        setattr(cupy, name, _device(getattr(np, name)))
    cupy.RawModule = RawModule
    cupy.cuda = types.SimpleNamespace(Stream=Stream, get_current_stream=Stream)
    cupyx = types.ModuleType("cupyx")
    cupyx.empty_pinned = lambda shape, dtype: np.empty(shape, dtype)
    device = types.ModuleType("cupy.cuda.device")
    device.get_cublas_handle = device.get_cusolver_handle = lambda: 1
    found = {
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
