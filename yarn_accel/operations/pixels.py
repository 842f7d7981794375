"""From encoded images to pixels: decode, bound, and make grey.

Decoding is where hostile input arrives, so an image is refused on its header, before its pixels are decoded,
when it is too large or of an unexpected kind. Only three formats are decoded: others are refused by their
first bytes, and no decoder sees them. Of channels of 16 bits the upper 8 are taken. Notes of orientation
(EXIF) are ignored: the pixels are taken as stored.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any, Iterable, Iterator, Optional, Tuple, Union

import numpy as np
from PIL import Image, UnidentifiedImageError

from yarn_accel.errors import RejectedError

__all__ = [
    "FORMATS",
    "MAX_PIXELS",
    "decode",
    "decode_all",
    "decode_each",
    "grey",
    "jpeg_size",
    "split",
]

Array = Any
FORMATS = ("PNG", "JPEG", "PPM")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I;16B", "I")
_DEEP_MODES = ("I;16", "I;16B", "I")
_OTHER_FORMATS = (
    ("WebP", 8, b"WEBP"),
    ("GIF", 0, b"GIF8"),
    ("TIFF", 0, b"II*\0"),
    ("TIFF", 0, b"MM\0*"),
    ("BigTIFF", 0, b"II+\0"),
    ("BigTIFF", 0, b"MM\0+"),
    ("BMP", 0, b"BM"),
    ("JPEG 2000", 4, b"jP  "),
    ("AVIF", 4, b"ftypavif"),
    ("HEIC", 4, b"ftyphei"),
)
"""Name of a format that is not decoded, and the bytes at some place that mark it."""
MAX_PIXELS = 16 << 20
_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


def decode(encoded: bytes, max_pixels: int = MAX_PIXELS) -> Array:
    """The pixels of one PNG, JPEG or PPM image as ``uint8 (height, width, 3)``: red, green, blue.

    Raises:
        RejectedError: ``not-an-image``, ``too-large`` (before anything is decoded), ``unsupported-image``
            (another format, which is named, or a kind of pixel that is not taken) or ``broken-image``
            (damaged or cut short).
    """
    _reject_other_formats(encoded)
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            _reject_unfit(image.size, image.mode, max_pixels)
            return _pixels(image)
    except UnidentifiedImageError:
        raise RejectedError(
            "not-an-image", "{} bytes that are no {} image".format(len(encoded), ", ".join(FORMATS))
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RejectedError("too-large", _first_line(error)) from None
    except _DECODER_ERRORS as error:
        raise RejectedError("broken-image", _first_line(error)) from None


def decode_all(
    blob: Array, lengths: Array, max_pixels: int = MAX_PIXELS
) -> Iterator[Union[Array, RejectedError]]:
    """Each image of a batch in turn: its pixels, or the reason why there are none.

    Args:
        blob: the bytes of all images one after the other, ``uint8``.
        lengths: the number of bytes of each image.
        max_pixels: limit on width times height of one image.

    Raises:
        RejectedError: ``wrong-length``: the lengths and the bytes do not belong together.
    """
    return decode_each(split(blob, lengths), max_pixels)


def decode_each(images: Iterable[bytes], max_pixels: int) -> Iterator[Union[Array, RejectedError]]:
    """Each encoded image in turn: its pixels, or the reason why there are none."""
    for encoded in images:
        try:
            yield decode(encoded, max_pixels)
        except RejectedError as error:
            yield error


def split(blob: Array, lengths: Array) -> Iterator[bytes]:
    """The encoded images of a batch, one copied after the other.

    Raises (at once):
        RejectedError: ``wrong-length``: the lengths and the bytes do not belong together.
    """
    negative = np.flatnonzero(lengths < 0)
    if negative.size:
        raise RejectedError("wrong-length", "input 1: length {} is negative".format(int(negative[0])))
    total = sum(lengths.tolist())
    if total != blob.size:
        raise RejectedError(
            "wrong-length", "input 1: the lengths add up to {}, input 0 has {} bytes".format(total, blob.size)
        )
    return _split(blob, lengths.tolist())


def jpeg_size(encoded: bytes, max_pixels: int) -> Optional[Tuple[int, int]]:
    """Height and width of a JPEG that any decoder reads alike; None for all other images.

    It is whole to its end mark, has three components and tells that they are YCbCr, and is within the limit.
    """
    if not (encoded.startswith(_JPEG_START) and encoded.endswith(_JPEG_END)):
        return None
    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG",)) as image:
            transform = image.info.get("adobe_transform", 1 if "jfif" in image.info else 0)
            is_plain = image.format == "JPEG" and image.mode == "RGB" and transform == 1
            width, height = image.size
            return (height, width) if is_plain and width * height <= max_pixels else None
    except (UnidentifiedImageError, *_DECODER_ERRORS):
        return None


def grey(pixels: Array) -> Array:
    """Brightness as ``uint8``: (19595 R + 38470 G + 7471 B + 32768) / 65536, rounded down (ITU-R 601).

    Whole numbers only, so every machine and device gives the same bytes; equal to Pillow's own conversion.
    """
    weights = np.array([19595, 38470, 7471], dtype=np.int32)
    return ((pixels.astype(np.int32) @ weights + 32768) >> 16).astype(np.uint8)


def _split(blob: Array, lengths: "list[int]") -> Iterator[bytes]:
    start = 0
    for length in lengths:
        yield blob[start : start + length].tobytes()
        start += length


def _pixels(image: Image.Image) -> Array:
    """The decoded pixels, copied once out of Pillow's memory.

    `Image.tobytes` goes through pieces of 64 KiB and joins them, which takes longer than decoding a JPEG.
    """
    image.load()
    if image.mode in _DEEP_MODES:
        upper = np.clip(np.asarray(image).astype(np.int32) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(upper[:, :, None], 3, axis=2)
    if image.mode != "RGB":
        image = image.convert("RGB")
    width, height = image.size
    encoder = Image._getencoder("RGB", "raw", ("RGB",))
    encoder.setimage(image.im, (0, 0, width, height))
    _, status, content = encoder.encode(3 * width * height)
    if status < 0:
        raise OSError("pixels could not be read, status {}".format(status))
    return np.frombuffer(content, dtype=np.uint8).reshape(height, width, 3)


def _reject_other_formats(encoded: bytes) -> None:
    for name, at, mark in _OTHER_FORMATS:
        if encoded.startswith(mark, at):
            raise RejectedError(
                "unsupported-image",
                "a {} image; known: {}".format(name, ", ".join(FORMATS)),
                cure="convert it to PNG",
            )


def _reject_unfit(size: Tuple[int, int], mode: str, max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise RejectedError(
            "too-large", "{} x {} pixels, the limit is {} in all".format(width, height, max_pixels)
        )
    if mode not in MODES:
        raise RejectedError(
            "unsupported-image", "pixels of kind {!r}; known: {}".format(mode, ", ".join(MODES))
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:200]
