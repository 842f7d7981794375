"""From a batch of encoded images to one row of features for each.

Every histogram is divided by its image's number of pixels, so its values add up to 1 and images of different
sizes compare. With the parameter ``root`` every value is replaced by its square root: the Euclidean distance
of two rows, which K-means minimizes, is then the Hellinger distance of the histograms, and a few full bins
no longer outweigh all others. A bad image costs its own row only: the row is zero and ``info["rejected"]``
says why.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import colour as colours
from yarn_accel.operations import lbp as textures
from yarn_accel.operations import pixels as decoding
from yarn_accel.operations.operation import Outcome, Params

__all__ = ["colour", "features", "lbp"]

Array = Any
Part = Callable[[Array], Array]
_CHUNK_PIXELS = 1 << 16
"""Images of one size are computed together up to this many pixels, so that temporaries stay in the cache."""
_WAITING_PIXELS = 1 << 22
"""Images of many sizes that wait for others of theirs are held up to this many pixels."""


def lbp(arrays: List[Array], params: Params) -> Outcome:
    """Histogram of local binary patterns, ``features`` ``float32 (n, bins)``; 59 or 256 bins.

    Args:
        arrays: the bytes of all images, and the length of each.
        params: ``bins``, ``max_pixels``, ``root``.

    Raises:
        RejectedError: ``wrong-length``: the lengths and the bytes do not belong together.
    """
    return _batch(arrays, params, [_texture(params)])


def colour(arrays: List[Array], params: Params) -> Outcome:
    """Histogram over hue, saturation and value, ``features`` ``float32 (n, product of hsv_bins)``.

    Arguments and errors as for `lbp`, with ``hsv_bins`` (default 16, 4, 4) in place of ``bins``.
    """
    return _batch(arrays, params, [_colour(params)])


def features(arrays: List[Array], params: Params) -> Outcome:
    """`lbp` and `colour` side by side, each image decoded once: ``features`` ``float32 (n, both)``."""
    return _batch(arrays, params, [_texture(params), _colour(params)])


def _texture(params: Params) -> Part:
    is_uniform = params.get("bins", 59) == 59

    def part(images: Array) -> Array:
        histogram = textures.histogram_256(decoding.grey(images))
        return textures.uniform_histogram(histogram) if is_uniform else histogram

    return part


def _colour(params: Params) -> Part:
    bins = tuple(params.get("hsv_bins", colours.DEFAULT_BINS))
    return lambda images: colours.histogram_hsv(images, bins)


def _batch(arrays: List[Array], params: Params, parts: List[Part]) -> Outcome:
    blob, lengths = arrays
    rows = np.zeros((lengths.size, _width(parts)), dtype=np.float32)
    waiting: Dict[Tuple[int, ...], List[Tuple[int, Array]]] = {}
    n_waiting = 0
    rejected: List[List[Any]] = []
    max_pixels = params.get("max_pixels", decoding.MAX_PIXELS)
    for index, image in enumerate(decoding.decode_all(blob, lengths, max_pixels)):
        if isinstance(image, RejectedError):
            rejected.append([index, image.code, image.message])
            continue
        n_pixels = image.shape[0] * image.shape[1]
        group = waiting.setdefault(image.shape, [])
        group.append((index, image))
        n_waiting += n_pixels
        if len(group) * n_pixels >= _CHUNK_PIXELS or n_waiting >= _WAITING_PIXELS:
            n_waiting -= len(group) * n_pixels
            _fill(rows, waiting.pop(image.shape), parts)
    for group in waiting.values():
        _fill(rows, group, parts)
    if params.get("root", False):
        np.sqrt(rows, out=rows)
    return Outcome({"features": rows}, {"n": int(lengths.size), "rejected": rejected})


def _width(parts: List[Part]) -> int:
    probe = np.zeros((1, 1, 1, 3), dtype=np.uint8)
    return sum(part(probe).shape[1] for part in parts)


def _fill(rows: Array, group: List[Tuple[int, Array]], parts: List[Part]) -> None:
    indices = [index for index, _ in group]
    images = np.stack([image for _, image in group])
    n_pixels = images.shape[1] * images.shape[2]
    rows[indices] = np.concatenate([part(images) / n_pixels for part in parts], axis=1)
