"""Histograms of images compiled by numba: the same whole numbers as numpy's, many times faster.

The functions of `features` are the definition; these give bit for bit the same histograms. Texture does the
floating-point operations of that definition in its order, one row at a time: what two rows share, the
interpolation between columns, is computed once. Colour divides in float32: with one half added to the
numerator the quotient of such small whole numbers can never round across a whole number.

Compiled when first called, once for each machine: numba keeps the machine code beside this file or in the
user's cache directory.
"""

from __future__ import annotations

from typing import Any, Callable

import numba
import numpy as np

from yarn_accel.operations.features import DIAGONAL

Array = Any
_RUN = 2048
"""Pixels whose bins are computed before they are counted: they stay in the cache."""
_ZERO, _HALF, _ONE, _TWO, _FOUR, _SIX = (np.float32(value) for value in (0, 0.5, 1, 2, 4, 6))
_LEVEL = np.float32(1 / 256)


def _compiled(function: Callable[..., Any]) -> Any:
    """``function`` compiled without fast-math, so that every operation rounds as written."""
    try:
        return numba.njit(function, cache=True, nogil=True, error_model="numpy")
    except RuntimeError:
        # No place for a cache: this file lies in an archive, or nothing here may be written.
        return numba.njit(function, nogil=True, error_model="numpy")


@_compiled
def grey(pixels: Array, out: Array) -> None:
    """Brightness, see `pixels.grey`: from red, green, blue in turn, uint8 (3 n,), to ``out`` uint8 (n,)."""
    for x in range(out.size):
        red, green, blue = pixels[3 * x], pixels[3 * x + 1], pixels[3 * x + 2]
        weighted = np.int32(red) * np.int32(19595) + np.int32(green) * np.int32(38470)
        out[x] = (weighted + np.int32(blue) * np.int32(7471) + np.int32(32768)) >> np.int32(16)


@_compiled
def _interpolate(row: Array, left: Array, right: Array, values: Array, between: Array) -> None:
    """One grey row as float64 ``values``, and between columns, left and right of every pixel.

    ``row`` may be empty: a row outside the image, where everything is 0. ``values`` has a zero at both ends.
    """
    width = values.size - 2
    if row.size == 0:
        values[:] = 0.0
    else:
        for x in range(width):
            values[x + 1] = row[x]
    for x in range(width):
        between[0, x] = (1 - left[x]) * values[x] + left[x] * values[x + 1]
    for x in range(width):
        between[1, x] = (1 - right[x]) * values[x + 1] + right[x] * values[x + 2]


@_compiled
def _codes(values: Array, between: Array, up: float, down: float, y: int, out: Array) -> None:
    """The patterns of row y from rows y - 1, y, y + 1, which lie at their number modulo 3."""
    above, here, below = (y + 2) % 3, y % 3, (y + 1) % 3
    for x in range(out.size):
        centre = values[here, x + 1]
        code = np.uint8(values[here, x + 2] >= centre)
        upper = (1 - up) * between[above, 1, x] + up * between[here, 1, x]
        code |= np.uint8(upper >= centre) << np.uint8(1)
        code |= np.uint8(values[above, x + 1] >= centre) << np.uint8(2)
        upper = (1 - up) * between[above, 0, x] + up * between[here, 0, x]
        code |= np.uint8(upper >= centre) << np.uint8(3)
        code |= np.uint8(values[here, x] >= centre) << np.uint8(4)
        lower = (1 - down) * between[here, 0, x] + down * between[below, 0, x]
        code |= np.uint8(lower >= centre) << np.uint8(5)
        code |= np.uint8(values[below, x + 1] >= centre) << np.uint8(6)
        lower = (1 - down) * between[here, 1, x] + down * between[below, 1, x]
        code |= np.uint8(lower >= centre) << np.uint8(7)
        out[x] = code


@_compiled
def _count(codes: Array, counts: Array) -> None:
    """Add to four tables in turn, so that equal neighbours do not wait for each other."""
    n = codes.size
    for x in range(0, n - 3, 4):
        counts[0, codes[x]] += 1
        counts[1, codes[x + 1]] += 1
        counts[2, codes[x + 2]] += 1
        counts[3, codes[x + 3]] += 1
    for x in range(n - n % 4, n):
        counts[0, codes[x]] += 1


@_compiled
def add_patterns(image: Array, histogram: Array) -> None:
    """Add how often each pattern occurs in a grey ``image`` uint8 (height, width) to ``histogram`` (256,)."""
    height, width = image.shape
    columns = np.arange(width).astype(np.float64)
    left = (columns - DIAGONAL) - np.floor(columns - DIAGONAL)
    right = (columns + DIAGONAL) - np.floor(columns + DIAGONAL)
    values = np.zeros((3, width + 2))
    between = np.zeros((3, 2, width))
    codes = np.empty(width, np.uint8)
    counts = np.zeros((4, 256), np.int64)
    _interpolate(image[0], left, right, values[0], between[0])
    for y in range(height):
        below = (y + 1) % 3
        row = image[y + 1] if y + 1 < height else image[y, :0]
        _interpolate(row, left, right, values[below], between[below])
        up = (y - DIAGONAL) - np.floor(y - DIAGONAL)
        down = (y + DIAGONAL) - np.floor(y + DIAGONAL)
        _codes(values, between, up, down, y, codes)
        _count(codes, counts)
    for i in range(256):
        histogram[i] += counts[0, i] + counts[1, i] + counts[2, i] + counts[3, i]


@_compiled
def _colour_codes(pixels: Array, bins: Array, out: Array) -> None:
    """The bin of every pixel (3 n,) into ``out`` (n,); see `features.hsv_bins`. All numbers are whole."""
    n_hue, n_saturation, n_value = bins[0], bins[1], bins[2]
    for x in range(out.size):
        red, green = np.float32(pixels[3 * x]), np.float32(pixels[3 * x + 1])
        blue = np.float32(pixels[3 * x + 2])
        value = max(max(red, green), blue)
        spread = value - min(min(red, green), blue)
        hue = red - green + _FOUR * spread
        hue = blue - red + _TWO * spread if value == green else hue
        hue = green - blue if value == red else hue
        circle = _SIX * max(spread, _ONE)
        hue = hue + circle if hue < _ZERO else hue
        hue_bin = np.float32(np.int32((hue * n_hue + _HALF) / circle))
        share = np.float32(np.int32((spread * n_saturation + _HALF) / max(value, _ONE)))
        saturation_bin = min(share, n_saturation - _ONE)
        value_bin = np.float32(np.int32(value * n_value * _LEVEL))
        out[x] = np.uint16(np.int32((hue_bin * n_saturation + saturation_bin) * n_value + value_bin))


@_compiled
def add_colours(pixels: Array, bins: Array, histogram: Array) -> None:
    """Add how many pixels fall into each bin to ``histogram``.

    Args:
        pixels: uint8 (3 n,): red, green, blue in turn.
        bins: float32 (3,), numbers of bins for hue, saturation and value.
        histogram: int64 (product of bins,).
    """
    n = pixels.size // 3
    codes = np.empty(min(n, _RUN), np.uint16)
    counts = np.zeros((4, histogram.size), np.int64)
    for first in range(0, n, _RUN):
        last = min(n, first + _RUN)
        _colour_codes(pixels[3 * first : 3 * last], bins, codes[: last - first])
        _count(codes[: last - first], counts)
    for i in range(histogram.size):
        histogram[i] += counts[0, i] + counts[1, i] + counts[2, i] + counts[3, i]
