"""How exact a factorization is, in the ratios of LAPACK's own test programs.

Each ratio is an error divided by what rounding alone may cause, ``norm(A) * n * eps`` in the 1-norm, with
eps the relative machine precision of the input's dtype (half the distance from 1 to the next number).
LAPACK's tests accept ratios below 30; a correct factorization usually stays below 1. Everything is computed
in float64.

=========  ==================================  ==========================================
lu         ``factor``                          norm(PA - LU) / (n norm(A) eps)
qr         ``factor``, ``orthogonality``       norm(A - QR) / (m norm(A) eps), norm(I - Q'Q) / (m eps)
cholesky   ``factor``                          norm(A - LL') / (n norm(A) eps)
svd        ``factor``, ``orthogonality``       norm(A - USV') / (max(m, n) norm(A) eps), the worse of U and V
eigh       ``factor``, ``orthogonality``       norm(A - VWV') / (n norm(A) eps), norm(I - V'V) / (n eps)
=========  ==================================  ==========================================
"""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

LIMIT = 30.0
Array = Any


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
            "limit": LIMIT,
            "passed": worst < LIMIT,
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
