"""LU, QR and Cholesky on a GPU through CuPy: cuSOLVER and cuBLAS, same arguments and answers as on the CPU.

See `cuda_streams` for how requests get to the GPU and back. Small matrices of one shape are factored by one
call (getrfBatched, potrfBatched, our own Householder kernel). The host's inputs stay whole until a result is
written over them, so that a bad input is described by the very checks of the CPU.

On the device a stack is ``(b, n, m)``, C-ordered: columns, as LAPACK wants them.
"""

from __future__ import annotations

import importlib
from functools import lru_cache, partial
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

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
    download,
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

__all__ = ["cholesky", "cholesky_batch", "lu", "lu_batch", "qr", "qr_batch", "unpacked"]

Array = Any
Results = Dict[str, Array]
Compute = Callable[[Array, Params], Tuple[Results, Array]]
"""``compute(columns, params)``: device arrays ``(b, ...)`` by name, rows first, and LAPACK's statuses."""


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
    """A group of requests of one shape whose computation is under way."""

    kind: _Kind
    items: List[Item]
    results: Results
    status: Array
    sound: Array

    def land(self) -> List[Any]:
        """See `Land`."""
        sound, status = self.sound.get(), self.status.get()
        n_each = len(status) // len(self.items)
        return [
            attempt(partial(_finish, self, item, i * n_each, n_each, sound, status))
            for i, item in enumerate(self.items)
        ]


def _batch(items: Sequence[Item], kind: _Kind) -> List[Any]:
    return through_streams(items, partial(_launch, kind))


def _launch(kind: _Kind, items: List[Item]) -> Land:
    cupy = cupy_module()
    params = items[0][1]
    columns = _upload([arrays[0] for arrays, _, _ in items], params)
    sound = cupy.isfinite(columns).reshape(len(columns), -1).all(axis=1)
    if kind.name == "cholesky":
        n = columns.shape[-1]
        largest = abs(cupy.diagonal(columns, axis1=1, axis2=2)).max(axis=1)
        allowed = n * float(np.finfo(items[0][0][0].dtype).eps) * largest
        difference = abs(columns - columns.transpose(0, 2, 1).conj()).max(axis=(1, 2))
        sound &= (difference <= allowed) | (params.get("triangle") == "lower")
    results, status = kind.compute(columns, params)
    return _LinalgBatch(kind, items, results, status, sound).land


def _finish(flight: _LinalgBatch, item: Item, first: int, n: int, sound: Array, status: Array) -> Outcome:
    arrays, params, place = item
    statuses = status[first : first + n]
    name = flight.kind.name
    if not sound[first : first + n].all():
        is_symmetric = name == "cholesky" and params.get("triangle") != "lower"
        (reject_asymmetric if is_symmetric else reject_not_finite)(arrays[0], "input 0")
    if name == "cholesky":
        targets = _cholesky_results(arrays[0], params, place, statuses)
        order = flight.results["l"].shape[1]
        info: Dict[str, Any] = {"n": order, "m": order}
    else:
        plan = (factorization.lu_plan if name == "lu" else factorization.qr_plan)(arrays[0], params)
        targets = plan.targets(arrays[0], place)
        info = factorization.sizes_info(arrays[0])
        if name == "lu":
            info["singular_at"] = statuses.tolist() if plan.size.is_stack else int(statuses[0])
    for result, target in targets.items():
        found = flight.results[result][first : first + n]
        if name == "cholesky" and factor_form(name, params) == "packed":
            found = with_memory(partial(_packed, found), found.nbytes)
        download(found, target)
    return Outcome(targets, info)


def _cholesky_results(matrix: Array, params: Params, place: Place, statuses: Array) -> Results:
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
    return {"l": targets if size.is_stack else targets[0]}


def _upload(matrices: List[Array], params: Params) -> Array:
    """The matrices of all requests as one stack of columns on the device, in the type of the computation."""
    dtype = np.dtype(compute_dtype(factorization.spec_of(matrices[0]), params))
    if params.get("triangle") == "lower":
        return unpacked(upload(matrices, 1).astype(dtype, copy=False)).transpose(0, 2, 1)
    stack = upload(matrices, 2).astype(dtype, copy=False)
    return cupy_module().ascontiguousarray(stack.transpose(0, 2, 1))


def _lu(columns: Array, params: Params) -> Tuple[Results, Array]:
    cupy = cupy_module()
    n_items, n, m = columns.shape
    pivots = cupy.empty((n_items, min(m, n)), dtype=np.int32)
    status = cupy.empty(n_items, dtype=np.int32)
    solver, handle, letter = library("cusolver", columns)
    if m == n <= SMALL_ORDER:
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
    return results, status


def _qr(columns: Array, params: Params) -> Tuple[Results, Array]:
    cupy = cupy_module()
    n_items, n, m = columns.shape
    least = min(m, n)
    scalars = cupy.empty((n_items, least), dtype=columns.dtype)
    is_separate = factor_form("qr", params) == "separate"
    status = cupy.zeros(n_items, dtype=np.int32)
    n_bytes = n * (m | 1) * columns.dtype.itemsize
    is_small = columns.dtype.kind == "f" and n_bytes <= cuda_source.HOUSEHOLDER_SHARED_BYTES
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
    return results, status


def _cholesky(columns: Array, params: Params) -> Tuple[Results, Array]:
    cupy = cupy_module()
    n_items, n, _ = columns.shape
    status = cupy.empty(n_items, dtype=np.int32)
    solver, handle, letter = library("cusolver", columns)
    lower = importlib.import_module("cupy_backends.cuda.libs.cublas").CUBLAS_FILL_MODE_LOWER
    if n <= SMALL_ORDER:
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
    return {"l": cupy.tril(columns.transpose(0, 2, 1))}, status


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
    kernel = _kernels("float" if columns.dtype == np.float32 else "double").get_function(name)
    grid, block = (len(columns),), (cuda_source.HOUSEHOLDER_THREADS,)
    kernel(grid, block, (columns, scalars, *numbers), shared_mem=n_bytes)


@lru_cache(maxsize=2)
def _kernels(real: str) -> Any:
    return cupy_module().RawModule(code=cuda_source.HOUSEHOLDER, options=("-DREAL=" + real,))


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
