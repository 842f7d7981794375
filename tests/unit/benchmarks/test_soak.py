"""The soak's verdict: growth is found through noise, and warm-up does not count."""

import random

import pytest

from benchmarks.result import Report
from benchmarks.soak import Pace, Series, _rows, draw, growth, is_flat

AT_S = [float(n) for n in range(100)]


def test_growth_is_that_of_the_straight_line():
    rng = random.Random(1)
    values = [1000.0 + 2.0 * at + rng.uniform(-30, 30) for at in AT_S]
    assert growth(AT_S, values) == pytest.approx(198.0, abs=20)
    assert growth(AT_S, [5.0] * 100) == 0
    assert growth([1.0], [5.0]) == 0
    series = Series([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], {"fds": [0.0, 50.0, 100.0, 100.0, 100.0, 100.0]})
    assert series.after_warm_up("fds") == ([3.0, 4.0, 5.0, 6.0], [100.0] * 4)


@pytest.mark.parametrize(
    ("slope", "flat"), [(0.0, True), (-5.0, True), (0.1, True), (0.3, False), (2.0, False)]
)
def test_flat_allows_a_fiftieth(slope, flat):
    assert is_flat(AT_S, [1000.0 + slope * at for at in AT_S], noise=1.0) is flat
    assert is_flat(AT_S, [10.0 + slope * at for at in AT_S], noise=300.0)


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s

    def wait(self, seconds):
        self.now_s += seconds


def test_the_pace_is_kept_and_adjusted(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("benchmarks.soak.time", clock)
    pace = Pace(200.0)
    for _ in range(40):
        pace.wait(clock)
    assert clock.now_s == pytest.approx(100.2)
    clock.wait(10.0)
    for _ in range(40):
        pace.wait(clock)
    assert clock.now_s == pytest.approx(110.35), "of what was missed 50 ms are caught up"
    pace.adjust(load=0.4, wanted=0.8)
    assert pace.calls_per_s == 240.0
    pace.adjust(load=0.9, wanted=0.8)
    assert pace.calls_per_s == pytest.approx(231.7, abs=0.1)


def test_the_picture_is_drawn_beside_the_report(tmp_path):
    names = ("own_bytes", "rss_bytes", "pss_bytes", "pool_bytes", "fds", "threads", "load", "requests")
    report = Report("soak", series={"at_s": AT_S, "values": {name: AT_S for name in names}})
    (file,) = draw(report, str(tmp_path / "soak"))
    assert file == str(tmp_path / "soak-memory.png")
    assert (tmp_path / "soak-memory.png").stat().st_size > 5000
    assert draw(Report("soak"), str(tmp_path / "none")) == []


@pytest.mark.parametrize(("every_s", "is_short"), [(1.0, True), (15.0, False)])
def test_a_short_soak_has_rows_but_no_verdict_of_growth(every_s, is_short):
    names = ("own_bytes", "rss_bytes", "pss_bytes", "pool_bytes", "fds", "threads", "load", "requests")
    series = Series([every_s * at for at in AT_S], {name: [1.0] * len(AT_S) for name in names})
    rows = _rows(series, {"requests": 7, "pool": {"peak_bytes": 1 << 20}}, {"answer: BusyError": 2})
    growths = [row for row in rows if "growth" in row.what]
    assert len(growths) == 6
    assert all((row.goal == "") is is_short for row in growths)
    assert [row.value for row in rows if row.what == "answer: BusyError"] == [2]
