"""JPEG decoded on the GPU by nvJPEG, through NVIDIA's package nvImageCodec where it is installed.

The GPU gets only what it decodes as the CPU does: a whole JPEG of three components whose colour space a JFIF
or Adobe mark names, within the limit on pixels by its header. Pillow decodes everything else, and whatever
the GPU fails at, and gives the reasons for refusals. nvJPEG rounds differently from libjpeg: levels may
differ by a few, and histograms accordingly.
"""

from __future__ import annotations

import importlib
import warnings
from functools import lru_cache
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple, Union

from yarn_accel.errors import RejectedError
from yarn_accel.operations import pixels
from yarn_accel.operations.cuda_streams import cupy_module

Array = Any
Decoded = Union[Array, RejectedError]
Size = Tuple[int, int]
_WINDOW_IMAGES = 256
_WINDOW_PIXELS = 1 << 22
"""Images are decoded together up to this many pixels, 12 MiB of the GPU's memory; or a single larger one."""
_MAX_CALLERS = 64
_CPU_THREADS = 2
"""Of each decoder; left to itself it starts one for every core of the machine."""


def decode_all(blob: Array, lengths: Array, max_pixels: int = pixels.MAX_PIXELS) -> Iterator[Decoded]:
    """As `pixels.decode_all`; the pixels may lie on the device, complete on CuPy's current stream."""
    encoded = pixels.split(blob, lengths)
    decoder = _decoder(cupy_module().cuda.get_current_stream().ptr)
    if decoder is None:
        return pixels.decode_each(encoded, max_pixels)
    return _decode_each(encoded, max_pixels, decoder)


class _Decoder(NamedTuple):
    """A decoder of nvImageCodec's, its settings, and its class of encoded images."""

    decode: Any
    params: Any
    stream_class: Any

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
            _warn(error)
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


@lru_cache(maxsize=_MAX_CALLERS)
def _decoder(caller: int) -> Optional[_Decoder]:
    """A decoder for callers on that stream, which are one at a time; None where there is none."""
    try:
        codec = importlib.import_module("nvidia.nvimgcodec")
        decoder = codec.Decoder(
            max_num_cpu_threads=_CPU_THREADS,
            # libjpeg smooths colours between pixels unless set otherwise.
            options=":fancy_upsampling=1",
        )
        return _Decoder(decoder.decode, codec.DecodeParams(apply_exif_orientation=False), codec.CodeStream)
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001 -- a package that does not go with driver or device
        _warn(error)
        return None


def _warn(error: Exception) -> None:
    message = "JPEG are decoded by the CPU: {}: {}".format(type(error).__name__, error)
    warnings.warn(message, RuntimeWarning, stacklevel=2)
