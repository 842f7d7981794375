"""A bound on the bytes that wait in a queue."""

from __future__ import annotations

import threading

from yarn_accel.errors import UnavailableError

__all__ = ["ByteBudget"]


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
        self._used_bytes = 0
        self._changed = threading.Condition()
        self._next_ticket = 0
        self._serving: list[int] = []
        self._is_closed = False

    @property
    def used_bytes(self) -> int:
        """Bytes in use now."""
        return self._used_bytes

    @property
    def n_waiting(self) -> int:
        """Callers waiting in `reserve` now."""
        return len(self._serving)

    def reserve(self, n_bytes: int) -> None:
        """Wait until `n_bytes` fit, and count them.

        Raises:
            UnavailableError: the budget was closed while waiting.
        """
        with self._changed:
            ticket = self._next_ticket
            self._next_ticket += 1
            self._serving.append(ticket)
            try:
                while not self._is_closed and not (self._serving[0] == ticket and self._fits(n_bytes)):
                    self._changed.wait()
            finally:
                self._serving.remove(ticket)
                self._changed.notify_all()
            if self._is_closed:
                raise UnavailableError("the server is shutting down")
            self._used_bytes += n_bytes
            self.peak_bytes = max(self.peak_bytes, self._used_bytes)

    def release(self, n_bytes: int) -> None:
        """Give bytes back."""
        with self._changed:
            self._used_bytes -= n_bytes
            assert self._used_bytes >= 0, "more released than reserved"
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _fits(self, n_bytes: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + n_bytes <= self.bound_bytes
