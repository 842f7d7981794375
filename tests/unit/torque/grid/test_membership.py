"""Gossip between sites: who is there, under loss, partitions, restarts and lies."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torque_sched.grid.membership import LARGEST_INCARNATION, Claim, Membership, MembershipRules, MemberState

NAMES = ("a", "b", "c", "d")
RULES = MembershipRules(period_s=1.0, fanout=2, down_after_s=5.0, retry_down_s=4.0)


class Net:
    """Sites on one clock; a request is answered at once, unless the link is cut or the dice say lost."""

    def __init__(self, names: tuple[str, ...] = NAMES, seed: int = 0, loss: float = 0.0) -> None:
        self.now_s, self.loss, self.dice = 0.0, loss, random.Random(seed)
        self.cut: set[frozenset[str]] = set()
        self.dead: set[str] = set()
        self.sites = {name: Membership(name, names, RULES) for name in names}

    def reaches(self, one: str, other: str) -> bool:
        is_whole = not {one, other} & self.dead and frozenset((one, other)) not in self.cut
        return is_whole and self.dice.random() >= self.loss

    def step(self) -> None:
        self.now_s += RULES.period_s
        for name, site in self.sites.items():
            if name in self.dead:
                continue
            for peer in site.due(self.now_s):
                if not self.reaches(name, peer):
                    site.silent(peer, self.now_s)
                    continue
                there = self.sites[peer]
                there.heard(name, site.digest(), self.now_s)
                if self.reaches(name, peer):
                    site.heard(peer, there.digest(), self.now_s)
                else:
                    site.silent(peer, self.now_s)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def states(self, of: str) -> dict[str, MemberState]:
        others = self.sites.keys() - self.dead - {of}
        return {name: self.sites[name].members[of].state for name in others}

    def all_see_all(self) -> bool:
        return all(set(self.states(name).values()) == {MemberState.ALIVE} for name in self.sites)


def test_one_that_is_gone_is_down_everywhere_and_found_again() -> None:
    net = Net()
    net.run(4)
    net.dead.add("d")
    net.run(12)
    assert set(net.states("d").values()) == {MemberState.DOWN}
    assert not net.sites["a"].is_reachable("d")
    net.dead.clear()
    net.sites["d"] = Membership("d", NAMES, RULES, now_s=net.now_s)  # restarted, incarnation forgotten
    net.run(12)
    assert net.all_see_all()


def test_a_cut_between_two_is_no_death() -> None:
    """a and b cannot talk; c and d hear both, so for them neither is ever down."""
    net = Net()
    net.run(4)
    net.cut = {frozenset("ab")}
    for _ in range(30):
        net.step()
        assert all(net.sites[name].is_reachable(peer) for name in "cd" for peer in "ab")


def test_a_partition_heals() -> None:
    net = Net()
    net.run(4)
    net.cut = {frozenset((one, other)) for one in "ab" for other in "cd"}
    net.run(15)
    assert net.sites["a"].members["c"].state is MemberState.DOWN
    assert net.sites["a"].members["b"].state is MemberState.ALIVE
    net.cut.clear()
    net.run(12)
    assert net.all_see_all()


@settings(max_examples=examples(40))
@given(st.integers(0, 10_000), st.floats(0.0, 0.3))
def test_loss_costs_time_only(seed: int, loss: float) -> None:
    net = Net(seed=seed, loss=loss)
    net.run(30)
    net.loss = 0.0
    net.run(12)
    assert net.all_see_all()


def test_strangers_never_enter() -> None:
    site = Membership("a", ("b",), RULES)
    site.heard("b", [Claim("evil", 9, MemberState.ALIVE)], 1.0)
    site.heard("evil", [Claim("evil", 9, MemberState.ALIVE)], 1.0)
    assert set(site.members) == {"b"}
    assert site.n_strange_claims == 2
    assert all(claim.name in {"a", "b"} for claim in site.digest())


def test_a_lie_about_a_third_is_only_a_suspicion_and_contradicted() -> None:
    net = Net()
    net.run(4)
    lie = [Claim("c", 10_000, MemberState.DOWN)]
    net.sites["a"].heard("b", lie, net.now_s)
    assert net.sites["a"].members["c"].state is MemberState.SUSPECT
    net.run(6)
    assert net.all_see_all()
    assert net.sites["c"].incarnation > 10_000


@pytest.mark.parametrize("incarnation", [LARGEST_INCARNATION, LARGEST_INCARNATION + 5, -1])
def test_impossible_incarnations_are_left_out(incarnation: int) -> None:
    site = Membership("a", ("b", "c"), RULES)
    site.heard("b", [Claim(name, incarnation, MemberState.DOWN) for name in "ca"], 1.0)
    assert site.members["c"].incarnation == 0
    assert site.incarnation == 1


CLAIMS = st.tuples(st.sampled_from("abcx"), st.integers(-5, 2**54), st.sampled_from(MemberState))


@given(st.lists(CLAIMS, max_size=30))
def test_any_claims_keep_the_list_and_the_bounds(claims: list[tuple[str, int, MemberState]]) -> None:
    site = Membership("a", ("b", "c"), RULES)
    for at, claim in enumerate(claims):
        site.heard("b", [Claim(*claim)], float(at))
        assert set(site.members) == {"b", "c"}
        assert site.members["b"].state is MemberState.ALIVE  # it spoke itself
        assert 1 <= site.incarnation <= LARGEST_INCARNATION
        assert len(site.digest()) <= 3


def test_asking_takes_turns_and_tries_the_lost_again() -> None:
    site = Membership("a", [f"p{i}" for i in range(9)], RULES)
    asked: list[str] = []
    for second in range(5):
        for name in site.due(float(second)):
            asked.append(name)
            site.heard(name, [], float(second))
    assert len(set(asked)) == 9
    lone = Membership("a", ("b",), RULES)
    times = [second for second in range(20) if lone.due(float(second))]
    assert len([second for second in times if second >= 6]) >= 3
