"""CPU time used by each user, forgotten by half-lives: what fair share weighs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torque_sched.core.model import Job
from torque_sched.learning.rows import EndedJob

__all__ = ["Usage"]


class Usage:
    """CPU seconds by user: jobs that ended count less by their age, running ones with what they used so far.

    Args:
        half_life_s: after this time usage counts half.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._ended: dict[str, tuple[float, float]] = {}
        self._running: dict[str, float] = {}

    def add(self, jobs: Iterable[EndedJob], now_s: float) -> None:
        """Count jobs that ended."""
        for job in jobs:
            if job.used.cpu_cores is None or job.used.runtime_s is None or not job.kind.user:
                continue
            end_s = min(job.end_s if job.end_s is not None else now_s, now_s)
            self._count(job.kind.user, job.used.cpu_cores * job.used.runtime_s, end_s)

    def take_over(self, usage: Mapping[str, float], at_s: float) -> None:
        """Count what another scheduler had counted by then, decayed to that time."""
        for user, amount in usage.items():
            self._count(user, amount, at_s)

    def _count(self, user: str, more: float, since_s: float) -> None:
        amount, at_s = self._ended.get(user, (0.0, since_s))
        newest_s = max(at_s, since_s)
        sum_now = amount * self._left(newest_s - at_s) + more * self._left(newest_s - since_s)
        self._ended[user] = sum_now, newest_s

    def see_running(self, jobs: Iterable[Job]) -> None:
        """Take the running jobs' use so far, in place of what it was before."""
        self._running = {}
        for job in jobs:
            if job.used.cput_s and job.user:
                self._running[job.user] = self._running.get(job.user, 0.0) + job.used.cput_s

    def at(self, now_s: float) -> dict[str, float]:
        """CPU seconds by user, decayed to now."""
        usage = {user: amount * self._left(now_s - at_s) for user, (amount, at_s) in self._ended.items()}
        for user, amount in self._running.items():
            usage[user] = usage.get(user, 0.0) + amount
        return usage

    def _left(self, elapsed_s: float) -> float:
        return 0.5 ** (max(0.0, elapsed_s) / self._half_life_s) if self._half_life_s > 0 else 0.0
