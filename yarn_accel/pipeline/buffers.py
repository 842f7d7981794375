"""The memory of the server as the kernel has it: anonymous files (memfd) of fixed length, mapped once, by
number.

Which segments there are, how large they are and who uses them is decided by `core.requests`; here they are
made and given back.  The length of a segment is sealed, so nobody who holds its descriptor can make another
mapping of it fault.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Segment:
    """One piece of shared memory.

    Attributes:
        id: its number, never used again in this process.
        fd: its descriptor, owned here.
        n_bytes: its length.
        view: all of it, writable.
        is_shared: whether a client holds its descriptor too.
    """

    __slots__ = ("_map", "fd", "id", "is_shared", "n_bytes", "view")

    def __init__(self, number: int, n_bytes: int) -> None:
        self.id = number
        self.n_bytes = n_bytes
        self.is_shared = False
        self.fd = os.memfd_create(f"yarn-accel-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
        if not self.is_shared:
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE)
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()


class Buffers:
    """All segments of a server, by number."""

    def __init__(self) -> None:
        self.by_id: dict[int, Segment] = {}

    def create(self, number: int, n_bytes: int) -> bool:
        """Make a segment; False: the system has no descriptor or no memory left."""
        try:
            self.by_id[number] = Segment(number, n_bytes)
        except OSError:
            return False
        return True

    def destroy(self, number: int) -> None:
        """Give a segment back to the system."""
        self.by_id.pop(number).close()

    def close(self) -> None:
        """Give all of them back."""
        while self.by_id:
            self.by_id.popitem()[1].close()
