"""Linear algebra on a GPU through CuPy: cuSOLVER and cuBLAS, same arguments and answers as on the CPU.

See `cuda_streams` for how requests get to the GPU and back. Small matrices of one shape are factored by one
call (getrfBatched, potrfBatched, our own Householder kernel). The host's inputs stay whole until a result is
written over them, so that a bad input is described by the very checks of the CPU.

Solutions come from cuBLAS's triangular solves and cuSOLVER's ormqr; factors are read where they lie, whatever
their order. A solution that is not finite (a zero on the diagonal, NaN in an input, overflow), or that has a
pivot outside the matrix, is computed again by `linear.solve` from the host's inputs: so its reason is the
CPU's, word for word.

On the device a stack is ``(b, n, m)`` and right-hand sides are ``(b, n_right, m)``, C-ordered: columns, as
LAPACK wants them.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import cuda_source, factorization, linear
from yarn_accel.operations.cuda_qr import qr_columns
from yarn_accel.operations.cuda_streams import (
    Item,
    Land,
    addresses,
    attempt,
    cupy_module,
    download,
    download_each,
    kernels,
    library,
    only,
    through_streams,
    upload,
    with_memory,
)
from yarn_accel.operations.dense import UNITARY, AtItem, reject_asymmetric, reject_not_finite, spec_of
from yarn_accel.operations.linear import ProductPlan, row_order
from yarn_accel.operations.matrices import compute_dtype, factor_form, reply_dtype, sizes, solve_inputs
from yarn_accel.operations.operation import SMALL_ORDER, Outcome, Params, Place, allocate

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
_NUMBERS_OF_A_BLOCK = 4096
_MOST_BLOCKS = 512


def lu(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `factorization.lu`."""
    return only(lu_batch([(arrays, params, place)]))


def lu_batch(items: Sequence[Item]) -> List[Any]:
    """`lu` of each; an `Outcome` or an `AccelError` for each."""
    return through_streams(items, partial(_launch_factorizations, "lu", lu_columns))


def qr(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `factorization.qr`."""
    return only(qr_batch([(arrays, params, place)]))


def qr_batch(items: Sequence[Item]) -> List[Any]:
    """`qr` of each; an `Outcome` or an `AccelError` for each."""
    return through_streams(items, partial(_launch_factorizations, "qr", qr_columns))


def cholesky(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `factorization.cholesky`."""
    return only(cholesky_batch([(arrays, params, place)]))


def cholesky_batch(items: Sequence[Item]) -> List[Any]:
    """`cholesky` of each; an `Outcome` or an `AccelError` for each."""
    return through_streams(items, partial(_launch_factorizations, "cholesky", cholesky_columns))


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


def _launch_factorizations(name: str, compute: Compute, items: List[Item]) -> Land:
    matrix, params = items[0][0][0], items[0][1]
    columns = upload_columns([arrays[0] for arrays, _, _ in items], params)
    marks = cupy_module().zeros((2, len(columns)), dtype=np.int32)
    is_symmetric = name == "cholesky" and params.get("triangle") != "lower"
    mark_unsound(columns, marks[0], float(np.finfo(matrix.dtype).eps) if is_symmetric else None)
    results = compute(columns, params, marks[1])
    plans = {"lu": factorization.lu_plan, "qr": factorization.qr_plan}
    plan = plans[name](matrix, params) if name in plans else None
    return _LinalgBatch(name, items, plan, results, marks).land


def _outcome(
    name: str, plan: Optional[factorization.FactorizationPlan], item: Item, is_unsound: bool, statuses: Array
) -> Outcome:
    """The answer, with memory for the results that are still on the device."""
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
    size = sizes(spec_of(matrix), params)
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


def upload_columns(matrices: List[Array], params: Params) -> Array:
    """The matrices of all requests as one stack of columns on the device, in the type of the computation."""
    dtype = np.dtype(compute_dtype(spec_of(matrices[0]), params))
    if params.get("triangle") == "lower":
        return unpacked(upload(matrices, 1).astype(dtype, copy=False)).transpose(0, 2, 1)
    stack = upload(matrices, 2).astype(dtype, copy=False)
    return cupy_module().ascontiguousarray(stack.transpose(0, 2, 1))


def lu_columns(columns: Array, params: Params, status: Array) -> Results:
    """LU, see `Compute`; the packed form lies in place of the columns."""
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


def cholesky_columns(columns: Array, params: Params, status: Array) -> Results:
    """Cholesky, see `Compute`; the factor lies in place of the columns."""
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


def mark_unsound(stack: Array, marks: Array, tolerance: Optional[float] = None) -> None:
    """Set the mark of each matrix of a C-ordered device stack that has a number other than finite.

    With a tolerance also of each that is not symmetric (Hermitian): see `dense.reject_asymmetric`.
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
    kernel = kernels(cuda_source.MATRICES, real).get_function(name)
    kernel((n_items, n_blocks), (cuda_source.MATRICES_THREADS,), (stack, *numbers, *arguments))


def unpacked(triangles: Array) -> Array:
    """Device stack ``(b, n (n + 1) / 2)`` of LAPACK's packed lower triangles as ``(b, n, n)``, zeros above.

    Rows come first; columns lie together in memory.
    """
    n = int((8 * triangles.shape[1] + 1) ** 0.5 - 1) // 2
    full = cupy_module().zeros((len(triangles), n, n), dtype=triangles.dtype)
    triangles = cupy_module().ascontiguousarray(triangles)
    blas, handle, letter = library("cublas", full)
    if _has_triangle_routine(full):
        lower = blas.CUBLAS_FILL_MODE_LOWER
        getattr(blas, letter + "tpttr")(handle, lower, n, triangles.data.ptr, full.data.ptr, n)
    else:
        _for_each("unpack_triangle", full, np.int32(n), triangles)
    return full.transpose(0, 2, 1)


def _packed(matrices: Array) -> Array:
    """LAPACK's packed lower triangles ``(b, n (n + 1) / 2)`` of a device stack whose columns lie together."""
    columns = cupy_module().ascontiguousarray(matrices.transpose(0, 2, 1))
    n_items, n, _ = columns.shape
    packed = cupy_module().empty((n_items, n * (n + 1) // 2), dtype=columns.dtype)
    blas, handle, letter = library("cublas", columns)
    if _has_triangle_routine(columns):
        lower = blas.CUBLAS_FILL_MODE_LOWER
        getattr(blas, letter + "trttp")(handle, lower, n, columns.data.ptr, n, packed.data.ptr)
    else:
        _for_each("pack_triangle", columns, np.int32(n), packed)
    return packed


def _has_triangle_routine(stack: Array) -> bool:
    """Whether cuBLAS's tpttr and trttp move its triangles: one of real numbers, for which CuPy binds them.

    Of a stack our own kernel moves all by one launch.
    """
    return len(stack) == 1 and bool(stack.dtype.kind == "f")


# ---- products


def gemm(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `linear.gemm`."""
    return only(gemm_batch([(arrays, params, place)]))


def gemm_batch(items: Sequence[Item]) -> List[Any]:
    """`gemm` of each; an `Outcome` or an `AccelError` for each."""
    return through_streams(items, _launch_products)


def multiplied(a: Array, b: Array) -> Array:
    """The products of two device stacks ``(b, m, k)`` and ``(b, k, n)``, C-ordered.

    A single pair of matrices goes to cuBLAS as it lies; CuPy copies whatever is not C-ordered in a stack.
    """
    cupy = cupy_module()
    if len(a) == 1:
        return cupy.ascontiguousarray(cupy.matmul(a[0], b[0]))[None]
    return cupy.matmul(a, b)


def _launch_products(items: List[Item]) -> Land:
    arrays, params, _ = items[0]
    plan = ProductPlan.of(arrays, params)
    a, b = (upload([item[0][i] for item in items], 2).astype(plan.dtype, copy=False) for i in (0, 1))
    a = a.swapaxes(-1, -2) if params.get("transpose_a", False) else a
    b = b.swapaxes(-1, -2) if params.get("transpose_b", False) else b
    if plan.order == "F":
        product = multiplied(b.swapaxes(-1, -2), a.swapaxes(-1, -2)).swapaxes(-1, -2)
    else:
        product = multiplied(a, b)

    def placed(place: Place) -> Outcome:
        return Outcome({"c": place("c", plan.shape, plan.reply, plan.order)}, dict(plan.info))

    def copied(targets: List[Optional[Array]]) -> None:
        hand_out = download_each(product, targets)
        if len(targets) > 1:
            cupy_module().cuda.get_current_stream().synchronize()
        hand_out()

    def land() -> List[Any]:
        outcomes = [attempt(partial(placed, place)) for _, _, place in items]
        targets = [one.arrays["c"] if type(one) is Outcome else None for one in outcomes]
        if all(target is None for target in targets):
            return outcomes
        failed = attempt(partial(copied, targets))
        return outcomes if failed is None else [failed if type(one) is Outcome else one for one in outcomes]

    return land


# ---- solutions


def solve(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `linear.solve`."""
    return only(solve_batch([(arrays, params, place)]))


def solve_batch(items: Sequence[Item]) -> List[Any]:
    """`solve` of each; an `Outcome` or an `AccelError` for each."""
    return through_streams(items, _launch_solutions)


class _SolutionBatch(NamedTuple):
    """A group of requests of one shape whose computation is under way; ``x`` ``(b, n_right, n)``."""

    items: List[Item]
    is_stack: bool
    x: Array
    unsound: Array
    has_good_pivots: List[bool]

    def land(self) -> List[Any]:
        """See `Land`."""
        n_each = len(self.x) // len(self.items)
        unsound = self.unsound.get().reshape(len(self.items), n_each).any(axis=1)
        sound = ~unsound & self.has_good_pivots
        return [
            attempt(
                partial(_solution_outcome, self, item, self.x[i * n_each : (i + 1) * n_each], bool(sound[i]))
            )
            for i, item in enumerate(self.items)
        ]


def _launch_solutions(items: List[Item]) -> Land:
    cupy = cupy_module()
    arrays, params, _ = items[0]
    names = solve_inputs(params)
    dtype = compute_dtype(spec_of(arrays[-1]), params)
    is_packed_triangle = names[0] == "l" and factor_form("cholesky", params) == "packed"
    is_stack = arrays[0].ndim == (2 if is_packed_triangle else 3)
    b = upload_right([item[0][-1] for item in items], arrays[-1].ndim - int(is_stack), dtype)
    factors: Dict[str, Array] = {}
    has_good_pivots = [True] * len(items)
    for i, name in enumerate(names[:-1]):
        hosts = [item[0][i] for item in items]
        if name == "piv":
            orders, has_good_pivots = _orders(hosts, b.shape[-1])
            factors[name] = cupy.asarray(orders)
        else:
            is_matrix = name != "tau" and not is_packed_triangle
            factors[name] = upload(hosts, 1 + int(is_matrix)).astype(dtype, copy=False)
    if is_packed_triangle:
        factors["l"] = unpacked(factors["l"])
    x = solved(factors, b)
    unsound = cupy.zeros(len(x), dtype=np.int32)
    mark_unsound(cupy.ascontiguousarray(x), unsound)
    return _SolutionBatch(items, is_stack, x, unsound, has_good_pivots).land


def upload_right(hosts: List[Array], n_axes: int, dtype: str) -> Array:
    """Right-hand sides of ``n_axes`` axes, or stacks of such, as one device stack ``(b, n_right, m)``."""
    cupy = cupy_module()
    b = upload(hosts, n_axes).astype(dtype, copy=False)
    return cupy.ascontiguousarray(b[:, None] if n_axes == 1 else b.transpose(0, 2, 1))


def _solution_outcome(flight: _SolutionBatch, item: Item, x: Array, is_sound: bool) -> Outcome:
    arrays, params, place = item
    if not is_sound:
        return linear.solve(arrays, params, place)
    b = arrays[-1]
    first = int(flight.is_stack)
    n = x.shape[-1]
    shape = (*b.shape[:first], n, *b.shape[first + 1 :])
    target = place("x", shape, reply_dtype(spec_of(b), params), "C" if flight.is_stack else "F")
    download(x.transpose(0, 2, 1), target)
    return Outcome({"x": target}, linear.sizes_info(n, b.shape[first], x.shape[1]))


def _orders(pivots: List[Array], n_rows: int) -> Tuple[Array, List[bool]]:
    """For each item the order of rows that its swaps lead to, and for each request whether it has one."""
    orders: List[Array] = []
    is_good: List[bool] = []
    for one in pivots:
        # A copy: what is checked must be what is used, and the sender may still write to the input's memory.
        swaps = np.array(one, dtype=np.int64).reshape(-1, one.shape[-1])
        try:
            orders += [row_order(each, n_rows) for each in swaps]
            is_good.append(True)
        except RejectedError:
            orders += [np.arange(n_rows)] * len(swaps)
            is_good.append(False)
    return np.stack(orders), is_good


def solved(factors: Dict[str, Array], b: Array) -> Array:
    """The solutions from factors by name: x ``(b, n_right, n)``; b may be overwritten."""
    cupy = cupy_module()
    if "piv" in factors:
        b = cupy.ascontiguousarray(cupy.take_along_axis(b, factors["piv"][:, None], axis=2))
        _triangular(factors["l"] if "l" in factors else factors["lu"], b, is_lower=True, is_unit=True)
        return _triangular(factors["u"] if "u" in factors else factors["lu"], b)
    if "l" in factors:
        _triangular(factors["l"], b, is_lower=True)
        return _triangular(factors["l"], b, is_lower=True, is_transposed=True)
    if "q" in factors:
        return _triangular(factors["r"], multiplied(b, factors["q"].conj()))
    _apply_reflectors(factors["qr"], factors["tau"], b)
    return _triangular(factors["qr"], b)


def _triangular(
    factors: Array, b: Array, is_lower: bool = False, is_unit: bool = False, is_transposed: bool = False
) -> Array:
    """The first rows of b replaced by the solutions with the triangles in the first rows of ``factors``.

    Rows or columns of ``factors`` lie together in memory, as `upload` has them. Transposed means conjugated
    too where numbers are complex.
    """
    n = factors.shape[-1]
    triangles = factors[:, :n]
    if len(b) > 1 and n <= SMALL_ORDER:
        _triangular_together(triangles, b, is_lower, is_unit, is_transposed)
        return b[:, :, :n]
    blas, handle, letter = library("cublas", b)
    item_bytes = triangles.dtype.itemsize
    if is_transposed and b.dtype.kind == "c":
        # cuBLAS conjugates only what it transposes, so these have to be columns.
        triangles = cupy_module().ascontiguousarray(triangles.transpose(0, 2, 1)).transpose(0, 2, 1)
    is_columns = triangles.strides[-2] == item_bytes
    step = max(n, triangles.strides[-1 if is_columns else -2] // item_bytes)
    # Rows of a lower triangle are columns of an upper one.
    lower, transposed = is_lower == is_columns, is_transposed == is_columns
    flags = (
        blas.CUBLAS_SIDE_LEFT,
        blas.CUBLAS_FILL_MODE_LOWER if lower else blas.CUBLAS_FILL_MODE_UPPER,
        _turn(blas, b, is_transposed) if transposed else blas.CUBLAS_OP_N,
        blas.CUBLAS_DIAG_UNIT if is_unit else blas.CUBLAS_DIAG_NON_UNIT,
    )
    one = np.ones(1, dtype=b.dtype)
    trsm = getattr(blas, letter + "trsm")
    for i in range(len(b)):
        places = triangles[i].data.ptr, step, b[i].data.ptr, b.shape[-1]
        trsm(handle, *flags, n, b.shape[1], one.ctypes.data, *places)
    return b[:, :, :n]


def _triangular_together(
    triangles: Array, b: Array, is_lower: bool, is_unit: bool, is_transposed: bool
) -> None:
    """All items by one call."""
    cupy = cupy_module()
    n = triangles.shape[-1]
    columns = cupy.ascontiguousarray(triangles.transpose(0, 2, 1))
    blas, handle, letter = library("cublas", b)
    one = np.ones(1, dtype=b.dtype)
    factors, right = addresses(columns), addresses(b)
    getattr(blas, letter + "trsmBatched")(
        handle,
        blas.CUBLAS_SIDE_LEFT,
        blas.CUBLAS_FILL_MODE_LOWER if is_lower else blas.CUBLAS_FILL_MODE_UPPER,
        _turn(blas, b, True) if is_transposed else blas.CUBLAS_OP_N,
        blas.CUBLAS_DIAG_UNIT if is_unit else blas.CUBLAS_DIAG_NON_UNIT,
        n,
        b.shape[1],
        one.ctypes.data,
        factors.data.ptr,
        n,
        right.data.ptr,
        b.shape[-1],
        len(b),
    )


def _turn(blas: Any, b: Array, is_conjugated: bool) -> Any:
    """Transposed; conjugated too if it must be, and if that makes a difference."""
    return blas.CUBLAS_OP_C if is_conjugated and b.dtype.kind == "c" else blas.CUBLAS_OP_T


def _apply_reflectors(packed: Array, scalars: Array, b: Array) -> None:
    """Q'b in place of b, one item after the other."""
    cupy = cupy_module()
    solver, handle, letter = library("cusolver", b)
    blas, _, _ = library("cublas", b)
    columns = cupy.ascontiguousarray(packed.transpose(0, 2, 1))
    scalars = cupy.ascontiguousarray(scalars)
    _, n, m = columns.shape
    numbers = blas.CUBLAS_SIDE_LEFT, _turn(blas, b, True), m, b.shape[1], n
    status = cupy.empty(1, dtype=np.int32)
    routine = letter + (UNITARY["ormqr"] if letter in "cz" else "ormqr")
    n_work = getattr(solver, routine + "_bufferSize")(
        handle, *numbers, columns.data.ptr, m, scalars.data.ptr, b.data.ptr, m
    )
    work = cupy.empty(n_work, dtype=b.dtype)
    for i in range(len(b)):
        places = columns[i].data.ptr, m, scalars[i].data.ptr, b[i].data.ptr, m
        getattr(solver, routine)(handle, *numbers, *places, work.data.ptr, n_work, status.data.ptr)
