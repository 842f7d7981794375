"""Nodes kept for somebody: overlaps are refused, holds end with their lease, one of many gets a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.examples import examples
from torque_sched.errors import ConfigError
from torque_sched.learn.reservations import KeptReservation, Reservations
from torque_sched.learn.schema import open_file
from torque_sched.model.cluster import NodeName
from torque_sched.model.snapshot import Reservation

N1, N2, N3 = (NodeName(f"n{number}") for number in (1, 2, 3))
NOW_S = 1_000_000.0


def kept(name: str, nodes: set[NodeName], start_s: float = 100.0, end_s: float = 200.0) -> KeptReservation:
    return KeptReservation(
        name, frozenset(nodes), NOW_S + start_s, NOW_S + end_s, frozenset({"ada"}), "root", NOW_S
    )


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def names(reservations: Reservations, now_s: float = NOW_S) -> list[str]:
    return [each.name for each in reservations.live(now_s)]


def test_what_is_added_is_read_by_others_and_ends_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    mine, other = Reservations.open(path), Reservations.open(path)
    mine.add(kept("a", {N1, N2}), NOW_S)
    assert other.live(NOW_S) == (kept("a", {N1, N2}),)
    assert names(other, NOW_S + 199) == ["a"]
    assert names(other, NOW_S + 200) == []
    assert other.delete("a")
    assert not mine.delete("a")
    mine.close()
    other.close()


def test_overlaps_names_taken_and_the_past_are_refused_with_a_cure() -> None:
    found = Reservations(open_file(None))
    found.add(kept("a", {N1}), NOW_S)
    found.add(kept("b", {N1, N2}, 200, 300), NOW_S)  # half-open: it begins where the other ends
    settings_own = (Reservation("yaml", frozenset({N3}), NOW_S, NOW_S + 1000),)
    for wrong, now_s, told in (
        (kept("c", {N1, N2}, 199, 200), NOW_S, "overlaps 'a' on n1"),
        (kept("a", {N3}), NOW_S, "there is a reservation 'a'"),
        (kept("c", {N3}), NOW_S + 200, "before now"),
        (kept("c", set()), NOW_S, "names no node"),
        (kept("grid:c", {N3}), NOW_S, "the grid's own"),
        (kept("c", {N3}), NOW_S, "overlaps 'yaml' on n3"),
    ):
        with pytest.raises(ConfigError, match=told):
            found.add(wrong, now_s, settings_own)
    assert names(found) == ["a", "b"]
    found.close()


def hold(found: Reservations, token: str, nodes: set[NodeName], lease_s: float = 10.0) -> bool:
    return found.hold(token, nodes, NOW_S, NOW_S + 60, lease_s=lease_s, now_s=NOW_S)


def test_a_boot_ends_every_lease_but_nothing_committed(tmp_path: Path) -> None:
    path, clock = tmp_path / "history.sqlite", Clock()
    before = Reservations.open(path, clock, "boot 1")
    assert hold(before, "t1", {N1}, 1e6)
    assert hold(before, "t2", {N2}, 1e6)
    assert before.commit("t2", NOW_S)
    before.close()
    after = Reservations.open(path, clock, "boot 2")
    assert names(after) == ["grid:t2"]
    assert hold(after, "t3", {N1})
    after.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_root_makes_belongs_to_the_schedulers_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    found = Reservations.open(tmp_path / "history.sqlite")
    found.add(kept("a", {N1}), NOW_S)
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {65534}
    found.close()


RACER = """
import sys
from pathlib import Path
from torque_sched.learn.reservations import Reservations
found = Reservations.open(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(found.hold(sys.argv[2], {"n1"}, 1000.0, 2000.0, lease_s=60.0, now_s=1000.0))
"""


def test_of_many_processes_that_want_one_node_one_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    Reservations.open(path).close()
    argv = [sys.executable, "-c", RACER, str(path)]
    racers = [
        subprocess.Popen([*argv, f"t{n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    assert [racer.stdout and racer.stdout.readline() for racer in racers] == ["ready\n"] * 4
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    answers = [racer.communicate(timeout=120)[0].strip() for racer in racers]
    assert sorted(answers) == ["False", "False", "False", "True"]


TOKENS = st.sampled_from(["t1", "t2", "t3"])
NODES = st.sets(st.sampled_from([N1, N2, N3]), min_size=1)


class HoldMachine(RuleBasedStateMachine):
    """In any order of holds, commits, releases, waits no node has two owners, no hold outlives its lease."""

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.found = Reservations(open_file(None), self.clock)
        self.leases: dict[str, float] = {}
        self.nodes: dict[str, set[NodeName]] = {}
        self.committed: set[str] = set()

    def _live(self) -> set[str]:
        return self.committed | {token for token, end_s in self.leases.items() if self.clock.now_s < end_s}

    @rule(token=TOKENS, nodes=NODES, lease_s=st.integers(1, 5))
    def hold(self, token: str, nodes: set[NodeName], lease_s: int) -> None:
        live = self._live()
        if token in live:
            expected = self.nodes[token] == nodes
        else:
            expected = not any(self.nodes[other] & nodes for other in live)
        assert hold(self.found, token, nodes, lease_s) == expected
        if expected and token not in live:
            self.nodes[token], self.leases[token] = nodes, self.clock.now_s + lease_s

    @rule(token=TOKENS)
    def commit(self, token: str) -> None:
        expected = token in self._live()
        assert self.found.commit(token, NOW_S) == expected
        if expected:
            self.committed.add(token)

    @rule(token=TOKENS)
    def release(self, token: str) -> None:
        assert self.found.release(token) or token not in self._live()
        self.committed.discard(token)
        self.leases.pop(token, None)

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.clock.now_s += seconds

    @invariant()
    def one_owner_each_and_no_stale_hold(self) -> None:
        if hasattr(self, "found"):
            live = self.found.live(NOW_S)
            assert {each.token for each in live} == self._live()
            owned = [node for each in live for node in each.nodes]
            assert len(owned) == len(set(owned))

    def teardown(self) -> None:
        if hasattr(self, "found"):
            self.found.close()


TestHoldMachine = HoldMachine.TestCase
TestHoldMachine.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
