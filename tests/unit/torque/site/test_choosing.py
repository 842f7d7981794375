"""Free nodes of a site, and where a job could run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.policies.builders import NOW_S, job, node, running
from torque_sched.core.handshake import Claim, Grant, Instant, Piece, SiteId, Token
from torque_sched.core.model import Job, NodeName, Server
from torque_sched.core.snapshot import Snapshot
from torque_sched.policies.context import Reservation
from torque_sched.site.books import NodeBooks
from torque_sched.site.choosing import MARGIN_S, Wish, candidates
from torque_sched.site.config import SiteConfig
from torque_sched.site.messages import Offered

CONFIG = SiteConfig(name="alpha", listen="x", certificate="c", key="k")


def ways(
    free: dict[str, int], nodes: int, *, earliest: dict[str, float] | None = None, **grid: float
) -> list[tuple[dict[str, int], float, float]]:
    config = CONFIG.model_copy(update={"grid": CONFIG.grid.model_copy(update=grid)})
    offers = {site: Offered(free=n, earliest_s=(earliest or {}).get(site)) for site, n in free.items()}
    found = candidates(config, Wish(nodes, 2, 100.0), offers, 1000.0)
    return [
        ({ask.site: sum(piece.count for piece in ask.pieces) for ask in way.asks}, way.start_s, way.length_s)
        for way in found
    ]


def test_home_first_then_the_emptiest() -> None:
    assert [way[0] for way in ways({"alpha": 2, "beta": 4, "gamma": 3, "delta": 1}, 2)][:3] == [
        {"alpha": 2}, {"beta": 2}, {"gamma": 2},
    ]  # fmt: skip


def test_split_over_as_few_sites_as_will_do() -> None:
    (only,) = ways({"alpha": 2, "beta": 4, "gamma": 3, "delta": 1}, 7)
    assert only[0] == {"beta": 4, "gamma": 3}
    assert only[2] == pytest.approx(100.0 * 2**0.1 + CONFIG.grid.start_s + MARGIN_S)


@pytest.mark.parametrize(
    ("whole_s", "min_gain", "is_split"),
    [(3.0, 1.0, False), (3.0, 0.0, False), (10.0, 0.0, True), (10.0, 1.0, False), (16.0, 1.0, True)],
)
def test_a_split_has_to_be_worth_it(whole_s: float, min_gain: float, is_split: bool) -> None:
    """100 s in two blocks take 107.2 s; whole it could start at home `whole_s` from now."""
    found = ways({"alpha": 2, "beta": 2}, 4, earliest={"alpha": 1000.0 + whole_s}, min_gain=min_gain)
    assert bool(found) is is_split


def test_too_much_waits_or_gets_a_later_start() -> None:
    assert ways({"alpha": 2, "beta": 2}, 5) == []
    earliest = {"alpha": 5000.0, "beta": 4000.0, "gamma": 1e9}
    later = ways({"alpha": 0, "beta": 0, "gamma": 0}, 5, earliest=earliest, reserve_hours=2.0)
    assert [(way[0], way[1]) for way in later] == [({"beta": 5}, 4000.0), ({"alpha": 5}, 5000.0)]


@given(
    st.dictionaries(st.sampled_from(["alpha", "beta", "gamma", "delta", "eps"]), st.integers(0, 6)),
    st.integers(1, 20),
)
def test_every_way_gives_all_nodes_and_no_more_than_is_free(free: dict[str, int], nodes: int) -> None:
    for parts, _, _ in ways(free, nodes):
        assert sum(parts.values()) == nodes
        assert all(1 <= n <= free[site] for site, n in parts.items())
        assert len(parts) <= CONFIG.grid.max_blocks


# ---- what is free


def books(*jobs: Job, kept: tuple[Reservation, ...] = (), grants: tuple[Grant, ...] = ()) -> NodeBooks:
    made = NodeBooks()
    nodes = (node("n1", np=4), node("n2", np=2), node("n3", np=4))
    made.renew(Snapshot(NOW_S, Server(name="head"), (), nodes, jobs), kept, grants)
    return made


def test_a_node_is_free_when_nothing_is_on_it_in_the_whole_time() -> None:
    busy = running(1, "n1/0", walltime_s=100.0, since_s=20.0)
    found = books(busy)
    assert found.free(2, NOW_S, NOW_S + 10) == ["n2", "n3"]
    assert found.free(4, NOW_S, NOW_S + 10) == ["n3"]
    assert found.free(4, NOW_S + 80, NOW_S + 90) == ["n1", "n3"]
    assert found.earliest_s(2, 4, NOW_S, 50.0) == NOW_S + 80
    assert found.earliest_s(3, 4, NOW_S, 50.0) is None
    assert found.spare("n3", NOW_S, NOW_S + 5).slots == 4
    assert found.spare("n1", NOW_S, NOW_S + 5).slots == 0
    assert found.spare("unknown", NOW_S, NOW_S + 5).slots == 0


def test_reservations_promises_and_grants_count() -> None:
    kept = Reservation("maintenance", frozenset({NodeName("n2")}), NOW_S + 50, NOW_S + 60, frozenset())
    claim = Claim((Piece("", 4),), NOW_S, 30.0)
    grant = Grant(Token(SiteId("b"), "1", 1), claim, (Piece("n1", 4),), Instant(0, 0).monotonic_s)
    found = books(kept=(kept,), grants=(grant,))
    assert found.free(2, NOW_S, NOW_S + 50) == ["n2", "n3"]
    assert found.free(2, NOW_S, NOW_S + 51) == ["n3"]
    assert found.free(2, NOW_S + 30, NOW_S + 40) == ["n1", "n2", "n3"]
    assert found.nodes(claim) == ("n3",)


def test_a_job_that_only_waits_takes_nothing() -> None:
    assert books(job(1)).free(2, NOW_S, NOW_S + 10) == ["n1", "n2", "n3"]
