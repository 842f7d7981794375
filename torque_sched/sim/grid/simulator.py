"""The grid on a SimPy clock: every site has its queue, its tables and its own scheduler; there is no other.

Run times are exact, so nothing ends early and a table, once right, stays right: a job is decided once, when
its turn comes in the queue of its home site, and its start never moves (conservative backfilling: what is
planned later fits in between and delays nothing). Time passes from one submission to the next.

Here messages take no time: of the decisions of one instant each sees the effects of those before it, sites in
their order. `messages.simulate_messages` has them travel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from torque_sched.core.availability import Availability
from torque_sched.core.grid.formulas import SplitCost
from torque_sched.core.grid.model import Mode, Plan, Request
from torque_sched.core.grid.ways import Place, block_cap, choose, offer
from torque_sched.errors import ConfigError
from torque_sched.sim.grid.layout import Layout
from torque_sched.sim.grid.outcome import GridRun, Ran
from torque_sched.sim.workload import TraceJob


@dataclass(frozen=True, slots=True)
class GridSettings:
    """What is the same for all sites."""

    layout: Layout
    mode: Mode
    cost: SplitCost


def places_of(layout: Layout, now_s: float) -> tuple[Place, ...]:
    """Empty tables for every site."""
    return tuple(
        Place(
            [(site, cluster) for cluster in range(len(sizes))],
            [Availability(procs, now_s) for procs in sizes],
        )
        for site, sizes in enumerate(layout)
    )


def cap_of(settings: GridSettings, home: int) -> Callable[[int], int]:
    """Return the cap on f by the width of a job: all sites know the clusters of all."""
    if settings.mode is Mode.HOME:
        reach = [settings.layout[home]]
    elif settings.mode is Mode.SEARCH:
        reach = list(settings.layout)
    else:
        reach = [tuple(procs for sizes in settings.layout for procs in sizes)]
    return functools.cache(lambda procs: block_cap(procs, reach, settings.cost.max_blocks))


def _everywhere(places: Iterable[Place]) -> Place:
    """All clusters as one place to search."""
    known = tuple(places)
    return Place(
        [cluster for place in known for cluster in place.clusters],
        [table for place in known for table in place.tables],
    )


def simulate_grid(
    settings: GridSettings,
    streams: Sequence[Sequence[TraceJob]],
    clock: Callable[[], float] | None = None,
    progress: Callable[[int], None] | None = None,
) -> GridRun:
    """Run the jobs of all sites to the end.

    Args:
        settings: sites, mode and what splits cost.
        streams: for each site its jobs in order of submission.
        clock: measures the time of each decision; None: not measured.
        progress: told the number of decided jobs now and then.

    Raises:
        ConfigError: not as many streams as sites.
    """
    return _Grid(settings, streams, clock, progress).run()


class _Grid:
    def __init__(
        self,
        settings: GridSettings,
        streams: Sequence[Sequence[TraceJob]],
        clock: Callable[[], float] | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        if len(streams) != len(settings.layout):
            raise ConfigError(
                f"{len(streams)} streams of jobs for {len(settings.layout)} sites",
                cure="give one to each site",
            )
        self._streams = streams
        self._clock = clock
        self._progress = progress
        self._cost = settings.cost
        self._mode = settings.mode
        first_s = min((jobs[0].submit_s for jobs in streams if jobs), default=0.0)
        self._places = places_of(settings.layout, first_s)
        self._all = _everywhere(self._places) if settings.mode is Mode.COALLOCATE else None
        self._caps = [cap_of(settings, home) for home in range(len(settings.layout))]
        self._environment = simpy.Environment(initial_time=first_s)
        self._run = GridRun()

    def run(self) -> GridRun:
        for home, jobs in enumerate(self._streams):
            self._environment.process(self._site(home, jobs))
        self._environment.run()
        return self._run

    def _site(self, home: int, jobs: Iterable[TraceJob]) -> Generator[Any, Any, None]:
        """One site: its jobs come, and each is decided at once."""
        environment = self._environment
        for job in jobs:
            yield environment.timeout(max(0.0, job.submit_s - environment.now))
            if self._clock is None:
                self._decide(home, job)
            else:
                began_s = self._clock()
                self._decide(home, job)
                self._run.decision_s.append(self._clock() - began_s)
            if self._progress is not None and len(self._run.jobs) % 1000 == 0:
                self._progress(len(self._run.jobs))

    def _decide(self, home: int, job: TraceJob) -> None:
        for table in self._places[home].tables:
            table.advance(job.submit_s)
        request = Request(job.procs, job.run_s, job.submit_s, self._caps[home](job.procs))
        chosen = choose(self._offers(home, request), self._all, request, self._cost)
        if chosen is None:
            self._run.too_wide += 1
            return
        plan, way = chosen
        for block in plan.blocks:
            self._places[block.site].tables[block.cluster].take(block.procs, plan.start_s, plan.end_s)
        self._run.jobs.append(Ran(home, job, plan, way))
        remote = sum(site != home for site in plan.sites)
        if remote:
            self._run.messages["handshake"] += 4 * remote  # confirm, ready, commit, committed

    def _offers(self, home: int, request: Request) -> list[Plan]:
        """Offers better than those before; a whole job that can start at home asks nobody."""
        offers: list[Plan] = []
        best_s = math.inf
        mine = offer(self._places[home], request, self._cost)
        if mine is not None:
            offers.append(mine)
            best_s = mine.score_s
            if len(mine.blocks) == 1 and mine.start_s <= request.not_before_s:
                return offers
        if self._mode is Mode.HOME:
            return offers
        for site, place in enumerate(self._places):
            if site != home:
                theirs = offer(place, request, self._cost, best_s)
                if theirs is not None:
                    offers.append(theirs)
                    best_s = theirs.score_s
        self._run.messages["discover"] += 2 * (len(self._places) - 1)
        return offers
