"""The run time that a policy plans a job with. The user's walltime stays the limit, at which it is killed.

``learned`` is the live scheduler's default predictor of run times: it predicts when a job is submitted, and
learns only from jobs that had ended by then. ``upper`` plans with the bound that the predictor is calibrated
to keep for nine jobs of ten, so that guaranteed starts hold more often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torque_sched.errors import ConfigError
from torque_sched.learn.chain import ChainPredictor
from torque_sched.learn.predictors import Estimate, Fingerprint
from torque_sched.model.lengths import CORRECTIONS_S
from torque_sched.simulate.counts.jobs import CountJob
from torque_sched.simulate.workload import TraceJob, Workload

_MOST_LOG10 = 18.0
_GRACE_S = 60.0


class Walltimes:
    """The walltime that the user asked for."""

    def estimate_s(self, job: CountJob) -> float:
        """How long the job will run; asked once, at its submission."""
        return job.limit_s

    def corrected_s(self, job: CountJob, ran_s: float) -> float:
        """The run time to plan with now that the job ran `ran_s`, longer than planned; more than `ran_s`.

        A job past its limit is about to be killed, or was granted more: a minute, doubled each time.
        """
        return ran_s + _GRACE_S * 2.0 ** min(job.n_overruns, 20)

    def ended(self, job: CountJob, ran_s: float) -> None:
        """Learn from a job that ran `ran_s`."""


class ExactRuntimes(Walltimes):
    """The run times of the log.

    Args:
        run_s: of each job, by its place.
    """

    def __init__(self, run_s: Sequence[float]) -> None:
        self._run_s = run_s

    def estimate_s(self, job: CountJob) -> float:
        """As `Walltimes.estimate_s`."""
        return self._run_s[job.place]


class LearnedRuntimes(Walltimes):
    """The run times of similar jobs that ended before.

    Args:
        jobs: by their places.
        is_cautious: plan with the upper bound in place of the expected run time.
    """

    def __init__(self, jobs: Sequence[TraceJob], *, is_cautious: bool = False) -> None:
        self._jobs = jobs
        self._is_cautious = is_cautious
        self._predictor = ChainPredictor()
        self._predicted: dict[int, tuple[Fingerprint, Estimate]] = {}

    def estimate_s(self, job: CountJob) -> float:
        """Whole seconds, at least 1, at most the limit; the limit while nothing was learned."""
        kind = _kind(self._jobs[job.place])
        predicted = self._predictor.predict(kind)
        self._predicted[job.place] = kind, predicted
        if predicted.upper is None:
            return job.limit_s
        log10_s = max(predicted.value, predicted.upper) if self._is_cautious else predicted.value
        expected_s = math.ceil(math.pow(10.0, min(log10_s, _MOST_LOG10)))
        return min(max(1, expected_s), job.limit_s)

    def corrected_s(self, job: CountJob, ran_s: float) -> float:
        """The next step of `CORRECTIONS_S`, at most the limit; past the limit as `Walltimes.corrected_s`."""
        if ran_s >= job.limit_s:
            return super().corrected_s(job, ran_s)
        return min(ran_s + CORRECTIONS_S[min(job.n_overruns, len(CORRECTIONS_S) - 1)], job.limit_s)

    def ended(self, job: CountJob, ran_s: float) -> None:
        """Compare the prediction with the run time, then learn."""
        kind, predicted = self._predicted.pop(job.place)
        self._predictor.observe(kind, math.log10(max(1.0, ran_s)), predicted)


def _kind(job: TraceJob) -> Fingerprint:
    return Fingerprint(_text(job.user), _text(job.executable), _text(job.procs), _text(job.limit_s))


def _text(number: float) -> str:
    return f"{number:.15g}" if number >= 0 else ""


ESTIMATES: Mapping[str, Callable[[Workload], Walltimes]] = {
    "user": lambda workload: Walltimes(),
    "exact": lambda workload: ExactRuntimes([job.run_s for job in workload.jobs]),
    "learned": lambda workload: LearnedRuntimes(workload.jobs),
    "upper": lambda workload: LearnedRuntimes(workload.jobs, is_cautious=True),
}


def new_estimates(name: str, workload: Workload) -> Walltimes:
    """Fresh estimates for the jobs of a workload.

    Raises:
        ConfigError: there are none of this name.
    """
    factory = ESTIMATES.get(name)
    if factory is None:
        raise ConfigError(f"no estimates {name!r}", cure=f"known are {', '.join(ESTIMATES)}")
    return factory(workload)
