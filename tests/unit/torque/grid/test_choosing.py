"""Free nodes of a site over time, and where and when a job could run."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.torque_builders import NOW_S, job, node, running
from torque_sched.batch.openpbs.parse.select import Kinds, request_of
from torque_sched.grid.handshake.holder import Grant
from torque_sched.grid.handshake.messages import Claim, Instant, Piece, SiteId, Token
from torque_sched.grid.site.config import SiteConfig
from torque_sched.grid.site.messages import Offered
from torque_sched.grid.site.offers import (
    MARGIN_S,
    NodeInventory,
    NodeShape,
    Wish,
    candidates,
    offer_of,
    wish_of,
)
from torque_sched.model.cluster import Job, NodeName, Server
from torque_sched.model.snapshot import Reservation, Snapshot

CONFIG = SiteConfig(name="alpha", listen="x", certificate="c", key="k")
AT_S = 1000.0
Steps = list[tuple[float, int]]


def ways(
    sites: dict[str, int | Steps], nodes: int, *, may_reserve: bool = True, **grid: float
) -> list[tuple[dict[str, int], float, float]]:
    """Parts, start and length of each way; a number is free from now on for ever."""
    config = CONFIG.model_copy(update={"grid": CONFIG.grid.model_copy(update=grid)})
    wish = Wish(nodes, NodeShape(2), 100.0)
    n_lengths = len(offer_of(config, wish, "ann", "1.alpha").lengths_s)
    offers = {
        site: Offered(outlooks=(tuple([(AT_S, said)] if isinstance(said, int) else said),) * n_lengths)
        for site, said in sites.items()
    }
    found = candidates(config, wish, offers, AT_S, may_reserve=may_reserve)
    return [
        ({ask.site: sum(piece.count for piece in ask.pieces) for ask in way.asks}, way.start_s, way.length_s)
        for way in found
    ]


def test_home_first_then_the_emptiest_and_split_over_as_few_sites_as_will_do() -> None:
    sites = {"alpha": 2, "beta": 4, "gamma": 3, "delta": 1}
    assert [way[0] for way in ways(sites, 2)][:3] == [{"alpha": 2}, {"beta": 2}, {"gamma": 2}]
    ((parts, _, length_s),) = ways(sites, 7)
    assert parts == {"beta": 4, "gamma": 3}
    assert length_s == pytest.approx(100.0 * 2**0.1 + CONFIG.grid.barrier_timeout_s + MARGIN_S)


@pytest.mark.parametrize(
    ("whole_s", "min_gain", "is_split"),
    [(3.0, 1.0, False), (3.0, 0.0, False), (10.0, 0.0, True), (10.0, 1.0, False), (16.0, 1.0, True)],
)
def test_a_split_has_to_be_worth_it(whole_s: float, min_gain: float, is_split: bool) -> None:
    """100 s in two blocks take 107.2 s; whole it could start at home `whole_s` from now."""
    alpha = [(AT_S, 2), (AT_S + whole_s, 4)]
    found = ways({"alpha": alpha, "beta": 2}, 4, min_gain=min_gain)
    assert [len(way[0]) for way in found][:1] == [2 if is_split else 1]
    assert (found[0][1] == AT_S) is is_split


def test_too_much_waits_or_gets_a_later_start() -> None:
    assert ways({"alpha": 2, "beta": 2}, 5) == []
    sites = {name: [(AT_S, 0), (at_s, 5)] for name, at_s in (("alpha", 5000.0), ("beta", 4000.0))}
    sites["gamma"] = [(AT_S, 0), (1e9, 5)]
    later = ways(sites, 5, reserve_hours=2.0, max_blocks=1)
    assert [(way[0], way[1]) for way in later] == [({"beta": 5}, 4000.0), ({"alpha": 5}, 5000.0)]
    assert ways(sites, 5, reserve_hours=0.0) == ways(sites, 5, may_reserve=False) == []


def test_a_common_start_of_several_sites_is_the_first_at_which_all_have_enough() -> None:
    """alpha has 3 until 2000 and from 3000 on, beta from 2000 on: so at 3000, and next when it has more."""
    alpha = [(AT_S, 3), (2000.0, 0), (3000.0, 3)]
    beta = [(AT_S, 0), (2000.0, 3), (9000.0, 4)]
    found = ways({"alpha": alpha, "beta": beta}, 6)
    sooner, later = ({"alpha": 3, "beta": 3}, 3000.0), ({"alpha": 2, "beta": 4}, 9000.0)
    assert [way[:2] for way in found] == [sooner, later]


def test_a_later_split_must_beat_the_best_whole_run_too() -> None:
    """Whole at beta from 2010 on; split from 2000 on ends 2.8 s later."""
    alpha, beta = [(AT_S, 0), (2000.0, 2)], [(AT_S, 0), (2000.0, 2), (2004.0, 4)]
    assert [way[0] for way in ways({"alpha": alpha, "beta": beta}, 4, min_gain=0.0)] == [{"beta": 4}]
    beta[-1] = (2008.0, 4)
    assert [len(way[0]) for way in ways({"alpha": alpha, "beta": beta}, 4, min_gain=0.0)] == [2, 1]
    assert [len(way[0]) for way in ways({"alpha": alpha, "beta": beta}, 4, min_gain=1.0)] == [1]


@given(
    st.dictionaries(st.sampled_from(["alpha", "beta", "gamma", "delta", "eps"]), st.integers(0, 6)),
    st.integers(1, 20),
)
def test_every_way_gives_all_nodes_and_no_more_than_is_free(free: dict[str, int], nodes: int) -> None:
    for parts, _, _ in ways(dict(free), nodes):
        assert sum(parts.values()) == nodes
        assert all(1 <= n <= free[site] for site, n in parts.items())
        assert len(parts) <= CONFIG.grid.max_blocks


steps = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), max_size=5, unique_by=lambda step: step[0])


@given(st.lists(st.tuples(st.integers(0, 5), steps), min_size=1, max_size=4), st.integers(1, 12))
def test_the_first_start_is_the_first_at_which_anything_fits(
    rows: list[tuple[int, list[tuple[int, int]]]], nodes: int
) -> None:
    """Against brute force over all instants; no cost, so the earliest start is the best."""
    later = [[(AT_S + at, n) for at, n in sorted(more)] for _, more in rows]
    sites = {
        f"s{i}": [(AT_S, now), *more] for i, ((now, _), more) in enumerate(zip(rows, later, strict=True))
    }

    def free(site: str, at_s: float) -> int:
        return [n for since_s, n in sites[site] if since_s <= at_s][-1]

    def fits(at_s: float) -> bool:
        sets = (some for f in range(1, 5) for some in combinations(sites, f))
        return any(sum(free(site, at_s) for site in some) >= nodes for some in sets)

    starts = [AT_S + at for at in range(31) if fits(AT_S + at)]
    found = ways(dict(sites), nodes, split_overhead=0.0, min_gain=0.0)
    assert [way[1] for way in found[:1]] == starts[:1]
    for parts, start_s, _ in found:
        assert sum(parts.values()) == nodes
        assert all(0 < n <= free(site, start_s) for site, n in parts.items())


def test_a_wish_has_gpus_and_properties_but_no_names_and_modes() -> None:
    wish = wish_of(job(1, "2:ppn=3:gpus=1:fast", walltime_s=60.0))
    assert wish == Wish(2, NodeShape(3, 1, ("fast",)), 60.0)
    for spec in ("n1:ppn=2", "1:gpus=1:shared", "1:ppn=2+2:ppn=1"):
        assert isinstance(wish_of(job(1, spec, walltime_s=60.0)), str)


def of_openpbs(select: str, place: str = "free", **resources: str) -> Wish | str:
    """What a job of OpenPBS wishes."""
    asked = {"select": select, "place": place, "walltime": "00:01:00", **resources}
    given = {f"Resource_List.{key}": value for key, value in asked.items()}
    return wish_of(replace(job(1), request=request_of(given, Kinds(booleans=frozenset({"big"})))))


def test_a_select_is_a_wish_where_its_chunks_may_lie_on_a_node_each() -> None:
    shape = NodeShape(3, 1, ("fast", "big"))
    select = "2:ncpus=3:ngpus=1:feature=fast:big=True"
    for place in ("free", "scatter", "vscatter:excl"):
        assert of_openpbs(select, place) == Wish(2, shape, 60.0)
    assert of_openpbs("2:ncpus=1", "pack") == Wish(1, NodeShape(2), 60.0)
    assert of_openpbs("1:ncpus=2:mpiprocs=2", "scatter", nodes="1:ppn=2") == Wish(1, NodeShape(2), 60.0)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("1:ncpus=1:mem=1gb",), "mem"),
        (("2:ncpus=1", "scatter:group=switch"), "group"),
        (("1:ncpus=1:host=n1",), "no host"),
        (("1:ncpus=1:big=False",), "NAME=True"),
        (("1:ncpus=1+1:ncpus=2",), "one kind of chunk"),
    ],
)
def test_what_other_sites_cannot_know_keeps_a_job_at_home(asked: tuple[str, ...], why: str) -> None:
    found = of_openpbs(*asked)
    assert isinstance(found, str)
    assert why in found


def test_a_property_is_found_at_an_openpbs_too() -> None:
    made = NodeInventory()
    has = node("n1", properties=("feature=fast", "feature=new", "big=True", "old=False", "host=n1"))
    made.renew(Snapshot(NOW_S, Server(name="head"), (), (has,), ()), ())
    assert made.usable(NodeShape(1, 0, ("fast", "new", "big"))) == ["n1"]
    assert not made.usable(NodeShape(1, 0, ("old",)))
    assert not made.usable(NodeShape(1, 0, ("n1",)))


# ---- what is free


def books(*jobs: Job, kept: tuple[Reservation, ...] = (), grants: tuple[Grant, ...] = ()) -> NodeInventory:
    made = NodeInventory()
    nodes = (node("n1", np=4), node("n2", np=2, gpus=2, properties=("fast", "big")), node("n3", np=4))
    made.renew(Snapshot(NOW_S, Server(name="head"), (), nodes, jobs), kept, grants)
    return made


def test_a_node_is_free_when_nothing_is_on_it_in_the_whole_time() -> None:
    busy = running(1, "n1/0", walltime_s=100.0, since_s=20.0)
    found = books(busy)
    assert found.free(NodeShape(2), NOW_S, NOW_S + 10) == ["n2", "n3"]
    assert found.free(NodeShape(4), NOW_S, NOW_S + 10) == ["n3"]
    assert found.free(NodeShape(4), NOW_S + 80, NOW_S + 90) == ["n1", "n3"]
    assert found.outlook(NodeShape(4), 50.0, NOW_S, 9) == [(NOW_S, 1), (NOW_S + 80, 2)]
    assert found.outlook(NodeShape(4), 50.0, NOW_S, 1) == [(NOW_S, 1)]
    assert found.outlook(NodeShape(5), 50.0, NOW_S, 9) == [(NOW_S, 0)]
    assert found.spare("n3", NOW_S, NOW_S + 5).slots == 4
    assert found.spare("n1", NOW_S, NOW_S + 5).slots == 0
    assert found.spare("unknown", NOW_S, NOW_S + 5).slots == 0


def test_a_job_near_its_limit_ends_then_and_one_past_it_soon() -> None:
    for since_s, end_s in ((90.0, 10.0), (110.0, 60.0)):
        found = books(running(1, "n1/0", walltime_s=100.0, since_s=since_s))
        assert found.outlook(NodeShape(4), 50.0, NOW_S, 9) == [(NOW_S, 1), (NOW_S + end_s, 2)]


def test_gpus_and_properties_choose_the_node() -> None:
    found = books(job(1))  # which only waits, and takes nothing
    assert found.free(NodeShape(1, 2), NOW_S, NOW_S + 10) == found.free(
        NodeShape(1, 0, ("big",)), NOW_S, NOW_S + 10
    )
    assert found.usable(NodeShape(1, 1, ("big", "fast"))) == ["n2"]
    assert found.usable(NodeShape(1, 3)) == found.usable(NodeShape(1, 0, ("slow",))) == []
    assert found.spare("n2", NOW_S, NOW_S + 5).gpus == 2
    asked = Claim((Piece("", 2, 1, count=1, properties=("fast",)),), NOW_S, 30.0)
    assert found.nodes(asked) == ("n2",)


def test_reservations_promises_and_grants_count() -> None:
    kept = Reservation("maintenance", frozenset({NodeName("n2")}), NOW_S + 50, NOW_S + 60, frozenset())
    claim = Claim((Piece("", 4),), NOW_S, 30.0)
    grant = Grant(Token(SiteId("b"), "1", 1), claim, (Piece("n1", 4),), Instant(0, 0).monotonic_s)
    found = books(kept=(kept,), grants=(grant,))
    assert found.free(NodeShape(2), NOW_S, NOW_S + 50) == ["n2", "n3"]
    assert found.free(NodeShape(2), NOW_S, NOW_S + 51) == ["n3"]
    assert found.free(NodeShape(2), NOW_S + 30, NOW_S + 40) == ["n1", "n2", "n3"]
    assert found.nodes(claim) == ("n3",)
    assert found.outlook(NodeShape(2), 10.0, NOW_S, 9)[0] == (NOW_S, 2)
    assert found.outlook(NodeShape(2), 10.0, NOW_S, 9, ("b", "1"))[0] == (NOW_S, 3)  # its own may be given up
    assert found.outlook(NodeShape(2), 10.0, NOW_S, 9, ("b", "2"))[0] == (NOW_S, 2)


spans = st.lists(st.tuples(st.integers(-5, 40), st.integers(1, 20)), max_size=6)


@given(st.lists(spans, min_size=3, max_size=3), st.integers(1, 25))
def test_an_outlook_equals_a_look_at_every_instant(busy: list[list[tuple[int, int]]], length_s: int) -> None:
    kept = tuple(
        Reservation("r", frozenset({NodeName(name)}), NOW_S + begun, NOW_S + begun + took, frozenset())
        for name, spans in zip(("n1", "n2", "n3"), busy, strict=True)
        for begun, took in spans
    )
    found = books(kept=kept)
    outlook = found.outlook(NodeShape(1), length_s, NOW_S, 99)
    assert all(one[0] < other[0] and one[1] != other[1] for one, other in pairwise(outlook))
    for half in range(150):
        at_s = NOW_S + half / 2
        told = [n for since_s, n in outlook if since_s <= at_s][-1]
        assert told == len(found.free(NodeShape(1), at_s, math.nextafter(at_s, math.inf) + length_s - 1e-6))
