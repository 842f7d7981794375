"""The report as one HTML page: no script, no font, no picture from anywhere else, every text escaped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from torque_sched.learning.rows import BalanceRow
from torque_sched.report.kept import promises_section
from torque_sched.report.markup import html_table
from torque_sched.report.summary import Summary
from torque_sched.report.svg import Line, bars, lines
from torque_sched.report.words import percent, span

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
