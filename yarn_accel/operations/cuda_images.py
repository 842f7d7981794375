"""Features of images on a GPU: our own kernels for texture and colour, and JPEG decoded by nvJPEG.

The kernels give the same whole numbers as the CPU from the same pixels, bit for bit.

JPEG is decoded through NVIDIA's package nvImageCodec where it is installed. The GPU gets only what it decodes
as the CPU does: a whole JPEG of three components whose colour space a JFIF or Adobe mark names, within the
limit on pixels by its header. Pillow decodes everything else, and whatever the GPU fails at, and gives the
reasons for refusals. nvJPEG rounds differently from libjpeg: levels may differ by a few, and histograms
accordingly.
"""

from __future__ import annotations

import importlib
import logging
import time
from functools import lru_cache, partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import cuda_source, pixels
from yarn_accel.operations import features as images
from yarn_accel.operations.cuda_streams import cupy_module, with_memory
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

logger = logging.getLogger(__name__)

Array = Any
_THREADS = 256
_MAX_BLOCKS = 256
_CHUNK_PIXELS = 1 << 22
_MAX_GROUP = 1 << 15
"""A grid has at most 65535 rows of blocks, one for each image."""


def lbp(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `features.lbp`."""
    return _computed(images.lbp, arrays, params, place)


def colour(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `features.colour`."""
    return _computed(images.colour, arrays, params, place)


def features(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `features.features`."""
    return _computed(images.features, arrays, params, place)


def _computed(
    operation: Callable[..., Outcome], arrays: List[Array], params: Params, place: Place
) -> Outcome:
    """The outcome; ``info["decoder_failure"]`` tells why JPEG were decoded by the CPU instead of nvJPEG."""
    failures: List[str] = []
    kernels = _forms()._replace(decode_all=partial(decode_all, failures))
    outcome = operation(arrays, params, place, kernels)
    if failures:
        outcome.info["decoder_failure"] = failures[0]
    return outcome


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
    return images.FeatureKernels("cuda", *parts, _CHUNK_PIXELS)


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


Decoded = Union[Array, RejectedError]
Size = Tuple[int, int]
_WINDOW_IMAGES = 256
_WINDOW_PIXELS = 1 << 24
"""Images are decoded together up to this many pixels, 48 MiB of the GPU's memory; or a single larger one."""
_CPU_THREADS = 2
"""Of each decoder; left to itself it starts one for every core of the machine."""
_RETRY_S = 60.0
"""After a decoder could not be made, JPEG are left to the CPU for so long."""


def decode_all(
    failures: List[str], blob: Array, lengths: Array, max_pixels: int = pixels.MAX_PIXELS
) -> Iterator[Decoded]:
    """As `pixels.decode_all`; the pixels may lie on the device, complete on CuPy's current stream.

    Why the GPU's decoder failed, if it did, is added to ``failures``.
    """
    encoded = pixels.split(blob, lengths)
    decoder = _decoder(cupy_module().cuda.get_current_stream().ptr)
    if isinstance(decoder, _Decoder):
        return _decode_each(encoded, max_pixels, decoder._replace(failures=failures))
    if decoder.reason:
        failures.append(decoder.reason)
    return pixels.decode_each(encoded, max_pixels)


class _Decoder(NamedTuple):
    """A decoder of nvImageCodec's, its settings, and its class of encoded images."""

    decode: Any
    params: Any
    stream_class: Any
    failures: List[str]

    def opened(self, encoded: bytes, size: Optional[Size]) -> Any:
        """The encoded image, if this decoder reads the size that was found fit from its header too."""
        if size is None:
            return None
        try:
            stream = self.stream_class(encoded)
            return stream if (stream.height, stream.width) == size else None
        except Exception:  # noqa: BLE001 -- whatever it raises, the CPU has the reasons
            return None

    def on_device(self, streams: List[Any]) -> List[Optional[Array]]:
        """The pixels of each image, or the reason for none; None for one that the GPU could not decode."""
        if not streams:
            return []
        cupy = cupy_module()
        try:
            current = cupy.cuda.get_current_stream()
            found = self.decode(streams, params=self.params, cuda_stream=current.ptr)
            images = [None if image is None else cupy.asarray(image) for image in found]
        except Exception as error:  # noqa: BLE001 -- whatever it raises, the CPU can do without it
            self.failures.append(_logged(error))
            images = []
        images += [None] * (len(streams) - len(images))
        shapes = [(stream.height, stream.width, 3) for stream in streams]
        return [
            image if image is not None and image.shape == shape and image.dtype == "uint8" else None
            for image, shape in zip(images, shapes)  # noqa: B905 -- Python 3.8
        ]


def _decode_each(images: Iterator[bytes], max_pixels: int, decoder: _Decoder) -> Iterator[Decoded]:
    window: List[Tuple[bytes, Optional[Size]]] = []
    n_pixels = 0
    for encoded in images:
        size = pixels.jpeg_size(encoded, max_pixels)
        n_own = size[0] * size[1] if size else 0
        if window and (len(window) == _WINDOW_IMAGES or n_pixels + n_own > _WINDOW_PIXELS):
            yield from _decode_window(window, max_pixels, decoder)
            window, n_pixels = [], 0
        window.append((encoded, size))
        n_pixels += n_own
    yield from _decode_window(window, max_pixels, decoder)


def _decode_window(
    window: List[Tuple[bytes, Optional[Size]]], max_pixels: int, decoder: _Decoder
) -> Iterator[Decoded]:
    streams = [decoder.opened(encoded, size) for encoded, size in window]
    decoded = iter(decoder.on_device([stream for stream in streams if stream is not None]))
    for (encoded, _), stream in zip(window, streams):  # noqa: B905 -- Python 3.8
        image = None if stream is None else next(decoded)
        if image is None:
            yield from pixels.decode_each([encoded], max_pixels)
        else:
            yield image


class _NoDecoder(NamedTuple):
    """Why there is none (empty: the package is not installed), and when that was found."""

    reason: str
    since_s: float


_decoders: Dict[int, Union[_Decoder, _NoDecoder]] = {}
"""By stream, whose callers are one at a time."""


def _decoder(caller: int) -> Union[_Decoder, _NoDecoder]:
    """The decoder for callers on that stream; one that could not be made is tried again after a while."""
    found = _decoders.get(caller)
    if isinstance(found, _NoDecoder) and time.monotonic() >= found.since_s + _RETRY_S:
        found = None
    if found is None:
        found = _decoders[caller] = _new_decoder()
    return found


def _new_decoder() -> Union[_Decoder, _NoDecoder]:
    try:
        codec = importlib.import_module("nvidia.nvimgcodec")
        decoder = codec.Decoder(
            max_num_cpu_threads=_CPU_THREADS,
            # libjpeg smooths colours between pixels unless set otherwise.
            options=":fancy_upsampling=1",
        )
        settings = codec.DecodeParams(apply_exif_orientation=False)
        return _Decoder(decoder.decode, settings, codec.CodeStream, [])
    except ImportError:
        return _NoDecoder("", time.monotonic())
    except Exception as error:  # noqa: BLE001 -- a package that does not go with driver or device
        return _NoDecoder(_logged(error), time.monotonic())


def _logged(error: Exception) -> str:
    reason = "{}: {}".format(type(error).__name__, error)
    logger.warning("JPEG are decoded by the CPU: %s", reason)
    return reason
