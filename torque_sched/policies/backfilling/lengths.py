"""How long live jobs are planned to run, and when those that run will end."""

from __future__ import annotations

import math

from torque_sched.core.model import Job
from torque_sched.core.states import JobState
from torque_sched.policies.backfilling.estimate import CORRECTIONS_S
from torque_sched.policies.context import Predictions

_COARSE_S = 2.0
_OVERRUN_S = 60.0
"""A job past its walltime is about to be ended by its mom."""


class Lengths:
    """Walltimes, or what history says; infinite where neither is known.

    Args:
        predictions: of this cycle; None: walltimes are planned with.
        default_s: for jobs without walltime; 0: unknown.
        slack_s: a job may be ended so much after its limit.
    """

    def __init__(
        self, now_s: float, predictions: Predictions | None, default_s: float, slack_s: float
    ) -> None:
        self._now_s, self._predictions = now_s, predictions
        self._default_s, self._slack_s = default_s, slack_s

    def limit_s(self, job: Job) -> float:
        """Its walltime."""
        return job.walltime_s if job.walltime_s is not None else self._default_s or math.inf

    def length_s(self, job: Job) -> float:
        """How long a waiting job is planned to run."""
        return min(self._predicted(job), self.limit_s(job))

    def _predicted(self, job: Job) -> float:
        expected = self._predictions.expect(job) if self._predictions is not None else None
        if expected is None or not expected.runtime_s:
            return math.inf
        return max(1.0, expected.runtime_s)

    def end_s(self, job: Job) -> float:
        """When a running (or starting) job will be gone; a prediction it outran is raised step by step."""
        if job.state is JobState.SUSPENDED:
            return math.inf
        limit_s = self.limit_s(job)
        start_s = self._now_s if job.start_s is None else job.start_s
        if job.walltime_remaining_s is not None and job.walltime_s is not None:
            told_s = self._now_s + job.walltime_remaining_s - job.walltime_s
            # The server counts whole seconds: an end must not move with every look at it.
            if job.start_s is None or abs(told_s - start_s) > max(_COARSE_S, self._slack_s):
                start_s = told_s
        length_s = min(self._predicted(job), limit_s)
        ran_s = self._now_s - start_s
        for more_s in CORRECTIONS_S:
            if length_s + self._slack_s > ran_s or length_s >= limit_s:
                break
            length_s = min(length_s + more_s, limit_s)
        end_s = start_s + length_s + self._slack_s
        return end_s if end_s > self._now_s else self._now_s + _OVERRUN_S

    def overran(self, job: Job) -> bool:
        """Whether a running job should have been gone by now."""
        start_s = self._now_s if job.start_s is None else job.start_s
        return start_s + self.length_s(job) + self._slack_s <= self._now_s
