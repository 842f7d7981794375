"""What is drawn is right: the course over time against a sum done second by second, and pictures at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.sim.logs import job, scheduled
from torque_sched.sim.plots import gantt, load, mean_in_bins, waits

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(1, 9)), max_size=20)


@given(SPANS, st.integers(1, 7))
def test_the_mean_over_a_bin_is_that_of_its_seconds(spans: list[tuple[int, int, int]], n_bins: int) -> None:
    begins = np.array([begin for begin, _, _ in spans], dtype=float)
    ends = np.array([begin + length for begin, length, _ in spans], dtype=float)
    amounts = np.array([amount for _, _, amount in spans], dtype=float)
    edges = np.arange(n_bins + 1, dtype=float) * 8
    found = mean_in_bins(begins, ends, amounts, edges)
    for place in range(n_bins):
        seconds = range(8 * place, 8 * place + 8)
        by_hand = sum(
            amount for s in seconds for begin, length, amount in spans if begin <= s < begin + length
        )
        assert found[place] == pytest.approx(by_hand / 8, abs=1e-9)


@pytest.mark.parametrize("draw", [lambda s: gantt(s), lambda s: load([s]), lambda s: waits([s])])
def test_equal_schedules_give_equal_pictures(draw: object) -> None:
    assert callable(draw)
    schedule = scheduled([job(1, 0, 10, 6), job(2, 3, 1, 10)], [0, 10])
    first = draw(schedule)
    assert first.startswith(b"\x89PNG")
    assert first == draw(schedule)


def test_a_single_job_of_a_machine_larger_than_the_picture_is_drawn() -> None:
    assert gantt(scheduled([job(1, 5, 1, 100_000)], [5], procs=200_000)).startswith(b"\x89PNG")
