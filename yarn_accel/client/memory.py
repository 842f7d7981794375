"""Memory that comes back by itself: buffers for answers, and views that tell when they are no longer used.

An answer is handed out as views of memory that this module owns.  Each time memory is handed out, one ctypes
array is laid over all of it, and every view (memoryview or numpy array) keeps that array alive; when the last
of them dies, so does the array, and a `DropQueue` hears of it.  No copy, and nothing to close.

Fresh memory costs a page fault every 4 KiB, which for large answers is more than the transfer itself; that is
why `ReplyPool` keeps what comes back.

Views die in any thread and in the middle of anything, so all that happens then is an append to a deque, which
is no Python function: a signal handler that ran within a finalizer could not raise anything to its caller.
"""

from __future__ import annotations

import collections
import mmap
import weakref
from typing import Any, Deque, Dict, Iterator, Optional

from yarn_accel.client.signal_errors import reraise_from_signal

#: Smaller answers get memory of their own: malloc is quicker than a finalizer.
POOL_FROM_BYTES = 256 * 1024
_IDLE_BYTES = 256 * 1024 * 1024
_PAGE = 4096


class _DropRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows what the queue gives when the subject has died."""

    __slots__ = ("owner",)
    owner: Any


class DropQueue:
    """What was watched and has died since `take` was called last."""

    def __init__(self) -> None:
        self._watched: Dict[int, _DropRef] = {}
        self._dead: Deque[_DropRef] = collections.deque()

    def watch(self, subject: object, owner: object) -> None:
        """Have `take` give `owner` when `subject` has died."""
        reference = _DropRef(subject, self._dead.append)
        reference.owner = owner
        self._watched[id(reference)] = reference

    def take(self) -> Iterator[Any]:
        """The owners of what has died, each once for each time it was watched."""
        while self._dead:
            yield self._watched.pop(id(self._dead.popleft())).owner


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

    def lend(self, drops: DropQueue, owner: object) -> memoryview:
        """All of the memory as a view; `drops` gets the owner when nothing made of that view is left."""
        whole = self._kind.from_buffer(self._mapping)
        drops.watch(whole, owner)
        return memoryview(whole).cast("B")


class ReplyPool:
    """Memory for large answers, used again when the caller has dropped the last array of an answer.

    Args:
        idle_bytes: most that is kept while nobody uses it.
    """

    def __init__(self, idle_bytes: int = _IDLE_BYTES) -> None:
        self._idle: Deque[Region] = collections.deque()
        self._drops = DropQueue()
        self._idle_limit_bytes = idle_bytes

    def take(self, n_bytes: int) -> memoryview:
        """Writable memory of that length; its content is arbitrary."""
        region = self._fitting(n_bytes)
        if region is None:
            region = _map(n_bytes)
        return region.lend(self._drops, region)[:n_bytes]

    def _fitting(self, n_bytes: int) -> Optional[Region]:
        """An idle region that is not much too large; the pool is brought below its limit on the way."""
        self._idle.extend(self._drops.take())
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
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except OSError as error:  # a kernel without them
            reraise_from_signal(error)
    return Region(mapping, length)
