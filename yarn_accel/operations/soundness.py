"""Checks whether numbers are fit for LAPACK, at the price of one pass over them.

LAPACK carries NaN and infinity silently into every result, and reads only one triangle of a symmetric matrix.
BLAS checks both at the speed of memory: a finite sum of absolute values has no NaN and no infinity among its
terms; and a matrix is symmetric if its upper triangle and its transposed lower one send a vector of scattered
weights to the same place (several differences in one row could cancel only by chance). Where the quick check
fails, perhaps because of overflow, every element is checked.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, List, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations.library import blas

Array = Any
_BLOCK_ELEMENTS = 1 << 18
_TILE = 256
_MAX_BLAS_ELEMENTS = (1 << 31) - 1
_SMALL_ORDER = 128
"""Stacks of matrices up to this order are looked at many at once."""
_GOLDEN = 0.6180339887498949


def reject_not_finite(array: Array, place: str) -> None:
    """Reject NaN and infinity.

    Raises:
        RejectedError: ``not-finite``, with ``place`` and the index of the first one in reading order by rows
            for C order and by columns for Fortran order.
    """
    if 0 < array.size <= _MAX_BLAS_ELEMENTS // 2 and array.dtype.kind in "fc" and array.dtype.itemsize > 2:
        flat = array.ravel(order="K")
        flat = flat.view(flat.real.dtype)
        total = blas.sasum(flat) if flat.dtype == np.float32 else blas.dasum(flat)
        if np.isfinite(total):
            return
    _look_at_each(array, place)


def reject_asymmetric(matrix: Array, place: str) -> None:
    """Compare the two triangles of a matrix ``(n, n)`` or of each in a stack ``(b, n, n)``.

    A complex triangle is compared with the other one's conjugate.

    Differences up to n * eps * max|A| pass: they come from rounding and are within what the residual allows.
    (The largest element of a positive definite matrix lies on its diagonal.)

    Raises:
        RejectedError: ``not-finite`` or ``not-symmetric``, with the index.
    """
    if matrix.shape[-1] <= _SMALL_ORDER:
        reject_not_finite(matrix, place)
        _compare_small(matrix, place)
    elif matrix.ndim == 2:
        _reject_one(matrix, place)
    else:
        for i, item in enumerate(matrix):
            with AtItem(i):
                _reject_one(item, place)


class AtItem:
    """A context in which a `RejectedError` names the item of the stack, in its text and as ``item``."""

    def __init__(self, item: int) -> None:
        self._item = item

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, RejectedError):
            message = "item {}: {}".format(self._item, error.message)
            named = RejectedError(error.code, message, cure=error.cure)
            named.item = self._item
            raise named from None


def _look_at_each(array: Array, place: str) -> None:
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
        _raise_not_finite(value, [int(i) for i in index], place)


def _raise_not_finite(value: float, index: List[int], place: str) -> None:
    if len(index) == 3:
        with AtItem(index[0]):
            _raise_not_finite(value, index[1:], place)
    raise RejectedError(
        "not-finite", "{}: {} at index [{}]".format(place, value, ", ".join(str(i) for i in index))
    )


def _reject_one(matrix: Array, place: str) -> None:
    n = matrix.shape[0]
    columns = matrix if matrix.flags.f_contiguous else matrix.T
    allowed = n * float(np.finfo(matrix.dtype).eps) * float(np.abs(matrix.diagonal()).max())
    if columns.flags.f_contiguous and matrix.dtype.kind == "f":
        trmv = blas.strmv if matrix.dtype == np.float32 else blas.dtrmv
        weights = _weights(n, matrix.dtype.str)
        difference = trmv(columns, weights, lower=0)
        with np.errstate(invalid="ignore"):
            difference -= trmv(columns, weights, lower=1, trans=1)
        # NaN and infinity end here too: no comparison with them is true.
        if difference.max() <= allowed and difference.min() >= -allowed:
            return
    _look_at_each(matrix, place)
    _compare_each(matrix, allowed, place)


@lru_cache(maxsize=64)
def _weights(n: int, dtype: str) -> Array:
    """Numbers between 1 and 2 or -2 and -1, spread evenly and without a pattern of short period."""
    scattered = 2.0 * (np.arange(1, n + 1) * _GOLDEN % 1.0) - 1.0
    return (scattered + np.copysign(1.0, scattered)).astype(dtype)


def _compare_each(matrix: Array, allowed: float, place: str) -> None:
    n = matrix.shape[0]
    for i in range(0, n, _TILE):
        for j in range(0, i + 1, _TILE):
            tile = matrix[i : i + _TILE, j : j + _TILE] - matrix[j : j + _TILE, i : i + _TILE].T.conj()
            excess = np.abs(tile) > allowed
            if excess.any():
                _raise_asymmetric(np.argwhere(excess)[0] + (i, j), place)


def _compare_small(matrices: Array, place: str) -> None:
    """One small matrix, or many at once."""
    stack = matrices if matrices.ndim == 3 else matrices[None]
    n = stack.shape[-1]
    step = max(1, _BLOCK_ELEMENTS // n**2)
    for start in range(0, len(stack), step):
        block = stack[start : start + step]
        difference = block - block.transpose(0, 2, 1).conj()
        if not difference.any():
            continue
        largest = np.abs(block.diagonal(axis1=1, axis2=2)).max(axis=1)
        allowed = n * float(np.finfo(stack.dtype).eps) * largest
        excess = np.abs(difference) > allowed[:, None, None]
        if excess.any():
            item, row, column = np.argwhere(excess)[0]
            if stack is matrices:
                with AtItem(start + int(item)):
                    _raise_asymmetric((row, column), place)
            _raise_asymmetric((row, column), place)


def _raise_asymmetric(index: Tuple[int, ...], place: str) -> None:
    low, high = sorted(int(i) for i in index)
    raise RejectedError("not-symmetric", "{0}: [{1}, {2}] and [{2}, {1}] differ".format(place, high, low))
