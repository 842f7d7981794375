"""How long a job will run: what the policies plan with. The user's walltime stays the limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torque_sched.policies.backfilling.events import BatchJob, JobKey
from torque_sched.policies.predict.estimate import Predictor
from torque_sched.policies.predict.fingerprint import Fingerprint

CORRECTIONS_S = (60, 300, 900, 1800, 3600, 7200, 18_000, 36_000, 72_000, 180_000, 360_000)
"""What a wrong prediction is raised by, time after time (Tsafrir, Etsion, Feitelson 2007, gradual steps)."""

_GRACE_S = 60.0


class Estimates(Protocol):
    """Plans run times; seconds."""

    def estimate_s(self, job: BatchJob[Any]) -> float:
        """At submission: how long it will run."""
        ...

    def corrected_s(self, job: BatchJob[Any], ran_s: float, n_before: int) -> float:
        """It ran longer than it should, `n_before` times before: its run time now, more than `ran_s`."""
        ...

    def ended(self, job: BatchJob[Any], ran_s: float) -> None:
        """Learn from a job that ended."""
        ...


def _overrun_s(ran_s: float, n_before: int) -> float:
    """A job past its limit is about to be killed, or was granted more: a minute, doubled each time."""
    return ran_s + _GRACE_S * 2.0 ** min(n_before, 20)


class UserEstimates:
    """The walltime the user stated."""

    def estimate_s(self, job: BatchJob[Any]) -> float:
        """Its limit."""
        return job.limit_s

    def corrected_s(self, job: BatchJob[Any], ran_s: float, n_before: int) -> float:
        """It is past its limit."""
        return _overrun_s(ran_s, n_before)

    def ended(self, job: BatchJob[Any], ran_s: float) -> None:
        """Nothing to learn."""


class ExactEstimates(UserEstimates):
    """What will be: for traces.

    Args:
        run_s: the run time of every job.
    """

    def __init__(self, run_s: Mapping[JobKey, float]) -> None:
        self._run_s = run_s

    def estimate_s(self, job: BatchJob[Any]) -> float:
        """Its run time."""
        return self._run_s[job.key]


class LearnedEstimates:
    """What jobs like it ran, never more than the limit; raised step by step where that was too short.

    Args:
        predictor: learns run times in seconds.
        fingerprint: what a job is like.
    """

    def __init__(self, predictor: Predictor, fingerprint: Callable[[BatchJob[Any]], Fingerprint]) -> None:
        self._predictor, self._fingerprint = predictor, fingerprint

    def estimate_s(self, job: BatchJob[Any]) -> float:
        """The prediction, between a second and the limit."""
        said = self._predictor.predict(self._fingerprint(job), job.limit_s).value
        return min(max(said, 1.0), job.limit_s)

    def corrected_s(self, job: BatchJob[Any], ran_s: float, n_before: int) -> float:
        """The next step, at most the limit; past the limit as an overrun."""
        if ran_s >= job.limit_s:
            return _overrun_s(ran_s, n_before)
        return min(ran_s + CORRECTIONS_S[min(n_before, len(CORRECTIONS_S) - 1)], job.limit_s)

    def ended(self, job: BatchJob[Any], ran_s: float) -> None:
        """One more observation."""
        self._predictor.observe(self._fingerprint(job), ran_s)
