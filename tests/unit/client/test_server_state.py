"""How long a server that failed is passed over, and how soon it is tried again where there is no other."""

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.request_routing import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, LONGEST_PAUSE_S, ServerState


def server():
    return ServerState(Endpoint("w1", "10.0.0.1", 7000, ""))


def test_the_backoff_doubles_with_every_failed_retry_up_to_the_longest():
    failing, now_s, seen = server(), 1000.0, []
    for _ in range(6):
        failing.record_failure(now_s)
        seen.append(failing.failed_until_s - now_s)
        now_s = failing.failed_until_s
    first = FIRST_BACKOFF_S
    assert seen == [first, 2 * first, 4 * first, 8 * first, LONGEST_BACKOFF_S, LONGEST_BACKOFF_S]


def test_a_failure_during_one_changes_nothing():
    failing = server()
    failing.record_failure(1000.0)
    failing.record_failure(1003.0)
    assert failing.failed_until_s == 1000.0 + FIRST_BACKOFF_S
    assert not failing.is_ready(1009.9)
    assert failing.is_ready(1010.0)


def test_an_answer_ends_it_and_so_does_time():
    failing = server()
    failing.record_failure(1000.0)
    failing.record_success()
    assert failing.is_ready(1000.0)
    failing.record_failure(1000.0)
    later_s = 1000.1 + FIRST_BACKOFF_S + LONGEST_BACKOFF_S
    failing.record_failure(later_s)
    assert failing.failed_until_s == later_s + FIRST_BACKOFF_S


def test_where_there_is_no_other_the_pauses_between_tries_grow_until_it_answers():
    failing, now_s, pauses = server(), 1000.0, []
    for _ in range(8):
        failing.failed(now_s, 1.25)
        pauses.append(failing.retry_s - now_s)
        now_s = failing.retry_s
    assert [round(pause, 4) for pause in pauses[:3]] == [0.0625, 0.125, 0.25]
    assert round(pauses[-1], 4) == 1.25 * LONGEST_PAUSE_S
    failing.connected()
    failing.failed(now_s, 1.0)
    assert failing.retry_s - now_s > 1.0, "it connected, but never answered"
    failing.record_success()
    failing.failed(now_s, 1.0)
    assert round(failing.retry_s - now_s, 4) == 0.05


def test_one_that_drains_is_not_ready():
    draining = server()
    draining.connected()
    assert draining.is_ready(0.0)
    draining.is_draining = True
    assert not draining.is_ready(0.0)
