"""From a batch of encoded images to one row of features for each.

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
from yarn_accel.operations import colour as colours
from yarn_accel.operations import lbp as textures
from yarn_accel.operations import pixels as decoding
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

Array = Any
Part = Callable[[Sequence[Array]], Array]
"""From images of one size to a histogram for each, in whole numbers."""
_CHUNK_PIXELS = 1 << 16
"""Images of one size are computed together up to this many pixels, so that temporaries stay in the cache."""
_WAITING_PIXELS = 1 << 22
"""Images of many sizes that wait for others of theirs are held up to this many pixels."""


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
        return textures.histogram_256(decoding.grey(np.stack(images)))

    def colour_bins(images: Sequence[Array], bins: Tuple[int, ...]) -> Array:
        return colours.histogram_hsv(np.stack(images), bins)

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
    is_uniform = params.get("bins", 59) == 59

    def part(images: Sequence[Array]) -> Array:
        histogram = ways.patterns(images)
        return textures.uniform_histogram(histogram) if is_uniform else histogram

    return part


def _colour(params: Params, ways: FeatureKernels) -> Part:
    bins = tuple(params.get("hsv_bins", colours.DEFAULT_BINS))
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
