"""What a policy is told of a job's run time: the user's limit, the truth, or what ended jobs teach.

``learned`` is the live scheduler's predictor of run times (`learning.best.BestOf` over the same predictors,
of the same logarithm): it speaks when a job is submitted, and learns only from jobs that had ended by then.
It never exceeds the user's limit, which stays what a job is killed at; a job that outlives its estimate gets
the next of the policy's correction steps. ``upper`` is the same with the bound that the predictor is
calibrated to keep for nine jobs of ten, so that promises hold more often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torque_sched.errors import ConfigError
from torque_sched.learning.best import BestOf, Said
from torque_sched.policies.backfilling.estimate import (
    Estimates,
    ExactEstimates,
    LearnedEstimates,
    UserEstimates,
)
from torque_sched.policies.backfilling.events import BatchJob, JobKey
from torque_sched.policies.predict.chain import ChainPredictor
from torque_sched.policies.predict.fingerprint import Fingerprint
from torque_sched.sim.workload import TraceJob, Workload

_PREDICTORS = ("chain", "seed")
_WINDOW = 50
_MOST_LOG10 = 18.0


class LearnedRuntimes(LearnedEstimates):
    """What jobs like it took before; corrections as `LearnedEstimates`.

    Args:
        jobs: by the keys the policy knows them by.
        predictors: as the daemon's setting; the first speaks while nothing was checked.
        window: checks by which they are compared.
        is_cautious: plan with the upper bound in place of what is expected.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        predictors: Sequence[str] = _PREDICTORS,
        window: int = _WINDOW,
        *,
        is_cautious: bool = False,
    ) -> None:
        super().__init__(ChainPredictor(), self._kind)
        self._jobs = jobs
        self._is_cautious = is_cautious
        self._forecast = BestOf(predictors, window)
        self._said: dict[JobKey, tuple[Fingerprint, Said]] = {}

    def estimate_s(self, job: BatchJob[Any]) -> float:
        """Whole seconds, at least 1, at most the limit; the limit while nothing was learned."""
        kind = self._kind(job)
        said = self._forecast.say(kind)
        self._said[job.key] = kind, said
        if not self._forecast.n_observed:
            return job.limit_s
        upper = said.estimate.upper
        if self._is_cautious and upper is None:
            return job.limit_s
        value = upper if self._is_cautious and upper is not None else said.estimate.value
        expected_s = math.ceil(math.pow(10.0, min(value, _MOST_LOG10)))
        return min(max(1, expected_s), job.limit_s)

    def ended(self, job: BatchJob[Any], ran_s: float) -> None:
        """Check what was said, then learn."""
        kind, said = self._said.pop(job.key)
        self._forecast.hear(kind, math.log10(max(1.0, ran_s)), said.by_name)

    def _kind(self, job: BatchJob[Any]) -> Fingerprint:
        traced = self._jobs[int(job.key)]
        return Fingerprint(
            _text(traced.user), _text(traced.executable), _text(traced.procs), _text(traced.limit_s)
        )


def _text(number: float) -> str:
    return f"{number:.15g}" if number >= 0 else ""


def _exact(workload: Workload) -> Estimates:
    return ExactEstimates({place: job.run_s for place, job in enumerate(workload.jobs)})


ESTIMATES: Mapping[str, Callable[[Workload], Estimates]] = {
    "user": lambda workload: UserEstimates(),
    "exact": _exact,
    "learned": lambda workload: LearnedRuntimes(workload.jobs),
    "upper": lambda workload: LearnedRuntimes(workload.jobs, is_cautious=True),
}


def new_estimates(name: str, workload: Workload) -> Estimates:
    """Fresh estimates for the jobs of a workload, whose keys are their places in it.

    Raises:
        ConfigError: there are none of this name.
    """
    factory = ESTIMATES.get(name)
    if factory is None:
        raise ConfigError(f"no estimates {name!r}", cure=f"known are {', '.join(ESTIMATES)}")
    return factory(workload)
