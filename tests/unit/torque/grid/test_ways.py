from __future__ import annotations

import pytest

from tests.unit.torque.grid.jobs import grid, place, table
from torque_sched.grid.search import Block, Place, Request, SplitCost, Way, block_cap, choose, offer

LINEAR = SplitCost("linear", p=0.5, max_blocks=4, min_gain=1.0)
"""Two blocks run 1.5 T, so a split must end more than 0.5 T earlier."""


def best(request: Request, *sites, cost: SplitCost = LINEAR, is_split: bool = True):
    offers = [plan for site in sites if (plan := offer(site, request, cost))]
    return choose(offers, grid(*sites) if is_split else None, request, cost)


HALF_RESERVED = (place(table(4, (4, 0, 10), (2, 10, 500))), place(table(4, (4, 0, 20), (2, 20, 500)), site=1))


@pytest.mark.parametrize(
    ("sites", "is_split", "way", "start_s", "parts"),
    [
        ((place(table(4, (1, 0, 500))), place(table(4), site=1)), True, Way.SINGLE_NOW, 0, [4]),
        (
            (place(table(4, (2, 0, 101))), place(table(4, (2, 0, 101)), site=1)),
            True,
            Way.MULTI_NOW,
            0,
            [2, 2],
        ),
        (HALF_RESERVED, True, Way.MULTI_RESERVED, 20, [2, 2]),
        (HALF_RESERVED, False, Way.SINGLE_QUEUED, 500, [4]),
    ],
    ids=["one site now", "several now, as it is worth it", "several reserved", "no splits over sites"],
)
def test_ways_in_their_order(
    sites: tuple[Place, Place], is_split: bool, way: Way, start_s: float, parts: list[int]
) -> None:
    plan, found = best(Request(4, 100, 0, 4), *sites, is_split=is_split)
    assert (found, plan.start_s, [block.procs for block in plan.blocks]) == (way, start_s, parts)
    assert plan.length_s == 100 * (1.5 if len(parts) > 1 else 1)


def test_what_fits_nowhere_is_not_offered_and_ties_stay_at_home() -> None:
    assert best(Request(9, 10, 0, 4), place(table(4)), place(table(4), site=1)) is None
    plan, _ = best(Request(2, 10, 0, 4), place(table(4), site=3), place(table(8), site=1))
    assert plan.sites == (3,)


def test_way_3_waiting_for_one_site_is_better_than_a_split_that_gains_too_little() -> None:
    # Alone it ends at 200, split at 150: it gains 50 s and costs 50 s.
    sites = (place(table(4, (2, 0, 100))), place(table(4, (2, 0, 100)), site=1))
    plan, way = best(Request(4, 100, 0, 4), *sites)
    assert way is Way.SINGLE_QUEUED
    assert plan.blocks == (Block(0, 0, 4),)
    # With lambda 0 any earlier end is good enough.
    assert best(Request(4, 100, 0, 4), *sites, cost=SplitCost("linear", 0.5, 4, 0.0))[1] is Way.MULTI_NOW


def test_a_site_may_split_over_its_own_clusters() -> None:
    plan = offer(place(table(4, (2, 0, 500)), table(4, (2, 0, 500))), Request(4, 100, 0, 4), LINEAR)
    assert plan is not None
    assert (plan.start_s, plan.length_s, len(plan.blocks)) == (0, 150, 2)


def test_a_job_wider_than_the_cap_allows_takes_the_fewest_blocks() -> None:
    cost = SplitCost("linear", 0.1, max_blocks=2, min_gain=0.0)
    clusters = place(*(table(2) for _ in range(8)))
    cap = block_cap(9, [clusters.capacities], cost.max_blocks)
    assert cap == 5
    assert offer(clusters, Request(9, 100, 0, 2), cost) is None
    plan = offer(clusters, Request(9, 100, 0, cap), cost)
    assert plan is not None
    assert len(plan.blocks) == 5
    assert plan.length_s == pytest.approx(140)


def test_no_more_blocks_than_the_cap() -> None:
    cost = SplitCost("linear", 0.0, max_blocks=2, min_gain=0.0)
    clusters = place(*(table(4, (3, 0, 50)) for _ in range(4)))
    plan = offer(clusters, Request(4, 10, 0, 2), cost)
    assert plan is not None
    assert (plan.start_s, len(plan.blocks)) == (50, 1)
