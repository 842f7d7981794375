"""Solutions of linear systems on a GPU through CuPy: cuBLAS's triangular solves, cuSOLVER's ormqr.

Same arguments and answers as on the CPU. See `cuda_streams` for how requests get to the GPU and back. Factors
are read where they lie, whatever their order. What comes out other than finite (a zero on the diagonal, NaN
in an input, overflow), or has a pivot outside the matrix, is computed again by `solution.solve` from the
host's inputs, which are whole until then: so its reason is the CPU's, word for word.

On the device right-hand sides are ``(b, n_right, m)``, C-ordered: columns.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import solution
from yarn_accel.operations.cuda_linalg import mark_unsound, unpacked
from yarn_accel.operations.cuda_products import multiplied
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
    upload,
)
from yarn_accel.operations.factorization import UNITARY, spec_of
from yarn_accel.operations.matrices import compute_dtype, factor_form, reply_dtype, solve_inputs
from yarn_accel.operations.operation import Outcome, Params, Place, allocate
from yarn_accel.operations.residual import row_order

Array = Any


def solve(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `solution.solve`."""
    return only(solve_batch([(arrays, params, place)]))


def solve_batch(items: Sequence[Item]) -> List[Any]:
    """`solve` of each; an `Outcome` or an `AccelError` for each."""
    return through_streams(items, _launch)


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
            attempt(partial(_finish, self, item, self.x[i * n_each : (i + 1) * n_each], bool(sound[i])))
            for i, item in enumerate(self.items)
        ]


def _launch(items: List[Item]) -> Land:
    cupy = cupy_module()
    arrays, params, _ = items[0]
    names = solve_inputs(params)
    dtype = compute_dtype(spec_of(arrays[-1]), params)
    is_packed_triangle = names[0] == "l" and factor_form("cholesky", params) == "packed"
    is_stack = arrays[0].ndim == (2 if is_packed_triangle else 3)
    n_axes = arrays[-1].ndim - int(is_stack)
    b = upload([item[0][-1] for item in items], n_axes).astype(dtype, copy=False)
    b = cupy.ascontiguousarray(b[:, None] if n_axes == 1 else b.transpose(0, 2, 1))
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
    x = _solved(factors, b)
    unsound = cupy.zeros(len(x), dtype=np.int32)
    mark_unsound(cupy.ascontiguousarray(x), unsound)
    return _SolutionBatch(items, is_stack, x, unsound, has_good_pivots).land


def _finish(flight: _SolutionBatch, item: Item, x: Array, is_sound: bool) -> Outcome:
    arrays, params, place = item
    if not is_sound:
        return solution.solve(arrays, params, place)
    b = arrays[-1]
    first = int(flight.is_stack)
    n = x.shape[-1]
    shape = (*b.shape[:first], n, *b.shape[first + 1 :])
    target = place("x", shape, reply_dtype(spec_of(b), params), "C" if flight.is_stack else "F")
    download(x.transpose(0, 2, 1), target)
    return Outcome({"x": target}, solution.sizes_info(n, b.shape[first], x.shape[1]))


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


def _solved(factors: Dict[str, Array], b: Array) -> Array:
    """x ``(b, n_right, n)``; b may be overwritten."""
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
    """All items by one call: getrsBatched with the other of the two factors of LU the identity.

    CuPy has no binding of trsmBatched.
    """
    cupy = cupy_module()
    n = triangles.shape[-1]
    if is_unit:
        packed = cupy.tril(triangles, -1) + cupy.eye(n, dtype=b.dtype)
    else:
        packed = cupy.triu(triangles.transpose(0, 2, 1).conj() if is_lower else triangles)
        is_transposed ^= is_lower
    columns = cupy.ascontiguousarray(packed.transpose(0, 2, 1))
    blas, handle, letter = library("cublas", b)
    operation = _turn(blas, b, True) if is_transposed else blas.CUBLAS_OP_N
    status = np.zeros(1, dtype=np.int32)
    no_pivots = 0
    factors, right = addresses(columns), addresses(b)
    getattr(blas, letter + "getrsBatched")(
        handle,
        operation,
        n,
        b.shape[1],
        factors.data.ptr,
        n,
        no_pivots,
        right.data.ptr,
        b.shape[-1],
        status.ctypes.data,
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
