"""Linear algebra besides factorizations: products, solutions of systems, and how exact factors are.

Matrix products go through BLAS. NaN and infinity are numbers like others there, as in BLAS itself.

Solutions of linear systems are computed from factors that `factorization` gave, in any of its forms. Every
form comes down to row swaps or a product with Q', and triangular solves. Factors are read where they lie
whatever their order: rows of a lower triangle are columns of an upper one. The solution takes the place of
the right-hand side where its order allows.

A factorization is judged by the ratios of LAPACK's own test programs. Each ratio is an error
divided by the error that rounding alone may cause, ``norm(A) * n * eps`` in the 1-norm, with eps the relative
machine precision of the input's dtype (half the distance from 1 to the next number). LAPACK's tests accept
ratios below 30; a correct factorization usually stays below 1. Everything is computed in float64.

=========  ==================================  ==========================================
lu         ``factor``                          norm(PA - LU) / (n norm(A) eps)
qr         ``factor``, ``orthogonality``       norm(A - QR) / (m norm(A) eps), norm(I - Q'Q) / (m eps)
cholesky   ``factor``                          norm(A - LL') / (n norm(A) eps)
svd        ``factor``, ``orthogonality``       norm(A - USV') / (max(m, n) norm(A) eps), the worse of U and V
eigh       ``factor``, ``orthogonality``       norm(A - VWV') / (n norm(A) eps), norm(I - V'V) / (n eps)
=========  ==================================  ==========================================
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import dense
from yarn_accel.operations.dense import AtItem, lapack_routine, reject_not_finite, spec_of
from yarn_accel.operations.matrices import compute_dtype, factor_form, product_sizes, reply_dtype
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

Array = Any


RESIDUAL_LIMIT = 30.0
"""LAPACK's own threshold: a ratio below it is a pass."""


class ProductPlan(NamedTuple):
    """One request: the element types of computation and reply, and the shape and order of the product."""

    dtype: str
    reply: str
    shape: Tuple[int, ...]
    order: str
    info: Dict[str, Any]

    @classmethod
    def of(cls, arrays: List[Array], params: Params) -> ProductPlan:
        """The plan for the inputs a and b."""
        specs = [spec_of(array) for array in arrays]
        rows, inner, _, columns = product_sizes(specs, params)
        # BLAS takes any mixture of orders; the product gets that of its factors when they agree on columns.
        is_columns = arrays[0].ndim == 2 and all(array.flags.f_contiguous for array in arrays)
        return cls(
            compute_dtype(specs[0], params),
            reply_dtype(specs[0], params),
            (*specs[0].shape[:-2], rows, columns),
            "F" if is_columns else "C",
            {"m": rows, "n": columns, "k": inner},
        )


def gemm(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """C = AB of ``(m, k)`` and ``(k, n)``, each read transposed when ``transpose_a`` or ``transpose_b``.

    Args:
        arrays: a, b.
        params: ``transpose_a``, ``transpose_b``, ``compute``, ``reply``.
        place: see `Operation`.

    Returns:
        ``c`` (m, n), or (b, m, n) for stacks of b matrices each.
    """
    plan = ProductPlan.of(arrays, params)
    a, b = (_factor_of_product(array, plan.dtype) for array in arrays)
    final = place("c", plan.shape, plan.reply, plan.order)
    product = final if plan.dtype == plan.reply else allocate("c", plan.shape, plan.dtype, plan.order)
    np.matmul(
        a.swapaxes(-1, -2) if params.get("transpose_a", False) else a,
        b.swapaxes(-1, -2) if params.get("transpose_b", False) else b,
        out=product,
    )
    if product is not final:
        np.copyto(final, product, casting="same_kind")
    return Outcome({"c": final}, plan.info)


def _factor_of_product(array: Array, dtype: str) -> Array:
    """An array of that element type whose matrices BLAS can read where they lie."""
    if array.ndim == 3 and not array.flags.c_contiguous:
        return np.array(array, dtype=dtype, order="C")
    return array.astype(dtype, copy=False)


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
    is_ours = dense.is_ours(b, dtype, "F")
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
    if b.shape[1] != n or not dense.is_ours(b, reply, "C"):
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


def residual(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """The ratios for a matrix and its factors (in the order and form the factorization returns them).

    Returns:
        no arrays; ``info`` has ``residual`` (the largest ratio), ``residuals`` by name, ``limit``,
        ``passed`` and ``operation``. Factors with NaN or infinity have the ratio 1/eps, as in LAPACK's tests.

    Raises:
        RejectedError: ``bad-pivot``: a row number in ``piv`` that the matrix has not, with its index.
    """
    operation = params["operation"]
    eps = float(np.finfo(arrays[0].dtype).eps) / 2
    matrix = _doubled(arrays[0])
    with np.errstate(all="ignore"):
        ratios: Dict[str, float] = _RATIOS[operation](matrix, arrays[1:], eps)
    worst = max(ratios.values())
    return Outcome(
        {},
        {
            "operation": operation,
            "residual": worst,
            "residuals": ratios,
            "limit": RESIDUAL_LIMIT,
            "passed": worst < RESIDUAL_LIMIT,
        },
    )


def _lu_ratios(matrix: Array, factors: List[Array], eps: float) -> Dict[str, float]:
    packed = _doubled(factors[0])
    least = min(packed.shape)
    lower = np.tril(packed[:, :least], -1)
    np.fill_diagonal(lower, 1.0)
    norm = _norm(matrix)
    difference = matrix[row_order(factors[1], matrix.shape[0])] - lower @ np.triu(packed[:least])
    return {"factor": _ratio(_norm(difference), norm, matrix.shape[1], eps)}


def _qr_ratios(matrix: Array, factors: List[Array], eps: float) -> Dict[str, float]:
    q, r = (_doubled(factor) for factor in factors)
    norm, n_rows = _norm(matrix), matrix.shape[0]
    matrix = matrix - q @ np.triu(r)
    return {"factor": _ratio(_norm(matrix), norm, n_rows, eps), "orthogonality": _gram_ratio(q, eps)}


def _svd_ratios(matrix: Array, factors: List[Array], eps: float) -> Dict[str, float]:
    u, values, vh = (_doubled(factor) for factor in factors)
    difference = matrix - (u * values) @ vh
    orthogonality = max(_gram_ratio(u, eps), _gram_ratio(vh.conj().T, eps))
    ratio = _ratio(_norm(difference), _norm(matrix), max(matrix.shape), eps)
    return {"factor": ratio, "orthogonality": orthogonality}


def _eigh_ratios(matrix: Array, factors: List[Array], eps: float) -> Dict[str, float]:
    values, vectors = (_doubled(factor) for factor in factors)
    difference = matrix - (vectors * values) @ vectors.conj().T
    ratio = _ratio(_norm(difference), _norm(matrix), matrix.shape[0], eps)
    return {"factor": ratio, "orthogonality": _gram_ratio(vectors, eps)}


def _cholesky_ratios(matrix: Array, factors: List[Array], eps: float) -> Dict[str, float]:
    lower = np.tril(_doubled(factors[0]))
    norm = _norm(matrix)
    matrix = matrix - lower @ lower.conj().T
    return {"factor": _ratio(_norm(matrix), norm, matrix.shape[0], eps)}


_RATIOS = {
    "lu": _lu_ratios,
    "qr": _qr_ratios,
    "cholesky": _cholesky_ratios,
    "svd": _svd_ratios,
    "eigh": _eigh_ratios,
}


def row_order(pivots: Array, n_rows: int) -> Array:
    """The order of rows that the swaps ``i <-> pivots[i]`` lead to.

    Raises:
        RejectedError: ``bad-pivot``, with the index.
    """
    outside = np.flatnonzero((pivots < 0) | (pivots >= n_rows))
    if outside.size:
        i = int(outside[0])
        raise RejectedError("bad-pivot", "piv[{}] is {}, the matrix has {} rows".format(i, pivots[i], n_rows))
    order = np.arange(n_rows)
    for i, j in enumerate(pivots.tolist()):
        order[i], order[j] = order[j], order[i]
    return order


def _doubled(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _gram_ratio(columns: Array, eps: float) -> float:
    gram = columns.conj().T @ columns
    gram[np.diag_indices_from(gram)] -= 1.0
    return _ratio(_norm(gram), 1.0, columns.shape[0], eps)


def _norm(matrix: Array) -> float:
    """The 1-norm: the largest sum of absolute values of a column."""
    return float(np.abs(matrix).sum(axis=0).max())


def _ratio(error: float, norm: float, n: int, eps: float) -> float:
    """LAPACK's ratio; 1/eps where it has no meaning, and for an error against a matrix of zeros."""
    if error == 0.0:
        return 0.0
    ratio = error / norm / (n * eps) if norm > 0.0 else float("inf")
    return min(ratio, 1.0 / eps) if ratio == ratio else 1.0 / eps
