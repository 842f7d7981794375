"""CUDA kernels and what we use of CuPy, on the CPU: numpy, scipy, and the kernels' text through C++.

Nothing here shows speed. What it shows is that layouts, names, counts and errors on the host's side are
right, and the kernels: every thread of a block is a fiber that runs until its next barrier. Copies are late,
as a GPU's may be: one to the device is done when its stream computes something or somebody waits for it, one
to the host when somebody waits. Pinned memory that is given back is written over at once, and device memory
that is taken, so that what is done too early gives wrong numbers.
"""

import contextlib
import ctypes
import functools
import io
import re
import shutil
import subprocess
import tempfile
import types
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image
from scipy.linalg import blas, lapack

from yarn_accel.operations import systems

FIBERS = Path(__file__).parent.parent.parent / "emulated_cuda"
COMPILER = shutil.which("g++") or shutil.which("c++")
DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];")
ENTRY = re.compile(r'extern "C" __global__ void (\w+)')
LAUNCHED = """
EMULATED_KERNEL({name}, {has_barriers})
extern "C" void launch_{name}(void** arguments, unsigned x, unsigned y, unsigned n_threads, unsigned shared)
{{
    emulated_bind_{name}(arguments)(emulated::Launch{{{{x, y, 1}}, {{n_threads, 1, 1}}, shared}});
}}
"""
POISON = 0xFF
"""Of all bytes of a number: NaN, or -1."""


@functools.cache
def build(text, *options):
    """A library of a kernel's text."""
    folder = Path(tempfile.mkdtemp(prefix="kernels-"))
    has_barriers = "true" if "__syncthreads" in text else "false"
    entries = [LAUNCHED.format(name=name, has_barriers=has_barriers) for name in ENTRY.findall(text)]
    text = DYNAMIC.sub(r"\1* \2 = (\1*)emulated::fibers->shared;", text)
    try:
        source, library = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text("".join([text, *entries]))
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-w", f"-I{FIBERS}"]
        words = [COMPILER, *flags, "-include", "kernel.h", *options, str(source), "-o", str(library)]
        subprocess.run(words, check=True, timeout=120)
        return ctypes.CDLL(str(library))
    finally:
        shutil.rmtree(folder)


def launch(library, name, grid, n_threads, *arguments, shared=0):
    """Every block of the grid, one after the other; whole numbers are ``int`` unless they say otherwise."""
    values = [_argument(each) for each in arguments]
    places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    getattr(library, f"launch_{name}")(places, *grid, n_threads, shared)


def _argument(value):
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, np.float64):
        return ctypes.c_double(value)
    return ctypes.c_longlong(value) if isinstance(value, np.int64) else ctypes.c_int(value)


class Pinned:
    """Memory that a GPU copies from when it comes to it; given back, it has its next owner's numbers."""

    def __init__(self, n_bytes):
        self.memory = np.full(n_bytes, POISON, np.uint8)
        self.__array_interface__ = self.memory.__array_interface__

    def __del__(self):
        self.memory[:] = POISON


def empty_pinned(shape, dtype=float):
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.asarray(Pinned(n_bytes)).view(dtype).reshape(shape)


def _not_held(host):
    """The same memory, which stays readable after it was given back."""
    owner = host
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, Pinned):
        return host
    start = host.ctypes.data - owner.memory.ctypes.data
    return owner.memory[start : start + host.nbytes].view(host.dtype).reshape(host.shape)


class DeviceArray(np.ndarray):
    """An array "on the device", with CuPy's two ways across."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)

    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__

    def set(self, arr, stream=None):
        assert arr.flags.c_contiguous
        assert arr.shape == self.shape
        stream._uploads.append((_plain(self), _not_held(arr)))

    def get(self, stream=None, out=None, blocking=True):
        _use()
        if out is None:
            return np.array(self)
        assert out.flags.c_contiguous
        assert self.flags.c_contiguous
        assert (out.shape, out.dtype) == (self.shape, self.dtype)
        if blocking:
            out[...] = self
        else:
            stream._downloads.append((out, np.array(self)))
        return out

    def astype(self, dtype, copy=True):
        if copy or self.dtype != dtype:
            _use()
        return super().astype(dtype, copy=copy)

    def copy(self):
        _use()
        return super().copy()

    def __getitem__(self, index):
        _use()
        return super().__getitem__(index)

    def __setitem__(self, index, value):
        _use()
        super().__setitem__(index, value)

    def __array_ufunc__(self, function, method, *inputs, **options):
        _use()
        with np.errstate(all="ignore"):
            found = getattr(function, method)(
                *_plain(inputs), **{key: _plain(each) for key, each in options.items()}
            )
        return np.asarray(found).view(DeviceArray)


def _plain(value):
    """Arrays of numpy's."""
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(each) for each in value)
    return value.view(np.ndarray) if isinstance(value, DeviceArray) else value


def _use():
    """Something computes on the current stream."""
    _current_stream()._upload()


FUNCTIONS = ("asarray", "zeros", "eye", "arange", "isfinite", "diagonal", "tril", "triu", "stack")
FUNCTIONS += ("ascontiguousarray", "matmul", "take_along_axis", "argmin", "where")


def _device(function):
    def call(*args, **kwargs):
        _use()
        with np.errstate(all="ignore"):  # A GPU warns of nothing.
            found = function(*_plain(args), **kwargs)
        if isinstance(found, tuple):
            return tuple(np.asarray(each).view(DeviceArray) for each in found)
        return np.asarray(found).view(DeviceArray)

    return call


@contextlib.contextmanager
def errstate(linalg=None):
    assert linalg == "raise"
    yield


def empty(shape, dtype=float):
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.full(n_bytes, POISON, np.uint8).view(dtype).reshape(shape).view(DeviceArray)


class RawModule:
    def __init__(self, code, options):
        self._library = build(code, *(option for option in options if option.startswith("-D")))

    def get_function(self, name):
        def call(grid, block, arguments, shared_mem=0):
            _use()
            launch(self._library, name, (*grid, 1)[:2], *block, *arguments, shared=shared_mem)

        return call


class Stream:
    _entered: ClassVar[list] = []

    def __init__(self, non_blocking=False):
        self._uploads, self._downloads = [], []
        self._n_waited_for = 0
        self.ptr = id(self)

    def __enter__(self):
        self._entered.append(self)
        return self

    def __exit__(self, *error):
        assert self._entered.pop() is self

    def synchronize(self):
        self._upload()
        for out, values in self._downloads:
            out[...] = values
        self._downloads.clear()
        self._n_waited_for += 1

    def _upload(self):
        for target, values in self._uploads:
            target[...] = values
        self._uploads.clear()


class Event:
    """Passed once somebody waited for its stream."""

    def __init__(self, disable_timing):
        assert disable_timing

    def record(self, stream):
        self._stream, self._before = stream, stream._n_waited_for

    @property
    def done(self):
        return self._stream._n_waited_for > self._before


class Runtime:
    """Of a Hopper."""

    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97

    @staticmethod
    def deviceGetAttribute(attrib, device):
        assert (attrib, device) == (97, 0)
        return 227 << 10


NULL_STREAM = Stream()


def _current_stream():
    return Stream._entered[-1] if Stream._entered else NULL_STREAM


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
        _use()
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

    def _trsmBatched(
        self, dtype, letter, handle, side, uplo, trans, diag, m, n, alpha, a, ld, b, ld_b, n_items
    ):
        for factor, right in zip(_at(a, (n_items,), "<u8"), _at(b, (n_items,), "<u8"), strict=True):
            self._trsm(dtype, letter, handle, side, uplo, trans, diag, m, n, alpha, factor, ld, right, ld_b)

    def _tpttr(self, dtype, letter, handle, uplo, n, packed, a, ld):
        assert uplo == self.CUBLAS_FILL_MODE_LOWER
        full = getattr(lapack, letter + "tpttr")(n, _at(packed, (n * (n + 1) // 2,), dtype), uplo="L")[0]
        lower = np.tril_indices(n)
        _at(a, (ld, n), dtype)[lower] = full[lower]

    def _trttp(self, dtype, letter, handle, uplo, n, a, ld, packed):
        assert uplo == self.CUBLAS_FILL_MODE_LOWER
        found = getattr(lapack, letter + "trttp")(np.array(_at(a, (ld, n), dtype)[:n], order="F"), uplo="L")[
            0
        ]
        _at(packed, (n * (n + 1) // 2,), dtype)[...] = found

    def _getrs(self, dtype, letter, handle, trans, n, n_right, a, ld, pivots, b, ld_b, status):
        right, swaps = _at(b, (ld_b, n_right), dtype), np.array(_at(pivots, (n,), "<i4"))
        getrs = getattr(lapack, letter + "getrs")
        factor = np.array(_at(a, (ld, n), dtype)[:n], order="F")
        # LAPACK divides by a zero of a singular factor, as cuSOLVER does.
        right[:n] = getrs(factor, swaps - 1, right[:n], trans=trans)[0]
        _at(status, (1,), "<i4")[0] = 0

    def _sgesv(
        self, dtype, letter, handle, n, n_right, a, ld, pivots, b, ld_b, x, ld_x, work, n_work, status
    ):
        matrix, right = np.array(_at(a, (ld, n), dtype)), np.array(_at(b, (ld_b, n_right), dtype))
        found = systems._refined(matrix, right)
        is_refined = found is not None
        if not is_refined:
            _, _, found, code = getattr(lapack, letter + "gesv")(matrix, right)
            _at(status, (1,), "<i4")[0] = code
        _at(x, (ld_x, n_right), dtype)[...] = found
        return 3 if is_refined else -3

    _cgesv = _sgesv

    def _getrsBatched(
        self, dtype, letter, handle, trans, n, n_right, a, ld, pivots, b, ld_b, status, n_items
    ):
        _at(status, (1,), "<i4")[0] = 0
        code = np.zeros(1, "<i4")
        for i, (factor, right) in enumerate(
            zip(_at(a, (n_items,), "<u8"), _at(b, (n_items,), "<u8"), strict=True)
        ):
            own = pivots + 4 * n * i, right, ld_b, code.ctypes.data
            self._getrs(dtype, letter, handle, trans, n, n_right, factor, ld, *own)

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

    Args:
        to_device: gives a decoded image on the device.
        stream: the address of CuPy's current stream.

    Attributes:
        n_decoded: how many images came out of it.
        failing: sizes that it cannot decode.
        error: raised instead of decoding anything, if set.
    """

    def __init__(self, to_device=lambda image: image.view(DeviceArray), stream=lambda: _current_stream().ptr):
        super().__init__("nvidia.nvimgcodec")
        self._to_device, self._stream = to_device, stream
        self.n_decoded, self.failing, self.error = 0, (), None

    class CodeStream:
        def __init__(self, bytes):
            self.encoded = bytes
            self.width, self.height = Image.open(io.BytesIO(bytes)).size

    def DecodeParams(self, apply_exif_orientation=True):
        assert not apply_exif_orientation
        return "params"

    def Decoder(self, max_num_cpu_threads, options):
        assert max_num_cpu_threads > 0
        assert options == ":fancy_upsampling=1"
        return types.SimpleNamespace(decode=self._decode)

    def _decode(self, srcs, *, params, cuda_stream):
        assert (params, cuda_stream) == ("params", self._stream())
        if self.error:
            raise self.error
        return [self._decode_one(stream) for stream in srcs]

    def _decode_one(self, stream):
        if (stream.width, stream.height) in self.failing:
            return None
        self.n_decoded += 1
        return self._to_device(np.array(Image.open(io.BytesIO(stream.encoded))))


class Pool:
    def get_limit(self):
        return 1 << 30


def get_default_memory_pool():
    return Pool()


def modules():
    """What to put into ``sys.modules`` for the CUDA forms to run."""
    cupy = types.ModuleType("cupy")
    for name in FUNCTIONS:
        setattr(cupy, name, _device(getattr(np, name)))
    cupy.RawModule, cupy.empty, cupy.get_default_memory_pool = RawModule, empty, get_default_memory_pool
    cupy.cuda = types.SimpleNamespace(
        Stream=Stream, Event=Event, runtime=Runtime, get_current_stream=_current_stream
    )
    cupy.linalg = types.SimpleNamespace(
        eigh=_device(np.linalg.eigh), eigvalsh=_device(np.linalg.eigvalsh), svd=_device(np.linalg.svd)
    )
    cupyx = types.ModuleType("cupyx")
    cupyx.empty_pinned = empty_pinned
    cupyx.errstate = errstate
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
