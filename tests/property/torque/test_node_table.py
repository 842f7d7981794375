"""The node-aware table against plain search: nothing earlier was possible, and what it gives is free."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torque_sched.core.model import NodeName
from torque_sched.policies.backfilling.node_steps import N_AMOUNTS
from torque_sched.policies.backfilling.node_table import NodeNeed, NodeSpot, NodeTable, Part

_HORIZON = 40


@st.composite
def parts(draw: st.DrawFn, n_nodes: int) -> Part:
    chosen = draw(st.lists(st.integers(0, n_nodes - 1), min_size=1, max_size=n_nodes, unique=True))
    may_share = draw(st.booleans())
    return Part(
        np.array(chosen, np.intp),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([0, 0, 1])),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([0, 0, 3])),
        0,
        not may_share and draw(st.booleans()),
        may_share,
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[NodeTable, list[NodeNeed], list[tuple[int, int]]]:
    n_nodes = draw(st.integers(1, 4))
    capacity = np.zeros((n_nodes, N_AMOUNTS), np.int64)
    for index in range(n_nodes):
        capacity[index, :4] = draw(st.integers(1, 4)), draw(st.integers(0, 2)), draw(st.integers(1, 6)), 9
    table = NodeTable(tuple(NodeName(f"n{i}") for i in range(n_nodes)), capacity, 0.0, resolution_s=1.0)
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, 12))
        bit = draw(st.sampled_from([0, 1]))
        less = [0, 0, 0, 0, 1] if bit and not _kept(table) else [-draw(st.integers(1, 4))]
        table.close(draw(st.integers(0, n_nodes - 1)), begin, begin + draw(st.integers(1, 9)), less)
    needs = []
    for _ in range(draw(st.integers(1, 8))):
        made = tuple(draw(parts(n_nodes)) for _ in range(draw(st.sampled_from([1, 1, 1, 2]))))
        needs.append(NodeNeed(made, draw(st.sampled_from([0, 1])), key=object()))
    questions = draw(
        st.lists(st.tuples(st.integers(0, len(needs) - 1), st.integers(1, 8)), min_size=1, max_size=14)
    )
    return table, needs, questions


def _kept(table: NodeTable) -> bool:
    return bool((table.steps.free[4] != 0).any())


def _fits_at(table: NodeTable, need: NodeNeed, start: int, length: int) -> bool:
    """Whether the need fits at this time, by trying every choice of nodes."""
    free = [[_amounts(table, node, start + i) for i in range(length)] for node in range(len(table.names))]

    def pieces(part: Part, node: int) -> int:
        if any(need.kept_out_by & at[4] for at in free[node]):
            return 0
        least = [min(at[amount] for at in free[node]) for amount in range(4)]
        if part.whole and least[0] < table.capacity[node, 0]:
            return 0
        asked = (part.ppn, part.gpus, part.mem_bytes, part.vmem_bytes)
        n = min([least[a] // each for a, each in enumerate(asked) if each])
        return max(0, n if part.may_share else min(n, 1))

    orders = itertools.product(*(itertools.permutations(part.nodes.tolist()) for part in need.parts))
    for order in orders:
        taken: set[int] = set()
        for part, nodes in zip(need.parts, order, strict=True):
            left = part.count
            for node in nodes:
                if left > 0 and node not in taken and (n := pieces(part, node)):
                    taken.add(node)
                    left -= n
            if left > 0:
                break
        else:
            return True
    return False


def _amounts(table: NodeTable, node: int, at: int) -> list[int]:
    row = table.steps.at[node, : table.steps.width]
    column = int((row <= at).sum()) - 1
    return [int(table.steps.free[amount, node, column]) for amount in range(N_AMOUNTS)]


@settings(deadline=None, max_examples=examples(80))
@given(tables(), st.data())
def test_the_earliest_spot_is_free_and_nothing_sooner_was(
    world: tuple[NodeTable, list[NodeNeed], list[tuple[int, int]]], data: st.DataObject
) -> None:
    table, needs, questions = world
    taken: list[NodeSpot] = []
    for which, length in questions:
        need = needs[which]
        spot = table.earliest(need, float(length), 0.0)
        if spot is None:
            assert not any(_fits_at(table, need, t, length) for t in range(_HORIZON) if len(need.parts) == 1)
        else:
            assert spot.end_s - spot.start_s == length
            assert table.fits(spot)
            sooner = [t for t in range(int(spot.start_s)) if _fits_at(table, need, t, length)]
            # Two parts may want the same nodes: then choosing one after the other may miss a time.
            assert not sooner or len(need.parts) > 1
            if len(need.parts) == 1:
                assert _fits_at(table, need, int(spot.start_s), length)
            table.take(spot)
            taken.append(spot)
        if taken and data.draw(st.booleans()):
            table.give_back(taken.pop(data.draw(st.integers(0, len(taken) - 1))))


@settings(deadline=None, max_examples=examples(60))
@given(tables())
def test_what_is_given_back_leaves_no_trace(
    world: tuple[NodeTable, list[NodeNeed], list[tuple[int, int]]],
) -> None:
    table, needs, questions = world
    before = [[_amounts(table, node, at) for at in range(_HORIZON)] for node in range(len(table.names))]
    spots = []
    for which, length in questions:
        spot = table.earliest(needs[which], float(length), 0.0)
        if spot is not None:
            table.take(spot)
            spots.append(spot)
    for spot in spots[::2] + spots[1::2]:
        sooner = table.earlier(needs[0], 1.0, spot, 0.0)
        assert sooner is None or sooner.start_s < spot.start_s
        table.give_back(spot)
    after = [[_amounts(table, node, at) for at in range(_HORIZON)] for node in range(len(table.names))]
    assert before == after


def test_what_nobody_asks_for_may_be_overdrawn() -> None:
    """A node whose GPUs have gone while jobs hold them still takes a job without GPUs."""
    capacity = np.zeros((1, N_AMOUNTS), np.int64)
    capacity[0, :4] = 2, 1, 100, 100
    table = NodeTable((NodeName("n0"),), capacity, 0.0, resolution_s=1.0)
    table.close(0, 0.0, np.inf, (-1, -2))
    part = Part(np.array([0]), 1)
    need = NodeNeed((part,), key="plain")
    spot = table.earliest(need, 10.0, 1.0)
    assert spot is not None
    assert table.fits(spot)
    table.take(spot)
    again = table.earliest(need, 10.0, 1.0)
    assert again is not None
    assert again.start_s >= spot.end_s


def test_a_longer_need_says_nothing_of_where_a_shorter_one_begins() -> None:
    """Asked from the very time at which the longer one begins, the shorter one may still begin sooner."""
    capacity = np.zeros((1, N_AMOUNTS), np.int64)
    capacity[0, :4] = 1, 0, 1, 1
    table = NodeTable((NodeName("n0"),), capacity, 0.0, resolution_s=1.0)
    table.close(0, 0.0, 10.0, [-1])
    table.close(0, 15.0, 30.0, [-1])
    need = NodeNeed((Part(np.array([0], np.intp)),), key=object())
    asked = ((10.0, 0.5, 30.0), (3.0, 30.0, 30.0), (3.0, 0.5, 10.0))
    for length_s, not_before_s, start_s in asked:
        spot = table.earliest(need, length_s, not_before_s)
        assert spot is not None
        assert spot.start_s == start_s


def test_a_job_of_many_nodes_leaves_them_when_it_ends() -> None:
    """Rows of many nodes are changed all at once."""
    n_nodes = 9
    capacity = np.ones((n_nodes, N_AMOUNTS), np.int64)
    capacity[:, 4:] = 0
    table = NodeTable(tuple(NodeName(f"n{i}") for i in range(n_nodes)), capacity, 0.0, resolution_s=1.0)
    need = NodeNeed((Part(np.arange(n_nodes), count=n_nodes),), key=object())
    for start_s in (0.0, 10.0, 20.0):
        spot = table.earliest(need, 10.0, 0.0)
        assert spot is not None
        assert spot.start_s == start_s
        table.take(spot)
