"""Linear algebra on a GPU through CuPy: cuSOLVER and cuBLAS, same arguments and answers as on the CPU.

A batch is a list of requests. Small ones of one shape are put together in pinned memory, copied in at once
and factored by one call (getrfBatched, potrfBatched, our own Householder kernel). Large ones go one by one
through three streams in turn, so that one is copied in and another copied out while a third is computed.
The host's inputs stay whole until a result is written over them, so that a bad input is described by the
very checks of the CPU.

On the device a stack is ``(b, n, m)``, C-ordered: columns, as LAPACK wants them.
"""

from __future__ import annotations

import importlib
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from yarn_accel.errors import AccelError, RejectedError, StartupError
from yarn_accel.operations import cuda_source, factorization, products, solution
from yarn_accel.operations.matrices import compute_dtype, factor_form, sizes
from yarn_accel.operations.operation import Outcome, Params, Place, allocate
from yarn_accel.operations.soundness import AtItem, reject_asymmetric, reject_not_finite

__all__ = [
    "cholesky",
    "cholesky_batch",
    "cupy_module",
    "gemm",
    "gemm_batch",
    "lu",
    "lu_batch",
    "qr",
    "qr_batch",
    "solve",
    "solve_batch",
]

Array = Any
Item = Tuple[List[Array], Params, Place]
Results = Dict[str, Array]
Compute = Callable[[Array, Params], Tuple[Results, Array]]
"""``compute(columns, params)``: device arrays ``(b, ...)`` by name, rows first, and LAPACK's statuses."""
_SMALL_ORDER = 512
_N_STREAMS = 3


def cupy_module() -> Any:
    """CuPy.

    Raises:
        StartupError: it is not installed or finds no CUDA.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise StartupError(
            "CuPy cannot be imported: {}".format(error),
            cure="pip install 'cluster-accel[gpu]' on a CUDA machine",
        ) from error


def lu(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `factorization.lu`."""
    return _only(lu_batch([(arrays, params, place)]))


def lu_batch(items: Sequence[Item]) -> List[Any]:
    """`lu` of each; an `Outcome` or an `AccelError` for each."""
    return _batch(items, _Kind("lu", _lu))


def qr(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `factorization.qr`."""
    return _only(qr_batch([(arrays, params, place)]))


def qr_batch(items: Sequence[Item]) -> List[Any]:
    """`qr` of each; an `Outcome` or an `AccelError` for each."""
    return _batch(items, _Kind("qr", _qr))


def cholesky(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `factorization.cholesky`."""
    return _only(cholesky_batch([(arrays, params, place)]))


def cholesky_batch(items: Sequence[Item]) -> List[Any]:
    """`cholesky` of each; an `Outcome` or an `AccelError` for each."""
    return _batch(items, _Kind("cholesky", _cholesky))


def gemm(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `products.gemm`, by cuBLAS."""
    return products.gemm(arrays, params, place, _multiply)


def gemm_batch(items: Sequence[Item]) -> List[Any]:
    """`gemm` of each; an `Outcome` or an `AccelError` for each."""
    return [_attempt(partial(gemm, *item)) for item in items]


def solve(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `solution.solve`, on the CPU: two triangular solves take less time than copying the factors in."""
    return solution.solve(arrays, params, place)


def solve_batch(items: Sequence[Item]) -> List[Any]:
    """`solve` of each; an `Outcome` or an `AccelError` for each."""
    return [_attempt(partial(solve, *item)) for item in items]


class _Kind(NamedTuple):
    name: str
    compute: Compute


class _Flight(NamedTuple):
    """A group of requests of one shape whose computation is under way on a stream."""

    kind: _Kind
    items: List[Item]
    stream: Any
    results: Results
    status: Array
    sound: Array


def _batch(items: Sequence[Item], kind: _Kind) -> List[Any]:
    """Launch a group, and fetch the one launched ``_N_STREAMS - 1`` groups before it."""
    streams = _streams()
    flights: List[_Flight] = []
    outcomes: List[Any] = []
    for i, group in enumerate(_groups(items)):
        flights.append(_launch(kind, group, streams[i % _N_STREAMS]))
        if len(flights) == _N_STREAMS:
            outcomes += _land(flights.pop(0))
    for flight in flights:
        outcomes += _land(flight)
    for stream in streams:
        stream.synchronize()
    return outcomes


@lru_cache(maxsize=1)
def _streams() -> Tuple[Any, ...]:
    return tuple(cupy_module().cuda.Stream(non_blocking=True) for _ in range(_N_STREAMS))


def _groups(items: Sequence[Item]) -> Iterator[List[Item]]:
    """Neighbours of one shape, element type, order and parameters together if they are small, else alone."""

    def key(numbered: Tuple[int, Item]) -> Tuple[Any, ...]:
        number, (arrays, params, _) = numbered
        matrix = arrays[0]
        alone = -1 if max(matrix.shape[-2:]) <= _SMALL_ORDER else number
        return (alone, matrix.shape, matrix.dtype.str, matrix.flags.f_contiguous, sorted(params.items()))

    for _, group in groupby(enumerate(items), key):
        yield [item for _, item in group]


def _launch(kind: _Kind, items: List[Item], stream: Any) -> _Flight:
    cupy = cupy_module()
    params = items[0][1]
    with stream:
        columns = _upload([arrays[0] for arrays, _, _ in items], params)
        sound = cupy.isfinite(columns).reshape(len(columns), -1).all(axis=1)
        if kind.name == "cholesky":
            n = columns.shape[-1]
            largest = abs(cupy.diagonal(columns, axis1=1, axis2=2)).max(axis=1)
            allowed = n * float(np.finfo(items[0][0][0].dtype).eps) * largest
            difference = abs(columns - columns.transpose(0, 2, 1)).max(axis=(1, 2))
            sound &= (difference <= allowed) | (params.get("triangle") == "lower")
        results, status = kind.compute(columns, params)
    return _Flight(kind, items, stream, results, status, sound)


def _land(flight: _Flight) -> List[Any]:
    """Wait until the group is computed, and start copying its results to where they are sent from."""
    with flight.stream:
        sound, status = flight.sound.get(), flight.status.get()
        n_each = len(status) // len(flight.items)
        return [
            _attempt(partial(_finish, flight, item, i * n_each, n_each, sound, status))
            for i, item in enumerate(flight.items)
        ]


def _finish(flight: _Flight, item: Item, first: int, n: int, sound: Array, status: Array) -> Outcome:
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
        _download(flight.results[result][first : first + n], target, flight.stream)
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
    cupy = cupy_module()
    first = matrices[0]
    dtype = np.dtype(compute_dtype(factorization.spec_of(first), params))
    if params.get("triangle") == "lower":
        return _unpacked(cupy.asarray(np.stack(matrices).reshape(-1, first.shape[-1])).astype(dtype))
    is_columns = first.ndim == 2 and first.flags.f_contiguous
    rows = [matrix.T if is_columns else matrix for matrix in matrices]
    if len(rows) == 1:
        on_device = cupy.empty(rows[0].shape, dtype=first.dtype)
        on_device.set(np.ascontiguousarray(rows[0]), stream=cupy.cuda.get_current_stream())
    else:
        pinned = importlib.import_module("cupyx").empty_pinned((len(rows), *rows[0].shape), dtype=first.dtype)
        np.stack(rows, out=pinned)
        on_device = cupy.asarray(pinned)
    stack = on_device.reshape(-1, *rows[0].shape[-2:]).astype(dtype, copy=False)
    return stack if is_columns else cupy.ascontiguousarray(stack.transpose(0, 2, 1))


def _download(result: Array, target: Array, stream: Any) -> None:
    """Start copying a device stack ``(b, ...)`` to the host array of one request."""
    cupy = cupy_module()
    if (target.ndim == 1 and result.ndim == 3) or (target.ndim == 2 and result.ndim == 3 and len(result) > 1):
        result = _packed(result)
    value = result.reshape(target.shape) if target.flags.c_contiguous else result[0].T
    host = target if target.flags.c_contiguous else target.T
    cupy.ascontiguousarray(value, dtype=target.dtype).get(stream=stream, out=host, blocking=False)


def _lu(columns: Array, params: Params) -> Tuple[Results, Array]:
    cupy = cupy_module()
    n_items, n, m = columns.shape
    pivots = cupy.empty((n_items, min(m, n)), dtype=np.int32)
    status = cupy.empty(n_items, dtype=np.int32)
    solver, handle, letter = _library("cusolver", columns)
    if m == n <= _SMALL_ORDER:
        blas, blas_handle, _ = _library("cublas", columns)
        addresses = _addresses(columns)
        getattr(blas, letter + "getrfBatched")(
            blas_handle, n, addresses.data.ptr, n, pivots.data.ptr, status.data.ptr, n_items
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
    is_small = n_bytes <= cuda_source.HOUSEHOLDER_SHARED_BYTES
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
    solver, handle, letter = _library("cusolver", columns)
    lower = importlib.import_module("cupy_backends.cuda.libs.cublas").CUBLAS_FILL_MODE_LOWER
    if n <= _SMALL_ORDER:
        addresses = _addresses(columns)
        getattr(solver, letter + "potrfBatched")(
            handle, lower, n, addresses.data.ptr, n, status.data.ptr, n_items
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
    solver, handle, letter = _library("cusolver", columns)
    ld, status = numbers[0], cupy.empty(1, dtype=np.int32)
    tau = (scalars.data.ptr,) if routine == "orgqr" else ()
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


def _library(name: str, array: Array) -> Tuple[Any, int, str]:
    """CuPy's binding, this thread's handle (which follows the current stream), LAPACK's letter."""
    device = importlib.import_module("cupy.cuda.device")
    library = importlib.import_module("cupy_backends.cuda.libs." + name)
    handle: int = getattr(device, "get_{}_handle".format(name))()
    return library, handle, "s" if array.dtype == np.float32 else "d"


def _addresses(columns: Array) -> Array:
    step = columns[0].nbytes
    start = columns.data.ptr
    return cupy_module().arange(start, start + step * len(columns), step, dtype=np.uintp)


def _triangle(n: int) -> Tuple[Array, Array]:
    """Rows and columns of the elements of LAPACK's packed lower triangle, on the device."""
    cupy = cupy_module()
    columns, rows = np.triu_indices(n)
    return cupy.asarray(rows), cupy.asarray(columns)


def _unpacked(triangles: Array) -> Array:
    n = int((8 * triangles.shape[1] + 1) ** 0.5 - 1) // 2
    rows, columns = _triangle(n)
    full = cupy_module().zeros((len(triangles), n, n), dtype=triangles.dtype)
    full[:, columns, rows] = triangles
    return full


def _packed(matrices: Array) -> Array:
    rows, columns = _triangle(matrices.shape[-1])
    return matrices[:, rows, columns]


def _multiply(a: Array, b: Array, out: Array) -> None:
    cupy = cupy_module()
    product = cupy.matmul(cupy.asarray(a), cupy.asarray(b))
    out[...] = product.get()


def _attempt(work: Callable[[], Outcome]) -> Any:
    try:
        return work()
    except AccelError as error:
        return error


def _only(outcomes: List[Any]) -> Outcome:
    if isinstance(outcomes[0], AccelError):
        raise outcomes[0]
    outcome: Outcome = outcomes[0]
    return outcome
