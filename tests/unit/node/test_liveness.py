"""A server that is slow, silent or hung, distinguished by its answers and its CPU time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.node.liveness import (
    HUNG_BUSY_S,
    HUNG_S,
    HUNG_UNSURE_S,
    MAX_TICK_S,
    SILENT_BUSY_S,
    SILENT_S,
    Liveness,
    Verdict,
)

TICK_S = 0.2


def watched(seconds, ticks=lambda i: 7, has_answered=True):
    """The first time of each verdict, in seconds since the probe that is not answered."""
    liveness, first = Liveness(), {}
    if has_answered:
        liveness.asked()
        liveness.answered()
    liveness.asked()
    for i in range(1, round(seconds / TICK_S) + 1):
        liveness.tick(TICK_S, ticks(i))
        first.setdefault(liveness.verdict(), i * TICK_S)
    return first


def test_a_stopped_process_is_silent_in_two_seconds_and_hung_in_some_more():
    first = watched(20.0)
    assert first[Verdict.SILENT] == pytest.approx(SILENT_S, abs=TICK_S)
    assert first[Verdict.HUNG] == pytest.approx(HUNG_S, abs=3 * TICK_S)


def test_a_process_that_computes_is_given_more_time_and_a_minute():
    first = watched(120.0, ticks=lambda i: i)
    assert first[Verdict.SILENT] == pytest.approx(SILENT_BUSY_S, abs=TICK_S)
    assert first[Verdict.HUNG] == pytest.approx(HUNG_BUSY_S, abs=TICK_S)


@pytest.mark.parametrize(("ticks", "has_answered"), [(lambda i: None, True), (lambda i: 7, False)])
def test_one_that_starts_or_cannot_be_seen_is_silent_as_soon_and_hung_later(ticks, has_answered):
    first = watched(60.0, ticks, has_answered)
    assert first[Verdict.SILENT] == pytest.approx(SILENT_S, abs=TICK_S)
    assert first[Verdict.HUNG] == pytest.approx(HUNG_UNSURE_S, abs=3 * TICK_S)


def test_who_is_not_asked_is_not_silent():
    liveness = Liveness()
    for _ in range(1000):
        liveness.tick(1.0, 7)
    assert liveness.verdict() is Verdict.RESPONSIVE


def test_an_answer_ends_it():
    liveness = Liveness()
    liveness.asked()
    for _ in range(200):
        liveness.tick(0.5, 7)
    assert liveness.verdict() is Verdict.HUNG
    liveness.answered()
    assert liveness.verdict() is Verdict.RESPONSIVE
    assert not liveness.is_asked


def test_a_stall_of_the_agent_itself_is_not_the_servers_silence():
    liveness = Liveness()
    liveness.asked()
    liveness.tick(3600.0, 7)
    assert liveness.verdict() is Verdict.RESPONSIVE


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.booleans()), max_size=200))
def test_who_answers_each_probe_in_time_is_never_silent(steps):
    """However long each pause is, and whether the process computes or not."""
    liveness, unanswered_s, cpu = Liveness(), 0.0, 0
    for elapsed_s, computes in steps:
        step_s = min(elapsed_s, MAX_TICK_S)
        if unanswered_s + step_s >= SILENT_S:
            liveness.answered()
            unanswered_s = 0.0
        liveness.asked()
        cpu += computes
        liveness.tick(elapsed_s, cpu)
        unanswered_s += step_s
        assert liveness.verdict() is Verdict.RESPONSIVE
