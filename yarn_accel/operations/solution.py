"""Solutions of linear systems from factors that `factorization` gave, in any of its forms.

Every form comes down to row swaps or a product with Q', and triangular solves. Factors are read where they
lie whatever their order: rows of a lower triangle are columns of an upper one. The solution takes the place
of the right-hand side where its order allows.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import layout
from yarn_accel.operations.factorization import lapack_routine, spec_of
from yarn_accel.operations.matrices import compute_dtype, factor_form, reply_dtype
from yarn_accel.operations.operation import Outcome, Params, Place, allocate
from yarn_accel.operations.soundness import AtItem, reject_not_finite

Array = Any
Solver = Callable[[List[Array], Array], Array]
"""``solver(factors, b)`` overwrites b ``(m, n_right)`` in Fortran order; x begins the result."""


def solve(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """x of Ax = b for b ``(m,)`` or ``(m, n_right)``, the least-squares x for qr with m > n.

    Returns:
        ``x`` (n,) or (n, n_right); for stacks with a first axis b.

    Raises:
        RejectedError: ``not-finite`` with input and index, ``singular`` with the place on the diagonal, or
            ``bad-pivot``.
    """
    factors = params.get("factors", "lu")
    solver = _SOLVERS[factors, factor_form(factors, params)]
    *matrices, b = arrays
    reject_not_finite(b, "input {}".format(len(matrices)))
    spec = spec_of(b)
    dtype, reply = compute_dtype(spec, params), reply_dtype(spec, params)
    is_stack = matrices[0].ndim == (2 if solver is _packed_cholesky else 3)
    n = b.shape[int(is_stack)] if factors == "cholesky" else matrices[0].shape[-1]
    if is_stack:
        x = _solve_stack(solver, arrays, n, place, (dtype, reply))
    else:
        x = _solve_one(solver, matrices, b, n, place, (dtype, reply))
    if not np.isfinite(x).all():
        # Overflow is the caller's; a bad factor is named.
        for i, matrix in enumerate(matrices):
            if matrix.dtype.kind in "fc":
                reject_not_finite(matrix, "input {}".format(i))
    is_vector = x.ndim == 1 + int(is_stack)
    return Outcome({"x": x}, sizes_info(n, b.shape[int(is_stack)], 1 if is_vector else x.shape[-1]))


def sizes_info(n: int, n_rows: int, n_right: int) -> Dict[str, Any]:
    """The sizes of a system, as ``info`` names them."""
    return {"n": int(n), "m": int(n_rows), "n_right": int(n_right)}


def _solve_one(
    solver: Solver, factors: List[Array], b: Array, n: int, place: Place, dtypes: Tuple[str, str]
) -> Array:
    dtype, reply = dtypes
    is_ours = layout.is_ours(b, dtype, "F")
    work = b if is_ours else np.array(b, dtype=dtype, order="F")
    columns = work.reshape(len(work), -1, order="F")
    x = solver([_readable(factor, dtype) for factor in factors], columns)[:n]
    if b.ndim == 1:
        x = x[:, 0]
    if is_ours and dtype == reply and x.flags.f_contiguous and np.shares_memory(x, b):
        return x
    final = place("x", x.shape, reply, "F")
    np.copyto(final, x, casting="same_kind")
    return final


def _solve_stack(solver: Solver, arrays: List[Array], n: int, place: Place, dtypes: Tuple[str, str]) -> Array:
    dtype, reply = dtypes
    *factors, b = arrays
    x = b
    if b.shape[1] != n or not layout.is_ours(b, reply, "C"):
        x = place("x", (len(b), n, *b.shape[2:]), reply, "C")
    work = np.empty(b.shape[1:], dtype=dtype, order="F")
    columns = work.reshape(len(work), -1, order="F")
    for i in range(len(b)):
        np.copyto(work, b[i])
        with AtItem(i):
            solved = solver([_readable(factor[i], dtype) for factor in factors], columns)[:n]
        np.copyto(x[i], solved.reshape(x[i].shape, order="F"), casting="same_kind")
    return x


def _readable(factor: Array, dtype: str) -> Array:
    """A contiguous array of that element type; pivots are whole numbers and stay so."""
    if factor.dtype.kind not in "fc":
        return factor
    if factor.flags.f_contiguous or factor.flags.c_contiguous:
        return factor.astype(dtype, copy=False)
    return np.array(factor, dtype=dtype, order="F")


def _packed_lu(factors: List[Array], b: Array) -> Array:
    factor, pivots = factors
    return _lower_upper([factor, factor, pivots], b)


def _lower_upper(factors: List[Array], b: Array) -> Array:
    lower, upper, pivots = factors
    _swap_rows(b, pivots)
    _triangular(lower, b, is_lower=True, is_unit=True)
    return _triangular(upper, b)


def _cholesky(factors: List[Array], b: Array) -> Array:
    _triangular(factors[0], b, is_lower=True)
    return _triangular(factors[0], b, is_lower=True, is_transposed=True)


def _packed_cholesky(factors: List[Array], b: Array) -> Array:
    full = lapack_routine("tpttr", b.dtype)(len(b), factors[0], uplo="L")[0]
    return _cholesky([full], b)


def _orthogonal(factors: List[Array], b: Array) -> Array:
    q, r = factors
    return _triangular(r, np.asfortranarray((b.T @ q.conj()).T))


def _packed_orthogonal(factors: List[Array], b: Array) -> Array:
    reflectors, scalars = np.asfortranarray(factors[0]), factors[1]
    ormqr = lapack_routine("ormqr", b.dtype)
    turned = "C" if b.dtype.kind == "c" else "T"
    n_work = int(ormqr("L", turned, reflectors, scalars, b, lwork=-1, overwrite_c=1)[1][0].real)
    ormqr("L", turned, reflectors, scalars, b, lwork=n_work, overwrite_c=1)
    return _triangular(reflectors, b)


_SOLVERS: Dict[Any, Solver] = {
    ("lu", "packed"): _packed_lu,
    ("lu", "separate"): _lower_upper,
    ("qr", "packed"): _packed_orthogonal,
    ("qr", "separate"): _orthogonal,
    ("cholesky", "packed"): _packed_cholesky,
    ("cholesky", "separate"): _cholesky,
}


def _triangular(
    factor: Array, b: Array, is_lower: bool = False, is_unit: bool = False, is_transposed: bool = False
) -> Array:
    """The first rows of b replaced by the solution with the triangle in the first rows of ``factor``.

    Transposed means conjugated too where numbers are complex.
    """
    n = factor.shape[1]
    is_conjugated = is_transposed and b.dtype.kind == "c"
    if is_conjugated:
        factor = np.asfortranarray(factor)
    if not factor.flags.f_contiguous:
        factor, is_lower, is_transposed = factor.T[:, :n], not is_lower, not is_transposed
    trtrs = lapack_routine("trtrs", b.dtype)
    trans = 2 if is_conjugated else int(is_transposed)
    x, status = trtrs(factor, b, lower=int(is_lower), trans=trans, unitdiag=int(is_unit), overwrite_b=1)
    if status > 0:
        raise RejectedError("singular", "the triangular factor is 0 at [{0}, {0}]".format(status - 1))
    return x


def _swap_rows(b: Array, pivots: Array) -> None:
    # A copy: what is checked must be what is used, and the input may be memory its sender still writes to.
    pivots = np.array(pivots, dtype=np.int64)
    outside = np.flatnonzero((pivots < 0) | (pivots >= len(b)))
    if outside.size:
        i = int(outside[0])
        raise RejectedError("bad-pivot", "piv[{}] is {}, b has {} rows".format(i, pivots[i], len(b)))
    # LAPACK's wrapper counts from 1 in the array it is given, so it gets one of its own.
    lapack_routine("laswp", b.dtype)(b, pivots.astype(np.int32), overwrite_a=1)
