"""The figures of a simulated grid, and a check that its schedule is possible.

AWRT (Ernemann, Hamscher, Schwiegelshohn, Streit, Yahyapour) is the sum over jobs of area x (end - submit)
over the sum of areas, area = processors x run time. The weight of a split job is its original area n * T, so
that all modes share one weight; `awrt_extended_s` weighs by n * T'.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torque_sched.grid.search import Mode, Way
from torque_sched.grid.simulate.simulator import GridRun, GridSettings, Layout, Ran, cap_of

_FLOOR_S = 10.0
"""Of the bounded slowdown."""


@dataclass(frozen=True, slots=True)
class SiteFigures:
    """Of the jobs submitted at one site, wherever they ran; times in seconds."""

    jobs: int
    awrt_s: float
    awrt_extended_s: float
    awwt_s: float
    mean_wait_s: float
    mean_response_s: float
    bounded_slowdown: float
    """Mean, with a floor of 10 s; the run time of a split job counts as T."""
    n_split: int
    n_away: int
    """Jobs with at least one block at another site."""


@dataclass(frozen=True, slots=True)
class GridFigures:
    """Of a whole run."""

    sites: tuple[SiteFigures, ...]
    ways: dict[str, int]
    blocks: dict[int, int]
    """How many jobs ran in so many blocks."""
    mean_extension: float
    """Of T'/T - 1 over the jobs that were split; 0 without any."""
    max_extension: float
    overhead_share: float
    """Processor seconds that splits cost, over those of all jobs unsplit."""
    utilisation: float
    """Processor seconds used, overhead in, over what there was from the first submission to the last end."""
    makespan_s: float

    @property
    def spread(self) -> float:
        """Largest AWRT of a site over the smallest: the paper's claim of balance."""
        values = [site.awrt_s for site in self.sites if site.jobs]
        return max(values) / min(values) if values else 1.0

    @property
    def mean_awrt_s(self) -> float:
        """Mean over the sites."""
        return _mean([site.awrt_s for site in self.sites if site.jobs])

    @property
    def n_split(self) -> int:
        """Jobs in more than one block."""
        return sum(site.n_split for site in self.sites)


def figures_of(run: GridRun, layout: Layout) -> GridFigures:
    """Condense a run."""
    by_home: list[list[Ran]] = [[] for _ in layout]
    for ran in run.jobs:
        by_home[ran.home].append(ran)
    split = [ran.plan.length_s / ran.job.run_s - 1.0 for ran in run.jobs if ran.n_blocks > 1]
    whole = math.fsum(ran.job.procs * ran.job.run_s for ran in run.jobs)
    used = math.fsum(ran.job.procs * ran.plan.length_s for ran in run.jobs)
    first_s = min((ran.job.submit_s for ran in run.jobs), default=0.0)
    span_s = max((ran.plan.end_s for ran in run.jobs), default=0.0) - first_s
    capacity = sum(map(sum, layout))
    ways = Counter(ran.way for ran in run.jobs)
    return GridFigures(
        sites=tuple(_site(home, jobs) for home, jobs in enumerate(by_home)),
        ways={way.name.lower(): ways[way] for way in Way},
        blocks=dict(sorted(Counter(ran.n_blocks for ran in run.jobs).items())),
        mean_extension=_mean(split),
        max_extension=max(split, default=0.0),
        overhead_share=(used - whole) / whole if whole else 0.0,
        utilisation=used / (capacity * span_s) if span_s else 0.0,
        makespan_s=span_s,
    )


def _site(home: int, jobs: Sequence[Ran]) -> SiteFigures:
    response = [ran.plan.end_s - ran.job.submit_s for ran in jobs]
    wait = [ran.plan.start_s - ran.job.submit_s for ran in jobs]
    area = [ran.job.procs * ran.job.run_s for ran in jobs]
    extended = [ran.job.procs * ran.plan.length_s for ran in jobs]
    slowdown = (
        max(1.0, time_s / max(ran.job.run_s, _FLOOR_S)) for ran, time_s in zip(jobs, response, strict=True)
    )
    return SiteFigures(
        jobs=len(jobs),
        awrt_s=_weighed(response, area),
        awrt_extended_s=_weighed(response, extended),
        awwt_s=_weighed(wait, area),
        mean_wait_s=_mean(wait),
        mean_response_s=_mean(response),
        bounded_slowdown=_mean(list(slowdown)),
        n_split=sum(ran.n_blocks > 1 for ran in jobs),
        n_away=sum(ran.plan.sites != (home,) for ran in jobs),
    )


def _weighed(values: Iterable[float], weights: Sequence[float]) -> float:
    total = math.fsum(weights)
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


_MOST_NAMED = 20


def problems(run: GridRun, settings: GridSettings) -> list[str]:
    """Return one sentence per violation, the first twenty; none: the schedule is possible and as asked."""
    found = [fault for ran in run.jobs for fault in _faults(ran, settings)]
    names = [(ran.home, ran.job.number) for ran in run.jobs]
    if len(set(names)) < len(names):
        found.append("a job ran twice")
    return (found + _overbooked(run, settings.layout))[:_MOST_NAMED]


def _faults(ran: Ran, settings: GridSettings) -> list[str]:
    name = f"job {ran.job.number} of site {ran.home}"
    found = []
    if ran.plan.start_s < ran.job.submit_s:
        found.append(f"{name} starts before it was submitted")
    if sum(block.procs for block in ran.plan.blocks) != ran.job.procs:
        found.append(f"{name} has not the processors it needs")
    if any(block.procs < 1 for block in ran.plan.blocks):
        found.append(f"{name} has an empty block")
    sites = {block.site for block in ran.plan.blocks}
    if settings.mode is not Mode.COALLOCATE and len(sites) > 1:
        found.append(f"{name} runs at several sites")
    if settings.mode is Mode.HOME and sites != {ran.home}:
        found.append(f"{name} runs at another site")
    if len({block[:2] for block in ran.plan.blocks}) < ran.n_blocks:
        found.append(f"{name} has two blocks on one cluster")
    if ran.plan.length_s != settings.cost.length_s(ran.job.run_s, ran.n_blocks):
        found.append(f"{name} runs {ran.plan.length_s} s in {ran.n_blocks} blocks")
    if ran.n_blocks > cap_of(settings, ran.home)(ran.job.procs):
        found.append(f"{name} is split into {ran.n_blocks} blocks, more than allowed")
    return found


def _overbooked(run: GridRun, layout: Layout) -> list[str]:
    """Half-open intervals: what ends at an instant is free at it."""
    edges: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for ran in run.jobs:
        for site, cluster, procs in ran.plan.blocks:
            edges[site, cluster] += ((ran.plan.start_s, procs), (ran.plan.end_s, -procs))
    found = []
    for (site, cluster), changes in sorted(edges.items()):
        used = 0
        for at_s, change in sorted(changes):
            used += change
            if used > layout[site][cluster]:
                found.append(f"cluster {cluster} of site {site} has {used} processors in use at {at_s:g}")
                break
    return found
