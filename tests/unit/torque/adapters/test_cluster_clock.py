"""The server's time counts where this host's clock is far from it, and silence is what does not advance."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.unit.torque.policies.builders import NOW_S, node
from torque_sched.adapters.cluster_clock import ClusterClock
from torque_sched.core.model import Node


@dataclass
class Host:
    """A host whose clock of day can be set; the server's time is `true_s`."""

    off_s: float = 0.0
    true_s: float = NOW_S

    def __post_init__(self) -> None:
        self.clock = ClusterClock(lambda: self.true_s + self.off_s, lambda: self.true_s - 7.0)

    def look(self, *reported_s: float, passes_s: float = 0.0) -> float:
        self.true_s += passes_s
        return self.clock.observe([_node(each) for each in reported_s], self.clock.moment())


def _node(rectime_s: float, state: str = "") -> Node:
    return node("n1", rectime_s=rectime_s, state=state)


@pytest.mark.parametrize("off_s", [0.0, 250.0, -50.0])
def test_a_clock_that_is_little_off_is_left_alone(off_s: float) -> None:
    host = Host(off_s)
    host.look(NOW_S - 10)
    assert (host.clock(), host.clock.ahead_s) == (NOW_S + off_s, 0.0)


@pytest.mark.parametrize("off_s", [600.0, -600.0, 86_400.0])
def test_a_clock_that_is_far_off_does_not_count(off_s: float) -> None:
    host = Host(off_s)
    host.look(NOW_S - 10)
    assert host.clock() == NOW_S - 10
    assert host.clock.ahead_s == off_s + 10
    # A fresher report says better what the time is; an older one of another node says nothing.
    host.look(NOW_S + 28, NOW_S - 100, passes_s=30.0)
    assert host.clock() == NOW_S + 28
    host.look(NOW_S + 28, passes_s=45.0)
    assert host.clock() == NOW_S + 73


def test_a_step_of_either_clock_changes_nothing() -> None:
    host = Host()
    host.look(NOW_S - 10)
    host.off_s = 3600.0
    assert host.clock() == NOW_S - 10
    host.off_s = 0.0
    assert host.clock() == NOW_S
    # The server's is set back by an hour: what its nodes report from then on counts.
    host.look(NOW_S - 3600 + 40, passes_s=45.0)
    assert host.clock() == NOW_S - 3560
    host.look(NOW_S + 88, passes_s=45.0)
    assert (host.clock(), host.clock.ahead_s) == (NOW_S + 90, 0.0)


def test_silence_is_how_long_nothing_new_came() -> None:
    host = Host(600.0)
    assert host.look(NOW_S - 10) == 0.0
    assert host.look(NOW_S - 10, passes_s=200.0) == 200.0
    assert host.look(NOW_S - 10, passes_s=200.0) == 400.0
    # Time goes on meanwhile: the server's is not taken to stand still with its nodes.
    assert host.clock() == NOW_S + 390
    assert host.look(NOW_S + 395, passes_s=1.0) == 0.0


def test_nodes_that_are_down_say_nothing() -> None:
    host = Host()
    moment = host.clock.moment()
    assert host.clock.observe([_node(NOW_S - 9000, "down")], moment) == 0.0
    assert host.clock.observe([], moment) == 0.0
    assert host.clock() == NOW_S
