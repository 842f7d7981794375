"""Figures of a schedule, each by the formula its paper gives.

* wait = start - submit; bounded slowdown = max(1, (wait + run) / max(run, 10 s)) (Feitelson et al., 1997);
* AWRT = sum(procs * run * (end - submit)) / sum(procs * run), AWWT the same with the wait (Ernemann et al.,
  2002): the area as weight leaves nothing to gain by merging or splitting jobs;
* makespan = last end - first submission; utilisation = sum(procs * run) / (processors * makespan);
* classes: short (run <= 1 h) or long, narrow (<= 8 processors) or wide (Srinivasan et al., 2002);
* error of a guaranteed start = first guaranteed start - start: above 0, the job started sooner.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torque_sched.simulate.schedule import Schedule

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClassBounds:
    """Where classes part, and the floor of bounded slowdown.

    Attributes:
        short_s: a job that runs no longer is short.
        narrow_procs: a job no wider is narrow.
        floor_s: run times below count as this in bounded slowdown.
    """

    short_s: float = 3600.0
    narrow_procs: int = 8
    floor_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """Figures of one class of jobs."""

    n_jobs: int
    mean_wait_s: float
    max_wait_s: float
    bounded_slowdown: float


@dataclass(frozen=True, slots=True)
class ScheduleFigures:
    """Figures of a whole schedule."""

    n_jobs: int
    mean_wait_s: float
    median_wait_s: float
    p95_wait_s: float
    max_wait_s: float
    mean_response_s: float
    bounded_slowdown: float
    awrt_s: float
    awwt_s: float
    makespan_s: float
    utilisation: float
    n_reserved: int
    """Jobs that had to wait and got a guaranteed start."""
    start_error_s: float
    """Mean of |first guaranteed start - start| over them."""
    start_gain_s: float
    """Mean of first guaranteed start - start: how much sooner."""
    reservations_broken: int
    """Jobs whose guaranteed start was moved back."""
    late_starts: int
    """Jobs that started after their first guaranteed start."""
    by_class: dict[str, ClassFigures]

    def document(self) -> dict[str, Any]:
        """Fit for JSON."""
        return asdict(self)


def figures_of(schedule: Schedule, limits: ClassBounds | None = None) -> ScheduleFigures:
    """All figures; a workload without jobs has zeros."""
    limits = limits or ClassBounds()
    jobs = schedule.workload.jobs
    if not jobs:
        return ScheduleFigures(0, *(0.0,) * 10, 0, 0.0, 0.0, 0, 0, {})
    submit = np.array([job.submit_s for job in jobs], dtype=float)
    run = np.array([job.run_s for job in jobs], dtype=float)
    procs = np.array([job.procs for job in jobs], dtype=float)
    start = np.array(schedule.starts, dtype=float)
    wait, area = start - submit, procs * run
    slowdown = np.maximum(1.0, (wait + run) / np.maximum(run, limits.floor_s))
    makespan_s = float((start + run).max() - submit.min())
    n_reserved, error_s, gain_s, n_late = _kept(schedule)
    return ScheduleFigures(
        len(jobs),
        float(wait.mean()),
        float(np.median(wait)),
        float(np.percentile(wait, 95)),
        float(wait.max()),
        float((wait + run).mean()),
        float(slowdown.mean()),
        float((area * (wait + run)).sum() / area.sum()),
        float((area * wait).sum() / area.sum()),
        makespan_s,
        float(area.sum() / (schedule.workload.procs * makespan_s)),
        n_reserved,
        error_s,
        gain_s,
        len({each.place for each in schedule.broken}),
        n_late,
        _classes(wait, slowdown, run <= limits.short_s, procs <= limits.narrow_procs),
    )


def _kept(schedule: Schedule) -> tuple[int, float, float, int]:
    """Jobs with a reservation, mean absolute error, mean gain, how many started late."""
    gains = [
        promised - start
        for promised, start in zip(schedule.first_promises, schedule.starts, strict=True)
        if promised is not None
    ]
    n = len(gains)
    if not n:
        return 0, 0.0, 0.0, 0
    return n, sum(map(abs, gains)) / n, sum(gains) / n, sum(gain < 0 for gain in gains)


def _classes(
    wait: Floats, slowdown: Floats, is_short: npt.NDArray[np.bool_], is_narrow: npt.NDArray[np.bool_]
) -> dict[str, ClassFigures]:
    found: dict[str, ClassFigures] = {}
    for length, by_length in (("short", is_short), ("long", ~is_short)):
        for width, by_width in (("narrow", is_narrow), ("wide", ~is_narrow)):
            chosen = by_length & by_width
            n = int(chosen.sum())
            found[f"{length} {width}"] = (
                ClassFigures(
                    n, float(wait[chosen].mean()), float(wait[chosen].max()), float(slowdown[chosen].mean())
                )
                if n
                else ClassFigures(0, 0.0, 0.0, 0.0)
            )
    return found
