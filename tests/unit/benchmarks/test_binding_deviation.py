"""How far `paper` strays from a balanced policy."""

import pytest

from benchmarks.binding_scale.deviation import deviation, misplaced
from yarn_accel.core.binding import ANodeAdded, NNodeAdded, NNodeLost, PaperBinding

RACK = "/rack1"


def test_its_deviation_after_losses_is_measured():
    events = [ANodeAdded("a1", RACK), ANodeAdded("a2", RACK)]
    events += [NNodeAdded(f"n{i}", RACK) for i in range(6)]
    events += [NNodeLost(f"n{i}") for i in (0, 2, 4)]
    found = deviation(PaperBinding(), events)
    assert (found.n_events, found.n_moves, found.n_moves_balanced) == (11, 6, 7)
    assert (found.misplaced_max, found.excess_max) == (1, 1)
    assert found.misplaced_mean == pytest.approx(2 / 11)


def test_without_losses_it_deviates_in_nothing():
    events = [NNodeAdded(f"n{i}", RACK) for i in range(20)] + [ANodeAdded(f"a{i}", RACK) for i in range(7)]
    found = deviation(PaperBinding(), events)
    assert (found.misplaced_max, found.excess_max) == (0, 0)
    assert found.n_moves == found.n_moves_balanced


@pytest.mark.parametrize(
    ("heights", "n_misplaced"),
    [([], 0), ([4], 0), ([3, 2], 0), ([4, 2], 1), ([0, 0, 7], 4), ([2, 1, 1, 0], 1)],
)
def test_misplaced_counts_the_moves_balance_would_take(heights, n_misplaced):
    assert misplaced(heights) == n_misplaced
