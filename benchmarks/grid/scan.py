"""G7: is a scan of the table linear in the jobs in it? Time of search and insertion over its length."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.result import Row, observed
from torque_sched.core.availability import Availability

_CAPACITY = 338
_N_JOBS = (1_000, 3_000, 10_000, 30_000, 100_000)
_TIMES = 20


def _filled(n_jobs: int) -> Availability:
    """A table with so many jobs side by side, nowhere with half of it free until its end."""
    table = Availability(_CAPACITY)
    chance = random.Random(n_jobs)
    lanes = [0.0, 0.0]
    for number in range(n_jobs):
        lane = number % 2
        length_s = chance.uniform(1.0, 100.0)
        table.take(chance.randint(100, _CAPACITY // 2), lanes[lane], lanes[lane] + length_s)
        lanes[lane] += length_s
    return table


def scan_rows(quick: bool, series: dict[str, Any]) -> Iterator[Row]:
    """Measure a scan from the first to the last point, and judge the slope in double logarithm."""
    points = []
    for n_jobs in _N_JOBS[:3] if quick else _N_JOBS:
        table = _filled(n_jobs)
        times_s = []
        for _ in range(_TIMES):
            began_s = time.perf_counter()
            start_s = table.earliest(_CAPACITY, 10.0, 0.0)
            table.take(_CAPACITY, start_s, start_s + 10.0)
            times_s.append(time.perf_counter() - began_s)
            table.give_back(_CAPACITY, start_s, start_s + 10.0)
        points.append((n_jobs, table.n_points, min(times_s)))
    series["scan"] = points
    (_, few, few_s), (_, many, many_s) = points[0], points[-1]
    slope = math.log(many_s / few_s) / math.log(many / few)
    note = "; ".join(f"{n:,} points {1e3 * time_s:.2f} ms" for _, n, time_s in points)
    yield observed(
        "G7: exponent of the scan's time over the table's length", slope, "", goal="<= 1.1", note=note
    )
