"""Invariants, figures and pictures of a schedule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.simulate.logs import job, reference_easy, scheduled
from torque_sched.simulate.check import problems
from torque_sched.simulate.metrics import ClassBounds, figures_of
from torque_sched.simulate.page import gantt, lanes_of, load, mean_in_bins, waits
from torque_sched.simulate.schedule import MovedPromise, Schedule
from torque_sched.simulate.workload import TraceJob, Workload

# Every invariant catches the schedule that breaks it, and passes the one at its edge.


PAIR = [job(1, 0, 10, 6), job(2, 1, 10, 6), job(3, 2, 10, 4)]


@pytest.mark.parametrize(
    ("jobs", "starts", "is_fcfs", "said"),
    [
        # The third starts in the instant in which the others end.
        ([job(1, 0, 10, 6), job(2, 0, 10, 4), job(3, 0, 10, 10)], [0, 0, 10], True, None),
        ([job(1, 0, 10, 6), job(2, 0, 10, 5)], [0, 9], False, "11 of 10 processors in use at 9"),
        ([job(1, 5, 10, 6)], [4], False, "submitted at 5"),
        ([job(1, 5, 10, 6)], [float("inf")], False, ""),
        (PAIR, [0, 10, 2], False, None),
        (PAIR, [0, 10, 2], True, "FCFS starts it at 10"),
        ([job(1, 0, 10, 6)], [1], True, ""),
    ],
    ids=["good", "too many processors", "too early", "never", "passing", "passing in FCFS", "idle in FCFS"],
)
def test_what_is_wrong_with_a_schedule_is_found(
    jobs: list[TraceJob], starts: list[float], is_fcfs: bool, said: str | None
) -> None:
    found = problems(scheduled(jobs, starts), is_fcfs=is_fcfs)
    assert found == [] if said is None else said in found[0]


def test_a_late_start_is_found_unless_it_was_said_where_promises_may_break() -> None:
    given = scheduled([job(1, 0, 10, 6)], [8])
    late = Schedule("given", given.workload, given.starts, [7], [7])
    assert "guaranteed was 7" in problems(late)[0]
    said = Schedule("given", given.workload, given.starts, [7], [8], (MovedPromise(0, 5, 7, 8, "capacity"),))
    assert problems(said) == []
    assert "guaranteed 7 and at 5 moved to 8" in problems(said, is_firm=True)[0]


# Figures of a schedule against sums done by hand.


def two() -> Schedule:
    return scheduled([job(1, 100, 50, 4), job(2, 110, 5, 10)], [100, 150])


def test_means_by_hand() -> None:
    figures = figures_of(two())
    assert (figures.n_jobs, figures.mean_wait_s, figures.max_wait_s, figures.makespan_s) == (2, 20, 40, 55)
    # The second runs 5 s, which counts as 10: (40 + 5) / 10.
    assert figures.bounded_slowdown == pytest.approx((1 + 4.5) / 2)
    assert figures.awrt_s == pytest.approx((200 * 50 + 50 * 45) / 250)
    assert figures.awwt_s == pytest.approx(50 * 40 / 250)
    assert figures.utilisation == pytest.approx(250 / (10 * 55))
    assert figures_of(scheduled([job(1, 0, 2, 1)], [0])).bounded_slowdown == 1, "never below"
    assert figures_of(scheduled([], [])).makespan_s == 0


def test_classes_part_at_their_limits() -> None:
    jobs = [job(1, 0, 60, 8), job(2, 0, 61, 8), job(3, 0, 60, 9), job(4, 0, 61, 9)]
    figures = figures_of(scheduled(jobs, [1, 2, 3, 4], procs=100), ClassBounds(short_s=60, narrow_procs=8))
    waits = {name: each.mean_wait_s for name, each in figures.by_class.items()}
    assert waits == {"short narrow": 1, "long narrow": 2, "short wide": 3, "long wide": 4}


def test_promises_are_compared_with_starts() -> None:
    plan, broken = two(), (MovedPromise(0, 95, 90, 100, "overrun"),)
    figures = figures_of(Schedule("given", plan.workload, plan.starts, [90, 170], [90, 150], broken))
    assert (figures.n_reserved, figures.start_error_s, figures.start_gain_s) == (2, 15, 5)
    assert (figures.reservations_broken, figures.late_starts) == (1, 1)


# What is drawn is right: the course over time against a sum done second by second, and pictures at all.


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


@pytest.mark.parametrize("draw", [gantt, lambda s: load([s]), lambda s: waits([s])])
def test_equal_schedules_give_equal_pictures(draw: Callable[[Schedule], bytes]) -> None:
    schedule = scheduled([job(1, 0, 10, 6), job(2, 3, 1, 10)], [0, 10])
    first = draw(schedule)
    assert first.startswith(b"\x89PNG")
    assert first == draw(schedule)


def test_a_single_job_of_a_machine_larger_than_the_picture_is_drawn() -> None:
    assert gantt(scheduled([job(1, 5, 1, 100_000)], [5], procs=200_000)).startswith(b"\x89PNG")


# Lanes of a picture: exactly as many as the job is wide, and never two jobs on one.


LANES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 10)), max_size=25)


@given(LANES)
def test_no_two_jobs_share_a_processor(rows: list[tuple[int, int, int]]) -> None:
    jobs = [job(n, submit, run, procs) for n, (submit, run, procs) in enumerate(sorted(rows))]
    starts = reference_easy(Workload(10, tuple(jobs), len(jobs)))
    used: set[tuple[int, float]] = set()
    for each, start, lanes in zip(jobs, starts, lanes_of(scheduled(jobs, starts)), strict=True):
        procs = [p for low, high in lanes for p in range(low, high)]
        cells = {(p, start + s) for p in procs for s in range(int(each.run_s))}
        assert len(cells) == each.procs * each.run_s
        assert not cells & used
        used |= cells


def test_more_than_there_is_has_no_picture() -> None:
    with pytest.raises(ValueError, match="more processors"):
        lanes_of(scheduled([job(1, 0, 10, 6), job(2, 0, 10, 6)], [0, 0]))
