"""Tenants see nothing of each other; a flood of faults does not fill the log."""

import logging

from yarn_accel.pipeline.visibility import OPERATOR, Sparing, visible

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
    sparing = Sparing(3, lambda: now_s[0])

    def line():
        record = logging.LogRecord("x", logging.WARNING, "f", 1, "broken: %s", ("why",), None)
        return record.getMessage() if sparing.filter(record) else None

    assert [line() for _ in range(5)] == ["broken: why"] * 3 + [None] * 2
    now_s[0] = 1.5
    assert line() == "(2 lines like this one were left out) broken: why"
    assert line() == "broken: why"
