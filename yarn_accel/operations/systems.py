"""Whole problems in one request, from the matrix itself: systems, least squares, inverses, determinants.

A problem is a factorization by `factorization` and a solution by `linear`, one behind the other; the factors
stay here. Solutions come with ``info["residual"]``, the backward error in LAPACK's manner: a ratio that
rounding alone explains up to about 30, whatever the condition of the matrix.

==========  ===================================================================
linsolve    norm(b - Ax) / (n norm(A) norm(x) eps)
inv         the same for a right-hand side of ones and the inverse's own x
lstsq       norm(A'(b - Ax)) / (m norm(A') norm(b) eps); for a square A as linsolve
==========  ===================================================================

Norms are 1-norms, eps is half the distance from 1 to the next number, and the worst right-hand side counts.

A general float64 or complex128 system from order `REFINED_ORDER` on is factored in single precision and
refined in double, as LAPACK's dsgesv does (Langou et al., 2006), until its residual is that of a double
factorization; where that does not come about it is factored in double. ``info["precision"]`` says which:
"f32 refined", or the element type.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import factorization, linear
from yarn_accel.operations.dense import AtItem, lapack_routine, reject_not_finite, spec_of
from yarn_accel.operations.matrices import compute_dtype, real_dtype, reply_dtype
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

Array = Any
REFINED = "f32 refined"
REFINED_ORDER = 10_000
"""Below it refinement gains next to nothing (6 % at order 1000 on an H200)."""
_MOST_REFINEMENTS = 30
_LOWER = {"<f8": "<f4", "<c16": "<c8"}
_PACKED = {"form": "packed"}


def linsolve(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """x of Ax = b for a square A ``(n, n)`` and b ``(n,)`` or ``(n, n_right)``.

    Args:
        arrays: a, b.
        params: ``positive_definite`` (false): A is symmetric (Hermitian) and positive definite; ``compute``
            ("f64" also keeps the factorization in double precision), ``reply``.
        place: see `Operation`.

    Returns:
        ``x`` as b; ``info`` has ``residual`` and ``precision``, of a stack ``residual`` of each.

    Raises:
        RejectedError: ``not-finite`` or ``not-symmetric`` with the index, ``singular`` with the place on the
            diagonal, ``not-positive-definite`` with the order of the leading minor.
    """
    a, b = _computed(arrays, params)
    reject_not_finite(b, "input 1")
    x, precision = None, precision_name(a)
    if is_refined(a, params):
        reject_not_finite(a, "input 0")
        x = _refined(a, b)
        precision = precision if x is None else REFINED
    if x is None:
        x = _solution(a, b, params)
    info = {**system_info(a, b), "precision": precision, "residual": residuals(a, x, b)}
    return Outcome({"x": _placed("x", x, b, params, place)}, info)


def inv(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """The inverse of A ``(n, n)``: ``inv``. Parameters, facts and errors as for `linsolve`."""
    (a,) = _computed(arrays, params)
    n = a.shape[-1]
    x = _solution(a, np.broadcast_to(np.eye(n, dtype=a.dtype), a.shape).copy(order="K"), params)
    ones = np.ones((*a.shape[:-1], 1), dtype=a.dtype)
    info = {"n": n, "m": n, "precision": precision_name(a), "residual": residuals(a, x @ ones, ones)}
    return Outcome({"inv": _placed("inv", x, a, params, place)}, info)


def lstsq(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """The x that makes norm(b - Ax) least, for A ``(m, n)`` of rank n <= m, b ``(m,)`` or ``(m, n_right)``.

    Args:
        arrays: a, b.
        params: ``compute``, ``reply``.
        place: see `Operation`.

    Returns:
        ``x`` (n,) or (n, n_right); ``info`` has ``residual``.

    Raises:
        RejectedError: ``not-finite`` with the index; ``rank-deficient``: within rounding, columns of A are
            combinations of those before them.
    """
    a, b = _computed(arrays, params)
    reject_not_finite(b, "input 1")
    factors = list(factorization.qr([_private(a)], _PACKED).arrays.values())
    for i, diagonal in enumerate(np.abs(factors[0].diagonal(axis1=-2, axis2=-1)).reshape(-1, a.shape[-1])):
        if a.ndim == 3:
            with AtItem(i):
                _reject_rank(diagonal, a)
        else:
            _reject_rank(diagonal, a)
    x = linear.solve([*factors, _private(b)], {"factors": "qr", **_PACKED}).arrays["x"]
    info = {**system_info(a, b), "precision": precision_name(a), "residual": residuals(a, x, b)}
    return Outcome({"x": _placed("x", x, b, params, place)}, info)


def slogdet(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """The determinant of A ``(n, n)`` as its sign and the logarithm of its modulus.

    Args:
        arrays: a.
        params: ``positive_definite``, ``compute``, ``reply``.
        place: see `Operation`.

    Returns:
        ``sign`` (1,): 1 or -1, a complex number of modulus 1, or 0 where A is singular; ``logdet`` (1,),
        real, then minus infinity. Of a stack of b matrices (b, 1) each.

    Raises:
        RejectedError: as for `linsolve`, but for ``singular``.
    """
    (a,) = _computed(arrays, params)
    if params.get("positive_definite", False):
        factor = factorization.cholesky([_private(a)], {}).arrays["l"]
        diagonal, n_swaps = factor.diagonal(axis1=-2, axis2=-1) ** 2, np.zeros(a.shape[:-2])
    else:
        factor, pivots = factorization.lu([_private(a)], _PACKED).arrays.values()
        diagonal = factor.diagonal(axis1=-2, axis2=-1)
        n_swaps = (pivots != np.arange(pivots.shape[-1])).sum(axis=-1)
    return determinant(diagonal, n_swaps, a, params, place)


def determinant(diagonal: Array, n_swaps: Array, a: Array, params: Params, place: Place) -> Outcome:
    """The results of `slogdet` from the diagonals of triangular factors and the numbers of swapped rows."""
    dtype = reply_dtype(spec_of(a), params)
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.abs(diagonal)
        signs = np.where(sizes > 0, diagonal / sizes, 0).prod(axis=-1) * (1 - 2 * (n_swaps % 2))
        logarithms = np.log(sizes).sum(axis=-1)
    shape = (*a.shape[:-2], 1)
    found = {
        "sign": place("sign", shape, dtype, "C"),
        "logdet": place("logdet", shape, real_dtype(dtype), "C"),
    }
    np.copyto(found["sign"], signs[..., None], casting="same_kind")
    np.copyto(found["logdet"], logarithms[..., None], casting="same_kind")
    return Outcome(found, {"n": a.shape[-1], "m": a.shape[-1]})


def system_info(a: Array, b: Array) -> Dict[str, Any]:
    """The sizes of a system, as ``info`` names them."""
    n_right = b.shape[-1] if b.ndim == a.ndim else 1
    return linear.sizes_info(a.shape[-1], a.shape[-2], n_right)


def precision_name(a: Array) -> str:
    """The precision of a factorization in the type of that matrix: "f64" or "f32"."""
    return "f{}".format(8 * np.dtype(real_dtype(a.dtype.str)).itemsize)


def is_refined(a: Array, params: Params) -> bool:
    """Whether a system with that matrix, in the type of the computation, is tried in single precision."""
    is_asked_for = params.get("compute") != "f64" and not params.get("positive_definite", False)
    return is_asked_for and a.ndim == 2 and len(a) >= REFINED_ORDER and a.dtype.str in _LOWER


def error_ratios(a: Array, x: Array, b: Array) -> Array:
    """The residual of each system of stacks ``(k, m, n)``, ``(k, n, r)``, ``(k, m, r)``: ``(k,)``.

    Arrays are numpy's or CuPy's. What is 0 of 0 is 0; overflow gives NaN or infinity.
    """
    n_rows, n = a.shape[-2:]
    error = b - a @ x
    size, other = a, x
    if n_rows != n:
        size = a.conj().swapaxes(-1, -2)
        error, other = size @ error, b
    norms = abs(size).sum(axis=-2).max(axis=-1)[..., None] * abs(other).sum(axis=-2)
    info = np.finfo(a.dtype.str)
    return (abs(error).sum(axis=-2) / (norms * (n_rows * float(info.eps) / 2) + info.tiny)).max(axis=-1)


def residual_facts(ratios: Array, a: Array) -> Any:
    """Ratios for ``info``: a number, or a list for a stack; 1/eps stands for what is not finite or larger."""
    most = 2 / float(np.finfo(a.dtype).eps)
    facts = [float(ratio) if ratio <= most else most for ratio in ratios]
    return facts if a.ndim == 3 else facts[0]


def residuals(a: Array, x: Array, b: Array) -> Any:
    """The residual of one system, or a list for a stack."""
    stack = a.reshape(-1, *a.shape[-2:])
    with np.errstate(all="ignore"):
        ratios = error_ratios(
            stack, x.reshape(len(stack), a.shape[-1], -1), b.reshape(len(stack), a.shape[-2], -1)
        )
    return residual_facts(ratios, a)


def _computed(arrays: List[Array], params: Params) -> List[Array]:
    """The inputs in the element type of the computation; never written to."""
    dtype = compute_dtype(spec_of(arrays[0]), params)
    return [array.astype(dtype, copy=False) for array in arrays]


def _private(array: Array) -> Array:
    """A copy that may be overwritten, in the order in which it is worked on where it lies."""
    return np.array(array, order="F" if array.ndim < 3 else "C")


def _solution(a: Array, b: Array, params: Params) -> Array:
    if params.get("positive_definite", False):
        factors, kind = factorization.cholesky([_private(a)], {}), {"factors": "cholesky"}
    else:
        factors, kind = factorization.lu([_private(a)], _PACKED), {"factors": "lu", **_PACKED}
    return linear.solve([*factors.arrays.values(), _private(b)], kind).arrays["x"]


def _placed(name: str, x: Array, like: Array, params: Params, place: Place) -> Array:
    order = "F" if like.ndim < 3 and x.ndim < 3 else "C"
    final = place(name, x.shape, reply_dtype(spec_of(like), params), order)
    np.copyto(final, x, casting="same_kind")
    return final


def _reject_rank(diagonal: Array, a: Array) -> None:
    """By the diagonal of R, which has a number near 0 where a column brings nothing new."""
    least = float(diagonal.max()) * max(a.shape[-2:]) * float(np.finfo(a.dtype).eps)
    small = np.flatnonzero(diagonal <= least)
    if small.size:
        raise RejectedError(
            "rank-deficient",
            "input 0: within rounding, column {} is a combination of those before it".format(int(small[0])),
            cure="leave such columns out, or use svd",
        )


def _refined(a: Array, b: Array) -> Optional[Array]:
    """x by a factorization in single precision; None: its residual does not become that of a double one."""
    low, n = _LOWER[a.dtype.str], len(a)
    largest = float(np.abs(a).sum(axis=1).max())
    if not largest < float(np.finfo(low).max):
        return None
    factor, pivots, status = lapack_routine("getrf", low)(np.array(a, low, order="F"), overwrite_a=1)
    if status:
        return None

    def corrected(right: Array) -> Array:
        # In shares of the largest, so that it is no denormal of the lower precision.
        unit = float(np.abs(right).max()) or 1.0
        found, _ = lapack_routine("getrs", low)(factor, pivots, (right / unit).astype(low, order="F"))
        return found.astype(a.dtype) * unit

    columns = b.reshape(n, -1)
    x = corrected(columns)
    enough = largest * float(np.finfo(a.dtype).eps) / 2 * np.sqrt(n)
    for _ in range(_MOST_REFINEMENTS):
        error = columns - a @ x
        if (np.abs(error).max(axis=0) <= enough * np.abs(x).max(axis=0)).all():
            return x.reshape(b.shape)
        x = x + corrected(error)
    return None
