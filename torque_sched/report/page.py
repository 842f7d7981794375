"""The report as one HTML page: no script, no font, no picture from anywhere else, every text escaped."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from torque_sched.learn.promises import Outcome
from torque_sched.learn.rows import BalanceRow
from torque_sched.report.summary import Summary
from torque_sched.report.words import percent, span

_WIDTH, _HEIGHT = 760, 220

_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 16, 34

COLOURS = ("#1f6feb", "#d1600a", "#2b8a3e", "#9c36b5")


@dataclass(frozen=True, slots=True)
class Line:
    """One series; ``values`` belong to the same positions in every series of a plot."""

    name: str
    values: Sequence[float]


def lines(title: str, positions: Sequence[float], series: Sequence[Line], ticks: Sequence[str] = ()) -> str:
    """Series over positions that rise.

    Args:
        title: above the plot.
        positions: of the values.
        series: the lines.
        ticks: words below the axis, evenly spread.
    """
    top = _round_up(max((value for line in series for value in line.values), default=0.0))
    first, last = (positions[0], positions[-1]) if positions else (0.0, 1.0)
    width = (last - first) or 1.0
    parts = [_frame(title, top, ticks)]
    for number, line in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{_x((at - first) / width):.1f},{_y(value / top):.1f}"
            for at, value in zip(positions, line.values, strict=True)
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        parts.append(
            f'<text x="{_LEFT + 10 + 170 * number}" y="{_HEIGHT - 4}" fill="{colour}">'
            f"{escape(line.name)}</text>"
        )
    return _svg(title, parts)


def bars(title: str, values: Sequence[float], labels: Sequence[str]) -> str:
    """One bar for each value, with its label below."""
    top = _round_up(max(values, default=0.0))
    parts = [_frame(title, top, ())]
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(values))
    for at, (value, label) in enumerate(zip(values, labels, strict=True)):
        x, y = _LEFT + at * step, _y(value / top)
        parts.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" '
            f'height="{_HEIGHT - _BOTTOM - y:.1f}" fill="{COLOURS[0]}"><title>{value:g}</title></rect>'
            f'<text x="{x + step / 2:.1f}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    return _svg(title, parts)


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        + "".join(parts)
        + "</svg>"
    )


def _frame(title: str, top: float, ticks: Sequence[str]) -> str:
    parts = [f'<text x="{_LEFT}" y="11" font-weight="bold">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ccc"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:g}</text>')
    for number, tick in enumerate(ticks):
        x = _x(number / max(1, len(ticks) - 1))
        anchor = "start" if number == 0 else "end" if number == len(ticks) - 1 else "middle"
        y = _HEIGHT - _BOTTOM + 13
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(tick)}</text>')
    return "".join(parts)


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _TOP + (1 - min(1.0, max(0.0, share))) * (_HEIGHT - _TOP - _BOTTOM)


def _round_up(value: float) -> float:
    """A round number not below the value, and above 0."""
    if value < 1e-12:
        return 1.0
    power = 10.0 ** len(f"{int(value)}") / 10 if value >= 1 else 1.0
    while value < power:
        power /= 10
    return next((step * power for step in (1, 2, 2.5, 5, 10) if value <= step * power), value)


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;max-width:860px;margin:2em auto;padding:0 1em;color:#1c1c1c}"
    "table{border-collapse:collapse;margin:.6em 0 1.4em}"
    "td,th{border-bottom:1px solid #ddd;padding:.2em .9em .2em 0;text-align:right}"
    "td:first-child,th:first-child{text-align:left}svg{width:100%;font-size:11px;margin:.4em 0 1em}"
)
_POINTS = 400


def page(summary: Summary, title: str, beside: Sequence[str] = ()) -> str:
    """The whole page; ``beside``: what a shadow says of the scheduler it runs beside."""
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_stamp(summary.since_s))} to {escape(_stamp(summary.until_s))}: "
        f"{len(summary.jobs)} jobs ended.</p>",
        *_beside(beside),
        *_balance(summary),
        *_waits(summary),
        *promises_section(summary.outcomes),
        *_predictions(summary),
        *_gpus(summary),
    ]
    rule = "default-src 'none'; style-src 'unsafe-inline'"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{rule}">'
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f"{policy}<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _beside(words: Sequence[str]) -> Iterable[str]:
    if words:
        yield "<h2>The real scheduler beside ours</h2>"
        yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in words)}</ul>"


def _balance(summary: Summary) -> Iterable[str]:
    yield "<h2>Balance</h2>"
    rows = summary.balance
    if not rows:
        yield "<p>Nothing was noted in this time.</p>"
        return
    wordsof = (
        ("CPU utilisation of a node", "cpu_mean", percent),
        ("its standard deviation over nodes", "cpu_stdev", _number),
        ("busiest less idlest node", "cpu_range", _number),
        ("memory in use of a node", "mem_mean", percent),
        ("jobs waiting", "n_queued", _number),
    )
    yield html_table(
        ("", "mean over time", "most"),
        (
            (words, form(summary.mean_of(column)), form(max(getattr(row, column) for row in rows)))
            for words, column, form in wordsof
        ),
    )
    yield from _course(rows)


def _course(rows: Sequence[BalanceRow]) -> Iterable[str]:
    """The balance over time, as plots."""
    if len(rows) < 2:
        yield "<p>Noted once so far: nothing to draw yet.</p>"
        return
    shown = rows[:: max(1, len(rows) // _POINTS)]
    positions = [row.at_s for row in shown]
    first_s, length_s = positions[0], positions[-1] - positions[0]
    ticks = tuple(_stamp(first_s + length_s * part / 3) for part in range(4))

    def line(name: str, column: str) -> Line:
        return Line(name, [float(getattr(row, column)) for row in shown])

    cpu = (line("mean", "cpu_mean"), line("standard deviation", "cpu_stdev"))
    yield lines("CPU utilisation over nodes", positions, cpu, ticks)
    yield lines("jobs", positions, (line("running", "n_running"), line("waiting", "n_queued")), ticks)
    if any(row.gpus for row in rows):
        gpus = (
            line("held by jobs", "gpus_reserved"),
            line("held and not used", "gpus_unused"),
            line("GPU jobs waiting", "gpu_jobs_waiting"),
        )
        yield lines("GPUs", positions, gpus, ticks)


def _waits(summary: Summary) -> Iterable[str]:
    yield "<h2>Waits</h2>"
    if not summary.waits_s:
        yield "<p>No job ended in this time.</p>"
        return
    shares = (0.5, 0.75, 0.9, 0.95, 1.0)
    yield html_table(
        ("share of jobs", *(percent(share) for share in shares)),
        (("waited at most", *(span(summary.wait_quantile(share)) for share in shares)),),
    )
    bounds = (10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
    names = ("10 s", "1 min", "5 min", "15 min", "1 h", "4 h", "1 day", "longer")
    counts = [0] * len(names)
    for wait in summary.waits_s:
        counts[sum(wait > bound for bound in bounds)] += 1
    yield bars("jobs by wait, up to", [float(n) for n in counts], names)


def _predictions(summary: Summary) -> Iterable[str]:
    yield "<h2>Predictions</h2>"
    if not summary.errors:
        yield "<p>No prediction was checked in this time.</p>"
        return
    yield "<p>Mean absolute error; CPU and GPU as busy share, the others as log10 (0.30: a factor of 2).</p>"
    names = sorted({name for error in summary.errors for name in error.by_predictor})
    yield html_table(
        ("figure", "jobs", "used", *names, "within the upper bound"),
        (
            (
                error.figure.value, str(error.n), f"{error.mean_error:.3f}",
                *(f"{error.by_predictor[name]:.3f}" if name in error.by_predictor else "-" for name in names),
                percent(error.covered),
            )
            for error in summary.errors
        ),
    )  # fmt: skip
    for error in summary.errors:
        if len(error.course) > 1:
            positions = [float(at) for at in range(len(error.course))]
            title = f"mean error of {error.figure.value}, as history grows"
            yield lines(title, positions, (Line("error", error.course),), ("first jobs", "last jobs"))


def _gpus(summary: Summary) -> Iterable[str]:
    yield "<h2>GPUs held and not used</h2>"
    if not summary.gpu_holders:
        yield "<p>No job that ended had GPUs whose use is known.</p>"
        return
    yield html_table(
        ("user", "jobs", "GPU hours held", "GPU hours used", "used", "jobs that never used theirs"),
        (
            (
                each.user, str(each.n_jobs), f"{each.held_hours:.1f}", f"{each.used_hours:.1f}",
                percent(each.used_hours / each.held_hours if each.held_hours else None), str(each.n_unused),
            )
            for each in summary.gpu_holders
        ),
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _stamp(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))


ON_TIME_S = 60.0
"""A start so little after the guaranteed one counts as kept: a job ends, a mom reports it, a cycle runs."""

_BOUNDS_S = (-3600.0, -300.0, -ON_TIME_S, ON_TIME_S, 300.0, 3600.0)

_NAMES = (
    "> 1 h early",
    "> 5 min early",
    "> 1 min early",
    "on time",
    "< 5 min late",
    "< 1 h late",
    "later",
)


@dataclass(frozen=True, slots=True)
class Punctuality:
    """Starts against one kind of guaranteed start; all in seconds, above 0: late."""

    n: int
    kept: float
    """Share that started in time, or at most `ON_TIME_S` after."""
    mean_s: float
    mean_late_s: float
    """Mean of what they were late; those in time count 0."""
    half_s: float
    most_s: float
    """Nine of ten were not later than this."""
    worst_s: float


def punctuality(errors_s: Sequence[float]) -> Punctuality | None:
    """How punctual starts were; None without any."""
    if not errors_s:
        return None
    ordered = sorted(errors_s)

    def quantile(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Punctuality(
        len(ordered),
        sum(each <= ON_TIME_S for each in ordered) / len(ordered),
        statistics.fmean(ordered),
        statistics.fmean(max(0.0, each) for each in ordered),
        quantile(0.5),
        quantile(0.9),
        ordered[-1],
    )


def promises_section(outcomes: Sequence[Outcome]) -> Iterable[str]:
    """The part of the page."""
    yield "<h2>Guaranteed starts</h2>"
    if not outcomes:
        yield "<p>No job with a guaranteed start started in this time.</p>"
        return
    firsts = [each.first_error_s for each in outcomes]
    lasts = [each.last_error_s for each in outcomes]
    yield (
        f"<p>{len(outcomes)} jobs had a guaranteed start. Error: actual start less the guaranteed "
        "one; the first one is set when a job is first considered, and may only get sooner.</p>"
    )
    rows = (("the first one", punctuality(firsts)), ("the last one", punctuality(lasts)))
    yield html_table(
        ("against", "kept", "mean error", "mean lateness", "half by", "9 of 10 by", "worst"),
        (
            (
                words, percent(each.kept),
                *map(_signed, (each.mean_s, each.mean_late_s, each.half_s, each.most_s, each.worst_s)),
            )
            for words, each in rows
            if each is not None
        ),
    )  # fmt: skip
    yield from _broken(outcomes)
    counts = [0] * len(_NAMES)
    for error_s in firsts:
        counts[sum(error_s > bound for bound in _BOUNDS_S)] += 1
    yield bars("jobs by start against the first guaranteed start", [float(n) for n in counts], _NAMES)
    yield from _promise_course(outcomes)


def _broken(outcomes: Sequence[Outcome]) -> Iterable[str]:
    better = sum(each.n_better for each in outcomes)
    kinds = Counter(kind for each in outcomes for kind in each.broken_kinds)
    broken = sum(1 for each in outcomes if each.n_broken)
    yield f"<p>Starts were improved {better} times; those of {broken} jobs were put off or withdrawn.</p>"
    if kinds:
        yield html_table(("why put off", "jobs"), ((kind, str(n)) for kind, n in kinds.most_common()))


def _promise_course(outcomes: Sequence[Outcome]) -> Iterable[str]:
    """Minutes late and early, by time of start."""
    if len(outcomes) < 2:
        return
    ordered = sorted(outcomes, key=lambda each: each.start_s)
    shown = ordered[:: max(1, len(ordered) // _POINTS)]
    positions = [each.start_s for each in shown]
    places = [min(len(positions) * part // 3, len(positions) - 1) for part in range(4)]
    ticks = tuple(time.strftime("%Y-%m-%d %H:%M", time.localtime(positions[at])) for at in places)
    series = (
        Line("after the first one", [max(0.0, each.first_error_s) / 60 for each in shown]),
        Line("before it", [max(0.0, -each.first_error_s) / 60 for each in shown]),
        Line("after the last one", [max(0.0, each.last_error_s) / 60 for each in shown]),
    )
    yield lines("starts against guaranteed starts, minutes", positions, series, ticks)


def _signed(seconds: float) -> str:
    return f"-{span(-seconds)}" if seconds <= -0.5 else span(seconds)
