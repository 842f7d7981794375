"""A bound on the bytes that wait in a queue."""

from __future__ import annotations

import threading

from yarn_accel.pipeline.waiting import WaitingLine

__all__ = ["ByteBudget"]


class ByteBudget:
    """Counts bytes in use and makes those wait who would pass the bound.

    Who waits is served in the order of arrival; what is larger than the whole bound is let in alone.

    Args:
        bound_bytes: the bound.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        #: The most that was ever in use.
        self.peak_bytes = 0
        #: Bytes in use now.
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._line: WaitingLine[int] = WaitingLine()

    @property
    def n_waiting(self) -> int:
        """Callers waiting in `reserve` now."""
        return len(self._line.waiters)

    def reserve(self, n_bytes: int) -> None:
        """Wait until `n_bytes` fit, and count them.

        Raises:
            UnavailableError: the budget was closed while waiting.
        """
        with self._lock:
            line = self._line
            if not line.waiters and not line.is_closed and self._take(n_bytes) is not None:
                return
            waiter = line.join(n_bytes)
        waiter.wait()

    def count(self, n_bytes: int) -> None:
        """Count bytes that are there already, even past the bound."""
        with self._lock:
            self._use(n_bytes)

    def release(self, n_bytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self.used_bytes -= n_bytes
            assert self.used_bytes >= 0, "more released than reserved"
            if self._line.waiters:
                self._line.serve(self._take)

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._lock:
            self._line.close()

    def _take(self, n_bytes: int) -> int | None:
        """Count bytes if they fit now."""
        if self.used_bytes and self.used_bytes + n_bytes > self.bound_bytes:
            return None
        self._use(n_bytes)
        return n_bytes

    def _use(self, n_bytes: int) -> None:
        self.used_bytes += n_bytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes
