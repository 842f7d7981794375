"""The pause until the next heartbeat: constant while the master answers, exponential back-off otherwise."""

from __future__ import annotations

from collections.abc import Callable

_JITTER = 0.1


class HeartbeatInterval:
    """Counts failures; no clock and no randomness of its own.

    Args:
        interval_s: the pause while all is well.
        max_backoff_s: the longest pause while the master is away.
        random: uniform in 0 to 1; spreads the heartbeats of nodes that lost the master together.
    """

    def __init__(self, interval_s: float, max_backoff_s: float, random: Callable[[], float]) -> None:
        self.interval_s = interval_s
        self.n_failures = 0
        self._max_backoff_s = max_backoff_s
        self._random = random

    def succeeded(self, interval_s: float = 0.0) -> None:
        """The master answered, and wants this interval from now on (0: no change)."""
        self.n_failures = 0
        if interval_s:
            self.interval_s = interval_s

    def failed(self) -> None:
        """No answer, or none to be believed."""
        self.n_failures += 1

    def next_wait_s(self) -> float:
        """The interval, give or take a tenth; after n failures 2^(n-1) intervals, less up to a half."""
        if not self.n_failures:
            return self.interval_s * (1 + _JITTER * (2 * self._random() - 1))
        longest_s = max(self._max_backoff_s, self.interval_s)
        backoff_s = min(longest_s, self.interval_s * 2.0 ** min(self.n_failures - 1, 30))
        return backoff_s * (1 - self._random() / 2)
