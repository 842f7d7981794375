"""LU, QR and Cholesky on a GPU through CuPy: cuSOLVER and cuBLAS, same arguments and answers as on the CPU.

See `cuda_streams` for how requests get to the GPU and back. Small matrices of one shape are factored by one
call (getrfBatched, potrfBatched, our own Householder kernel). The host's inputs stay whole until a result is
written over them, so that a bad input is described by the very checks of the CPU.

On the device a stack is ``(b, n, m)``, C-ordered: columns, as LAPACK wants them.
"""

from __future__ import annotations

import importlib
from functools import lru_cache, partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import cuda_source, factorization
from yarn_accel.operations.cuda_streams import (
    SMALL_ORDER,
    Item,
    Land,
    addresses,
    attempt,
    cupy_module,
    download_each,
    library,
    only,
    through_streams,
    triangle_indices,
    upload,
    with_memory,
)
from yarn_accel.operations.matrices import compute_dtype, factor_form, sizes
from yarn_accel.operations.operation import Outcome, Params, Place, allocate
from yarn_accel.operations.soundness import AtItem, reject_asymmetric, reject_not_finite

Array = Any
Results = Dict[str, Array]
Compute = Callable[[Array, Params, Array], Results]
"""``compute(columns, params, status)``: device arrays ``(b, ...)`` by name, rows first. LAPACK's statuses are
written to ``status``, which has zeros."""
_ORDER_OF_AN_ITEM = 80
_ORDER_OF_ONE_CALL = 32
_LEAST_FOR_ONE_CALL = 3
"""One call for a stack takes as long for one matrix as for many, and longer than the routine for one: 5.2 and
0.94 ms for LU of order 512 on an H200, 0.55 and 0.23 for Cholesky. So getrfBatched pays from order / 80
matrices, potrfBatched from three, or up to order 32."""
_LEAST_FOR_MORE_SHARED = 4
_NUMBERS_OF_A_BLOCK = 4096
_MOST_BLOCKS = 512


def lu(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `factorization.lu`."""
    return only(lu_batch([(arrays, params, place)]))


def lu_batch(items: Sequence[Item]) -> List[Any]:
    """`lu` of each; an `Outcome` or an `AccelError` for each."""
    return _batch(items, _Kind("lu", _lu))


def qr(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `factorization.qr`."""
    return only(qr_batch([(arrays, params, place)]))


def qr_batch(items: Sequence[Item]) -> List[Any]:
    """`qr` of each; an `Outcome` or an `AccelError` for each."""
    return _batch(items, _Kind("qr", _qr))


def cholesky(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `factorization.cholesky`."""
    return only(cholesky_batch([(arrays, params, place)]))


def cholesky_batch(items: Sequence[Item]) -> List[Any]:
    """`cholesky` of each; an `Outcome` or an `AccelError` for each."""
    return _batch(items, _Kind("cholesky", _cholesky))


class _Kind(NamedTuple):
    name: str
    compute: Compute


class _LinalgBatch(NamedTuple):
    """A group of requests of one shape whose computation is under way.

    Attributes:
        plan: of each request; None for Cholesky.
        marks: on the device, ``(2, b)``: whether each matrix is unsound, and LAPACK's status of it.
    """

    name: str
    items: List[Item]
    plan: Optional[factorization.FactorizationPlan]
    results: Results
    marks: Array

    def land(self) -> List[Any]:
        """See `Land`."""
        unsound, statuses = self.marks.get().reshape(2, len(self.items), -1)
        is_unsound = unsound.any(axis=1).tolist()
        outcomes = [
            attempt(partial(_outcome, self.name, self.plan, item, is_unsound[i], statuses[i]))
            for i, item in enumerate(self.items)
        ]
        failed = attempt(partial(self._download, outcomes))
        return outcomes if failed is None else [failed if type(one) is Outcome else one for one in outcomes]

    def _download(self, outcomes: List[Any]) -> None:
        """Copy the results of those that have an `Outcome`; those of several are there afterwards."""
        wanted = {i: one.arrays for i, one in enumerate(outcomes) if type(one) is Outcome}
        names = list(next(iter(wanted.values()))) if wanted else []
        is_packed = self.name == "cholesky" and factor_form(self.name, self.items[0][1]) == "packed"
        finish = []
        for name in names:
            result = self.results[name]
            if is_packed:
                result = with_memory(partial(_packed, result), result.nbytes)
            targets = [wanted[i][name] if i in wanted else None for i in range(len(outcomes))]
            finish.append(download_each(result, targets))
        if len(outcomes) > 1:
            cupy_module().cuda.get_current_stream().synchronize()
        for hand_out in finish:
            hand_out()


def _batch(items: Sequence[Item], kind: _Kind) -> List[Any]:
    return through_streams(items, partial(_launch, kind))


def _launch(kind: _Kind, items: List[Item]) -> Land:
    matrix, params = items[0][0][0], items[0][1]
    columns = _upload([arrays[0] for arrays, _, _ in items], params)
    marks = cupy_module().zeros((2, len(columns)), dtype=np.int32)
    is_symmetric = kind.name == "cholesky" and params.get("triangle") != "lower"
    mark_unsound(columns, marks[0], float(np.finfo(matrix.dtype).eps) if is_symmetric else None)
    results = kind.compute(columns, params, marks[1])
    plans = {"lu": factorization.lu_plan, "qr": factorization.qr_plan}
    plan = plans[kind.name](matrix, params) if kind.name in plans else None
    return _LinalgBatch(kind.name, items, plan, results, marks).land


def _outcome(
    name: str, plan: Optional[factorization.FactorizationPlan], item: Item, is_unsound: bool, statuses: Array
) -> Outcome:
    """What is answered, with memory for the results that are still on the device."""
    arrays, params, place = item
    matrix = arrays[0]
    if is_unsound:
        is_symmetric = name == "cholesky" and params.get("triangle") != "lower"
        (reject_asymmetric if is_symmetric else reject_not_finite)(matrix, "input 0")
    if plan is None:
        return _cholesky_outcome(matrix, params, place, statuses)
    info = factorization.sizes_info(matrix)
    if name == "lu":
        info["singular_at"] = statuses.tolist() if plan.size.is_stack else int(statuses[0])
    return Outcome(plan.targets(matrix, place), info)


def _cholesky_outcome(matrix: Array, params: Params, place: Place, statuses: Array) -> Outcome:
    size = sizes(factorization.spec_of(matrix), params)
    bad = np.flatnonzero(statuses)
    if bad.size:
        error = RejectedError(
            "not-positive-definite",
            "the leading minor of order {} of {} is not positive definite".format(
                statuses[bad[0]], size.n_rows
            ),
        )
        if size.is_stack:
            with AtItem(int(bad[0])):
                raise error
        raise error
    items = matrix if size.is_stack else matrix[None]
    targets = factorization.cholesky_targets(items, size, params, place)
    info = {"n": size.n_rows, "m": size.n_rows}
    return Outcome({"l": targets if size.is_stack else targets[0]}, info)


def _upload(matrices: List[Array], params: Params) -> Array:
    """The matrices of all requests as one stack of columns on the device, in the type of the computation."""
    dtype = np.dtype(compute_dtype(factorization.spec_of(matrices[0]), params))
    if params.get("triangle") == "lower":
        return unpacked(upload(matrices, 1).astype(dtype, copy=False)).transpose(0, 2, 1)
    stack = upload(matrices, 2).astype(dtype, copy=False)
    return cupy_module().ascontiguousarray(stack.transpose(0, 2, 1))


def _lu(columns: Array, params: Params, status: Array) -> Results:
    cupy = cupy_module()
    n_items, n, m = columns.shape
    pivots = cupy.empty((n_items, min(m, n)), dtype=np.int32)
    solver, handle, letter = library("cusolver", columns)
    if m == n <= min(SMALL_ORDER, _ORDER_OF_AN_ITEM * n_items):
        blas, blas_handle, _ = library("cublas", columns)
        places = addresses(columns)
        getattr(blas, letter + "getrfBatched")(
            blas_handle, n, places.data.ptr, n, pivots.data.ptr, status.data.ptr, n_items
        )
    else:
        n_work = getattr(solver, letter + "getrf_bufferSize")(handle, m, n, columns.data.ptr, m)
        work = cupy.empty(n_work, dtype=columns.dtype)
        for i in range(n_items):
            getattr(solver, letter + "getrf")(
                handle,
                m,
                n,
                columns[i].data.ptr,
                m,
                work.data.ptr,
                pivots[i].data.ptr,
                status[i : i + 1].data.ptr,
            )
    packed = columns.transpose(0, 2, 1)
    results = {"lu": packed, "piv": pivots - 1}
    if factor_form("lu", params) == "separate":
        least = min(m, n)
        unit = cupy.eye(m, least, dtype=columns.dtype)
        results.update(l=cupy.tril(packed[:, :, :least], -1) + unit, u=cupy.triu(packed[:, :least]))
    return results


def _qr(columns: Array, params: Params, status: Array) -> Results:
    cupy = cupy_module()
    n_items, n, m = columns.shape
    least = min(m, n)
    scalars = cupy.empty((n_items, least), dtype=columns.dtype)
    is_separate = factor_form("qr", params) == "separate"
    n_bytes = n * (m | 1) * columns.dtype.itemsize
    is_small = columns.dtype.kind == "f" and n_bytes <= _most_shared_bytes(n_items)
    if is_small:
        _householder("factor", columns, scalars, (m, n), n_bytes)
    else:
        _each("geqrf", columns, (m, n), scalars)
    results = {"qr": columns.transpose(0, 2, 1), "tau": scalars}
    if is_separate:
        q = columns[:, :least].copy()
        if is_small:
            _householder("write_out", q, scalars, (m, least), n_bytes)
        else:
            _each("orgqr", q, (m, least, least), scalars)
        results.update(q=q.transpose(0, 2, 1), r=cupy.triu(columns.transpose(0, 2, 1)[:, :least]))
    return results


def _cholesky(columns: Array, params: Params, status: Array) -> Results:
    cupy = cupy_module()
    n_items, n, _ = columns.shape
    solver, handle, letter = library("cusolver", columns)
    lower = importlib.import_module("cupy_backends.cuda.libs.cublas").CUBLAS_FILL_MODE_LOWER
    if n <= _ORDER_OF_ONE_CALL or (n <= SMALL_ORDER and n_items >= _LEAST_FOR_ONE_CALL):
        places = addresses(columns)
        getattr(solver, letter + "potrfBatched")(
            handle, lower, n, places.data.ptr, n, status.data.ptr, n_items
        )
    else:
        n_work = getattr(solver, letter + "potrf_bufferSize")(handle, lower, n, columns.data.ptr, n)
        work = cupy.empty(n_work, dtype=columns.dtype)
        for i in range(n_items):
            places = columns[i].data.ptr, n, work.data.ptr, n_work, status[i : i + 1].data.ptr
            getattr(solver, letter + "potrf")(handle, lower, n, *places)
    _for_each("clear_upper", columns, np.int32(n))
    return {"l": columns.transpose(0, 2, 1)}


def _each(routine: str, columns: Array, numbers: Tuple[int, ...], scalars: Array) -> None:
    """geqrf or orgqr of one item after the other."""
    cupy = cupy_module()
    solver, handle, letter = library("cusolver", columns)
    ld, status = numbers[0], cupy.empty(1, dtype=np.int32)
    tau = (scalars.data.ptr,) if routine == "orgqr" else ()
    if letter in "cz":
        routine = factorization.UNITARY.get(routine, routine)
    n_work = getattr(solver, letter + routine + "_bufferSize")(handle, *numbers, columns.data.ptr, ld, *tau)
    work = cupy.empty(n_work, dtype=columns.dtype)
    for i in range(len(columns)):
        places = columns[i].data.ptr, ld, scalars[i].data.ptr, work.data.ptr, n_work, status.data.ptr
        getattr(solver, letter + routine)(handle, *numbers, *places)


def _householder(name: str, columns: Array, scalars: Array, shape: Tuple[int, int], n_bytes: int) -> None:
    numbers = tuple(np.int32(n) for n in shape)
    kernel = _kernels(cuda_source.HOUSEHOLDER, columns.dtype.str).get_function(name)
    grid, block = (len(columns),), (cuda_source.HOUSEHOLDER_THREADS,)
    if n_bytes > cuda_source.HOUSEHOLDER_SHARED_BYTES:
        # The same for all matrices: the lanes of a worker share the kernel.
        kernel.max_dynamic_shared_size_bytes = _most_shared_bytes(len(columns))
    kernel(grid, block, (columns, scalars, *numbers), shared_mem=n_bytes)


def _most_shared_bytes(n_items: int) -> int:
    """Of a matrix that our own QR takes: it computes all of a stack at once, cuSOLVER one after the other."""
    if n_items < _LEAST_FOR_MORE_SHARED:
        return cuda_source.HOUSEHOLDER_SHARED_BYTES
    return max(
        cuda_source.HOUSEHOLDER_SHARED_BYTES, _shared_bytes_of_gpu() - cuda_source.HOUSEHOLDER_OWN_BYTES
    )


@lru_cache(maxsize=1)
def _shared_bytes_of_gpu() -> int:
    """What a block gets where it asks."""
    runtime = cupy_module().cuda.runtime
    return int(runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, 0))


def mark_unsound(stack: Array, marks: Array, tolerance: Optional[float] = None) -> None:
    """Set the mark of each matrix of a C-ordered device stack that has a number other than finite.

    With a tolerance also of each that is not symmetric (Hermitian): see `soundness.reject_asymmetric`.
    """
    order = stack.shape[-1] if tolerance is not None else 0
    _for_each("mark_unsound", stack, np.int32(order), np.float64(order * (tolerance or 0.0)), marks)


def _for_each(name: str, stack: Array, *arguments: Any) -> None:
    """Launch a kernel of `cuda_source.MATRICES` on a C-ordered device stack."""
    n_items, n = len(stack), stack.size // len(stack)
    width = 2 if stack.dtype.kind == "c" else 1
    real = "<f{}".format(stack.dtype.itemsize // width)
    n_blocks = max(1, min(_MOST_BLOCKS // n_items, n // _NUMBERS_OF_A_BLOCK))
    numbers = np.int64(n), np.int32(width)
    kernel = _kernels(cuda_source.MATRICES, real).get_function(name)
    kernel((n_items, n_blocks), (cuda_source.MATRICES_THREADS,), (stack, *numbers, *arguments))


@lru_cache(maxsize=4)
def _kernels(text: str, dtype: str) -> Any:
    real = {"<f4": "float", "<f8": "double"}[dtype]
    return cupy_module().RawModule(code=text, options=("-DREAL=" + real,))


def unpacked(triangles: Array) -> Array:
    """Device stack ``(b, n (n + 1) / 2)`` of LAPACK's packed lower triangles as ``(b, n, n)``, zeros above.

    Rows come first; columns lie together in memory.
    """
    n = int((8 * triangles.shape[1] + 1) ** 0.5 - 1) // 2
    rows, columns = triangle_indices(n)
    full = cupy_module().zeros((len(triangles), n, n), dtype=triangles.dtype)
    full[:, columns, rows] = triangles
    return full.transpose(0, 2, 1)


def _packed(matrices: Array) -> Array:
    rows, columns = triangle_indices(matrices.shape[-1])
    return matrices[:, rows, columns]
