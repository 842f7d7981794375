"""Searches sites for nodes or processors for one job: one block on one cluster, or blocks with a common
start.

The model is that of the grid paper (section 2.1). Clusters are space-shared: a processor runs one job at a
time, nothing is preempted, and the width of a job is fixed when it is submitted. A job may be split into
blocks on several clusters, which start and end together. The four ways to run a job are tried in the paper's
order: one site now, several sites now, one site later, several sites later.

How much longer a split job runs, T'(f, p) / T, is a formula with a name. The paper's own formula (its
equation 1) is lost in the text that is left. Known is that it depends on the number of blocks f and on an
overhead factor p, and that p = 0.4 makes a job more than 70 % longer (section 4). ``power`` (1.741 at f = 4)
and ``harmonic`` (1.733) do so; ``linear`` generalises the choice of Ernemann et al., ``constant`` is theirs.
Every formula leaves a whole job as it is (f = 1), costs nothing at p = 0, and never falls in f or p.

Fewest blocks come first, then the cluster with the most free processors; no block is empty. Nothing here is
global: each argument is either known to one site or was sent to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from torque_sched.errors import ConfigError
from torque_sched.model.availability import Availability


class Table(Protocol):
    """What can be had in one place over future time."""

    def bottleneck(self, start_s: float, end_s: float, /) -> tuple[int, float]:
        """Return the fewest free in a window, and until when a later one has no more."""
        ...


class Mode(Enum):
    """The three cases of the paper's experiment (section 4)."""

    HOME = "home"
    """(a) each job runs at the site it was submitted to, split over that site's clusters at most."""
    SEARCH = "search"
    """(b) the whole grid is searched, one site runs the job."""
    COALLOCATE = "coallocate"
    """(c) as (b), and a job may be split over sites, now or by reservation."""


class Way(Enum):
    """The four ways to run a job (paper, section 3), in the order in which they are tried."""

    SINGLE_NOW = 1
    MULTI_NOW = 2
    SINGLE_QUEUED = 3
    MULTI_RESERVED = 4


class Block(NamedTuple):
    """Processors of one job on one cluster."""

    site: int
    cluster: int
    procs: int


@dataclass(frozen=True, slots=True)
class Request:
    """A job as the sites are asked for it.

    Attributes:
        procs: its width, fixed.
        whole_s: T, its run time in one block.
        not_before_s: the earliest start, normally now.
        max_blocks: the cap on f for this job (`ways.block_cap`).
    """

    procs: int
    whole_s: float
    not_before_s: float
    max_blocks: int


class Plan(NamedTuple):
    """Where and when a job would run; all blocks have this start and length."""

    score_s: float
    """What is compared (`SplitCost.score_s`): smaller is better."""
    start_s: float
    length_s: float
    blocks: tuple[Block, ...]

    @property
    def end_s(self) -> float:
        """When all blocks end."""
        return self.start_s + self.length_s

    @property
    def sites(self) -> tuple[int, ...]:
        """The sites of its blocks, ascending: the order in which they are asked to confirm."""
        return tuple(sorted({block.site for block in self.blocks}))


SplitFormula = Callable[[int, float], float]
"""``(f, p) -> T'/T`` for f >= 1 blocks and the overhead factor p >= 0."""

_MOST_BLOCKS = 64
"""How far a new formula is tried, and how far factors are kept."""
_TRIED_P = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)


def _power(f: int, p: float) -> float:
    return float(f**p)


def _linear(f: int, p: float) -> float:
    return 1.0 + p * (f - 1)


def _harmonic(f: int, p: float) -> float:
    return 1.0 + p * sum(1.0 / k for k in range(1, f))


def _constant(f: int, p: float) -> float:
    return 1.0 + p if f > 1 else 1.0


SPLIT_FORMULAS: dict[str, SplitFormula] = {
    "power": _power,
    "linear": _linear,
    "harmonic": _harmonic,
    "constant": _constant,
}


@dataclass(frozen=True, slots=True)
class SplitCost:
    """What splitting costs, and when it is worth it.

    Attributes:
        formula: a name of `SPLIT_FORMULAS`.
        p: the overhead factor.
        max_blocks: the cap on f; a job that so many blocks cannot hold anywhere takes the fewest that can.
        min_gain: lambda of the gain rule: splitting must end the job earlier by lambda * (T' - T). 0 is the
            rule of Ernemann et al.: any earlier end counts.
    """

    formula: str = "power"
    p: float = 0.4
    max_blocks: int = 4
    min_gain: float = 1.0
    factors: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """T'/T by f; index 0 is not used."""

    def __post_init__(self) -> None:
        if self.formula not in SPLIT_FORMULAS:
            known = ", ".join(sorted(SPLIT_FORMULAS))
            raise ConfigError(f"no split formula {self.formula!r}", cure=f"known: {known}")
        for name, value, least in (("p", self.p, 0), ("lambda", self.min_gain, 0), ("f", self.max_blocks, 1)):
            if not least <= value < float("inf"):
                raise ConfigError(f"grid: {name} = {value}", cure=f"give a number of at least {least}")
        formula = SPLIT_FORMULAS[self.formula]
        factors = (1.0, *(formula(f, self.p) for f in range(1, _MOST_BLOCKS + 1)))
        object.__setattr__(self, "factors", factors)

    def length_s(self, whole_s: float, n_blocks: int) -> float:
        """T' of a job that runs ``whole_s`` in one block."""
        return whole_s * self.factors[n_blocks]

    def score_s(self, start_s: float, length_s: float) -> float:
        """What is compared: the end, plus lambda times the length; the smallest is run.

        The same as the gain rule: of two runs, the one with more blocks (and T' - T more length) has the
        smaller score just when it ends earlier by more than lambda * (T' - T). A tie is not worth a split.
        """
        return start_s + (1.0 + self.min_gain) * length_s


def fewest_blocks(capacities: Sequence[int], procs: int) -> int:
    """Into how many blocks a job must be split at least; 0 when all clusters together cannot hold it."""
    capacity_so_far = 0
    for n_blocks, capacity in enumerate(sorted(capacities, reverse=True), start=1):
        capacity_so_far += capacity
        if capacity_so_far >= procs:
            return n_blocks
    return 0


def one_block(
    tables: Sequence[Availability], procs: int, length_s: float, not_before_s: float, no_later_s: float
) -> tuple[float, int]:
    """Return the earliest start on one cluster and which; (inf, -1) when none starts by ``no_later_s``.

    Among clusters with the same start it is the one with the most free processors.
    """
    best_s, best, most = math.inf, -1, -1
    for index, table in enumerate(tables):
        if procs > table.capacity:
            continue
        start_s = table.earliest(procs, length_s, not_before_s, no_later_s)
        if start_s < best_s:
            best_s, best, most = start_s, index, -1
            no_later_s = start_s
        elif start_s == math.inf or start_s > best_s:
            continue
        else:
            if most < 0:
                most = tables[best].free_at(best_s)
            free = table.free_at(start_s)
            if free > most:
                best, most = index, free
    return best_s, best


Look = tuple[list[int], list[float]]
"""For each table the fewest it has free throughout a job, and until when a later start can offer no more."""


def look_at(tables: Sequence[Table], start_s: float, length_s: float) -> Look:
    """Look at all tables for a job from ``start_s`` on; it bounds what they offer to any longer job, too."""
    seen = [table.bottleneck(start_s, start_s + length_s) for table in tables]
    return [offer for offer, _ in seen], [rise_s for _, rise_s in seen]


def split_blocks(
    tables: Sequence[Table],
    procs: int,
    n_blocks: int,
    length_s: float,
    not_before_s: float,
    no_later_s: float,
    look: Look | None = None,
) -> tuple[float, tuple[tuple[int, int], ...]]:
    """Return the first common start of ``n_blocks`` blocks of any sizes, and (cluster, processors) of each.

    The paper (section 3.2.1) takes the latest of the blocks' earliest starts and asks all tables again from
    there on until it stays, for a block that can start at t need not be able to start later. Here the sizes
    of the blocks are open, too: the start moves on to the next instant at which some cluster offers more,
    until what the biggest offer together is enough. At every instant a cluster offers the least it has free
    throughout the job. That figure is kept as an upper bound while the start moves on, and looked up again
    only where it may have risen or is about to be used.

    Args:
        tables: the clusters.
        procs: the job's width.
        n_blocks: on how many clusters.
        length_s: how long it runs so.
        not_before_s: the earliest start.
        no_later_s: the last start of interest.
        look: at these tables for a job from ``not_before_s`` on that is not longer; saves looking anew.

    Returns:
        ``(inf, ())`` when there is no such start by ``no_later_s``.
    """
    if len(tables) < n_blocks or not_before_s > no_later_s:
        return math.inf, ()
    start_s = not_before_s
    seen = look_at(tables, start_s, length_s) if look is None else look
    offers, rises_s = seen[0].copy(), seen[1].copy()
    looked_s = [start_s if look is None else -math.inf] * len(tables)
    indices = range(len(tables))
    while True:
        biggest = sorted(indices, key=offers.__getitem__, reverse=True)[:n_blocks]
        if sum([offers[i] for i in biggest]) >= procs:
            again = [i for i in biggest if looked_s[i] < start_s]
            if not again:
                return start_s, _fill(biggest, offers, procs)
            for i in again:
                offers[i], rises_s[i] = tables[i].bottleneck(start_s, start_s + length_s)
                looked_s[i] = start_s
            continue
        next_s = min(rises_s)
        has_more = False
        while not has_more or next_s == start_s:  # go on until some cluster offers more than before
            start_s = next_s
            if start_s > no_later_s or start_s == math.inf:
                return math.inf, ()
            i = rises_s.index(start_s)
            before = offers[i]
            offers[i], rises_s[i] = tables[i].bottleneck(start_s, start_s + length_s)
            looked_s[i] = start_s
            has_more = has_more or offers[i] > before
            next_s = min(rises_s)


def _fill(biggest: Sequence[int], offers: Sequence[int], procs: int) -> tuple[tuple[int, int], ...]:
    """Give the job to the clusters in this order, each all it offers, until it is placed."""
    blocks = []
    for index in biggest:
        share = min(offers[index], procs)
        if share == 0:
            break
        blocks.append((index, share))
        procs -= share
    return tuple(blocks)


_NOTHING = Plan(math.inf, math.inf, math.inf, ())


class Place:
    """Clusters that can be searched together: those of one site, or of all that answered.

    Args:
        clusters: (site, cluster) of each table.
        tables: their free processors over time.
    """

    __slots__ = ("capacities", "clusters", "tables")

    def __init__(self, clusters: Iterable[tuple[int, int]], tables: Iterable[Availability]) -> None:
        self.clusters = tuple(clusters)
        self.tables = tuple(tables)
        self.capacities = tuple(sorted((table.capacity for table in self.tables), reverse=True))

    def blocks(self, shares: Iterable[tuple[int, int]]) -> tuple[Block, ...]:
        """Turn (table, processors) into blocks."""
        return tuple([Block(*self.clusters[index], procs) for index, procs in shares])


def block_cap(procs: int, reach: Iterable[Sequence[int]], max_blocks: int) -> int:
    """Return the cap on f for a job of this width: the setting, or the fewest blocks that can hold it at all.

    Args:
        procs: the width.
        reach: the sizes of the clusters of every set that may hold it: of one site each, or of all together.
        max_blocks: the setting.
    """
    counts = [count for capacities in reach if (count := fewest_blocks(capacities, procs))]
    return max(max_blocks, min(counts, default=0))


def offer(place: Place, request: Request, cost: SplitCost, better_than_s: float = math.inf) -> Plan | None:
    """Return what one site can do for a job with its own clusters: the smallest score, split or not.

    Args:
        place: the clusters of the site.
        request: the job.
        cost: what splits cost.
        better_than_s: a score that is at hand already; only smaller ones are of interest.
    """
    fewest = fewest_blocks(place.capacities, request.procs)
    most = min(request.max_blocks, len(place.tables))
    if not 1 <= fewest <= most:
        return None
    best = _NOTHING._replace(score_s=better_than_s)
    if fewest == 1:
        no_later_s = better_than_s - cost.score_s(0.0, request.whole_s)
        start_s, index = one_block(
            place.tables, request.procs, request.whole_s, request.not_before_s, no_later_s
        )
        if index >= 0:
            score_s = cost.score_s(start_s, request.whole_s)
            if score_s < best.score_s:
                block = Block(*place.clusters[index], request.procs)
                best = Plan(score_s, start_s, request.whole_s, (block,))
    best = _splits(place, request, cost, range(max(2, fewest), most + 1), best)
    return best if best.blocks else None


def split_over(
    place: Place, request: Request, cost: SplitCost, better_than_s: float
) -> tuple[Plan, Way] | None:
    """Return the split over sites that beats this score: one that starts now first (way 2), else way 4.

    Args:
        place: the clusters of all sites that answered.
        request: the job.
        cost: what splits cost.
        better_than_s: the score of the best single-site plan, which a split must beat.
    """
    fewest = fewest_blocks(place.capacities, request.procs)
    if not fewest:
        return None
    counts = range(max(2, fewest), min(request.max_blocks, len(place.tables)) + 1)
    nothing = _NOTHING._replace(score_s=better_than_s)
    look = look_at(place.tables, request.not_before_s, request.whole_s)
    now = _splits(place, request, cost, counts, nothing, look, request.not_before_s)
    if now.blocks:
        return now, Way.MULTI_NOW
    later = _splits(place, request, cost, counts, nothing, look)
    return (later, Way.MULTI_RESERVED) if later.blocks else None


def _splits(
    place: Place,
    request: Request,
    cost: SplitCost,
    counts: Iterable[int],
    best: Plan,
    look: Look | None = None,
    no_later_s: float = math.inf,
) -> Plan:
    """Return the best of the given plan and splits into these numbers of blocks, few first."""
    for n_blocks in counts:
        if best.start_s <= request.not_before_s:
            break  # more blocks cannot start earlier
        length_s = cost.length_s(request.whole_s, n_blocks)
        latest_s = min(no_later_s, best.score_s - cost.score_s(0.0, length_s))
        if latest_s < request.not_before_s:
            break  # nor can they end early enough: T' never falls
        if look is None:
            look = look_at(place.tables, request.not_before_s, request.whole_s)
        start_s, shares = split_blocks(
            place.tables, request.procs, n_blocks, length_s, request.not_before_s, latest_s, look
        )
        if not shares:
            continue
        score_s = cost.score_s(start_s, length_s)
        if score_s < best.score_s:
            best = Plan(score_s, start_s, length_s, place.blocks(shares))
    return best


def choose(
    offers: Sequence[Plan], everywhere: Place | None, request: Request, cost: SplitCost
) -> tuple[Plan, Way] | None:
    """Return the way to run a job, from the offers of single sites and, for splits over sites, all clusters.

    Args:
        offers: of the sites that can hold it, the home site first: ties go to the first.
        everywhere: the clusters of all sites; None where jobs run at one site only.
        request: the job.
        cost: what splits cost.

    Returns:
        None when no site and no set of sites can ever hold it.
    """
    single = min(offers, key=_score) if offers else None
    if single is not None and single.start_s <= request.not_before_s:
        return single, Way.SINGLE_NOW
    if everywhere is not None:
        split = split_over(everywhere, request, cost, single.score_s if single else math.inf)
        if split is not None:
            return split
    return (single, Way.SINGLE_QUEUED) if single is not None else None


def _score(plan: Plan) -> float:
    return plan.score_s
