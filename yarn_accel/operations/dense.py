"""Dense matrices: BLAS and LAPACK, the memory matrices lie in, and whether their numbers are sound.

**Routines.** They come from scipy, without the rest of scipy: ``import scipy.linalg`` loads half of numpy and
scipy, test frameworks and ``numpy.f2py`` included, 150 ms of processor time and 20 MiB, while the two modules
that are needed take 5 ms. Every worker, and every mapper that computes by itself, would pay that before its
first matrix. So the two are loaded from where they lie, without the packages around them. Where scipy keeps
them elsewhere, its public modules are loaded as usual.

**Memory.** One matrix is worked on in Fortran order, LAPACK's columns, in the caller's memory when it has
that order. A stack is C-ordered and goes through LAPACK item by item in one small scratch matrix, which stays
in the cache.

**Soundness.** LAPACK carries NaN and infinity silently into every result, and reads only one triangle of a
symmetric matrix. BLAS checks both at the speed of memory. A finite sum of absolute values has no NaN and no
infinity among its terms. A matrix is symmetric if its upper triangle and its transposed lower one send a
vector of scattered weights to the same place (several differences in one row could cancel only by chance).
Where the quick check fails, perhaps because of overflow, every element is checked.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.wire import TensorSpec

Array = Any
LETTERS = {"<f4": "s", "<f8": "d", "<c8": "c", "<c16": "z"}
"""First letter of a routine's name, by element type."""
UNITARY = {"orgqr": "ungqr", "ormqr": "unmqr", "syevd": "heevd"}
"""Routines that have another name for complex numbers."""
_STRIP = 128
_NARROW = 16
_ALIAS_BYTES = 1024
_BAND = 64
_BLOCK_ELEMENTS = 1 << 18
_TILE = 256
_MAX_BLAS_ELEMENTS = (1 << 31) - 1
_SMALL_ORDER = 128
"""Stacks of matrices up to this order are looked at many at once."""
_GOLDEN = 0.6180339887498949


# ---- routines


def _part(public: str, private: str) -> Any:
    """A module of scipy.

    Args:
        public: its documented name.
        private: the module behind it, which needs no other one of scipy.

    Raises:
        ImportError: scipy is not installed, or cannot be loaded.
    """
    spec = _found(private)
    if spec is None or spec.loader is None:
        return importlib.import_module(public)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _found(name: str) -> Optional[importlib.machinery.ModuleSpec]:
    # Looking for a package at the top runs nothing of it.
    package = importlib.util.find_spec("scipy")
    if package is None or package.submodule_search_locations is None:
        return None
    inner = name.split(".")[1:-1]
    folders: Sequence[str] = [str(Path(each, *inner)) for each in package.submodule_search_locations]
    return importlib.machinery.PathFinder.find_spec(name, folders)


#: The routines, by their names in Fortran.
blas: Any = _part("scipy.linalg.blas", "scipy.linalg._fblas")
lapack: Any = _part("scipy.linalg.lapack", "scipy.linalg._flapack")
scipy_version: str = _part("scipy.version", "scipy.version").version


def lapack_routine(name: str, dtype: Any) -> Any:
    """LAPACK's routine of that name, as it is called for real numbers, for that element type."""
    letter = LETTERS[np.dtype(dtype).str]
    return getattr(lapack, letter + (UNITARY.get(name, name) if letter in "cz" else name))


def spec_of(array: Array) -> TensorSpec:
    """The description of an array, as the checks and counts take it."""
    return TensorSpec(array.dtype.str, array.shape)


# ---- memory


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


@lru_cache(maxsize=512)
def _strict_upper(n_rows: int, n_columns: int) -> Array:
    return np.triu(np.ones((n_rows, n_columns), dtype=bool), 1)


@lru_cache(maxsize=512)
def _strict_lower(n_rows: int, n_columns: int) -> Array:
    return np.tril(np.ones((n_rows, n_columns), dtype=bool), -1)


# ---- soundness


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
