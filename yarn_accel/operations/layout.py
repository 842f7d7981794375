"""Where matrices lie: LAPACK's columns, triangles, and the memory a factorization works in.

One matrix is worked on in Fortran order, in the caller's memory when it has that order. A stack is C-ordered
and goes through LAPACK item by item in one small scratch matrix, which stays in the cache.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Array = Any
_STRIP = 128
_NARROW = 16
_ALIAS_BYTES = 1024
_BAND = 64


def is_ours(array: Array, dtype: str, order: str) -> bool:
    """Whether it may be overwritten, has that element type and is contiguous in that order."""
    flags = array.flags
    contiguous = flags.f_contiguous if order == "F" else flags.c_contiguous
    return bool(contiguous and flags.writeable and flags.aligned and array.dtype == np.dtype(dtype))


def copy_across(target: Array, source: Array) -> None:
    """``target[...] = source`` when their orders differ: in strips of rows that the cache holds.

    Columns whose distance is a multiple of 1 KiB share few lines of the cache; narrow strips then are up to
    six times faster, and wide ones everywhere else.
    """
    n_rows = target.shape[0]
    is_aliased = max(target.strides) % _ALIAS_BYTES == 0
    step = _NARROW if is_aliased else _STRIP
    if n_rows < _STRIP or target.flags.f_contiguous == source.flags.f_contiguous:
        step = n_rows
    for start in range(0, n_rows, step):
        np.copyto(target[start : start + step], source[start : start + step], casting="same_kind")


def copy_upper(target: Array, source: Array) -> None:
    """The upper triangle of ``source``, diagonal included, and zeros below; both ``(k, k)``."""
    k = target.shape[0]
    for start in range(0, k, _BAND):
        stop = min(k, start + _BAND)
        target[:stop, start:stop] = source[:stop, start:stop]
    blank_lower(target)


def copy_lower(target: Array, source: Array) -> None:
    """The lower triangle of ``source``, diagonal included, and zeros above; both ``(k, k)``."""
    k = target.shape[0]
    for start in range(0, k, _BAND):
        stop = min(k, start + _BAND)
        target[start:, start:stop] = source[start:, start:stop]
    blank_upper(target)


def blank_upper(matrix: Array) -> None:
    """Zeros above the diagonal."""
    n = min(matrix.shape)
    # Copied from a column of zeros: numpy does that twice as fast as it spreads a single zero.
    zeros = np.zeros((n, 1), dtype=matrix.dtype)
    for start in range(0, matrix.shape[1], _BAND):
        stop = min(matrix.shape[1], start + _BAND)
        matrix[: min(start, n), start:stop] = zeros[:start]
        block = matrix[start:stop, start:stop]
        np.copyto(block, 0.0, where=_strict_upper(*block.shape))


def blank_lower(matrix: Array) -> None:
    """Zeros below the diagonal."""
    zeros = np.zeros((matrix.shape[0], 1), dtype=matrix.dtype)
    for start in range(0, min(matrix.shape), _BAND):
        stop = min(matrix.shape[1], start + _BAND)
        block = matrix[start:stop, start:stop]
        np.copyto(block, 0.0, where=_strict_lower(*block.shape))
        matrix[stop:, start:stop] = zeros[stop:]


def unpack_lower(target: Array, triangle: Array) -> None:
    """LAPACK's packed lower triangle into the lower triangle of ``(n, n)``; the rest is not touched."""
    n, first = target.shape[0], 0
    for column in range(n):
        target[column:, column] = triangle[first : first + n - column]
        first += n - column


def pack_lower(target: Array, matrix: Array) -> None:
    """The lower triangle of ``(n, n)`` in LAPACK's packed storage: column after column."""
    n, first = matrix.shape[0], 0
    for column in range(n):
        target[first : first + n - column] = matrix[column:, column]
        first += n - column


@lru_cache(maxsize=512)
def _strict_upper(n_rows: int, n_columns: int) -> Array:
    return np.triu(np.ones((n_rows, n_columns), dtype=bool), 1)


@lru_cache(maxsize=512)
def _strict_lower(n_rows: int, n_columns: int) -> Array:
    return np.tril(np.ones((n_rows, n_columns), dtype=bool), -1)
