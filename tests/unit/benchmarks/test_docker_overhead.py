"""Two modes beside each other: figures that only one has are left out."""

from __future__ import annotations

from benchmarks.docker_overhead import compared
from benchmarks.result import measured, not_measured


def test_each_figure_of_both_is_divided() -> None:
    base = [
        measured("start", [10.0, 12.0], "s"),
        measured("rate", [400.0], "MB/s"),
        measured("none", [0.0], "s"),
    ]
    other = [measured("start", [22.0], "s"), not_measured("rate", "no"), measured("none", [1.0], "s")]
    (row,) = compared(base, other)
    assert (row.what, row.value, row.unit) == ("start, docker / netns", 2.0, "x")
