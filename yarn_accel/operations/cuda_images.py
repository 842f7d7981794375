"""Features of images on a GPU: decoded by the CPU, then our own kernels for texture and colour.

The kernels give the same whole numbers as the CPU, bit for bit. NVIDIA's JPEG decoder (nvJPEG) has no binding
in CuPy, so images are decoded by Pillow here too, which is then what takes the time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

from yarn_accel.operations import cuda_source
from yarn_accel.operations import features as images
from yarn_accel.operations.cuda_linalg import cupy_module
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

__all__ = ["colour", "features", "lbp"]

Array = Any
_THREADS = 256
_MAX_BLOCKS = 256
_CHUNK_PIXELS = 1 << 22
_MAX_GROUP = 1 << 15
"""A grid has at most 65535 rows of blocks, one for each image."""


def lbp(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `features.lbp`."""
    return images.lbp(arrays, params, place, _forms())


def colour(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `features.colour`."""
    return images.colour(arrays, params, place, _forms())


def features(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `features.features`."""
    return images.features(arrays, params, place, _forms())


@lru_cache(maxsize=1)
def _forms() -> images.Forms:
    cupy = cupy_module()
    module = cupy.RawModule(code=cuda_source.IMAGES, options=cuda_source.IMAGE_OPTIONS)

    def patterns(group: Sequence[Array]) -> Array:
        pixels = cupy.asarray(np.stack(group))
        n_images, height, width, _ = pixels.shape
        shades = cupy.empty(pixels.shape[:3], dtype=np.uint8)
        _launch(module, "grey", shades.size, 1, (pixels, np.int64(shades.size), shades))
        histogram = cupy.zeros((n_images, 256), dtype=np.uint64)
        sizes = np.int32(height), np.int32(width)
        _launch(module, "patterns", height * width, n_images, (shades, *sizes, histogram))
        return histogram.get().astype(np.int64)

    def colour_bins(group: Sequence[Array], bins: Tuple[int, ...]) -> Array:
        pixels = cupy.asarray(np.stack(group))
        n_images, height, width, _ = pixels.shape
        histogram = cupy.zeros((n_images, int(np.prod(bins))), dtype=np.uint64)
        numbers = (np.int64(height * width), *(np.int32(n) for n in bins))
        _launch(module, "colours", height * width, n_images, (pixels, *numbers, histogram))
        return histogram.get().astype(np.int64)

    return images.Forms("cuda", _in_groups(patterns), _in_groups(colour_bins), _CHUNK_PIXELS)


def _in_groups(part: Callable[..., Array]) -> Callable[..., Array]:
    def parts(group: Sequence[Array], *rest: Any) -> Array:
        starts = range(0, len(group), _MAX_GROUP)
        return np.concatenate([part(group[start : start + _MAX_GROUP], *rest) for start in starts])

    return parts


def _launch(module: Any, name: str, n: int, n_images: int, arguments: Tuple[Any, ...]) -> None:
    n_blocks = min(_MAX_BLOCKS, -(-n // _THREADS))
    module.get_function(name)((n_blocks, n_images), (_THREADS,), arguments)
