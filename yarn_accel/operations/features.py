"""Features of encoded images: histograms of texture (local binary patterns) and colour, a row for each.

**Texture** compares each pixel with eight points on the circle around it at radius 1; bit p is set where
point p is not darker. Points 0, 2, 4, 6 are the pixels right, above, left and below; the four others lie
between pixels and are interpolated. Outside the image everything is 0. The result equals scikit-image's
``local_binary_pattern`` bit for bit, ties included. Where an interpolated value equals the centre, rounding
decides, and it depends on the position in the image, since fractions are computed from absolute coordinates.
Hence the same floating-point operations in the same order here; strips know their first row.

**Colour** counts hue, saturation and value, in whole numbers only. The bin of a pixel is what
``floor(h * n_h), floor(s * n_s), floor(v * n_v)`` gives in exact arithmetic (with h and s as in Python's
`colorsys`, v as level / 256), and a saturation of exactly 1 falls into the last bin. Floating-point
conversions differ in the last bit from library to library, and at the edge of a bin that moves a pixel; whole
numbers do not, so every machine and device gives the same histogram.

Every histogram is divided by its image's number of pixels, so its values add up to 1 and images of different
sizes compare. With the parameter ``root`` every value is replaced by its square root: the Euclidean distance
of two rows, which K-means minimizes, is then the Hellinger distance of the histograms, and a few full bins
no longer outweigh all others. A bad image costs its own row only: the row is zero and ``info["rejected"]``
says why.
"""

from __future__ import annotations

import importlib
import warnings
from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import pixels as decoding
from yarn_accel.operations.checks import DEFAULT_COLOUR_BINS, DEFAULT_TEXTURE_BINS
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

Array = Any
Part = Callable[[Sequence[Array]], Array]
"""From images of one size to a histogram for each, in whole numbers."""
_CHUNK_PIXELS = 1 << 16
"""Images of one size are computed together up to this many pixels, so that temporaries stay in the cache."""
_WAITING_PIXELS = 1 << 22
"""Images of many sizes that wait for others of theirs are held up to this many pixels."""
N_POINTS = 8
N_UNIFORM = 59
DIAGONAL = 0.70711
"""Coordinates of the diagonal points; scikit-image rounds them to five digits."""

_STRIP_PIXELS = 1 << 18
_ROWS = (0.0, -DIAGONAL, -1.0, -DIAGONAL, 0.0, DIAGONAL, 1.0, DIAGONAL)
_COLUMNS = (1.0, DIAGONAL, 0.0, -DIAGONAL, -1.0, -DIAGONAL, 0.0, DIAGONAL)


class FeatureKernels(NamedTuple):
    """One implementation of the histograms; all give the same numbers.

    Attributes:
        name: "numba", "numpy" or "cuda".
        patterns: images to histograms of the 256 patterns.
        colours: images and numbers of bins to histograms over colour.
        chunk_pixels: images of one size are given together up to this many pixels.
        decode_all: see `pixels.decode_all`.
    """

    name: str
    patterns: Part
    colours: Callable[[Sequence[Array], Tuple[int, ...]], Array]
    chunk_pixels: int
    decode_all: Callable[[Array, Array, int], Iterator[Any]] = decoding.decode_all


def lbp(
    arrays: List[Array], params: Params, place: Place = allocate, ways: Optional[FeatureKernels] = None
) -> Outcome:
    """Histogram of local binary patterns, ``features`` ``float32 (n, bins)``; 59 or 256 bins.

    Args:
        arrays: the bytes of all images, and the length of each.
        params: ``bins``, ``max_pixels``, ``root``.
        place: see `Operation`.
        ways: how histograms are made; left out, the best there is on the CPU.

    Raises:
        RejectedError: ``wrong-length``: the lengths and the bytes do not belong together.
    """
    ways = ways or forms()
    return _batch(arrays, params, place, [_texture(params, ways)], ways)


def colour(
    arrays: List[Array], params: Params, place: Place = allocate, ways: Optional[FeatureKernels] = None
) -> Outcome:
    """Histogram over hue, saturation and value, ``features`` ``float32 (n, product of hsv_bins)``.

    Arguments and errors as for `lbp`, with ``hsv_bins`` (default 16, 4, 4) in place of ``bins``.
    """
    ways = ways or forms()
    return _batch(arrays, params, place, [_colour(params, ways)], ways)


def features(
    arrays: List[Array], params: Params, place: Place = allocate, ways: Optional[FeatureKernels] = None
) -> Outcome:
    """`lbp` and `colour` side by side, each image decoded once: ``features`` ``float32 (n, both)``."""
    ways = ways or forms()
    return _batch(arrays, params, place, [_texture(params, ways), _colour(params, ways)], ways)


@lru_cache(maxsize=1)
def forms() -> FeatureKernels:
    """The compiled form where numba is installed; else numpy's, and a warning that says so once."""
    try:
        return compiled_forms()
    except ImportError as error:
        warnings.warn(
            "images are computed by numpy: the same results, ten to fifty times slower ({})".format(error),
            RuntimeWarning,
            stacklevel=2,
        )
        return numpy_forms()


def numpy_forms() -> FeatureKernels:
    """The definition."""

    def patterns(images: Sequence[Array]) -> Array:
        return histogram_256(decoding.grey(np.stack(images)))

    def colour_bins(images: Sequence[Array], bins: Tuple[int, ...]) -> Array:
        return histogram_hsv(np.stack(images), bins)

    return FeatureKernels("numpy", patterns, colour_bins, _CHUNK_PIXELS)


def compiled_forms() -> FeatureKernels:
    """The same, compiled. Raises `ImportError` where numba is missing."""
    compiled = importlib.import_module("yarn_accel.operations.compiled")

    def patterns(images: Sequence[Array]) -> Array:
        histograms = np.zeros((len(images), 256), dtype=np.int64)
        shades = np.empty(images[0].shape[:2], dtype=np.uint8)
        for image, histogram in zip(images, histograms):  # noqa: B905 -- Python 3.8
            compiled.grey(image.reshape(-1), shades.reshape(-1))
            compiled.add_patterns(shades, histogram)
        return histograms

    def colour_bins(images: Sequence[Array], bins: Tuple[int, ...]) -> Array:
        histograms = np.zeros((len(images), int(np.prod(bins))), dtype=np.int64)
        for image, histogram in zip(images, histograms):  # noqa: B905 -- Python 3.8
            compiled.add_colours(image.reshape(-1), np.array(bins, dtype=np.float32), histogram)
        return histograms

    return FeatureKernels("numba", patterns, colour_bins, 1)


def _texture(params: Params, ways: FeatureKernels) -> Part:
    is_uniform = params.get("bins", DEFAULT_TEXTURE_BINS) == N_UNIFORM

    def part(images: Sequence[Array]) -> Array:
        histogram = ways.patterns(images)
        return uniform_histogram(histogram) if is_uniform else histogram

    return part


def _colour(params: Params, ways: FeatureKernels) -> Part:
    bins = tuple(params.get("hsv_bins", DEFAULT_COLOUR_BINS))
    return lambda images: ways.colours(images, bins)


def _batch(
    arrays: List[Array], params: Params, place: Place, parts: List[Part], ways: FeatureKernels
) -> Outcome:
    blob, lengths = arrays
    rows = place("features", (lengths.size, _width(parts)), "<f4", "C")
    rows[:] = 0.0
    waiting: Dict[Tuple[int, ...], List[Tuple[int, Array]]] = {}
    n_waiting = 0
    rejected: List[List[Any]] = []
    max_pixels = params.get("max_pixels", decoding.MAX_PIXELS)
    for index, image in enumerate(ways.decode_all(blob, lengths, max_pixels)):
        if isinstance(image, RejectedError):
            rejected.append([index, image.code, image.message])
            continue
        n_pixels = image.shape[0] * image.shape[1]
        group = waiting.setdefault(image.shape, [])
        group.append((index, image))
        n_waiting += n_pixels
        if len(group) * n_pixels >= ways.chunk_pixels or n_waiting >= _WAITING_PIXELS:
            n_waiting -= len(group) * n_pixels
            _fill(rows, waiting.pop(image.shape), parts)
    for group in waiting.values():
        _fill(rows, group, parts)
    if params.get("root", False):
        np.sqrt(rows, out=rows)
    return Outcome({"features": rows}, {"n": int(lengths.size), "rejected": rejected})


def _width(parts: List[Part]) -> int:
    probe = [np.zeros((1, 1, 3), dtype=np.uint8)]
    return sum(part(probe).shape[1] for part in parts)


def _fill(rows: Array, group: List[Tuple[int, Array]], parts: List[Part]) -> None:
    indices = [index for index, _ in group]
    images = [image for _, image in group]
    n_pixels = images[0].shape[0] * images[0].shape[1]
    rows[indices] = np.concatenate([part(images) / n_pixels for part in parts], axis=1)


# ---- texture, defined by numpy


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


# ---- colour, defined by numpy


def hsv_bins(pixels: Array, bins: Sequence[int] = DEFAULT_COLOUR_BINS) -> Array:
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


def histogram_hsv(images: Array, bins: Sequence[int] = DEFAULT_COLOUR_BINS) -> Array:
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
