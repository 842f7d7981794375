"""How long a server that failed is tried after all others."""

import pytest

from yarn_accel.client import server_backoff
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.server_backoff import FIRST_S, LONGEST_S, ServerBackoff

SERVER = Endpoint("w1", "10.0.0.1", 7000, "")


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(server_backoff.time, "monotonic", lambda: now[0])
    return now


def pause_s(backoff, clock):
    """How long the server is left alone from now on; then it is tried again."""
    began_s = clock[0]
    while backoff.is_on(SERVER):
        clock[0] += 1.0
    return clock[0] - began_s


def test_it_doubles_with_every_failed_retry_up_to_the_longest(clock):
    backoff, seen = ServerBackoff(), []
    for _ in range(6):
        backoff.record_failure(SERVER)
        seen.append(pause_s(backoff, clock))
    assert seen == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S, LONGEST_S, LONGEST_S]


def test_a_failure_during_one_changes_nothing(clock):
    backoff = ServerBackoff()
    backoff.record_failure(SERVER)
    clock[0] += 3.0
    backoff.record_failure(SERVER)
    assert pause_s(backoff, clock) == FIRST_S - 3.0


def test_an_answer_ends_it_and_so_does_time(clock):
    backoff = ServerBackoff()
    backoff.record_failure(SERVER)
    backoff.record_success(SERVER)
    assert not backoff.is_on(SERVER)
    backoff.record_failure(SERVER)
    clock[0] += FIRST_S + LONGEST_S
    backoff.record_failure(SERVER)
    assert pause_s(backoff, clock) == FIRST_S
