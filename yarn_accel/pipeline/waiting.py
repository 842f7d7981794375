"""The line of those who wait for bytes: first come, first served, so small ones never starve a large one."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from yarn_accel.errors import UnavailableError

__all__ = ["Waiter", "WaitingLine"]

Grant = TypeVar("Grant")


class Waiter(Generic[Grant]):
    """One thread in the line."""

    __slots__ = ("_grant", "_ready", "n_bytes")

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._ready = threading.Event()
        self._grant: Grant | None = None

    def wait(self) -> Grant:
        """Wait, without the owner's lock, for what was asked for.

        Raises:
            UnavailableError: the line was closed.
        """
        self._ready.wait()
        if self._grant is None:
            raise UnavailableError("the server or this connection is shutting down")
        return self._grant

    def end(self, grant: Grant | None = None) -> None:
        """Let it go on with what it asked for, or with nothing."""
        self._grant = grant
        self._ready.set()


class WaitingLine(Generic[Grant]):
    """Who waits, in the order in which they came; all of it belongs under the lock of its owner.

    Attributes:
        waiters: those who wait now; to be looked at, not changed.
        is_closed: nobody waits here any more.
    """

    __slots__ = ("is_closed", "waiters")

    def __init__(self) -> None:
        self.waiters: collections.deque[Waiter[Grant]] = collections.deque()
        self.is_closed = False

    def join(self, n_bytes: int) -> Waiter[Grant]:
        """Line up; in a closed line the wait is over at once."""
        waiter: Waiter[Grant] = Waiter(n_bytes)
        if self.is_closed:
            waiter.end()
        else:
            self.waiters.append(waiter)
        return waiter

    def serve(self, take: Callable[[int], Grant | None]) -> None:
        """Give to each in turn what `take` finds for its bytes, until it finds nothing for the first."""
        while self.waiters:
            grant = take(self.waiters[0].n_bytes)
            if grant is None:
                return
            self.waiters.popleft().end(grant)

    def close(self) -> None:
        """Send everyone away with nothing."""
        self.is_closed = True
        while self.waiters:
            self.waiters.popleft().end()
