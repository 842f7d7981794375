"""A bound on the bytes that wait in a queue."""

from __future__ import annotations

import collections
import threading

from yarn_accel.errors import UnavailableError

__all__ = ["ByteBudget"]


class _Waiter:
    __slots__ = ("is_served", "n_bytes", "ready")

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.ready = threading.Event()
        self.is_served = False


class ByteBudget:
    """Counts bytes in use and makes those wait who would pass the bound.

    Waiters are served in the order in which they came, so that a large request is not starved by small ones.
    What is larger than the whole bound is let in alone.

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
        self._waiting: collections.deque[_Waiter] = collections.deque()
        self._is_closed = False

    @property
    def n_waiting(self) -> int:
        """Callers waiting in `reserve` now."""
        return len(self._waiting)

    def reserve(self, n_bytes: int) -> None:
        """Wait until `n_bytes` fit, and count them.

        Raises:
            UnavailableError: the budget was closed while waiting.
        """
        with self._lock:
            if not self._waiting and self._fits(n_bytes) and not self._is_closed:
                self._use(n_bytes)
                return
            waiter = _Waiter(n_bytes)
            if not self._is_closed:
                self._waiting.append(waiter)
            else:
                waiter.ready.set()
        waiter.ready.wait()
        if not waiter.is_served:
            raise UnavailableError("the server or this connection is shutting down")

    def count(self, n_bytes: int) -> None:
        """Count bytes that are there already, even past the bound."""
        with self._lock:
            self._use(n_bytes)

    def release(self, n_bytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self.used_bytes -= n_bytes
            assert self.used_bytes >= 0, "more released than reserved"
            while self._waiting and self._fits(self._waiting[0].n_bytes):
                waiter = self._waiting.popleft()
                self._use(waiter.n_bytes)
                waiter.is_served = True
                waiter.ready.set()

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = list(self._waiting), collections.deque()
        for waiter in waiting:
            waiter.ready.set()

    def _use(self, n_bytes: int) -> None:
        self.used_bytes += n_bytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes

    def _fits(self, n_bytes: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + n_bytes <= self.bound_bytes
