"""LU, QR and Cholesky through LAPACK, in place.

LAPACK stores columns, so a Fortran-ordered buffer is factored where it lies; any other is copied into that
order once. Inputs are checked for NaN and infinity first: LAPACK would carry them into every result without
a word.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
from scipy.linalg import lapack

from yarn_accel.errors import RejectedError
from yarn_accel.operations.operation import Outcome, Params

__all__ = ["cholesky", "lu", "qr", "reject_not_finite"]

Array = Any
_BLOCK_ELEMENTS = 1 << 18


def lu(arrays: List[Array], params: Params) -> Outcome:
    """PA = LU of one matrix ``(m, n)`` with partial pivoting.

    Returns:
        ``lu`` (m, n): U in the upper triangle, L below it (its unit diagonal is not stored); ``piv`` (min(m,
        n),): row i was swapped with row ``piv[i]``, counted from 0. ``info["singular_at"]`` is the first k
        with U[k, k] = 0, counted from 1, or 0: a singular matrix has an LU factorization all the same.

    Raises:
        RejectedError: ``not-finite``, with the index.
    """
    reject_not_finite(arrays[0], "input 0")
    matrix = _own(arrays[0])
    factor, pivots, status = _routine("getrf", matrix)(matrix, overwrite_a=1)
    _check_arguments("getrf", status)
    return Outcome(
        {"lu": factor, "piv": pivots.astype(np.int32, copy=False)},
        {**_sizes(matrix), "singular_at": int(status)},
    )


def qr(arrays: List[Array], params: Params) -> Outcome:
    """A = QR of one matrix ``(m, n)``, in the economic form.

    Returns:
        ``q`` (m, min(m, n)) with orthonormal columns, ``r`` (min(m, n), n) upper triangular.

    Raises:
        RejectedError: ``not-finite``, with the index.
    """
    reject_not_finite(arrays[0], "input 0")
    matrix = _own(arrays[0])
    least = min(matrix.shape)
    geqrf, orgqr = _routine("geqrf", matrix), _routine("orgqr", matrix)
    n_work = int(geqrf(matrix, lwork=-1, overwrite_a=1)[2][0].real)
    matrix, tau, _, status = geqrf(matrix, lwork=n_work, overwrite_a=1)
    _check_arguments("geqrf", status)
    r = np.asfortranarray(np.triu(matrix[:least]))
    reflectors = matrix[:, :least]
    n_work = int(orgqr(reflectors, tau, lwork=-1, overwrite_a=1)[1][0].real)
    q, _, status = orgqr(reflectors, tau, lwork=n_work, overwrite_a=1)
    _check_arguments("orgqr", status)
    return Outcome({"q": q, "r": r}, _sizes(matrix))


def cholesky(arrays: List[Array], params: Params) -> Outcome:
    """A = LL' of one symmetric positive definite matrix ``(n, n)``.

    Returns:
        ``l`` (n, n) lower triangular.

    Raises:
        RejectedError: ``not-finite`` with the index, ``not-symmetric`` with the index, or
            ``not-positive-definite`` with the order of the first leading minor that is not.
    """
    reject_not_finite(arrays[0], "input 0")
    _reject_asymmetric(arrays[0])
    # A symmetric matrix is its own transpose, so rows read as columns need no copy.
    matrix = _own(arrays[0] if arrays[0].flags.f_contiguous else arrays[0].T)
    factor, status = _routine("potrf", matrix)(matrix, lower=1, clean=1, overwrite_a=1)
    _check_arguments("potrf", status)
    if status > 0:
        raise RejectedError(
            "not-positive-definite",
            "the leading minor of order {} of {} is not positive definite".format(status, matrix.shape[0]),
        )
    return Outcome({"l": factor}, _sizes(matrix))


def reject_not_finite(array: Array, place: str) -> None:
    """Look for NaN and infinity block by block, without a mask of the whole array.

    Raises:
        RejectedError: ``not-finite``, with ``place`` and the index of the first one in reading order by rows
            for C order and by columns for Fortran order.
    """
    lines = array.T if array.flags.f_contiguous else array
    step = max(1, _BLOCK_ELEMENTS // max(1, lines[0].size)) if len(lines) else 1
    for start in range(0, len(lines), step):
        block = lines[start : start + step]
        if np.isfinite(block).all():
            continue
        first = np.argwhere(~np.isfinite(block))[0]
        value = block[tuple(first)]
        first[0] += start
        index = first[::-1] if lines is not array else first
        raise RejectedError(
            "not-finite", "{}: {} at index [{}]".format(place, value, ", ".join(str(i) for i in index))
        )


def _own(matrix: Array) -> Array:
    """The matrix itself when LAPACK may overwrite it, else a copy in Fortran order."""
    if matrix.flags.f_contiguous and matrix.flags.writeable and matrix.flags.aligned:
        return matrix
    return np.array(matrix, order="F")


def _routine(name: str, matrix: Array) -> Any:
    return getattr(lapack, ("s" if matrix.dtype == np.float32 else "d") + name)


def _check_arguments(routine: str, status: int) -> None:
    if status < 0:
        raise RejectedError("wrong-shape", "{}: argument {} is not acceptable".format(routine, -status))


def _reject_asymmetric(matrix: Array) -> None:
    """LAPACK reads one triangle only, so an asymmetric matrix would be factored as if it were another one.

    Differences up to n * eps * max|A| pass: they come from rounding and are within what the residual allows.
    """
    n = matrix.shape[0]
    step = max(1, _BLOCK_ELEMENTS // n)
    allowed = n * float(np.finfo(matrix.dtype).eps) * max(abs(float(matrix.max())), abs(float(matrix.min())))
    for start in range(0, n, step):
        stop = min(n, start + step)
        excess = np.abs(matrix[start:, start:stop] - matrix[start:stop, start:].T) > allowed
        if excess.any():
            i, j = _first(excess, start)
            raise RejectedError("not-symmetric", "input 0: [{}, {}] and [{}, {}] differ".format(i, j, j, i))


def _first(excess: Array, start: int) -> Tuple[int, int]:
    row, column = np.argwhere(excess)[0]
    return int(row) + start, int(column) + start


def _sizes(matrix: Array) -> Dict[str, Any]:
    return {"n": int(matrix.shape[-1]), "m": int(matrix.shape[0])}
