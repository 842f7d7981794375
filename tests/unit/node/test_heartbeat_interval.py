"""Heartbeats: steady, then ever rarer, then steady again."""

import pytest

from yarn_accel.node.heartbeat_interval import HeartbeatInterval


def test_steady_give_or_take_a_tenth():
    assert [
        HeartbeatInterval(1.0, 5.0, lambda u=u: u).next_wait_s() for u in (0.0, 0.5, 1.0)
    ] == pytest.approx([0.9, 1.0, 1.1])


def test_failures_double_the_pause_up_to_a_bound_and_success_ends_it():
    pace = HeartbeatInterval(1.0, 5.0, lambda: 0.0)
    waits = []
    for _ in range(5):
        pace.failed()
        waits.append(pace.next_wait_s())
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]
    pace.succeeded()
    assert pace.next_wait_s() == pytest.approx(0.9)


def test_nodes_that_failed_together_come_back_apart():
    def wait(u):
        pace = HeartbeatInterval(1.0, 8.0, lambda: u)
        for _ in range(4):
            pace.failed()
        return pace.next_wait_s()

    assert [wait(u) for u in (0.0, 0.5, 1.0)] == [8.0, 6.0, 4.0]


def test_the_master_sets_the_interval():
    pace = HeartbeatInterval(1.0, 5.0, lambda: 0.5)
    pace.succeeded(20.0)
    assert pace.next_wait_s() == pytest.approx(20.0)
    pace.failed()
    assert pace.next_wait_s() == pytest.approx(15.0)
    pace.succeeded(0.0)
    assert pace.next_wait_s() == pytest.approx(20.0)


def test_a_night_without_a_master_overflows_nothing():
    pace = HeartbeatInterval(1.0, 5.0, lambda: 0.0)
    for _ in range(100_000):
        pace.failed()
    assert pace.next_wait_s() == 5.0
