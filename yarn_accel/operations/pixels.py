"""From encoded images to pixels: decode, bound, and make grey.

Decoding is where hostile input arrives, so an image is refused on its header, before its pixels are decoded,
when it is too large or of an unexpected kind. Only three formats are decoded, each by its own decoder, chosen
by the first bytes. Of channels of more than 8 bits the upper 8 are taken. What does not say which pixels
there are does not matter: notes of orientation (EXIF) are ignored, transparency is dropped, of several images
the first is taken, and metadata is never unpacked; that of a PNG is checked against its checksum.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile

from yarn_accel.errors import RejectedError

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
    ("PAM", 0, b"P7\n"),
    ("PFM", 0, b"PF\n"),
    ("PFM", 0, b"Pf\n"),
)
"""Name of a format that is not decoded, and the bytes at some place that mark it."""
MAX_PIXELS = 16 << 20
_PNG_START, _JPEG_START, _JPEG_END = b"\x89PNG", b"\xff\xd8", b"\xff\xd9"
_PPM_START = re.compile(rb"P[1-6](\s|\Z)")
_PNG_SIGNATURE_BYTES = 8
_PNG_CHUNK = struct.Struct(">L4s")
_PNG_PIXELS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
"""The chunks of a PNG that its pixels depend on."""
_JPEG_SEGMENT = struct.Struct(">BBH")
_JPEG_USUAL_FRAME, _JPEG_COMPONENTS = b"\0\x11\x08", 3
"""Length and bits of the frame that every decoder reads, and how many components."""
_JPEG_MARK, _JPEG_APP1 = 0xFF, 0xE1
_JPEG_FRAMES = (0xC0, 0xC1, 0xC2)
"""Baseline, extended and progressive: the kinds of 8 bits that libjpeg and nvJPEG both decode."""
_JPEG_SCAN, _JPEG_JFIF, _JPEG_APP2, _JPEG_ADOBE = 0xDA, 0xE0, 0xE2, 0xEE
_JPEG_ONCE = frozenset((*_JPEG_FRAMES, _JPEG_ADOBE))
_JPEG_UNUSUAL = frozenset(
    (*range(0xC0), 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xDA), 0xFF)
)
"""Other kinds of frames, marks without a length, and what is no mark at all."""
_JPEG_TABLES = frozenset((0xC4, 0xDB))
"""Of Huffman codes and of quantization: most segments, any number of which is usual."""
_JPEG_USUAL_TABLES = (
    rb"(?:\xff(?:\xdb(?:\0\x43.{65}|\0\x84.{130})|\xc4(?:\0\x1f.{29}|\0\xb5.{179}|\x01\xa2.{416})))*"
)
_JPEG_PLAIN = re.compile(
    rb"\xff\xd8\xff\xe0\0\x10JFIF\0.{9}%b\xff[\xc0-\xc2]\0\x11\x08(.{4})\x03.{9}%b\xff\xda"
    % (_JPEG_USUAL_TABLES, _JPEG_USUAL_TABLES),
    re.DOTALL,
).match
"""The beginning of most JPEG: the mark of JFIF, tables of the usual lengths, one frame."""
_JPEG_MOST_SEGMENTS = 1000
"""A file may have millions of empty ones; one with a colour profile has some dozens."""
_JPEG_NO_SEGMENTS = (0xD9, 0xDA, 0xFF)
"""The end, the pixels, and a byte that fills."""
_UNSUPPORTED = "cannot handle"
"""How Pillow begins to say that a JPEG is whole, but not of 8 bits or of a number of channels it knows."""
_DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    struct.error,
    zlib.error,
)
"""Errors that Pillow's decoders raise for damaged images, found by reading them and by trying."""


def decode(encoded: bytes, max_pixels: int = MAX_PIXELS) -> Array:
    """The pixels of one PNG, JPEG or PPM image as ``uint8 (height, width, 3)``: red, green, blue.

    Raises:
        RejectedError: ``not-an-image``, ``too-large`` (before anything is decoded), ``unsupported-image``
            (another format, which is named, or a kind of pixel that is not taken) or ``broken-image``
            (damaged or cut short).
    """
    try:
        with _opened(encoded) as image:
            _reject_unfit(image.size, image.mode, max_pixels)
            return _pixels(image, encoded)
    except (RejectedError, TimeoutError):
        raise
    except _DECODER_ERRORS as error:
        reason = _first_line(error)
        if reason.startswith(_UNSUPPORTED):
            raise RejectedError("unsupported-image", reason) from None
        raise RejectedError("broken-image", reason) from None


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

    It is one image, whole to its end mark, within the limit, and its three components are YCbCr by a mark.
    Its markers are walked by their lengths up to the first scan, and whatever is unusual there gives None.
    """
    if not (encoded.startswith(_JPEG_START) and encoded.endswith(_JPEG_END)):
        return None
    plain = _JPEG_PLAIN(encoded)
    if plain is None:
        return _walked_size(encoded, max_pixels)
    size = int.from_bytes(plain[1], "big")
    height, width = size >> 16, size & 0xFFFF
    return (height, width) if 0 < width * height <= max_pixels else None


def _walked_size(encoded: bytes, max_pixels: int) -> Optional[Tuple[int, int]]:
    """As `jpeg_size`, of any JPEG."""
    try:
        heads = _jpeg_heads(encoded)
    except IndexError:
        return None
    frames = [heads[kind] for kind in _JPEG_FRAMES if kind in heads]
    if len(frames) != 1 or not _is_ycc(encoded, heads):
        return None
    (frame,) = frames
    if not encoded.startswith(_JPEG_USUAL_FRAME, frame + 2) or encoded[frame + 9] != _JPEG_COMPONENTS:
        return None
    height = encoded[frame + 5] << 8 | encoded[frame + 6]
    width = encoded[frame + 7] << 8 | encoded[frame + 8]
    return (height, width) if 0 < width * height <= max_pixels else None


def _jpeg_heads(encoded: bytes) -> Dict[int, int]:
    """Where the first segment of each kind but tables begins, before the scan; nothing if one is unusual.

    Raises:
        IndexError: it ends before the first scan.
    """
    found: Dict[int, int] = {}
    at = len(_JPEG_START)
    for _ in range(_JPEG_MOST_SEGMENTS):
        if encoded[at] != _JPEG_MARK:  # also after a length below 2, which ends in itself
            break
        kind = encoded[at + 1]
        if kind not in _JPEG_TABLES:
            if kind == _JPEG_SCAN:
                return found
            if kind in _JPEG_UNUSUAL or (kind in found and kind in _JPEG_ONCE):
                break
            if kind == _JPEG_APP2 and encoded.startswith(b"MPF\0", at + 4):
                break
            found.setdefault(kind, at)
        at += 2 + (encoded[at + 2] << 8 | encoded[at + 3])
    return {}


def _is_ycc(encoded: bytes, heads: Dict[int, int]) -> bool:
    """Whether the first mark of JFIF or Adobe says that colours are YCbCr; Adobe's counts more."""
    adobe = heads.get(_JPEG_ADOBE)
    if adobe is not None:
        return encoded.startswith(b"\0\x0eAdobe", adobe + 2) and encoded[adobe + 15 : adobe + 16] == b"\1"
    return encoded.startswith(b"JFIF\0", heads.get(_JPEG_JFIF, len(encoded)) + 4)


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


def _opened(encoded: bytes) -> Image.Image:
    """The image with its header read, by the decoder that its first bytes name.

    `Image.open` would ask all decoders, call a damaged image of a known format an unknown one, and look for
    further images behind the first.
    """
    if encoded.startswith(_PNG_START):
        return PngImageFile(io.BytesIO(_without(encoded, _png_metadata(encoded))))
    if encoded.startswith(_JPEG_START):
        return JpegImageFile(io.BytesIO(_without(encoded, _jpeg_metadata(encoded))))
    if _PPM_START.match(encoded):
        return PpmImageFile(io.BytesIO(encoded))
    _reject_other_formats(encoded)
    raise RejectedError(
        "not-an-image", "{} bytes that are no {} image".format(len(encoded), ", ".join(FORMATS))
    )


def _without(encoded: bytes, parts: Iterable[Tuple[int, int]]) -> bytes:
    """The image without these parts (begin, end); the same bytes where there are none."""
    content = memoryview(encoded)
    kept: List[memoryview] = []
    kept_from = 0
    for begin, end in parts:
        kept.append(content[kept_from:begin])
        kept_from = end
    return b"".join([*kept, content[kept_from:]]) if kept else encoded


def _png_metadata(png: bytes) -> Iterator[Tuple[int, int]]:
    """Where a PNG has something besides its pixels: texts and profiles, of which Pillow takes up to 1 MiB.

    Raises:
        SyntaxError: its checksum does not match.
    """
    content = memoryview(png)
    at = _PNG_SIGNATURE_BYTES
    while at + _PNG_CHUNK.size <= len(content):
        n_bytes, name = _PNG_CHUNK.unpack_from(content, at)
        end = at + _PNG_CHUNK.size + n_bytes + 4
        if end > len(content) or name == b"IEND":
            return
        if name not in _PNG_PIXELS:
            if zlib.crc32(content[at + 4 : end - 4]) != int.from_bytes(content[end - 4 : end], "big"):
                raise SyntaxError("broken PNG file (bad checksum in {!r})".format(name))
            yield at, end
        at = end


def _jpeg_metadata(jpeg: bytes) -> Iterator[Tuple[int, int]]:
    """Where a JPEG has EXIF and XMP; Pillow seeks a resolution there and warns of what is damaged.

    Raises:
        SyntaxError: there are so many segments that to read them would take minutes.
    """
    at = len(_JPEG_START)
    for _ in range(_JPEG_MOST_SEGMENTS):
        if at + _JPEG_SEGMENT.size > len(jpeg):
            return
        mark, kind, n_bytes = _JPEG_SEGMENT.unpack_from(jpeg, at)
        if mark != _JPEG_MARK or kind in _JPEG_NO_SEGMENTS:
            return
        end = at + 2 + n_bytes
        if kind == _JPEG_APP1:
            yield at, end
        at = end
    raise SyntaxError("more than {} segments before the pixels".format(_JPEG_MOST_SEGMENTS))


def _pixels(image: Image.Image, encoded: bytes) -> Array:
    """The decoded pixels, copied once out of Pillow's memory.

    `Image.tobytes` goes through pieces of 64 KiB and joins them, which takes longer than decoding a JPEG.
    """
    if isinstance(image, PpmImageFile) and image.mode == "RGB":
        deep = _deep_ppm(image, encoded)
        if deep is not None:
            return deep
    image.load()
    if image.mode in _DEEP_MODES:
        return np.repeat(_upper_bits(image)[:, :, None], 3, axis=2)
    if image.mode != "RGB":
        image = image.convert("RGB")
    width, height = image.size
    encoder = Image._getencoder("RGB", "raw", ("RGB",))
    encoder.setimage(image.im, (0, 0, width, height))
    _, status, content = encoder.encode(3 * width * height)
    if status < 0:
        raise OSError("pixels could not be read, status {}".format(status))
    return np.frombuffer(content, dtype=np.uint8).reshape(height, width, 3)


def _upper_bits(image: Image.Image) -> Array:
    """The upper 8 of 16 bits, ``uint8 (height, width)``."""
    return np.clip(np.asarray(image).astype(np.int32) >> 8, 0, 255).astype(np.uint8)


def _deep_ppm(image: PpmImageFile, encoded: bytes) -> Optional[Array]:
    """The pixels of a PPM whose largest level is above 255; None: it is another.

    Pillow would round its colours to 8 bits. It keeps 16 bits of grey levels, and the colours of a PPM are
    the grey levels of a PGM three times as wide.
    """
    settings: Any
    ((_, _, start, settings),) = image.tile
    largest = settings[-1] if isinstance(settings, tuple) else 255
    if largest <= 255:
        return None
    width, height = image.size
    kind = b"P2" if encoded.startswith(b"P3") else b"P5"
    header = b"%s %d %d %d\n" % (kind, 3 * width, height, largest)
    with PpmImageFile(io.BytesIO(header + encoded[start:])) as grey_levels:
        grey_levels.load()
        return _upper_bits(grey_levels).reshape(height, width, 3)


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
