"""A short digest of a payload, by which a server notices one key used for two different inputs.

It finds mistakes, not malice: of a large payload only samples are read.  The key is the tenant's own, so who
deceives it deceives himself.
"""

import functools
import hashlib
import operator
from typing import Any, Callable, List, Sequence, Tuple

from yarn_accel.wire.checksums import Buffer

#: Payloads up to this size are read completely.
WHOLE_BYTES = 64 * 1024
_PIECE_BYTES = 1024
_N_PIECES = 66


def payload_digest(parts: Sequence[Buffer]) -> bytes:
    """16 bytes that depend on the bytes of the parts one after the other, not on where they are cut.

    Above `WHOLE_BYTES` it covers the length, both ends and 64 evenly spread pieces of 1 KiB between them.
    Two processes may disagree about the same payload: one has xxhash, the other has not.
    """
    views = [memoryview(part) for part in parts if len(part)]
    n_bytes = sum(map(len, views))
    if n_bytes <= WHOLE_BYTES:
        pieces: Sequence[Buffer] = views
    elif len(views) == 1:
        pieces = _sampler(n_bytes)(views[0])
    else:
        pieces = _samples(views, n_bytes)
    digest = _new_hash()(n_bytes.to_bytes(8, "big"))
    for piece in pieces:
        digest.update(piece)
    found: bytes = digest.digest()
    return found


def _starts(n_bytes: int) -> List[int]:
    last = n_bytes - _PIECE_BYTES
    return [last * index // (_N_PIECES - 1) for index in range(_N_PIECES)]


@functools.lru_cache(maxsize=64)
def _sampler(n_bytes: int) -> Callable[[memoryview], Tuple[memoryview, ...]]:
    """What cuts the pieces out of one view of that length; most payloads are one view of a usual length."""
    return operator.itemgetter(*[slice(start, start + _PIECE_BYTES) for start in _starts(n_bytes)])


def _samples(views: List[memoryview], n_bytes: int) -> List[memoryview]:
    starts = _starts(n_bytes)
    pieces: List[memoryview] = []
    begin = 0
    for view in views:
        end = begin + len(view)
        pieces += [
            view[max(0, start - begin) : start - begin + _PIECE_BYTES]
            for start in starts
            if begin - _PIECE_BYTES < start < end
        ]
        begin = end
    return pieces


def _new_hash() -> Callable[[bytes], Any]:
    """What begins a digest with some bytes; it is fed views, and copies nothing."""
    try:
        from xxhash import xxh3_128
    except ImportError:
        return functools.partial(hashlib.blake2b, digest_size=16)
    begin: Callable[[bytes], Any] = xxh3_128
    return begin
