"""QR of a stack on a GPU, by the fastest of three ways: our own kernel, cuBLAS, cuSOLVER.

Our kernel (`cuda_source.HOUSEHOLDER`) takes real matrices that fit the shared memory of a block, a block for
each. cuBLAS's geqrfBatched takes all kinds by one call; CuPy binds none, so it is called in the library that
CuPy has loaded. cuSOLVER's geqrf takes one matrix after the other. Which one is fastest depends on GPU,
library, order and number, so a worker measures it: the first time that it gets several small matrices of a
kind and size (up to the next power of two), on numbers of its own, and only where geqrfBatched gave QR there.
"""

from __future__ import annotations

import ctypes
import threading
import time
from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

from yarn_accel.operations import cuda_source
from yarn_accel.operations.cuda_streams import addresses, cupy_module, kernels, library
from yarn_accel.operations.dense import UNITARY
from yarn_accel.operations.gpu_errors import is_out_of_memory
from yarn_accel.operations.matrices import factor_form
from yarn_accel.operations.operation import SMALL_ORDER, Params

Array = Any
_LEAST_FOR_MORE_SHARED = 4
_LEAST_TO_MEASURE, _MOST_TO_MEASURE = 4, 64
"""So many matrices of a stack are measured; of fewer, one after the other is fast enough."""
_N_TIMES = 3
_ROUNDING = 1e3
"""How many roundings times the order a product of factors may differ from the matrix."""
_CUBLAS = ("libcublas.so.12", "libcublas.so.13")
_LOADED = 0x2 | 0x4
"""RTLD_NOW and RTLD_NOLOAD of glibc: only what is loaded already is opened."""
_Key = Tuple[str, int, int, int, str]
_chosen: Dict[_Key, str] = {}
_measuring = threading.Lock()


def qr_columns(columns: Array, params: Params, status: Array) -> Dict[str, Array]:
    """QR, see `cuda_linalg.Compute`; the packed form lies in place of the columns."""
    cupy = cupy_module()
    n_items, n, m = columns.shape
    least = min(m, n)
    scalars = cupy.empty((n_items, least), dtype=columns.dtype)
    way = fastest_way(columns)
    if way == "cublas" and not geqrf_batched(columns, scalars):
        way = _own_way(columns)
    if way != "cublas":
        _WAYS[way](columns, scalars)
    results = {"qr": columns.transpose(0, 2, 1), "tau": scalars}
    if factor_form("qr", params) == "separate":
        q = columns[:, :least].copy()
        if _own_way(columns) == "kernel":
            _householder("write_out", q, scalars, (m, least), _shared_bytes(columns))
        else:
            _each("orgqr", q, (m, least, least), scalars)
        results.update(q=q.transpose(0, 2, 1), r=cupy.triu(columns.transpose(0, 2, 1)[:, :least]))
    return results


def fastest_way(columns: Array) -> str:
    """``kernel``, ``cublas`` or ``cusolver``: as was measured for stacks like this one, now if never before.

    Args:
        columns: device stack ``(b, n, m)``, whose numbers do not count.
    """
    own = _own_way(columns)
    n_items, n, m = columns.shape
    if n_items < _LEAST_TO_MEASURE or max(n, m) > SMALL_ORDER or _routine(columns.dtype.str) is None:
        return own
    number = min(n_items, _MOST_TO_MEASURE)
    key = (columns.dtype.str, *((size - 1).bit_length() for size in (n, m, number)), own)
    with _measuring:
        if key not in _chosen:
            try:
                _chosen[key] = _measured(own, (number, n, m), columns.dtype)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                return own
        return _chosen[key]


def _own_way(columns: Array) -> str:
    fits = _shared_bytes(columns) <= _most_shared_bytes(len(columns))
    return "kernel" if columns.dtype.kind == "f" and fits else "cusolver"


def _measured(own: str, shape: Tuple[int, int, int], dtype: Any) -> str:
    cupy = cupy_module()
    random, is_complex = np.random.default_rng(0), dtype.kind == "c"
    numbers = random.standard_normal((*shape, 2 if is_complex else 1))
    given = (numbers.view("<c16") if is_complex else numbers)[..., 0].astype(dtype)
    columns = cupy.asarray(given)
    took_s = {own: _took_s(_WAYS[own], columns)}
    works, packed, scalars = _tried(columns)
    if works and _is_qr(given[0].T, packed, scalars):
        took_s["cublas"] = _took_s(geqrf_batched, columns)
    return min(took_s, key=lambda way: took_s[way])


def _took_s(compute: Callable[[Array, Array], Any], columns: Array) -> float:
    """Seconds of the fastest try, after one that loads what it needs."""
    cupy = cupy_module()
    stream = cupy.cuda.get_current_stream()
    n_items, n, m = columns.shape
    scalars = cupy.empty((n_items, min(m, n)), dtype=columns.dtype)
    tries = []
    for _ in range(1 + _N_TIMES):
        work = columns.copy()
        stream.synchronize()
        start_s = time.perf_counter()
        compute(work, scalars)
        stream.synchronize()
        tries.append(time.perf_counter() - start_s)
    return min(tries[1:])


def _tried(columns: Array) -> Tuple[bool, Array, Array]:
    """Whether geqrfBatched takes these columns, and the first item's packed form and scalars."""
    cupy = cupy_module()
    n_items, n, m = columns.shape
    work = columns.copy()
    scalars = cupy.zeros((n_items, min(m, n)), dtype=columns.dtype)
    works = geqrf_batched(work, scalars)
    return works, work[:1], scalars[:1]


def _is_qr(matrix: Array, columns: Array, scalars: Array) -> bool:
    """Whether a packed form on the device, as cuSOLVER reads it, is that of a matrix on the host."""
    _, n, m = columns.shape
    least = min(m, n)
    q = columns[:, :least].copy()
    _each("orgqr", q, (m, least, least), scalars)
    found = q.get()[0].T @ np.triu(columns.get()[0].T[:least])
    allowed = _ROUNDING * max(m, n) * float(np.finfo(matrix.dtype).eps)
    return bool(np.abs(found - matrix).max() <= allowed * np.abs(matrix).max())


# ---- the three ways


def _kernel(columns: Array, scalars: Array) -> None:
    _, n, m = columns.shape
    _householder("factor", columns, scalars, (m, n), _shared_bytes(columns))


def _one_by_one(columns: Array, scalars: Array) -> None:
    _, n, m = columns.shape
    _each("geqrf", columns, (m, n), scalars)


_WAYS: Dict[str, Callable[[Array, Array], None]] = {"kernel": _kernel, "cusolver": _one_by_one}


def geqrf_batched(columns: Array, scalars: Array) -> bool:
    """cuBLAS's geqrfBatched; False: it is not there or refused, and nothing has changed."""
    routine = _routine(columns.dtype.str)
    if routine is None:
        return False
    n_items, n, m = columns.shape
    blas, handle, _ = library("cublas", columns)
    # CuPy's own bindings do it at each call.
    blas.setStream(handle, cupy_module().cuda.get_current_stream().ptr)
    matrices, tau = addresses(columns), addresses(scalars)
    code = ctypes.c_int()
    places = matrices.data.ptr, m, tau.data.ptr, ctypes.byref(code), n_items
    status: int = routine(handle, m, n, *places)
    return status == 0 and code.value == 0


@lru_cache(maxsize=4)
def _routine(dtype: str) -> Optional[Callable[..., int]]:
    """geqrfBatched for such numbers, of the cuBLAS that CuPy has loaded; None: it has none."""
    _, _, letter = library("cublas", np.empty(0, dtype))
    for name in _CUBLAS:
        try:
            loaded = ctypes.CDLL(name, mode=_LOADED)
            found = getattr(loaded, "cublas{}geqrfBatched".format(letter.upper()))
        except (OSError, AttributeError):
            continue
        number, place = ctypes.c_int, ctypes.c_void_p
        found.argtypes = (place, number, number, place, number, place, place, number)
        found.restype = number
        routine: Callable[..., int] = found
        return routine
    return None


def _each(routine: str, columns: Array, numbers: Tuple[int, ...], scalars: Array) -> None:
    """geqrf or orgqr of one item after the other."""
    cupy = cupy_module()
    solver, handle, letter = library("cusolver", columns)
    ld, status = numbers[0], cupy.empty(1, dtype=np.int32)
    tau = (scalars.data.ptr,) if routine == "orgqr" else ()
    if letter in "cz":
        routine = UNITARY.get(routine, routine)
    n_work = getattr(solver, letter + routine + "_bufferSize")(handle, *numbers, columns.data.ptr, ld, *tau)
    work = cupy.empty(n_work, dtype=columns.dtype)
    for i in range(len(columns)):
        places = columns[i].data.ptr, ld, scalars[i].data.ptr, work.data.ptr, n_work, status.data.ptr
        getattr(solver, letter + routine)(handle, *numbers, *places)


def _householder(name: str, columns: Array, scalars: Array, shape: Tuple[int, int], n_bytes: int) -> None:
    numbers = tuple(np.int32(n) for n in shape)
    kernel = kernels(cuda_source.HOUSEHOLDER, columns.dtype.str).get_function(name)
    grid, block = (len(columns),), (cuda_source.HOUSEHOLDER_THREADS,)
    if n_bytes > cuda_source.HOUSEHOLDER_SHARED_BYTES:
        # The same for all matrices: the lanes of a worker share the kernel.
        kernel.max_dynamic_shared_size_bytes = _most_shared_bytes(len(columns))
    kernel(grid, block, (columns, scalars, *numbers), shared_mem=n_bytes)


def _shared_bytes(columns: Array) -> int:
    """Of a block that computes one of these matrices."""
    _, n, m = columns.shape
    return int(n * (m | 1) * columns.dtype.itemsize)


def _most_shared_bytes(n_items: int) -> int:
    """Of a matrix that our kernel takes: it computes all of a stack at once, cuSOLVER one after the other."""
    if n_items < _LEAST_FOR_MORE_SHARED:
        return cuda_source.HOUSEHOLDER_SHARED_BYTES
    return max(
        cuda_source.HOUSEHOLDER_SHARED_BYTES, _shared_bytes_of_gpu() - cuda_source.HOUSEHOLDER_OWN_BYTES
    )


@lru_cache(maxsize=1)
def _shared_bytes_of_gpu() -> int:
    """Shared memory that a block gets where it asks for more than usual."""
    runtime = cupy_module().cuda.runtime
    return int(runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, 0))
