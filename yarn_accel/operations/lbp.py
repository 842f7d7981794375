"""Local binary patterns of eight neighbours at radius 1, equal to scikit-image's ``local_binary_pattern``.

Each pixel is compared with eight points on the circle around it; bit p is set where point p is not darker.
Points 0, 2, 4, 6 are the pixels right, above, left and below; the four others lie between pixels and are
interpolated. Outside the image everything is 0.

Equality with scikit-image is bit for bit, ties included. Where an interpolated value equals the centre,
rounding decides, and it depends on the position in the image, since fractions are computed from absolute
coordinates. Hence the same floating-point operations in the same order here; strips know their first row.
"""

from __future__ import annotations

from typing import Any, Iterator, Tuple

import numpy as np

Array = Any
N_POINTS = 8
N_UNIFORM = 59
DIAGONAL = 0.70711
"""Coordinates of the diagonal points; scikit-image rounds them to five digits."""

_STRIP_PIXELS = 1 << 18
_ROWS = (0.0, -DIAGONAL, -1.0, -DIAGONAL, 0.0, DIAGONAL, 1.0, DIAGONAL)
_COLUMNS = (1.0, DIAGONAL, 0.0, -DIAGONAL, -1.0, -DIAGONAL, 0.0, DIAGONAL)


def patterns(images: Array) -> Array:
    """The pattern of every pixel, ``uint8`` of the same shape, bit p for point p.

    Args:
        images: grey images of one size, ``uint8`` of shape ``(n, height, width)``.
    """
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    return np.concatenate([_strip(padded, *rows) for rows in _strips(images.shape)], axis=1)


def histogram_256(images: Array) -> Array:
    """How often each of the 256 patterns occurs in each image, ``int64`` of shape ``(n, 256)``."""
    n_images = images.shape[0]
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    histogram = np.zeros(n_images * 256, dtype=np.int64)
    first_bins = (np.arange(n_images) * 256)[:, None]
    for first, last in _strips(images.shape):
        codes = _strip(padded, first, last).reshape(n_images, -1) + first_bins
        histogram += np.bincount(codes.ravel(), minlength=histogram.size)
    return histogram.reshape(n_images, 256)


def uniform_histogram(histogram: Array) -> Array:
    """From 256 patterns to 59: each of the 58 uniform ones, and one bin for all others, shape ``(n, 59)``."""
    membership = np.equal.outer(UNIFORM, np.arange(N_UNIFORM)).astype(histogram.dtype)
    return histogram @ membership


def _strips(shape: Tuple[int, ...]) -> Iterator[Tuple[int, int]]:
    """Ranges of rows that bound the memory of the temporaries."""
    n_images, height, width = shape
    step = max(1, _STRIP_PIXELS // (n_images * width))
    for first in range(0, height, step):
        yield first, min(height, first + step)


def _strip(padded: Array, first: int, last: int) -> Array:
    """The patterns of rows first..last - 1 of images that have one row and column of zeros around them."""
    rows = padded[:, first : last + 2].astype(np.float64)
    centre = rows[:, 1:-1, 1:-1]
    codes = np.zeros(centre.shape, dtype=np.uint8)
    for point in range(N_POINTS):
        sample = _sample(rows, first, _ROWS[point], _COLUMNS[point])
        codes |= (sample >= centre).astype(np.uint8) << np.uint8(point)
    return codes


def _sample(rows: Array, first: int, row: float, column: float) -> Array:
    """The value at an offset from every pixel, interpolated between the four pixels around it."""
    above, below, fraction_y = _between(first, rows.shape[1] - 2, row)
    left, right, fraction_x = _between(0, rows.shape[2] - 2, column)
    if row == int(row) and column == int(column):
        return rows[:, above, left]
    y, x = fraction_y[None, :, None], fraction_x[None, None, :]
    top = (1 - x) * rows[:, above, left] + x * rows[:, above, right]
    bottom = (1 - x) * rows[:, below, left] + x * rows[:, below, right]
    return (1 - y) * top + y * bottom


def _between(first: int, n: int, offset: float) -> Tuple[slice, slice, Array]:
    """For n positions from ``first`` plus an offset: slices of the pixels before and after, the fraction."""
    low, high = int(np.floor(offset)), int(np.ceil(offset))
    position = np.arange(first, first + n, dtype=np.float64) + offset
    return slice(low + 1, low + 1 + n), slice(high + 1, high + 1 + n), position - np.floor(position)


def _uniform_table() -> Array:
    """Number of the bin of each pattern in scikit-image's ``nri_uniform``.

    A pattern is uniform when, read around the circle, it has at most one run of ones. Bin 0 has no one, bins
    1 + 8 (n - 1) + turn have a run of n ones, bin 57 has ones only, bin 58 takes the rest.
    """
    table = np.full(256, N_UNIFORM - 1, dtype=np.int64)
    table[0], table[255] = 0, N_UNIFORM - 2
    for n_ones in range(1, N_POINTS):
        for first in range(N_POINTS):
            code = sum(1 << ((first + i) % N_POINTS) for i in range(n_ones))
            table[code] = 1 + (n_ones - 1) * N_POINTS + (N_POINTS - first) % N_POINTS
    return table


UNIFORM = _uniform_table()
