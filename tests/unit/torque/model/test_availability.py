"""The step function of free processors, by example and against a row of seconds."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torque_sched.model.availability import Availability

CAPACITY, HORIZON = 6, 60


def test_no_start_after_the_last_one_allowed() -> None:
    table = Availability(4)
    table.take(4, 0, 10)
    assert table.earliest(5, 1, 0) == math.inf
    assert table.earliest(1, 1, 0, 9) == math.inf
    assert table.earliest(1, 1, 0, 10) == 10
    assert table.earliest(1, 1, 20, 10) == math.inf


def test_taking_too_much_changes_nothing() -> None:
    table = Availability(4)
    table.take(3, 5, 8)
    before = table.points()
    with pytest.raises(ValueError, match="only 1"):
        table.take(2, 0, 6)
    with pytest.raises(ValueError, match="too many"):
        table.give_back(1, 7, 9)
    assert table.points() == before


def test_the_past_is_forgotten() -> None:
    table = Availability(4)
    table.take(2, 0, 10)
    table.advance(6)
    table.give_back(2, 0, 10)
    assert table.points() == ((6, 4),)
    assert table.free_at(0) == 4


def test_bottleneck_says_until_when_it_lasts() -> None:
    table = Availability(4)
    table.take(3, 2, 4)
    table.take(3, 6, 8)
    assert table.bottleneck(0, 10) == (1, 8)
    assert table.bottleneck(0, 6) == (1, 4)
    assert table.bottleneck(8, 9) == (4, math.inf)


def test_fewer_processors_than_are_taken() -> None:
    table = Availability(4)
    table.take(3, 0, 10)
    table.resize(2)
    assert table.free_at(5) == -1
    assert table.earliest(1, 1, 0) == 10
    assert table.earliest(3, 1, 0) == math.inf


DEEDS = st.sampled_from(["take", "give", "advance", "look"])
STEPS = st.lists(
    st.tuples(DEEDS, st.integers(1, CAPACITY), st.integers(0, HORIZON), st.integers(1, 12)), max_size=40
)


class _Seconds:
    """The same table as one number a second."""

    def __init__(self) -> None:
        self.free = [CAPACITY] * (4 * HORIZON)
        self.now_s = 0

    def add(self, n: int, start_s: int, end_s: int) -> None:
        for second in range(start_s, end_s):
            self.free[second] += n

    def earliest(self, n: int, length_s: int, not_before_s: int) -> int:
        first = max(not_before_s, self.now_s)
        return next(s for s in range(first, 4 * HORIZON) if min(self.free[s : s + length_s]) >= n)


@settings(max_examples=examples(400), deadline=None)
@given(STEPS)
def test_equal_to_a_row_of_seconds(steps: list[Any]) -> None:
    table, row, taken = Availability(CAPACITY), _Seconds(), []
    for what, n, at_s, length_s in steps:
        start_s = table.earliest(n, length_s, at_s)
        assert start_s == row.earliest(n, length_s, at_s)
        assert table.least(start_s, start_s + length_s) >= n
        if what == "take" and start_s + length_s < 3 * HORIZON:
            table.take(n, start_s, start_s + length_s)
            row.add(-n, int(start_s), int(start_s) + length_s)
            taken.append((n, int(start_s), int(start_s) + length_s))
        elif what == "give" and taken:
            _give_back(table, row, taken, at_s)
        elif what == "advance":
            row.now_s = max(row.now_s, at_s)
            table.advance(at_s)
        _compare(table, row, length_s)


def _give_back(table: Availability, row: _Seconds, taken: list[Any], at_s: int) -> None:
    n, start_s, end_s = taken.pop(at_s % len(taken))
    if start_s >= row.now_s:
        without = table.copy()
        without.give_back(n, start_s, end_s)
        found_s = table.earliest(n, end_s - start_s, row.now_s, math.inf, start_s)
        assert min(found_s, start_s) == without.earliest(n, end_s - start_s, row.now_s)
    cut_s = min(max(start_s, at_s), end_s)
    table.give_back(n, cut_s, end_s)
    row.add(n, cut_s, end_s)


def _compare(table: Availability, row: _Seconds, length_s: int) -> None:
    points = table.points()
    assert all(a[0] < b[0] and a[1] != b[1] for a, b in itertools.pairwise(points))
    for second in range(row.now_s, 3 * HORIZON):
        assert table.free_at(second) == row.free[second]
    window = row.free[row.now_s : row.now_s + length_s]
    # The second time it is asked another way.
    for _ in range(3):
        assert table.least(row.now_s, row.now_s + length_s) == min(window)
