"""The time of a section: it measures less often, or leaves something out and says so, but ends in time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.result import Row, not_measured

SHARES = {
    "operations": 0.12,
    "factorizations": 0.3,
    "batches": 0.12,
    "overlap": 0.09,
    "workers": 0.1,
    "images": 0.1,
    "paper": 0.17,
}
"""Of all the time, by section."""


class SectionOverError(BaseException):
    """What hangs is ended by it; no section handles it."""


class Budget:
    """The time of one section.

    Args:
        limit_s: seconds from now.
        now: the clock, in seconds.

    Attributes:
        cut: what was left out, or measured less often than meant.
    """

    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until_s = now() + limit_s
        self.cut: list[str] = []

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._until_s - self._now())

    def allows(self, what: str, needs_s: float = 0.0) -> bool:
        """Whether there is time for it; what there is none for is noted as cut."""
        if self.left_s > needs_s:
            return True
        self.cut.append(what)
        return False

    def rounds(self, what: str, n: int) -> Iterator[int]:
        """Numbers of rounds: the first in any case, another while there is time for one like the last."""
        took_s = 0.0
        for at in range(n):
            start_s = self._now()
            if at and not self.allows(f"{what}: {at} of {n} rounds", took_s):
                return
            yield at
            took_s = self._now() - start_s

    def cut_row(self, what: str) -> Row:
        """The row of something that there was no time for."""
        return not_measured(what, "cut, the section's time was over; --minutes gives it more")


@contextmanager
def ended_after(limit_s: float) -> Iterator[None]:
    """End what is inside after so many seconds, also where it waits for something that never comes.

    Raises:
        SectionOverError: they are over.
    """

    def end(signum: int, _: object) -> None:
        raise SectionOverError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
