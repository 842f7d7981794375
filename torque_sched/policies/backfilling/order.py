"""In which order waiting jobs are considered by a backfilling policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torque_sched.policies.backfilling.events import BatchJob
from torque_sched.policies.fair_share import decayed


class Order(Protocol):
    """Ranks waiting jobs; equal ranks go in the order of submission."""

    @property
    def is_static(self) -> bool:
        """Whether a job's rank never changes while it waits."""
        ...

    def rank(self, job: BatchJob[Any], length_s: float, now_s: float) -> float:
        """The smaller the sooner; `length_s` is the run time planned."""
        ...

    def started(self, job: BatchJob[Any], length_s: float, now_s: float) -> None:
        """The job runs from now on."""
        ...

    def ended(self, job: BatchJob[Any], length_s: float, ran_s: float, now_s: float) -> None:
        """The job ran `ran_s`, when `length_s` had been planned."""
        ...

    def state(self) -> Mapping[str, float]:
        """What it remembers."""
        ...

    def restore(self, state: Mapping[str, float]) -> None:
        """Remember this instead."""
        ...


class _Memoryless:
    is_static = True

    def started(self, job: BatchJob[Any], length_s: float, now_s: float) -> None:
        """Nothing to remember."""

    def ended(self, job: BatchJob[Any], length_s: float, ran_s: float, now_s: float) -> None:
        """Nothing to remember."""

    def state(self) -> Mapping[str, float]:
        """Nothing."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Nothing to restore."""


class FirstCome(_Memoryless):
    """By submission."""

    def rank(self, job: BatchJob[Any], length_s: float, now_s: float) -> float:
        """All alike."""
        return 0.0


class ByPriority(_Memoryless):
    """Larger priorities first."""

    def rank(self, job: BatchJob[Any], length_s: float, now_s: float) -> float:
        """The priority, the sign turned."""
        return -job.priority


class ShortestFirst(_Memoryless):
    """Shortest expected run time first (SJF); expected by whatever the policy plans with."""

    def rank(self, job: BatchJob[Any], length_s: float, now_s: float) -> float:
        """The run time planned."""
        return length_s


class ByFairShare:
    """Users who used least of what is theirs first; usage is forgotten by half-lives.

    A start is charged at once with what was planned, so one user cannot start everything in one cycle; the
    end corrects it to what was used.

    Args:
        half_life_s: after this time usage counts half.
        shares: users' shares; everybody else has one.
    """

    is_static = False

    def __init__(self, half_life_s: float = 7 * 86_400.0, shares: Mapping[str, float] | None = None) -> None:
        self._half_life_s = half_life_s
        self._shares = dict(shares or {})
        self._used: dict[str, float] = {}
        self._as_of_s = 0.0

    def rank(self, job: BatchJob[Any], length_s: float, now_s: float) -> float:
        """Processor seconds used for each share. All decay alike: their order does not change."""
        share = self._shares.get(job.user, 1.0)
        used = self._used.get(job.user, 0.0)
        return used / share if share > 0 else float("inf")

    def started(self, job: BatchJob[Any], length_s: float, now_s: float) -> None:
        """Charge what is planned."""
        self._charge(job, job.n_procs * length_s, now_s)

    def ended(self, job: BatchJob[Any], length_s: float, ran_s: float, now_s: float) -> None:
        """Correct the charge to what was used; what was planned is forgotten since the start as well."""
        kept = decayed({"": job.n_procs * length_s}, ran_s, self._half_life_s)[""]
        self._charge(job, job.n_procs * ran_s - kept, now_s)

    def _charge(self, job: BatchJob[Any], amount: float, now_s: float) -> None:
        if now_s > self._as_of_s:
            self._used = decayed(self._used, now_s - self._as_of_s, self._half_life_s)
            self._as_of_s = now_s
        self._used[job.user] = max(self._used.get(job.user, 0.0) + amount, 0.0)

    def state(self) -> Mapping[str, float]:
        """Usage by user; the empty name holds the time it is of."""
        return {**self._used, "": self._as_of_s}

    def restore(self, state: Mapping[str, float]) -> None:
        """As `Order.restore`."""
        self._used = {user: used for user, used in state.items() if user}
        self._as_of_s = state.get("", 0.0)
