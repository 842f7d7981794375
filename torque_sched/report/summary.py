"""How the cluster did over some days: balance, waits, prediction errors, GPUs held in vain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torque_sched.learn.figures import Figure, figures_of
from torque_sched.learn.promises import Outcome
from torque_sched.learn.rows import BalanceRow, EndedJob, read_said
from torque_sched.learn.store import Store
from torque_sched.report.words import percent, span

_MAX_JOBS = 100_000
_UNUSED = 0.01


@dataclass(frozen=True, slots=True)
class PredictionError:
    """How well one figure was predicted, over the jobs whose start was seen."""

    figure: Figure
    n: int
    mean_error: float
    """Of what was said: busy share, or log10."""
    covered: float | None
    """Share of jobs within the upper bound; None where none was given."""
    by_predictor: Mapping[str, float]
    """Mean error of each predictor by itself."""
    course: tuple[float, ...]
    """Mean error in each twentieth of the jobs, oldest first."""


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A user's jobs that held GPUs."""

    user: str
    n_jobs: int
    held_hours: float
    used_hours: float
    n_unused: int
    """Jobs that held GPUs and never used one."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything the report shows."""

    since_s: float
    until_s: float
    balance: tuple[BalanceRow, ...]
    jobs: tuple[EndedJob, ...]
    waits_s: tuple[float, ...]
    """Sorted."""
    errors: tuple[PredictionError, ...]
    gpu_holders: tuple[GpuHolder, ...]
    outcomes: tuple[Outcome, ...] = ()
    """Jobs that started and had a guaranteed start."""

    def wait_quantile(self, share: float) -> float | None:
        """The wait that this share of jobs did not exceed."""
        if not self.waits_s:
            return None
        return self.waits_s[min(len(self.waits_s) - 1, math.ceil(share * len(self.waits_s)) - 1)]

    def mean_of(self, column: str) -> float | None:
        """Mean of a column of the balance over time."""
        return statistics.fmean(getattr(row, column) for row in self.balance) if self.balance else None


def summarise(store: Store, since_s: float, until_s: float) -> Summary:
    """The summary of what a history holds of a time."""
    jobs = store.ended(_MAX_JOBS, since_s)
    waits = sorted(
        max(0.0, job.start_s - job.queued_s)
        for job in jobs
        if job.start_s is not None and job.queued_s is not None
    )
    errors = tuple(error for figure in Figure if (error := _error(figure, jobs)) is not None)
    return Summary(
        since_s, until_s, store.balance(since_s), jobs, tuple(waits), errors, _gpu_holders(jobs),
        store.outcomes(since_s),
    )  # fmt: skip


def _error(figure: Figure, jobs: Sequence[EndedJob]) -> PredictionError | None:
    misses: list[float] = []
    covered: list[bool] = []
    by_predictor: dict[str, list[float]] = {}
    for job in jobs:
        said = read_said(job.said).get(figure)
        value = figures_of(job.used, job.n_procs, job.n_gpus, job.exit_status).get(figure)
        if said is None or value is None or said.estimate is None or not said.estimate.n_similar:
            continue
        misses.append(abs(said.estimate.value - value))
        bounds = [each.upper for each in said.by_name.values() if each.upper is not None]
        if bounds:
            covered.append(value <= max(bounds[0], said.estimate.value))
        for name, each in said.by_name.items():
            by_predictor.setdefault(name, []).append(abs(each.value - value))
    if not misses:
        return None
    means = {name: statistics.fmean(each) for name, each in by_predictor.items()}
    coverage = statistics.fmean(covered) if covered else None
    return PredictionError(figure, len(misses), statistics.fmean(misses), coverage, means, _course(misses))


def _course(misses: Sequence[float]) -> tuple[float, ...]:
    n = min(20, len(misses))
    bounds = [len(misses) * at // n for at in range(n + 1)]
    return tuple(statistics.fmean(misses[begin:end]) for begin, end in pairwise(bounds))


def _gpu_holders(jobs: Sequence[EndedJob]) -> tuple[GpuHolder, ...]:
    by_user: dict[str, list[EndedJob]] = {}
    for job in jobs:
        if job.n_gpus and job.used.gpus is not None and job.used.runtime_s:
            by_user.setdefault(job.kind.user, []).append(job)
    holders = [_holder(user, held) for user, held in by_user.items()]
    return tuple(sorted(holders, key=lambda each: each.used_hours - each.held_hours))


def _holder(user: str, jobs: Sequence[EndedJob]) -> GpuHolder:
    held = used = 0.0
    n_unused = 0
    for job in jobs:
        hours = (job.used.runtime_s or 0.0) / 3600
        busy = job.used.gpus or 0.0
        held += job.n_gpus * hours
        used += busy * hours
        n_unused += busy < _UNUSED
    return GpuHolder(user, len(jobs), held, used, n_unused)


def lines_of(summary: Summary) -> Iterator[str]:
    """The main figures in sentences; nothing of what was not seen."""
    if summary.balance:
        stdev = summary.mean_of("cpu_stdev") or 0.0
        yield (
            f"CPU utilisation of a node: {percent(summary.mean_of('cpu_mean'))} on average, "
            f"standard deviation over the nodes {stdev:.3f}"
        )
    if summary.waits_s:
        half, most = summary.wait_quantile(0.5), summary.wait_quantile(0.9)
        yield f"waits: half of the jobs at most {span(half)}, nine of ten at most {span(most)}"
    for each in summary.errors:
        yield f"predictions of {each.figure.value}: mean error {each.mean_error:.3f} over {each.n} jobs"
    for holder in summary.gpu_holders:
        yield (
            f"GPUs of {holder.user}: {holder.n_jobs} jobs held {holder.held_hours:.1f} GPU hours and used "
            f"{holder.used_hours:.1f}, {holder.n_unused} jobs never used one"
        )
