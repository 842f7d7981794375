"""The four ways to run a job, in the paper's order: one site now, several now, one queued, several reserved.

A site makes its own `offer` (its scheduler, its tables); the home site of a job gathers offers and, where
jobs may be split over sites, the tables of the others, and chooses. Nothing here is global: every argument is
what one site has or was sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torque_sched.core.grid.formulas import SplitCost
from torque_sched.core.grid.model import Block, FreeTable, Plan, Request, Way
from torque_sched.core.grid.search import Look, fewest_blocks, look_at, one_block, split_blocks

_NOTHING = Plan(math.inf, math.inf, math.inf, ())


class Place:
    """Clusters that can be searched together: those of one site, or of all that answered.

    Args:
        clusters: (site, cluster) of each table.
        tables: their free processors over time.
    """

    __slots__ = ("capacities", "clusters", "tables")

    def __init__(self, clusters: Iterable[tuple[int, int]], tables: Iterable[FreeTable]) -> None:
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
