"""What history says of a job, for the policies and for people who ask why."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from torque_sched.decide.context import Load, Prediction
from torque_sched.learn.ensemble import PredictorEnsemble, RecordedPrediction
from torque_sched.learn.figures import Figure, figures_of
from torque_sched.learn.predictors import Fingerprint
from torque_sched.learn.rows import EndedJob, fingerprint_of, read_said
from torque_sched.model.cluster import Job, JobId

_KEPT_ERRORS = 1000
_RECENT = 50
_DRIFT = 2.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """One predicted figure with what it rests on.

    Attributes:
        figure: which one.
        amount: expected of the whole job: cores, bytes, GPUs, bytes of GPU memory, seconds.
        upper: hardly exceeded, in the same unit; None: not known.
        n_similar: ended jobs of the closest kind that has any.
        kind: which kind that is, such as ``user+script``.
        predictor: whose answer it is.
        error: mean absolute error for such jobs, in the figure's own unit (share, or log10).
    """

    figure: Figure
    amount: float
    upper: float | None
    n_similar: int
    kind: str
    predictor: str
    error: float | None

    @property
    def error_words(self) -> str:
        """The error as people read it: ``x 1.12`` for logarithms, else ``0.05``; empty: not known."""
        if self.error is None:
            return ""
        if self.figure in {Figure.CPU, Figure.GPU}:
            return f"{self.error:.3f}"
        return f"x {10 ** min(self.error, 6.0):.2f}"


@dataclass(frozen=True, slots=True)
class RecentError:
    """How far off the last predictions of a figure were."""

    n: int
    mean: float
    recent: float
    """Of the last 50."""

    @property
    def has_drifted(self) -> bool:
        """Whether the last ones were twice as wrong as those before: jobs changed, or a sensor did."""
        return self.n >= 4 * _RECENT and self.recent > _DRIFT * self.mean


class LearnedPredictions:
    """Implements `decide.context.Predictions`; changes only between cycles, by `learn`.

    Args:
        predictors: names; the first answers, the others are recorded beside it.
        min_similar: memory is bounded (`mem_upper_bytes`) only where so many jobs of the same script ended.
    """

    def __init__(self, predictors: Sequence[str], min_similar: int) -> None:
        self._forecasts = {figure: PredictorEnsemble(predictors) for figure in Figure}
        self._min_similar = min_similar
        self._kinds: dict[JobId, tuple[Job, Fingerprint]] = {}
        self._said: dict[Fingerprint, dict[Figure, RecordedPrediction]] = {}
        self._expected: dict[tuple[Fingerprint, int | None, float], Prediction | None] = {}
        self._errors: dict[Figure, deque[float]] = {figure: deque(maxlen=_KEPT_ERRORS) for figure in Figure}
        self.rate = 1.0
        """Of the cores jobs will run on; run times are learned for rate 1."""

    # -- asking

    def expect(self, job: Job) -> Prediction | None:
        """As `decide.context.Predictions.expect`; None until a job was learned from."""
        # The fingerprint holds all else an answer depends on: processors, GPUs and walltime.
        kind = self._kind(job), job.request.mem_bytes, self.rate
        if kind not in self._expected:
            self._expected[kind] = self._expect(job)
        return self._expected[kind]

    def _expect(self, job: Job) -> Prediction | None:
        said = self.said(job)
        if not said:
            return None
        n_procs, n_gpus = job.request.n_procs, job.request.n_gpus

        def amount(figure: Figure, fallback: float) -> float:
            each = said.get(figure)
            return figure.amount(each.estimate.value, n_procs, n_gpus) if each is not None else fallback

        load = Load(
            max(0.0, amount(Figure.CPU, float(n_procs))),
            amount(Figure.MEMORY, float(job.request.mem_bytes or 0)),
            max(0.0, amount(Figure.GPU, float(n_gpus))) if n_gpus else 0.0,
            amount(Figure.GPU_MEMORY, 0.0) if n_gpus else 0.0,
        )
        runtime_s = amount(Figure.RUNTIME, 0.0) / self.rate or None
        if runtime_s is not None and job.walltime_s:
            runtime_s = min(runtime_s, job.walltime_s)
        return Prediction(load, runtime_s, self._mem_upper(said), _words(said))

    def _mem_upper(self, said: Mapping[Figure, RecordedPrediction]) -> float | None:
        """Only jobs of the same script are evidence enough to let a job wait."""
        each = said.get(Figure.MEMORY)
        if each is None or each.estimate.upper is None or each.estimate.n_similar < self._min_similar:
            return None
        if "script" not in each.estimate.evidence:
            return None
        return Figure.MEMORY.amount(each.estimate.upper, 1, 0)

    def said(self, job: Job) -> dict[Figure, RecordedPrediction]:
        """Every figure that anything is known of, as predicted now."""
        kind = self._kind(job)
        found = self._said.get(kind)
        if found is None:
            found = self._said[kind] = {
                figure: forecast.predict(kind)
                for figure, forecast in self._forecasts.items()
                if forecast.n_observed
            }
        if job.request.n_gpus:
            return found
        return {figure: each for figure, each in found.items() if figure not in _OF_GPUS}

    def _kind(self, job: Job) -> Fingerprint:
        # The parser keeps jobs that did not change, so another object means a changed job.
        known = self._kinds.get(job.id)
        if known is None or known[0] is not job:
            known = self._kinds[job.id] = job, fingerprint_of(job)
        return known[1]

    def explain(self, job: Job) -> tuple[Evidence, ...]:
        """Every predicted figure with its evidence and past error."""
        n_procs, n_gpus = job.request.n_procs, job.request.n_gpus
        evidence: list[Evidence] = []
        for figure, each in self.said(job).items():
            estimate, scale = each.estimate, 1 / self.rate if figure is Figure.RUNTIME else 1.0
            upper = estimate.upper
            evidence.append(
                Evidence(
                    figure,
                    figure.amount(estimate.value, n_procs, n_gpus) * scale,
                    None if upper is None else figure.amount(upper, n_procs, n_gpus) * scale,
                    estimate.n_similar,
                    estimate.evidence,
                    each.predictor,
                    estimate.error,
                )
            )
        return tuple(evidence)

    @property
    def errors(self) -> dict[Figure, RecentError]:
        """How far off predictions were, by figure; only those that were checked."""
        return {
            figure: RecentError(len(each), fmean(each), fmean(list(each)[-_RECENT:]))
            for figure, each in self._errors.items()
            if each
        }

    # -- learning, between cycles

    def learn(self, jobs: Iterable[EndedJob]) -> None:
        """Check what was said of jobs that ended, and learn from them."""
        for job in jobs:
            said = read_said(job.said)
            for figure, value in figures_of(job.used, job.n_procs, job.n_gpus, job.exit_status).items():
                past = said.get(figure)
                if past is not None and past.estimate is not None and math.isfinite(past.estimate.value):
                    self._errors[figure].append(abs(past.estimate.value - value))
                self._forecasts[figure].observe(job.kind, value, None if past is None else past.by_name)
            self._said.clear()
            self._expected.clear()

    def forget_all_but(self, jobs: Iterable[JobId]) -> None:
        """Drop what is kept of jobs that are gone."""
        present = set(jobs)
        for job in [job for job in self._kinds if job not in present]:
            del self._kinds[job]


_OF_GPUS = frozenset({Figure.GPU, Figure.GPU_MEMORY})


def _words(said: Mapping[Figure, RecordedPrediction]) -> str:
    """One line for comments and the journal: the best evidence there is."""
    closest = max(
        said.values(), key=lambda each: (each.estimate.evidence.count("+"), each.estimate.n_similar)
    )
    estimate = closest.estimate
    return f"{estimate.n_similar} ended jobs of the same {estimate.evidence.replace('+', ', ')}"
