"""SD of DAGs that run: about once a second, and never more than so many points of one."""

from __future__ import annotations

from yarn_accel.core.dags.slowdown_series import LiveSlowdowns


def test_a_dag_keeps_its_first_and_its_last_points():
    kept = LiveSlowdowns()
    for second in range(10_000):
        assert kept.is_due(float(second))
        kept.note(float(second), {"a": second / 10_000}, ["a"])
        assert not kept.is_due(second + 0.5)
    points = kept.of("a")
    assert 100 <= len(points) <= 240
    assert points[0] == (0.0, 0.0)
    assert points[-1][0] > 9_800
    assert points == sorted(points)


def test_what_is_forgotten_elsewhere_is_forgotten_here():
    kept = LiveSlowdowns()
    kept.note(0.0, {"a": 1.0, "b": 0.5}, ["a", "b"])
    kept.note(1.0, {"b": 0.6}, ["a", "b"])
    assert kept.of("a") == [(0.0, 1.0)], "it has ended, and is remembered"
    kept.note(2.0, {}, ["b"])
    assert kept.of("a") == []
    assert kept.of("b") == [(0.0, 0.5), (1.0, 0.6)]
