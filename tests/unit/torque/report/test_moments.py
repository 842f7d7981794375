"""Moments as people read and write them, also where the clocks leave an hour out or show it twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torque_sched.errors import ConfigError
from torque_sched.report.booking import moment_s, second_of_two_s, with_offset
from torque_sched.report.words import moment

NOW_S = 1_795_000_000.0


pytestmark = pytest.mark.usefixtures("berlin")


def test_a_time_that_the_clocks_leave_out_is_refused_with_both_around_it() -> None:
    with pytest.raises(ConfigError, match="does not exist") as caught:
        moment_s("2027-03-28T02:30", NOW_S)
    assert str(caught.value.cure) == "write 2027-03-28 01:30:00+01:00 or 2027-03-28 03:30:00+02:00"


def test_of_a_time_that_the_clocks_show_twice_the_first_is_taken_and_both_have_a_name() -> None:
    at_s = moment_s("2027-10-31T02:30", NOW_S)
    other_s = second_of_two_s("2027-10-31T02:30", NOW_S)
    assert other_s == at_s + 3600
    assert with_offset(at_s) == "2027-10-31 02:30:00+02:00"
    assert with_offset(other_s) == "2027-10-31 02:30:00+01:00"
    for exact_s in (at_s, other_s):
        assert moment_s(with_offset(exact_s), NOW_S) == exact_s
        assert second_of_two_s(with_offset(exact_s), NOW_S) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2027-07-01T12:00Z", "2027-07-01 14:00:00+02:00"),
        ("2027-12-31T23:30+01:00", "2027-12-31 23:30:00+01:00"),
        ("now", "2026-11-18 12:06:40+01:00"),
        ("+1:00:00", "2026-11-18 13:06:40+01:00"),
        ("+90", "2026-11-18 12:08:10+01:00"),
        ("2026-12-24 08:00:00", "2026-12-24 08:00:00+01:00"),
        ("08:15:30", "2026-11-19 08:15:30+01:00"),
        ("12:06", "2026-11-19 12:06:00+01:00"),
        ("12:07", "2026-11-18 12:07:00+01:00"),
        ("1795000000", "2026-11-18 12:06:40+01:00"),
    ],
)
def test_moments(text: str, shown: str) -> None:
    assert with_offset(moment_s(text, NOW_S)) == shown
    assert second_of_two_s(text, NOW_S) is None


def test_the_next_time_of_a_clock_is_refused_where_that_day_lacks_it() -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        moment_s("02:30", moment_s("2027-03-27T12:00", NOW_S))


@pytest.mark.parametrize(
    "text",
    ["", "25:00", "12:60", "2027-02-29T01:30", "2027-12-31T23:59:60", "99999999999999", "soon", "+x", "-5",
     "2026-13-01", "９:00", "+" + "9" * 99],
)  # fmt: skip
def test_no_moments(text: str) -> None:
    with pytest.raises(ConfigError, match="is no moment"):
        moment_s(text, NOW_S)


@given(st.text(max_size=12))
def test_any_words_are_a_moment_or_a_clear_error(text: str) -> None:
    try:
        assert isinstance(moment_s(text, NOW_S), float)
    except ConfigError as error:
        assert "is no moment" in error.message


def test_an_hour_that_comes_twice_is_told_apart() -> None:
    first_s = 1_824_942_600.0
    assert [moment(first_s), moment(first_s + 3600)] == [
        "2027-10-31 02:30:00 CEST",
        "2027-10-31 02:30:00 CET",
    ]


@pytest.mark.parametrize("at_s", [None, float("inf"), float("nan"), 1e18, 9e18, 1e300])
def test_a_moment_no_calendar_has_is_a_dash(at_s: float | None) -> None:
    assert moment(at_s) == "-"
