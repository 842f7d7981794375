"""Pictures of schedules as PNG bytes: Gantt, utilisation and queue over time, waits. No screen is needed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torque_sched.sim.lanes import lanes_of
from torque_sched.sim.schedule import Schedule

Floats = npt.NDArray[np.float64]
_COLUMNS = 1400
_ROWS = 700
_BINS = 600
_COLOURS = 20
_DAY_S = 86400.0
_HOUR_S = 3600.0


def gantt(schedule: Schedule) -> bytes:
    """Processors over time, one colour a job; in a long log a cell shows the last job that began in it."""
    first_s, last_s = _span([schedule])
    scale_s, unit = _unit(last_s - first_s)
    procs = schedule.workload.procs
    rows = min(procs, _ROWS)
    cells = np.full((rows, _COLUMNS), -1, dtype=np.int16)
    per_s = _COLUMNS / (last_s - first_s)
    lanes = lanes_of(schedule)
    for place, (job, start_s) in enumerate(zip(schedule.workload.jobs, schedule.starts, strict=True)):
        left = int((start_s - first_s) * per_s)
        right = max(left + 1, int((start_s + job.run_s - first_s) * per_s))
        for low, high in lanes[place]:
            bottom = low * rows // procs
            cells[bottom : max(bottom + 1, high * rows // procs), left:right] = place % _COLOURS
    figure, axes = _figure(5.0)
    axes.imshow(
        np.ma.masked_less(cells, 0), aspect="auto", origin="lower", interpolation="nearest", cmap="tab20",
        vmin=0, vmax=_COLOURS - 1, extent=(first_s / scale_s, last_s / scale_s, 0, procs),
    )  # fmt: skip
    axes.set_xlabel(unit)
    axes.set_ylabel("processors")
    return _png(figure)


def load(schedules: Sequence[Schedule]) -> bytes:
    """Share of processors in use, and processors asked for by waiting jobs, over time; one line a policy."""
    first_s, last_s = _span(schedules)
    scale_s, unit = _unit(last_s - first_s)
    edges = np.linspace(first_s, last_s, _BINS + 1)
    middles = (edges[1:] + edges[:-1]) / 2 / scale_s
    figure, (above, below) = _figure(5.5, 2)
    for schedule in schedules:
        jobs = schedule.workload.jobs
        procs = np.array([job.procs for job in jobs], dtype=float)
        submits = np.array([job.submit_s for job in jobs], dtype=float)
        starts = np.array(schedule.starts, dtype=float)
        ends = starts + np.array([job.run_s for job in jobs], dtype=float)
        used = mean_in_bins(starts, ends, procs, edges) / schedule.workload.procs
        above.plot(middles, used, label=schedule.name, linewidth=0.9)
        below.plot(middles, mean_in_bins(submits, starts, procs, edges), linewidth=0.9)
    above.set_ylabel("utilisation")
    above.set_ylim(0, 1.05)
    above.legend(loc="lower right", fontsize="small")
    below.set_ylabel("processors waited for")
    below.set_xlabel(unit)
    return _png(figure)


def mean_in_bins(begins: Floats, ends: Floats, amounts: Floats, edges: Floats) -> Floats:
    """The mean over each bin of the sum of the amounts whose interval [begin, end) covers a moment.

    Args:
        begins: shape (n,).
        ends: shape (n,), not before `begins`.
        amounts: shape (n,).
        edges: of the bins, shape (n_bins + 1,), rising.
    """

    def area_until(times: Floats) -> Floats:
        # For each edge: the sum of amount * (edge - time) over the times before it.
        order = np.argsort(times, kind="stable")
        sums = np.concatenate([[0.0], np.cumsum(amounts[order])])
        moments = np.concatenate([[0.0], np.cumsum((amounts * times)[order])])
        n_before = np.searchsorted(times[order], edges)
        area: Floats = sums[n_before] * edges - moments[n_before]
        return area

    means: Floats = np.diff(area_until(begins) - area_until(ends)) / np.diff(edges)
    return means


def waits(schedules: Sequence[Schedule]) -> bytes:
    """The share of jobs that waited no longer than so many seconds; one line a policy."""
    figure, axes = _figure(3.6)
    for schedule in schedules:
        jobs = schedule.workload.jobs
        waited = np.sort(np.array(schedule.starts, dtype=float) - [float(job.submit_s) for job in jobs])
        shares = np.arange(1, len(waited) + 1) / len(waited)
        chosen = np.unique(np.linspace(0, len(waited) - 1, 2000).astype(int))
        axes.step(np.maximum(waited[chosen], 1.0), shares[chosen], where="post", label=schedule.name)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("wait in s (below 1 s: at 1)")
    axes.set_ylabel("share of jobs")
    axes.legend(loc="lower right", fontsize="small")
    return _png(figure)


def _span(schedules: Sequence[Schedule]) -> tuple[float, float]:
    first_s = min(schedule.workload.jobs[0].submit_s for schedule in schedules)
    last_s = max(
        start_s + job.run_s
        for schedule in schedules
        for job, start_s in zip(schedule.workload.jobs, schedule.starts, strict=True)
    )
    return float(first_s), float(last_s)


def _unit(span_s: float) -> tuple[float, str]:
    """Seconds in the unit an axis shows, and its name."""
    if span_s > 4 * _DAY_S:
        return _DAY_S, "days"
    return (_HOUR_S, "hours") if span_s > 4 * _HOUR_S else (1.0, "s")


def _figure(height_in: float, n_rows: int = 1) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, height_in), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(n_rows, 1, sharex=n_rows > 1)


def _png(figure: Any) -> bytes:
    made = io.BytesIO()
    # No version of the library in the file: equal schedules give equal bytes.
    figure.savefig(made, format="png", metadata={"Software": None})
    return made.getvalue()
