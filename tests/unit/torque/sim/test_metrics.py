"""Figures of a schedule against sums done by hand."""

from __future__ import annotations

import pytest

from tests.unit.torque.sim.logs import job, scheduled
from torque_sched.sim.metrics import Limits, figures_of
from torque_sched.sim.schedule import Broken, Schedule


def two() -> Schedule:
    return scheduled([job(1, 100, 50, 4), job(2, 110, 5, 10)], [100, 150])


def test_means_by_hand() -> None:
    figures = figures_of(two())
    assert figures.n_jobs == 2
    assert figures.mean_wait_s == 20
    assert figures.max_wait_s == 40
    # The second runs 5 s, which counts as 10: (40 + 5) / 10.
    assert figures.bounded_slowdown == pytest.approx((1 + 4.5) / 2)
    assert figures.awrt_s == pytest.approx((200 * 50 + 50 * 45) / 250)
    assert figures.awwt_s == pytest.approx(50 * 40 / 250)
    assert figures.makespan_s == 55
    assert figures.utilisation == pytest.approx(250 / (10 * 55))


def test_slowdown_is_never_below_one() -> None:
    assert figures_of(scheduled([job(1, 0, 2, 1)], [0])).bounded_slowdown == 1


def test_classes_part_at_their_limits() -> None:
    jobs = [job(1, 0, 60, 8), job(2, 0, 61, 8), job(3, 0, 60, 9), job(4, 0, 61, 9)]
    figures = figures_of(scheduled(jobs, [1, 2, 3, 4], procs=100), Limits(short_s=60, narrow_procs=8))
    waits = {name: each.mean_wait_s for name, each in figures.by_class.items()}
    assert waits == {"short narrow": 1, "long narrow": 2, "short wide": 3, "long wide": 4}


def test_promises_are_compared_with_starts() -> None:
    given = two()
    schedule = Schedule(
        "given", given.workload, given.starts, [90, 170], [90, 150], (Broken(0, 95, 90, 100, "overrun"),)
    )
    figures = figures_of(schedule)
    assert figures.n_reserved == 2
    assert figures.start_error_s == 15
    assert figures.start_gain_s == 5
    assert (figures.reservations_broken, figures.late_starts) == (1, 1)


def test_no_jobs_have_no_figures() -> None:
    assert figures_of(scheduled([], [])).makespan_s == 0
