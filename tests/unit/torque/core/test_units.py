"""PBS text to numbers and back."""

from __future__ import annotations

import pytest

from torque_sched.core import units
from torque_sched.errors import UnitError


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("2gb", 2**31),
        ("1kb", 1024),
        ("512", 512),
        ("7b", 7),
        ("1KB", 1024),
        ("3mw", 3 * 2**23),
        ("1tb", 2**40),
    ],
)
def test_sizes_count_in_powers_of_two(text: str, n_bytes: int) -> None:
    assert units.size_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "gb", "-1kb", "1.5gb", "2 gb", "2xb", "9" * 60, "١kb"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="no PBS size"):
        units.size_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("01:00:00", 3600),
        ("100:00:00", 360000),
        ("90", 90),
        ("02:30", 150),
        ("2:00:00:00", 172800),
        ("1.5", 1.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "1:", ":1", "1:2:3:4:5", "-1", "1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="no PBS duration"):
        units.duration_s(text)


def test_booleans_and_counts() -> None:
    assert [units.boolean(text) for text in ("True", "t", "Y", "1", "False", "n", "0")] == [True] * 4 + [
        False
    ] * 3
    assert [units.count(text) for text in ("0", "-11", "+3", " 4 ")] == [0, -11, 3, 4]
    for text in ("maybe", ""):
        with pytest.raises(UnitError):
            units.boolean(text)
    for text in ("", "-", "1.0", "٣", "1_0", "9" * 50):
        with pytest.raises(UnitError):
            units.count(text)


def test_amount_follows_the_resource() -> None:
    assert units.amount("mem", "100") == 100
    assert units.amount("walltime", "100") == 100.0
    assert units.amount("scratch", "10gb") == 10 * 2**30
    assert units.amount("lease", "01:00") == 60.0
