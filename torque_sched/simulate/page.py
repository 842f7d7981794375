"""The report of an experiment as one HTML page: no script, nothing from anywhere else, every text escaped.

Its pictures are PNG bytes, drawn without a screen: Gantt, utilisation and queue over time, waits.
"""

from __future__ import annotations

import base64
import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from torque_sched.simulate.results import Experiment, class_rows, rows, summary
from torque_sched.simulate.schedule import Schedule

Floats = npt.NDArray[np.float64]
_COLUMNS = 1400
_ROWS = 700
_BINS = 600
_COLOURS = 20
_DAY_S = 86400.0
_HOUR_S = 3600.0
Lane = tuple[int, int]
"""Processors [low, high)."""

_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#1c1c1c}"
    "table{border-collapse:collapse;margin:.6em 0 1.4em}"
    "td,th{border-bottom:1px solid #ddd;padding:.2em .9em .2em 0;text-align:right}"
    "td:first-child,th:first-child{text-align:left}img{width:100%;margin:.4em 0 1em}"
)
_RULE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(experiment: Experiment) -> str:
    """The whole page."""
    title = f"{experiment.trace}: {', '.join(each.schedule.name for each in experiment.results)}"
    body = "".join(_body(experiment, title))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_RULE}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _body(experiment: Experiment, title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1><p>{escape(summary(experiment.workload))}.</p>"
    settings = ", ".join(f"{name} {value}" for name, value in experiment.settings.items())
    yield f"<p>{escape(settings)}</p>"
    yield _table(rows(experiment.results))
    limits = experiment.limits
    yield (
        f"<p>Floor of bounded slowdown {limits.floor_s:g} s. Short: runs at most {limits.short_s:g} s; "
        f"narrow: at most {limits.narrow_procs} processors.</p>"
    )
    yield _table(class_rows(experiment.results))
    for result in experiment.results:
        for problem in result.problems or ():
            yield f"<p><b>{escape(result.schedule.name)}: {escape(problem)}</b></p>"
    schedules = [each.schedule for each in experiment.results]
    if not experiment.workload.jobs:
        return
    yield f"<h2>Utilisation and queue</h2>{_picture(load(schedules), 'utilisation and queue over time')}"
    yield f"<h2>Waits</h2>{_picture(waits(schedules), 'share of jobs by wait')}"
    for schedule in schedules:
        name = f"Gantt, {schedule.name}"
        yield f"<h2>{escape(name)}</h2>{_picture(gantt(schedule), name)}"


def _picture(png: bytes, what: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f'<img alt="{escape(what, quote=True)}" src="data:image/png;base64,{data}">'


def _table(lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in lines[0])
    rest = ("".join(f"<td>{escape(each)}</td>" for each in line) for line in lines[1:])
    body = "".join(f"<tr>{cells}</tr>" for cells in rest)
    return f"<table><tr>{head}</tr>{body}</table>"


# Pictures.


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


# Which processors of a Gantt chart a job is drawn on; schedules know counts alone.


def lanes_of(schedule: Schedule) -> list[tuple[Lane, ...]]:
    """The lanes of every job, by its place; no two jobs share one at the same time.

    Raises:
        ValueError: the schedule uses more processors than there are.
    """
    jobs = schedule.workload.jobs
    free: list[Lane] = [(0, schedule.workload.procs)]
    found: list[tuple[Lane, ...]] = [()] * len(jobs)
    running: list[tuple[float, int]] = []
    for place in sorted(range(len(jobs)), key=lambda at: (schedule.starts[at], at)):
        start_s = schedule.starts[place]
        while running and running[0][0] <= start_s:
            for lane in found[heappop(running)[1]]:
                _give_back(free, lane)
        found[place] = _take(free, jobs[place].procs)
        heappush(running, (start_s + jobs[place].run_s, place))
    return found


def _take(free: list[Lane], n: int) -> tuple[Lane, ...]:
    taken: list[Lane] = []
    while n > 0:
        if not free:
            raise ValueError("more processors in use than there are")
        low, high = free[0]
        size = min(n, high - low)
        taken.append((low, low + size))
        n -= size
        if size == high - low:
            del free[0]
        else:
            free[0] = (low + size, high)
    return tuple(taken)


def _give_back(free: list[Lane], lane: Lane) -> None:
    low, high = lane
    at = bisect_left(free, lane)
    if at < len(free) and free[at][0] == high:
        high = free.pop(at)[1]
    if at and free[at - 1][1] == low:
        at -= 1
        low = free.pop(at)[0]
    free.insert(at, (low, high))
