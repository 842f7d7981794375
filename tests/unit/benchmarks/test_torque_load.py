"""How the calls that the load benchmark noted become a share of time."""

from __future__ import annotations

from benchmarks.torque_load import seconds_looked, within

NOTES = """\
qstat 10.0 12.0 4
pbsnodes 11.0 13.0 1
qalter 12.0 12.5 5
qstat 20.0 25.0 4
"""


def test_calls_are_cut_to_the_time_that_is_watched() -> None:
    calls = within(NOTES, 11.0, 22.0)
    assert calls == [
        ("qstat", 11.0, 12.0, 4),
        ("pbsnodes", 11.0, 13.0, 1),
        ("qalter", 12.0, 12.5, 5),
        ("qstat", 20.0, 22.0, 4),
    ]
    assert seconds_looked(calls) == 4.0


def test_looks_that_overlap_count_once() -> None:
    assert seconds_looked(within(NOTES, 0.0, 100.0)) == 8.0
    assert seconds_looked([]) == 0.0
