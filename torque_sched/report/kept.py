"""Were guaranteed starts kept? Actual starts against them, as a part of the HTML report."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torque_sched.learning.promises import Outcome
from torque_sched.report.markup import html_table
from torque_sched.report.svg import Line, bars, lines
from torque_sched.report.words import percent, span

ON_TIME_S = 60.0
"""A start so little after the guaranteed one counts as kept: a job ends, a mom reports it, a cycle runs."""
_POINTS = 400
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
    yield from _course(outcomes)


def _broken(outcomes: Sequence[Outcome]) -> Iterable[str]:
    better = sum(each.n_better for each in outcomes)
    kinds = Counter(kind for each in outcomes for kind in each.broken_kinds)
    broken = sum(1 for each in outcomes if each.n_broken)
    yield f"<p>Starts were improved {better} times; those of {broken} jobs were put off or withdrawn.</p>"
    if kinds:
        yield html_table(("why put off", "jobs"), ((kind, str(n)) for kind, n in kinds.most_common()))


def _course(outcomes: Sequence[Outcome]) -> Iterable[str]:
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
