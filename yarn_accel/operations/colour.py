"""Colour histograms over hue, saturation and value, in whole numbers only.

The bin of a pixel is what ``floor(h * n_h), floor(s * n_s), floor(v * n_v)`` gives in exact arithmetic (with
h and s as in Python's `colorsys`, v as level / 256), and a saturation of exactly 1 falls into the last bin.
Floating-point conversions differ in the last bit from library to library, and at the edge of a bin that
moves a pixel; whole numbers do not, so every machine and device gives the same histogram.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

Array = Any
DEFAULT_BINS = (16, 4, 4)
_STRIP_PIXELS = 1 << 18


def hsv_bins(pixels: Array, bins: Sequence[int] = DEFAULT_BINS) -> Array:
    """The bin of every pixel, from 0 to the product of ``bins`` - 1; value varies fastest, hue slowest.

    Args:
        pixels: ``uint8`` of shape ``(..., 3)``, red, green, blue.
        bins: numbers of bins for hue, saturation and value.
    """
    n_hue, n_saturation, n_value = bins
    red, green, blue = np.moveaxis(pixels.astype(np.int32), -1, 0)
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    hue = np.where(
        value == red,
        green - blue,
        np.where(value == green, blue - red + 2 * spread, red - green + 4 * spread),
    )
    circle = 6 * np.maximum(spread, 1)
    hue_bin = np.where(hue < 0, hue + circle, hue) * n_hue // circle
    saturation_bin = np.minimum(spread * n_saturation // np.maximum(value, 1), n_saturation - 1)
    return (hue_bin * n_saturation + saturation_bin) * n_value + value * n_value // 256


def histogram_hsv(images: Array, bins: Sequence[int] = DEFAULT_BINS) -> Array:
    """How many pixels of each image fall into each bin, ``int64`` of shape ``(n, product of bins)``.

    Args:
        images: images of one size, ``uint8`` of shape ``(n, height, width, 3)``.
        bins: numbers of bins for hue, saturation and value.
    """
    n_images, height, width, _ = images.shape
    n_bins = int(np.prod(bins))
    histogram = np.zeros(n_images * n_bins, dtype=np.int64)
    first_bins = (np.arange(n_images) * n_bins)[:, None]
    step = max(1, _STRIP_PIXELS // (n_images * width))
    for first in range(0, height, step):
        codes = hsv_bins(images[:, first : first + step], bins).reshape(n_images, -1) + first_bins
        histogram += np.bincount(codes.ravel(), minlength=histogram.size)
    return histogram.reshape(n_images, n_bins)
