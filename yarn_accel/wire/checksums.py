"""Checksums and digests of payloads: they find damage and mistakes, not malice.

A *checksum* follows a payload on the wire. ``xxh3`` and ``crc32c`` need a package that a mapper may not have,
so each end offers those that it can import. By the *digest* a server notices one key used for two different
inputs: of a large payload only samples are read. The key is the tenant's own, so a tenant who deceives it
deceives nobody else.
"""

import functools
import hashlib
import sys
import zlib
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

from yarn_accel.errors import LocalProtocolError

Buffer = Union[bytes, bytearray, memoryview]

#: Every checksum of the protocol, and how many bytes of it follow a payload.
TRAILER_BYTES = {"xxh3": 8, "crc32c": 4, "crc32": 4, "none": 0}
CHECKSUMS = tuple(TRAILER_BYTES)
#: google_crc32c reads nothing but bytes, so memory is copied for it in pieces that stay in the cache.
_PIECE_BYTES = 64 * 1024
#: Payloads up to this size are read completely for a digest, longer ones in so many samples.
_WHOLE_BYTES = 64 * 1024
_SAMPLE_BYTES = 1024
_N_SAMPLES = 66


class Checksum:
    """A running checksum of no bytes at all; what it grows to is decided by the subclasses."""

    def update(self, data: Buffer) -> None:
        """Take the next flat bytes of the payload."""

    def digest(self) -> bytes:
        """The trailer: what is sent behind the payload."""
        return b""


class _Crc(Checksum):
    def __init__(self, extend: Callable[[int, Buffer], int]) -> None:
        self._extend = extend
        self._value = 0

    def update(self, data: Buffer) -> None:
        self._value = self._extend(self._value, data)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def available_checksums() -> Tuple[str, ...]:
    """The checksums this interpreter can compute, fastest first, without ``none``."""
    return tuple(name for name in CHECKSUMS if name != "none" and _is_available(name))


def checksum_maker(name: str) -> Callable[[], Checksum]:
    """Makes a fresh checksum of this name for each payload.

    Raises:
        LocalProtocolError: this interpreter cannot compute it.
    """
    try:
        return _MAKERS[name]()
    except (KeyError, ImportError):
        raise LocalProtocolError("the checksum {!r} cannot be computed here".format(name)) from None


def _is_available(name: str) -> bool:
    try:
        _MAKERS[name]()
    except ImportError:
        return False
    return True


def _xxh3() -> Callable[[], Checksum]:
    from xxhash import xxh3_64

    maker: Any = xxh3_64  # It has the same two methods.
    return maker  # type: ignore[no-any-return]


def _crc32c() -> Callable[[], Checksum]:
    import google_crc32c

    def extend(value: int, data: Buffer) -> int:
        view = memoryview(data)
        for at in range(0, len(view), _PIECE_BYTES):
            value = google_crc32c.extend(value, bytes(view[at : at + _PIECE_BYTES]))
        return value

    return lambda: _Crc(extend)


def _crc32() -> Callable[[], Checksum]:
    return lambda: _Crc(lambda value, data: zlib.crc32(data, value))


_MAKERS: Dict[str, Callable[[], Callable[[], Checksum]]] = {
    "xxh3": _xxh3,
    "crc32c": _crc32c,
    "crc32": _crc32,
    "none": lambda: Checksum,
}


def payload_digest(parts: Sequence[Buffer]) -> bytes:
    """16 bytes that depend on the bytes of the parts one after the other, not on where they are cut.

    Above `_WHOLE_BYTES` it covers the length, both ends and 64 evenly spread pieces of 1 KiB between them.
    Two processes may disagree about the same payload: one has xxhash, the other has not.
    """
    views = [memoryview(part) for part in parts if len(part)]
    n_bytes = sum(map(len, views))
    if n_bytes <= _WHOLE_BYTES:
        pieces: Sequence[Buffer] = views
    elif len(views) == 1:
        pieces = _samples_of_one(views[0])
    else:
        pieces = _samples(views, n_bytes)
    digest = _new_hash()(n_bytes.to_bytes(8, "big"))
    for piece in pieces:
        digest.update(piece)
    found: bytes = digest.digest()
    return found


def _starts(n_bytes: int) -> List[int]:
    last = n_bytes - _SAMPLE_BYTES
    stride = last // (_N_SAMPLES - 1)
    return [*range(0, stride * (_N_SAMPLES - 1), stride), last]


def _samples_of_one(view: memoryview) -> List[Buffer]:
    """The samples of one view; by numpy, where it is loaded, in two pieces in place of 66."""
    array: Any = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is None:
        return [view[start : start + _SAMPLE_BYTES] for start in _starts(len(view))]
    last = len(view) - _SAMPLE_BYTES
    strides = last // (_N_SAMPLES - 1), 1
    evenly = array((_N_SAMPLES - 1, _SAMPLE_BYTES), "u1", view, 0, strides)
    return [evenly.tobytes(), view[last:]]


def _samples(views: List[memoryview], n_bytes: int) -> List[memoryview]:
    starts = _starts(n_bytes)
    pieces: List[memoryview] = []
    begin = 0
    for view in views:
        end = begin + len(view)
        pieces += [
            view[max(0, start - begin) : start - begin + _SAMPLE_BYTES]
            for start in starts
            if begin - _SAMPLE_BYTES < start < end
        ]
        begin = end
    return pieces


def _new_hash() -> Callable[[bytes], Any]:
    """Begins a digest with some bytes; it is then fed views, and copies nothing."""
    try:
        from xxhash import xxh3_128
    except ImportError:
        return functools.partial(hashlib.blake2b, digest_size=16)
    begin: Callable[[bytes], Any] = xxh3_128
    return begin
