"""Checksums of payloads: they find damage on the way, not malice.

``xxh3`` and ``crc32c`` need a package that a mapper may not have, so each end offers what it can import.
"""

import zlib
from typing import Any, Callable, Dict, Tuple, Union

from yarn_accel.errors import LocalProtocolError

Buffer = Union[bytes, bytearray, memoryview]

#: Every checksum of the protocol, and how many bytes of it follow a payload.
TRAILER_BYTES = {"xxh3": 8, "crc32c": 4, "crc32": 4, "none": 0}
CHECKSUMS = tuple(TRAILER_BYTES)
#: google_crc32c reads nothing but bytes, so memory is copied for it in pieces that stay in the cache.
_PIECE_BYTES = 64 * 1024


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
    """What makes a fresh checksum of this name for each payload.

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
