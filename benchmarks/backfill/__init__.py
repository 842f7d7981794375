"""Backfilling on logs of real machines: against referee schedules and published figures, and how fast.

Without ``--log`` the two small traces of `benchmarks/traces` and the insertion are measured; with the full
CTC log its published figures and times; with any other log a robustness run.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.backfill.schedules import Say, estimates_rows, first_rows, log_rows, referee_rows, robust_rows
from benchmarks.result import Report, Row, measured, not_measured, observed
from torque_sched.core.availability import Availability
from torque_sched.sim.workload import read_trace

__all__ = ["SECTIONS", "draw", "run"]

SECTIONS = ("referee", "first", "log", "estimates", "insertion")
_LENGTHS = (1_000, 3_000, 10_000, 30_000, 100_000)
_CAPACITY = 256
_SPAN_S = 1e7


def run(quick: bool, say: Say, report: Report, only: Sequence[str] = (), log: Path | None = None) -> None:
    """Run the sections asked for, all of them by default; `Benchmark`.

    Quick: each time is taken once, and estimates are compared on 2,000 jobs, not 10,000.
    """
    for name in only or SECTIONS:
        for row in _section(name, quick, say, report, log):
            report.add([row])


def _section(name: str, quick: bool, say: Say, report: Report, log: Path | None) -> Iterator[Row]:
    if name == "referee":
        yield from referee_rows(say)
    elif name == "first":
        yield from first_rows(say)
    elif name == "insertion":
        yield from _insertion_rows(quick, say, report)
    elif log is None:
        yield not_measured(f"{name}: the full log", "needs CTC-SP2-1996-3.1-cln.swf.gz, --log FILE")
    elif name == "estimates":
        trace = read_trace(log)
        yield from estimates_rows(log.name.split(".")[0], trace, 2_000 if quick else 10_000, say)
    elif "CTC" in read_trace(log).header.get("Installation", ""):
        yield from log_rows(log, 1 if quick else 3, say)
    else:
        yield from robust_rows(log, say)


def _insertion_rows(quick: bool, say: Say, report: Report) -> Iterator[Row]:
    """CPU time of one insertion by length of the table, and the slope on logarithmic axes: 1 is linear.

    The paper passes once over a linked list.
    """
    kinds = {"whole table": _whole, "random place": _random}
    found: dict[str, list[tuple[int, float]]] = {kind: [] for kind in kinds}
    for length in _LENGTHS:
        say(f"insertion into a table of {length:,} points")
        table = _filled(length)
        for kind, insert in kinds.items():
            times = [insert(table, random.Random(seed)) for seed in range(20 if quick else 100)]
            found[kind].append((table.n_points, statistics.median(times)))
            yield measured(
                f"insertion ({kind}), {length:,} points", [1e6 * each for each in times], "us",
                note=f"{table.n_points:,} points",
            )  # fmt: skip
    report.series["insertion"] = found
    for kind, points in found.items():
        yield observed(
            f"insertion ({kind}): slope of time over points, both logarithmic", _slope(points), "",
            goal="<= 1.1", note="1 is linear",
        )  # fmt: skip


def _filled(n_points: int) -> Availability:
    """A table with about so many points; one processor is never free."""
    chance = random.Random(7)
    table = Availability(_CAPACITY)
    table.take(1, 0.0, 2 * _SPAN_S)
    length_s = 20 * _SPAN_S / n_points
    while table.n_points < n_points:
        start_s = chance.uniform(0.0, _SPAN_S)
        table.take(1, start_s, start_s + chance.uniform(0.1, 1.0) * length_s)
    return table


def _whole(table: Availability, chance: random.Random) -> float:
    """A job as wide as the machine: every point must be looked at."""
    began_s = time.thread_time()
    start_s = table.earliest(_CAPACITY, 100.0, 0.0)
    table.take(_CAPACITY, start_s, start_s + 100.0)
    took_s = time.thread_time() - began_s
    table.give_back(_CAPACITY, start_s, start_s + 100.0)
    return took_s


def _random(table: Availability, chance: random.Random) -> float:
    """A narrow job somewhere: found at once, so what it takes is finding and keeping the place."""
    at_s, length_s = chance.uniform(0.0, _SPAN_S), 10.0
    began_s = time.thread_time()
    start_s = table.earliest(1, length_s, at_s)
    table.take(1, start_s, start_s + length_s)
    took_s = time.thread_time() - began_s
    table.give_back(1, start_s, start_s + length_s)
    return took_s


def _slope(points: list[tuple[int, float]]) -> float:
    """Of the line through the logarithms, by least squares."""
    slope = statistics.linear_regression([math.log(n) for n, _ in points], [math.log(s) for _, s in points])
    return slope.slope


def draw(report: Report, stem: str) -> list[str]:
    """Draw time over points; returns the file."""
    series: dict[str, Any] = report.series.get("insertion", {})
    if not series:
        return []
    from yarn_accel.report.figures import drawing

    file = f"{stem}-insertion.png"
    with drawing(file, (7, 4.4)) as (_, table):
        axes = table[0, 0]
        for kind, points in series.items():
            axes.plot(
                [n for n, _ in points],
                [1e6 * s for _, s in points],
                "o-",
                label=f"{kind}: {_slope(points):.2f}",
            )
        axes.set(
            xscale="log", yscale="log", xlabel="points of the table", ylabel="one insertion, us (median)"
        )
        axes.legend(title="slope (1: linear)", fontsize="small")
        axes.grid(visible=True, alpha=0.3)
    return [file]
