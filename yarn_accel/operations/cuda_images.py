"""Features of images on a GPU: our own kernels for texture and colour.

The kernels give the same whole numbers as the CPU from the same pixels, bit for bit. Pixels come from
`cuda_decoding`: JPEG from nvJPEG where its package is installed, everything else from the CPU.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

from yarn_accel.operations import cuda_decoding, cuda_source
from yarn_accel.operations import features as images
from yarn_accel.operations.cuda_streams import cupy_module, with_memory
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

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
def _forms() -> images.FeatureKernels:
    cupy = cupy_module()
    module = cupy.RawModule(code=cuda_source.IMAGES, options=cuda_source.IMAGE_OPTIONS)

    def patterns(group: Sequence[Array]) -> Array:
        pixels = _together(group)
        n_images, height, width, _ = pixels.shape
        shades = cupy.empty(pixels.shape[:3], dtype=np.uint8)
        _launch(module, "grey", shades.size, 1, (pixels, np.int64(shades.size), shades))
        histogram = cupy.zeros((n_images, 256), dtype=np.uint64)
        sizes = np.int32(height), np.int32(width)
        _launch(module, "patterns", height * width, n_images, (shades, *sizes, histogram))
        return histogram.get().astype(np.int64)

    def colour_bins(group: Sequence[Array], bins: Tuple[int, ...]) -> Array:
        pixels = _together(group)
        n_images, height, width, _ = pixels.shape
        histogram = cupy.zeros((n_images, int(np.prod(bins))), dtype=np.uint64)
        numbers = (np.int64(height * width), *(np.int32(n) for n in bins))
        _launch(module, "colours", height * width, n_images, (pixels, *numbers, histogram))
        return histogram.get().astype(np.int64)

    parts = _in_groups(patterns), _in_groups(colour_bins)
    return images.FeatureKernels("cuda", *parts, _CHUNK_PIXELS, cuda_decoding.decode_all)


def _together(group: Sequence[Array]) -> Array:
    """Images of one size, on the host or the device, as one stack on the device."""
    cupy = cupy_module()
    if any(hasattr(image, "__cuda_array_interface__") for image in group):
        return cupy.stack([cupy.asarray(image) for image in group])
    return cupy.asarray(np.stack(group))


def _in_groups(part: Callable[..., Array]) -> Callable[..., Array]:
    def parts(group: Sequence[Array], *rest: Any) -> Array:
        starts = range(0, len(group), _MAX_GROUP)
        groups = [group[start : start + _MAX_GROUP] for start in starts]
        return np.concatenate([with_memory(partial(part, each, *rest)) for each in groups])

    return parts


def _launch(module: Any, name: str, n: int, n_images: int, arguments: Tuple[Any, ...]) -> None:
    n_blocks = min(_MAX_BLOCKS, -(-n // _THREADS))
    module.get_function(name)((n_blocks, n_images), (_THREADS,), arguments)
