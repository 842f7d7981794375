"""The grid model: formulas, the common start, splits and whole simulations, against brute force."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.torque.grid.jobs import grid, job, place, table
from torque_sched.grid.search import (
    SPLIT_FORMULAS,
    Mode,
    Request,
    SplitCost,
    block_cap,
    choose,
    offer,
    one_block,
    split_blocks,
)
from torque_sched.grid.simulate.figures import problems
from torque_sched.grid.simulate.messages import LinkSettings, simulate_messages
from torque_sched.grid.simulate.simulator import GridSettings, simulate_grid
from torque_sched.model.availability import Availability

formulas = st.sampled_from(sorted(SPLIT_FORMULAS))
overheads = st.floats(0, 1)


@given(formulas, st.integers(1, 60), overheads, st.floats(1, 1e7))
def test_formulas_leave_whole_jobs_alone_cost_nothing_at_0_and_never_fall(
    name: str, f: int, p: float, whole_s: float
) -> None:
    cost = SplitCost(name, p)
    assert cost.length_s(whole_s, 1) == whole_s
    assert SplitCost(name, 0.0).length_s(whole_s, f) == whole_s
    assert cost.length_s(whole_s, f + 1) >= cost.length_s(whole_s, f) >= whole_s
    assert SplitCost(name, p / 2).length_s(whole_s, f) <= cost.length_s(whole_s, f) * (1 + 1e-12)


@given(formulas.filter(lambda name: name != "constant"), st.integers(2, 60), st.floats(0.01, 1))
def test_all_but_constant_grow_with_every_block(name: str, f: int, p: float) -> None:
    assert SPLIT_FORMULAS[name](f + 1, p) > SPLIT_FORMULAS[name](f, p)


@st.composite
def tables(draw: st.DrawFn) -> Availability:
    free = table(draw(st.integers(1, 6)))
    for _ in range(draw(st.integers(0, 8))):
        procs = draw(st.integers(1, free.capacity))
        start_s = draw(st.integers(0, 25))
        end_s = start_s + draw(st.integers(1, 10))
        if free.least(start_s, end_s) >= procs:
            free.take(procs, start_s, end_s)
    return free


clusters = st.lists(tables(), min_size=1, max_size=5)
lengths = st.integers(1, 12)
HORIZON_S = 60
"""Everything is free from 35 on, and all times are whole."""


@given(clusters, st.integers(1, 20), st.integers(1, 5), lengths, st.integers(0, 20), st.integers(0, 50))
def test_the_earliest_split_equals_brute_force(
    free: list[Availability], procs: int, f: int, length_s: int, now_s: int, no_later_s: int
) -> None:
    def room(at_s: int) -> int:
        least = [each.least(at_s, at_s + length_s) for each in free]
        return max((sum(some) for some in combinations(least, f)), default=0)

    starts = [at_s for at_s in range(now_s, min(no_later_s, HORIZON_S) + 1) if room(at_s) >= procs]
    start_s, shares = split_blocks(free, procs, f, length_s, now_s, no_later_s)
    assert start_s == (starts[0] if starts else math.inf)
    assert sum(share for _, share in shares) == (procs if starts else 0)
    assert len({index for index, _ in shares}) == len(shares) <= f
    sizes = [share for _, share in shares]
    assert all(share > 0 for share in sizes)
    assert all(first >= second for first, second in pairwise(sizes[:-1]))  # the biggest first
    for index, share in shares:
        free[index].take(share, start_s, start_s + length_s)  # raises if it is not free


@given(clusters, st.integers(1, 7), lengths, st.integers(0, 20), st.integers(0, 50))
def test_one_block_equals_a_split_in_one(
    free: list[Availability], procs: int, length_s: int, now_s: int, no_later_s: int
) -> None:
    start_s, index = one_block(free, procs, length_s, now_s, no_later_s)
    assert start_s == split_blocks(free, procs, 1, length_s, now_s, no_later_s)[0]
    if index >= 0:
        free[index].take(procs, start_s, start_s + length_s)


costs = st.builds(
    SplitCost,
    formulas,
    st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    st.integers(1, 4),
    st.sampled_from([0.0, 1.0, 2.0]),
)


@given(st.lists(clusters, min_size=1, max_size=3), st.integers(1, 12), lengths, st.integers(0, 20), costs)
def test_a_job_is_only_split_over_sites_where_that_gains_enough(
    sites: list[list[Availability]], procs: int, whole_s: int, now_s: int, cost: SplitCost
) -> None:
    places = [place(*free, site=site) for site, free in enumerate(sites)]
    cap = block_cap(procs, [[t.capacity for free in sites for t in free]], cost.max_blocks)
    request = Request(procs, whole_s, now_s, cap)
    offers = [plan for each in places if (plan := offer(each, request, cost))]
    single = choose(offers, None, request, cost)
    chosen = choose(offers, grid(*places), request, cost)
    assert (chosen is None) == (sum(t.capacity for free in sites for t in free) < procs)
    if chosen is None:
        return
    plan, way = chosen
    assert plan.length_s == cost.length_s(whole_s, len(plan.blocks))
    assert (plan.start_s <= now_s) == (way.value <= 2)
    assert sum(block.procs for block in plan.blocks) == procs
    for block in plan.blocks:
        sites[block.site][block.cluster].take(block.procs, plan.start_s, plan.end_s)
    if way.value in (2, 4) and single is not None:
        gain_s = single[0].end_s - plan.end_s
        assert len(plan.blocks) <= cap
        assert gain_s >= cost.min_gain * (plan.length_s - single[0].length_s) - 1e-9
        if cost.min_gain == 0:
            assert gain_s > 0


jobs = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 8), st.integers(1, 30)), min_size=1, max_size=12
).map(lambda rows: [job(n, s, w, r) for n, (s, w, r) in enumerate(sorted(rows))])
layouts = st.lists(
    st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
).map(tuple)


@given(layouts, st.data(), st.sampled_from(Mode), costs)
def test_every_schedule_is_possible_and_complete(layout, data, mode: Mode, cost: SplitCost) -> None:
    streams = [data.draw(jobs) for _ in layout]
    setting = GridSettings(layout, mode, cost)
    run = simulate_grid(setting, streams)
    assert problems(run, setting) == []
    assert len(run.jobs) + run.too_wide == sum(map(len, streams))
    assert simulate_grid(setting, streams).schedule_hash() == run.schedule_hash()


@settings(max_examples=examples(60))
@given(
    layouts, st.data(), st.sampled_from(Mode), costs, st.sampled_from([0.001, 0.1, 0.5]), st.floats(0.01, 10)
)
def test_so_is_every_schedule_with_messages(
    layout, data, mode: Mode, cost: SplitCost, delay_s: float, pace: float
) -> None:
    # Times that no sum of others hits exactly.
    streams = [[each._replace(submit_s=each.submit_s * pace) for each in data.draw(jobs)] for _ in layout]
    # It raises itself when a hold or an open job is left.
    setting = GridSettings(layout, mode, cost)
    run = simulate_messages(setting, streams, LinkSettings(delay_s=delay_s))
    assert problems(run, setting) == []
    assert len(run.jobs) + run.too_wide == sum(map(len, streams))
