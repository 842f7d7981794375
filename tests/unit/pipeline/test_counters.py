"""Counting: exact, cheap, bounded however many names come; a tenant sees nothing of others."""

from __future__ import annotations

import logging

import pytest

from yarn_accel.pipeline.counters import LATENCY_BOUNDS_S, MAX_NAMES, OPERATOR, OTHERS, Counters, visible
from yarn_accel.pipeline.service import Sparing

SECONDS = {"read": 0.001, "queue": 0.002, "compute": 0.25, "write": 0.003, "total": 0.3}


def test_an_answer_is_counted_everywhere_at_once():
    counters = Counters()
    counters.requested("lu", "alice")
    counters.add("bytes_in", 100, "alice")
    counters.answered("lu", "done", "alice", SECONDS, bytes_out=40)
    snapshot = counters.snapshot()
    assert (snapshot["requests"], snapshot["done"]) == (1, 1)
    assert (snapshot["bytes_in"], snapshot["bytes_out"]) == (100, 40)
    assert snapshot["operations"] == {"lu": {"requests": 1, "done": 1, "compute_s": 0.25}}
    expected = {"requests": 1, "bytes_in": 100, "done": 1, "bytes_out": 40, "device_s": 0.25}
    assert snapshot["tenants"] == {"alice": expected}
    assert snapshot["stage_seconds"] == {"read": 0.001, "queue": 0.002, "compute": 0.25, "write": 0.003}


@pytest.mark.parametrize(("seconds", "bin_"), [(0.0, 0), (0.0001, 0), (0.00011, 1), (0.3, 7), (1000.0, -1)])
def test_a_latency_lands_below_the_next_bound(seconds, bin_):
    counters = Counters()
    counters.answered("lu", "done", "alice", {"total": seconds})
    latency = counters.snapshot()["latency"]
    counts = latency["operations"]["lu"]["counts"]
    assert latency["bounds_s"] == list(LATENCY_BOUNDS_S)
    assert len(counts) == len(LATENCY_BOUNDS_S) + 1
    assert counts[bin_] == sum(counts) == 1
    assert latency["operations"]["lu"]["sum_s"] == seconds


def test_names_are_bounded_and_nothing_is_lost():
    counters = Counters()
    for number in range(MAX_NAMES + 50):
        counters.answered(f"o{number}", "done", f"t{number}", SECONDS)
    snapshot = counters.snapshot()
    for group in (snapshot["operations"], snapshot["tenants"], snapshot["latency"]["operations"]):
        assert len(group) == MAX_NAMES + 1
    assert snapshot["tenants"][OTHERS]["done"] == snapshot["operations"][OTHERS]["done"] == 50
    assert sum(snapshot["latency"]["operations"][OTHERS]["counts"]) == 50


def test_summing_up_now_and_then_changes_nothing():
    """Whenever it is done, the numbers are those of a snapshot after each call."""
    often, seldom = Counters(), Counters()
    for number in range(3000):
        for counters in (often, seldom):
            counters.requested("lu", f"t{number % 3}")
            counters.answered("lu", ("done", "failed")[number % 2], f"t{number % 3}", SECONDS, number)
        if number % 7 == 0:
            often.snapshot()
    assert often.snapshot() == seldom.snapshot()
    assert seldom.snapshot()["requests"] == 3000


def test_what_is_noted_is_bounded():
    counters = Counters()
    for _ in range(5000):
        counters.add("busy")
        assert len(counters._noted) <= 1024


STATS = {
    "done": 7,
    "tenants": {"alice": {"done": 3}, "bob": {"done": 4}},
    "workers": [{"device": "cpu", "state": "idle", "pid": 17, "last_fault": "/data/bob"}],
    "health": {"ok": False, "problems": ["cpu: absent: /data/bob"]},
}


def test_a_tenant_sees_totals_and_itself():
    seen = visible(STATS, "alice")
    assert seen["done"] == 7
    assert seen["tenants"] == {"alice": {"done": 3}}
    assert seen["health"] == {"ok": False, "problems": []}
    assert "bob" not in repr(seen)
    assert "17" not in repr(seen)


def test_the_operator_sees_everything():
    assert visible(STATS, OPERATOR) is STATS


def test_a_flood_is_counted_and_not_written():
    now_s = [0.0]
    sparing = Sparing(2, 3, lambda: now_s[0])

    def line():
        record = logging.LogRecord("x", logging.WARNING, "f", 1, "broken: %s", ("why",), None)
        return record.getMessage() if sparing.filter(record) else None

    assert [line() for _ in range(5)] == ["broken: why"] * 3 + [None] * 2
    now_s[0] = 1.0
    assert [line() for _ in range(3)] == [
        "(2 lines like this one were left out) broken: why",
        "broken: why",
        None,
    ]
    now_s[0] = 100.0
    assert [line() for _ in range(4)] == [
        "(1 lines like this one were left out) broken: why",
        *["broken: why"] * 2,
        None,
    ]
