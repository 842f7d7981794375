"""The memory of the server: reusable shared segments under one ceiling.

A segment is an anonymous file in memory (memfd), mapped once here, handed to workers and, when it is lent, to
a client by its descriptor.  Its length is sealed, so nobody who holds the descriptor can make another mapping
of it fault.  Freed segments are kept warm and reused last in, first out; what is too much of another size is
given back to the system to make room.  The sum of all segments, free or not, never passes the ceiling.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import threading
from collections.abc import Callable

from yarn_accel.errors import UnavailableError
from yarn_accel.pipeline.waiting import WaitingLine

__all__ = ["LEAST_BYTES", "Pool", "Segment", "class_bytes"]

#: The smallest segment.
LEAST_BYTES = 64 * 1024
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_numbers = itertools.count(1)


class Segment:
    """One piece of shared memory.

    Attributes:
        id: its number, never used again in this process.
        fd: its descriptor, owned here.
        n_bytes: its length.
        view: all of it, writable.
        is_lent: whether a client holds its descriptor too; then it is never reused for anybody else.
    """

    __slots__ = ("_map", "fd", "id", "is_lent", "n_bytes", "view")

    def __init__(self, n_bytes: int) -> None:
        self.id = next(_numbers)
        self.n_bytes = n_bytes
        self.is_lent = False
        self.fd = os.memfd_create(f"yarn-accel-{self.id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, n_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.fd, n_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.view = memoryview(self._map)

    def close(self) -> None:
        """Give the memory back, at once even if workers still map it; what a client has stays its own."""
        if not self.is_lent:
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE)
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()


class Pool:
    """All segments of a server; safe to use from several threads.

    Args:
        bound_bytes: the ceiling.
        on_drop: told the number of a segment that goes back to the system, so that others unmap it.
        evict: asked, with a number of bytes, to release what is only kept for convenience.
    """

    def __init__(
        self,
        bound_bytes: int,
        on_drop: Callable[[int], None] = lambda number: None,
        evict: Callable[[int], object] = lambda n_bytes: None,
    ) -> None:
        self.bound_bytes = bound_bytes
        #: The most that all segments together ever had.
        self.peak_bytes = 0
        #: Bytes of all segments, of those that are free, and of those lent to clients.
        self.bytes = 0
        self.free_bytes = 0
        self.lent_bytes = 0
        self.on_drop = on_drop
        self.evict = evict
        self._lock = threading.Lock()
        self._free: dict[int, list[Segment]] = {}
        self._segments: dict[int, Segment] = {}
        self._line: WaitingLine[Segment] = WaitingLine()

    @property
    def n_waiting(self) -> int:
        """Callers waiting in `acquire` now."""
        return len(self._line.waiters)

    @property
    def used_bytes(self) -> int:
        """Bytes in use: acquired or lent, and not given back."""
        return self.bytes - self.free_bytes

    def snapshot(self) -> dict[str, int]:
        """All that there is to know about it, fit for JSON."""
        return {
            "bytes": self.bytes,
            "free_bytes": self.free_bytes,
            "used_bytes": self.used_bytes,
            "lent_bytes": self.lent_bytes,
            "peak_bytes": self.peak_bytes,
            "bound_bytes": self.bound_bytes,
            "waiting": self.n_waiting,
        }

    def segment(self, number: int) -> Segment:
        """The segment of that number.

        Raises:
            KeyError: there is none any more.
        """
        return self._segments[number]

    def try_acquire(self, n_bytes: int) -> Segment | None:
        """A segment of at least `n_bytes` if one can be had now and nobody waits for one."""
        with self._lock:
            segment, dropped = (None, []) if self._line.waiters else self._take(n_bytes)
        self._tell_dropped(dropped)
        return segment

    def acquire(self, n_bytes: int) -> Segment:
        """A segment of at least `n_bytes`; waits for it, first come, first served.

        Raises:
            UnavailableError: it can never be had, or the pool was closed.
        """
        segment = self.try_acquire(n_bytes)
        if segment is not None:
            return segment
        if n_bytes > self.bound_bytes:
            raise UnavailableError(f"{n_bytes} bytes are more than the server has")
        with self._lock:
            waiter = self._line.join(n_bytes)
        self.evict(n_bytes)
        self._serve()
        return waiter.wait()

    def release(self, segment: Segment) -> None:
        """Give a segment back."""
        with self._lock:
            self._free.setdefault(segment.n_bytes, []).append(segment)
            self.free_bytes += segment.n_bytes
            must_serve = bool(self._line.waiters) or self._line.is_closed
        if must_serve:
            self._serve()

    def lend(self, n_bytes: int) -> Segment | None:
        """A fresh segment for one connection; None when half of the memory is lent, or no room is left now.

        It is fresh because a reused one would show the client what others left in it.
        """
        size = self._size(n_bytes)
        with self._lock:
            if self.lent_bytes + size > self.bound_bytes // 2 or self._line.waiters or self._line.is_closed:
                return None
            dropped = self._make_room(size)
            segment = self._create(size) if dropped is not None else None
            if segment is not None:
                segment.is_lent = True
                self.lent_bytes += size
        self._tell_dropped(dropped or [])
        return segment

    def end_loan(self, segment: Segment) -> None:
        """Destroy a lent segment: its connection is gone, and nothing here uses it."""
        with self._lock:
            self.lent_bytes -= segment.n_bytes
            self._destroy(segment)
        self._tell_dropped([segment.id])
        self._serve()

    def close(self) -> None:
        """Let nobody wait any longer, and give all free memory back."""
        with self._lock:
            self._line.close()
        self._serve()

    def _serve(self) -> None:
        """Hand freed memory to those who wait, in their order; after `close`, to the system."""
        dropped: list[int] = []

        def take(n_bytes: int) -> Segment | None:
            segment, gone = self._take(n_bytes)
            dropped.extend(gone)
            return segment

        with self._lock:
            self._line.serve(take)
            if self._line.is_closed:
                while self._drop_one(dropped):
                    pass
        self._tell_dropped(dropped)

    # Below, the lock is held

    def _size(self, n_bytes: int) -> int:
        size = class_bytes(n_bytes)
        if size <= self.bound_bytes:
            return size
        return -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def _take(self, n_bytes: int) -> tuple[Segment | None, list[int]]:
        if self._line.is_closed:
            return None, []
        size = self._size(n_bytes)
        free = self._free.get(size)
        if free:
            self.free_bytes -= size
            return free.pop(), []
        dropped = self._make_room(size)
        if dropped is None:
            return None, []
        return self._create(size), dropped

    def _make_room(self, size: int) -> list[int] | None:
        """Drop free segments until `size` more bytes fit; None, and nothing dropped, when they cannot."""
        if self.bytes - self.free_bytes + size > self.bound_bytes:
            return None
        dropped: list[int] = []
        while self.bytes + size > self.bound_bytes:
            self._drop_one(dropped)
        return dropped

    def _drop_one(self, dropped: list[int]) -> bool:
        for size, free in self._free.items():
            if free:
                segment = free.pop(0)
                self.free_bytes -= size
                self._destroy(segment)
                dropped.append(segment.id)
                return True
        return False

    def _create(self, size: int) -> Segment | None:
        try:
            segment = Segment(size)
        except OSError:
            # No descriptor or no memory left: as good as full, until something is given back.
            return None
        self._segments[segment.id] = segment
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        return segment

    def _destroy(self, segment: Segment) -> None:
        del self._segments[segment.id]
        self.bytes -= segment.n_bytes
        segment.close()

    def _tell_dropped(self, dropped: list[int]) -> None:
        for number in dropped:
            self.on_drop(number)


def class_bytes(n_bytes: int) -> int:
    """The size of the segments that serve `n_bytes`: a power of two or three quarters of one."""
    if n_bytes <= LEAST_BYTES:
        return LEAST_BYTES
    power = 1 << (n_bytes - 1).bit_length()
    middle = power // 4 * 3
    return middle if n_bytes <= middle else power
