"""Several sites on a SimPy clock, each with its queue, its tables and its own scheduler; there is no other.

Run times are exact, so nothing ends early and a table, once right, stays right: a job is decided once, when
its turn comes in the queue of its home site, and its start never moves (conservative backfilling: a job that
is planned later fits in between and delays nothing). Time passes from one submission to the next.

Here messages take no time: of the decisions of one instant each sees the effects of those before it, sites in
their order. In `messages.simulate_messages` they travel.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import simpy

from torque_sched.errors import ConfigError
from torque_sched.grid.search import Mode, Place, Plan, Request, SplitCost, Way, block_cap, choose, offer
from torque_sched.model.availability import Availability
from torque_sched.simulate.workload import TraceJob

Layout = tuple[tuple[int, ...], ...]
"""For each site the processors of its clusters."""

PRESETS: Mapping[str, Layout] = {
    "equal": ((432,), (216,) * 2, (108,) * 4, (54,) * 8),
    "338": ((338,), (169,) * 2, (85,) * 4, (43,) * 8),
    "hetero": ((338,), (128,) * 3, (64,) * 7, (128,) * 4),
}
"""The paper's Table 1 is lost. ``equal``: the same total, more and more clusters; ``338``: the log's machine,
as nearly as it divides (338, 338, 340, 344), for the load the paper has; ``hetero``: different sizes."""


def parse_layout(text: str) -> Layout:
    """Return a preset by its name, or sites as ``4x108,2x216,1x300+2x50``: clusters x processors.

    Raises:
        ConfigError: neither; the message shows the form.
    """
    if text in PRESETS:
        return PRESETS[text]
    try:
        sites = tuple(
            tuple(size for part in site.split("+") for size in _clusters(part)) for site in text.split(",")
        )
    except ValueError:
        known = ", ".join(PRESETS)
        raise ConfigError(
            f"no sites {text!r}", cure=f"give a preset ({known}) or sites such as 1x432,2x216,1x300+2x50"
        ) from None
    return sites


def _clusters(part: str) -> tuple[int, ...]:
    count, times, procs = part.partition("x")
    if not times or int(count) < 1 or int(procs) < 1:
        raise ValueError(part)
    return (int(procs),) * int(count)


class Ran(NamedTuple):
    """One job of the run; it starts and ends at all its blocks together."""

    home: int
    job: TraceJob
    plan: Plan
    way: Way

    @property
    def n_blocks(self) -> int:
        """f: into how many blocks it was split."""
        return len(self.plan.blocks)


@dataclass
class GridRun:
    """The jobs in the order in which they were decided.

    Attributes:
        jobs: all that ran.
        too_wide: jobs no way could ever hold.
        messages: by kind, those between different sites only.
        refusals: confirms answered by "not ready", by reason.
        rounds: how often jobs were offered anew after a refusal.
        decision_s: measured time per decision, where a clock was given: all of it, or with messages the home
            site's part.
        offer_s: measured time per answer of another site, with messages.
    """

    jobs: list[Ran] = field(default_factory=list)
    too_wide: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    decision_s: list[float] = field(default_factory=list)
    offer_s: list[float] = field(default_factory=list)

    def schedule_hash(self) -> str:
        """Sixteen characters that are equal only for equal schedules."""
        digest = hashlib.sha256()
        for ran in self.jobs:
            line = (
                ran.home,
                ran.job.number,
                ran.plan.start_s,
                ran.plan.length_s,
                *map(tuple, ran.plan.blocks),
            )
            digest.update(repr(line).encode())
        return digest.hexdigest()[:16]


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
        progress: gets the number of decided jobs now and then.

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
