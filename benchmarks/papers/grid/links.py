"""What agreeing costs: with slow messages, at 100 sites of 10,000 processors, and in a scan of the table."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.papers.grid.cells import WINDOWS, jobs_between
from benchmarks.result import Row, observed
from torque_sched.core.availability import Availability
from torque_sched.core.grid.formulas import SplitCost
from torque_sched.core.grid.model import Mode
from torque_sched.sim.grid.check import problems
from torque_sched.sim.grid.layout import PRESETS
from torque_sched.sim.grid.messages import LinkSettings, simulate_messages
from torque_sched.sim.grid.metrics import figures_of
from torque_sched.sim.grid.outcome import GridRun
from torque_sched.sim.grid.simulator import GridSettings, simulate_grid
from torque_sched.sim.workload import TraceJob

_COST = SplitCost("power", 0.4, 4, 1.0)
_DELAYS_S = (0.005, 0.05, 0.5)
_WIDER = 29
"""Of 338 processors the log's machine had; a site of the scale experiment has 10,000."""
_QUICKER = 0.3
"""Jobs come three times as fast, so that queues form while few jobs are simulated."""


def delay_rows(log: Path, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """Four sites of 338 processors, some days of the log, with ever slower messages."""
    begin, _ = WINDOWS["CTC1"]
    begin += timedelta(days=7)
    jobs = jobs_between(log, begin, begin + timedelta(days=2 if quick else 14))
    for mode in (Mode.SEARCH, Mode.COALLOCATE):
        settings = GridSettings(PRESETS["338"], mode, _COST)
        streams = [jobs] * len(settings.layout)
        plain = simulate_grid(settings, streams)
        figures = figures_of(plain, settings.layout)
        yield observed(f"delay 0 s, {mode.value}: AWRT, mean of sites", figures.mean_awrt_s, "s")
        for delay_s in _DELAYS_S:
            say(f"messages take {delay_s:g} s, {mode.value}")
            run = simulate_messages(settings, streams, LinkSettings(delay_s=delay_s))
            yield from _agreed(f"delay {delay_s:g} s, {mode.value}", settings, run)


def scale_rows(log: Path, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """A hundred sites of ten clusters of 1,000 processors, each with another part of the log."""
    n_sites, n_jobs = (20, 40) if quick else (100, 150)
    jobs = jobs_between(log, *WINDOWS["CTC1"])
    streams = [_part(jobs, site, n_sites, n_jobs) for site in range(n_sites)]
    for mode, fan_out in (
        (Mode.SEARCH, None),
        (Mode.SEARCH, 8),
        (Mode.COALLOCATE, None),
        (Mode.COALLOCATE, 8),
    ):
        asked = "all" if fan_out is None else str(fan_out)
        name = f"{n_sites} sites x 10,000, {mode.value}, {asked} asked"
        say(name)
        settings = GridSettings(((1000,) * 10,) * n_sites, mode, _COST)
        link = LinkSettings(delay_s=0.05, fan_out=fan_out)
        began_s = time.process_time()
        run = simulate_messages(settings, streams, link, clock=time.perf_counter)
        cpu_s = time.process_time() - began_s
        yield from _agreed(name, settings, run)
        yield _time(f"{name}: time of the home site per decision", run.decision_s, len(run.jobs))
        yield _time(f"{name}: time of another site per answer", run.offer_s, len(run.offer_s))
        yield observed(f"{name}: CPU of the simulation per job", 1e3 * cpu_s / len(run.jobs), "ms")


def _part(jobs: Sequence[TraceJob], site: int, n_sites: int, n_jobs: int) -> list[TraceJob]:
    """Some jobs of the log, of another week for each site, so much wider and quicker, from time 0 on."""
    first = site * (len(jobs) - n_jobs) // n_sites
    part = jobs[first : first + n_jobs]
    begin_s = part[0].submit_s
    return [
        job._replace(submit_s=(job.submit_s - begin_s) * _QUICKER, procs=job.procs * _WIDER) for job in part
    ]


def _agreed(name: str, settings: GridSettings, run: GridRun) -> Iterator[Row]:
    """What was agreed, and how: messages between sites and refused confirms."""
    figures = figures_of(run, settings.layout)
    n_jobs = len(run.jobs)
    n_away = sum(site.n_away for site in figures.sites)
    faults = problems(run, settings)
    kinds = ", ".join(f"{kind} {count / n_jobs:.2f}" for kind, count in sorted(run.messages.items()))
    yield observed(f"{name}: AWRT, mean of sites", figures.mean_awrt_s, "s", note=f"{n_jobs:,} jobs")
    yield observed(f"{name}: jobs with blocks at other sites", n_away / n_jobs, "share")
    yield observed(f"{name}: messages per job", sum(run.messages.values()) / n_jobs, "", note=kinds)
    asked = run.messages["confirm"]
    refused = sum(run.refusals.values())
    note = f"{refused:,} refused, {asked:,} confirms sent to other sites, {run.rounds:,} jobs offered anew"
    yield observed(f"{name}: refused confirms per job", refused / n_jobs, "", note=note)
    yield observed(f"{name}: G8, double allocations and other faults", len(faults), "", goal="<= 0")


def _time(what: str, values_s: Sequence[float], n: int) -> Row:
    ms = sorted(1e3 * value for value in values_s)
    note = f"95 %: {ms[int(0.95 * len(ms))]:.2f} ms; mean {statistics.fmean(ms):.2f} ms"
    return replace(observed(what, statistics.median(ms), "ms", note=note), n=n, spread=(ms[0], ms[-1]))


# ---- G7: is a scan of the table linear in the jobs in it? Time of search and insertion over its length

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
