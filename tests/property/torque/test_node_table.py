"""The node-aware table against plain search: nothing earlier was possible, and what it gives is free."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torque_sched.decide.steps import N_AMOUNTS
from torque_sched.decide.table import Booking, DemandPart, NodeTable, ResourceDemand
from torque_sched.model.cluster import NodeName

_HORIZON = 40
ONE_TO_3, FEW_GPUS = st.integers(1, 3), st.sampled_from([0, 0, 1])
World = tuple[NodeTable, list[ResourceDemand], list[tuple[int, int]]]


def table_of(capacity: list[list[int]]) -> NodeTable:
    """Nodes with these slots, GPUs, memory and memory with swap."""
    amounts = np.zeros((len(capacity), N_AMOUNTS), np.int64)
    amounts[:, :4] = capacity
    names = tuple(NodeName(f"n{i}") for i in range(len(capacity)))
    return NodeTable(names, amounts, 0.0, resolution_s=1.0)


@st.composite
def parts(draw: st.DrawFn, n_nodes: int) -> DemandPart:
    chosen = draw(st.lists(st.integers(0, n_nodes - 1), min_size=1, max_size=n_nodes, unique=True))
    may_share = draw(st.booleans())
    ppn, gpus, count, mem = (
        draw(each) for each in (ONE_TO_3, FEW_GPUS, ONE_TO_3, st.sampled_from([0, 0, 3]))
    )
    whole = not may_share and draw(st.booleans())
    return DemandPart(np.array(chosen, np.intp), ppn, gpus, count, mem, 0, whole, may_share)


@st.composite
def tables(draw: st.DrawFn) -> World:
    n_nodes = draw(st.integers(1, 4))
    amounts = st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(1, 6), st.just(9)).map(list)
    table = table_of(draw(st.lists(amounts, min_size=n_nodes, max_size=n_nodes)))
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, 12))
        bit = draw(st.sampled_from([0, 1]))
        less = [0, 0, 0, 0, 1] if bit and not _kept(table) else [-draw(st.integers(1, 4))]
        table.close(draw(st.integers(0, n_nodes - 1)), begin, begin + draw(st.integers(1, 9)), less)
    needs = []
    for _ in range(draw(st.integers(1, 8))):
        made = tuple(draw(parts(n_nodes)) for _ in range(draw(st.sampled_from([1, 1, 1, 2]))))
        needs.append(ResourceDemand(made, draw(st.sampled_from([0, 1])), key=object()))
    question = st.tuples(st.integers(0, len(needs) - 1), st.integers(1, 8))
    return table, needs, draw(st.lists(question, min_size=1, max_size=14))


def _kept(table: NodeTable) -> bool:
    return bool((table.steps.free[4] != 0).any())


def _fits_at(table: NodeTable, need: ResourceDemand, start: int, length: int) -> bool:
    """Whether the need fits at this time, by trying every choice of nodes."""
    free = [[_amounts(table, node, start + i) for i in range(length)] for node in range(len(table.names))]

    def pieces(part: DemandPart, node: int) -> int:
        if any(need.kept_out_by & at[4] for at in free[node]):
            return 0
        least = [min(at[amount] for at in free[node]) for amount in range(4)]
        if part.whole and least[0] < table.capacity[node, 0]:
            return 0
        asked = (part.slots, part.gpus, part.mem_bytes, part.vmem_bytes)
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
def test_the_earliest_spot_is_free_and_nothing_sooner_was(world: World, data: st.DataObject) -> None:
    table, needs, questions = world
    taken: list[Booking] = []
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
def test_what_is_given_back_leaves_no_trace(world: World) -> None:
    table, needs, questions = world
    before = [[_amounts(table, node, at) for at in range(_HORIZON)] for node in range(len(table.names))]
    spots = []
    for which, length in questions:
        spot = table.earliest(needs[which], float(length), 0.0)
        if spot is not None:
            table.take(spot)
            spots.append(spot)
    for spot in spots[::2] + spots[1::2]:
        with table.without(spot):
            table.earliest(needs[0], 1.0, 0.0, spot.start_s)
        table.give_back(spot)
    after = [[_amounts(table, node, at) for at in range(_HORIZON)] for node in range(len(table.names))]
    assert before == after


def test_what_nobody_asks_for_may_be_overdrawn() -> None:
    """A node whose GPUs have gone while jobs hold them still takes a job without GPUs."""
    table = table_of([[2, 1, 100, 100]])
    table.close(0, 0.0, np.inf, (-1, -2))
    need = ResourceDemand((DemandPart(np.array([0]), 1),), key="plain")
    spot = table.earliest(need, 10.0, 1.0)
    assert spot is not None
    assert table.fits(spot)
    table.take(spot)
    again = table.earliest(need, 10.0, 1.0)
    assert again is not None
    assert again.start_s >= spot.end_s


def test_a_longer_need_says_nothing_of_where_a_shorter_one_begins() -> None:
    """Asked from the very time at which the longer one begins, the shorter one may still begin sooner."""
    table = table_of([[1, 0, 1, 1]])
    table.close(0, 0.0, 10.0, [-1])
    table.close(0, 15.0, 30.0, [-1])
    need = ResourceDemand((DemandPart(np.array([0], np.intp)),), key=object())
    asked = ((10.0, 0.5, 30.0), (3.0, 30.0, 30.0), (3.0, 0.5, 10.0))
    for length_s, not_before_s, start_s in asked:
        spot = table.earliest(need, length_s, not_before_s)
        assert spot is not None
        assert spot.start_s == start_s


def test_a_job_of_many_nodes_leaves_them_when_it_ends() -> None:
    """Rows of many nodes are changed all at once."""
    n_nodes = 9
    table = table_of([[1, 1, 1, 1]] * n_nodes)
    need = ResourceDemand((DemandPart(np.arange(n_nodes), count=n_nodes),), key=object())
    for start_s in (0.0, 10.0, 20.0):
        spot = table.earliest(need, 10.0, 0.0)
        assert spot is not None
        assert spot.start_s == start_s
        table.take(spot)
