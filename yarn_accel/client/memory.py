"""Memory that comes back by itself: buffers for answers, and views that tell when they are no longer used.

An answer is handed out as views of memory that this module owns.  Each time memory is handed out, one ctypes
array is laid over all of it, and every view (memoryview or numpy array) keeps that array alive; when the last
of them dies, so does the array, and its finalizer brings the memory back.  No copy, and nothing to close.

Fresh memory costs a page fault every 4 KiB, which for large answers is more than the transfer itself; that is
why `ReplyPool` keeps what comes back.

Finalizers run in any thread and in the middle of anything, so all they do is append to a deque.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import weakref
from typing import Any, Callable, Deque, Optional

__all__ = ["POOL_FROM_BYTES", "Region", "ReplyPool"]

#: Smaller answers get memory of their own: malloc is quicker than a finalizer.
POOL_FROM_BYTES = 256 * 1024
_IDLE_BYTES = 256 * 1024 * 1024
_PAGE = 4096


class Region:
    """A mapping of which views are handed out.

    Args:
        mapping: the memory.
        n_bytes: its length.

    Raises:
        ImportError: this Python was built without ctypes.
    """

    __slots__ = ("_kind", "_mapping", "n_bytes", "view")

    def __init__(self, mapping: mmap.mmap, n_bytes: int) -> None:
        import ctypes

        self.n_bytes = n_bytes
        #: The memory itself, for the owner; it keeps nothing but the mapping alive.
        self.view = memoryview(mapping)
        self._mapping = mapping
        self._kind: Any = ctypes.c_ubyte * n_bytes

    def lend(self, on_drop: Callable[..., object], *args: object) -> memoryview:
        """All of the memory as a view; calls ``on_drop(*args)`` when nothing made of that view is left."""
        whole = self._kind.from_buffer(self._mapping)
        weakref.finalize(whole, on_drop, *args).atexit = False
        return memoryview(whole).cast("B")


class ReplyPool:
    """Memory for large answers, used again when the caller has dropped the last array of an answer.

    Args:
        idle_bytes: most that is kept while nobody uses it.
    """

    def __init__(self, idle_bytes: int = _IDLE_BYTES) -> None:
        self._idle: Deque[Region] = collections.deque()
        self._idle_limit_bytes = idle_bytes

    def take(self, n_bytes: int) -> memoryview:
        """Writable memory of that length; its content is arbitrary."""
        region = self._fitting(n_bytes)
        if region is None:
            region = _map(n_bytes)
        return region.lend(self._idle.append, region)[:n_bytes]

    def _fitting(self, n_bytes: int) -> Optional[Region]:
        """An idle region that is not much too large; the pool is brought below its limit on the way."""
        found = None
        kept_bytes = 0
        for _ in range(len(self._idle)):
            region = self._idle.pop()
            if found is None and n_bytes <= region.n_bytes <= 2 * n_bytes:
                found = region
            elif kept_bytes + region.n_bytes <= self._idle_limit_bytes:
                kept_bytes += region.n_bytes
                self._idle.appendleft(region)
        return found


def _map(n_bytes: int) -> Region:
    length = -(-n_bytes // _PAGE) * _PAGE
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return Region(mapping, length)
