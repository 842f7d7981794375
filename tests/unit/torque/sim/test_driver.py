"""What policies plan with: never more than the limit, and nothing from the future."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.sim.logs import job, scheduled
from torque_sched.errors import ConfigError
from torque_sched.policies.backfilling.events import BatchJob
from torque_sched.sim.check import problems
from torque_sched.sim.estimates import LearnedRuntimes, new_estimates
from torque_sched.sim.metrics import Limits, figures_of
from torque_sched.sim.plots import gantt, load, mean_in_bins, waits
from torque_sched.sim.schedule import Broken, Schedule
from torque_sched.sim.workload import TraceJob, Workload


def batch(place: int, traced: TraceJob) -> BatchJob[int]:
    return BatchJob(place, traced.procs, traced.limit_s, traced.submit_s, str(traced.user))


def test_user_and_exact_say_what_their_names_say() -> None:
    jobs = Workload(10, (job(1, 0, 50, 1, 100),), 1)
    asked = batch(0, jobs.jobs[0])
    assert new_estimates("user", jobs).estimate_s(asked) == 100
    assert new_estimates("exact", jobs).estimate_s(asked) == 50
    with pytest.raises(ConfigError, match="user, exact, learned, upper"):
        new_estimates("wishful", jobs)


def test_nothing_learned_yet_is_the_limit() -> None:
    jobs = [job(1, 0, 50, 1, 100)]
    assert LearnedRuntimes(jobs).estimate_s(batch(0, jobs[0])) == 100


def test_the_same_job_again_is_expected_to_take_as_long() -> None:
    jobs = [job(n, 10 * n, 50, 1, 3600) for n in range(6)]
    learned = LearnedRuntimes(jobs)
    for place in range(5):
        asked = batch(place, jobs[place])
        learned.estimate_s(asked)
        learned.ended(asked, 50)
    assert learned.estimate_s(batch(5, jobs[5])) == pytest.approx(50, abs=1)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 3)), max_size=30))
def test_an_estimate_is_whole_and_within_the_limit(rows: list[tuple[int, int, int]]) -> None:
    jobs = [job(n, n, run, procs, run + more) for n, (run, more, procs) in enumerate(rows)]
    learned = LearnedRuntimes(jobs)
    for place, each in enumerate(jobs):
        asked = batch(place, each)
        estimate_s = learned.estimate_s(asked)
        assert 1 <= estimate_s <= each.limit_s
        assert estimate_s == int(estimate_s)
        learned.ended(asked, each.run_s)


def test_the_cautious_estimate_is_the_larger_one() -> None:
    jobs = [job(n, 10 * n, 50 + 20 * (n % 3), 1, 3600) for n in range(40)]
    both = LearnedRuntimes(jobs), LearnedRuntimes(jobs, is_cautious=True)
    for place in range(39):
        asked = batch(place, jobs[place])
        for learned in both:
            learned.estimate_s(asked)
            learned.ended(asked, jobs[place].run_s)
    expected_s, upper_s = (learned.estimate_s(batch(39, jobs[39])) for learned in both)
    assert 50 <= expected_s < upper_s < 3600


def test_an_estimate_that_ran_out_grows_up_to_the_limit() -> None:
    jobs = [job(1, 0, 500, 1, 1000)]
    learned = LearnedRuntimes(jobs)
    asked = batch(0, jobs[0])
    assert learned.corrected_s(asked, 100, 0) == 160
    assert learned.corrected_s(asked, 990, 3) == 1000


# Every invariant catches the schedule that breaks it, and passes the one at its edge.


def test_a_good_schedule_has_no_problem() -> None:
    jobs = [job(1, 0, 10, 6), job(2, 0, 10, 4), job(3, 0, 10, 10)]
    # The third starts in the instant in which the others end.
    assert problems(scheduled(jobs, [0, 0, 10]), is_fcfs=True) == []


def test_too_many_processors_are_found() -> None:
    (problem,) = problems(scheduled([job(1, 0, 10, 6), job(2, 0, 10, 5)], [0, 9]))
    assert "11 of 10 processors in use at 9" in problem


def test_a_start_before_submission_is_found() -> None:
    assert "submitted at 5" in problems(scheduled([job(1, 5, 10, 6)], [4]))[0]


def test_a_job_that_never_starts_is_found() -> None:
    assert problems(scheduled([job(1, 5, 10, 6)], [float("inf")]))


def test_a_late_start_is_found_unless_it_was_said() -> None:
    given = scheduled([job(1, 0, 10, 6)], [8])
    late = Schedule("given", given.workload, given.starts, [7], [7])
    assert "guaranteed was 7" in problems(late)[0]
    said = Schedule("given", given.workload, given.starts, [7], [8], (Broken(0, 5, 7, 8, "capacity"),))
    assert problems(said) == []


def test_a_broken_promise_is_found_where_none_may_break() -> None:
    given = scheduled([job(1, 0, 10, 6)], [8])
    said = Schedule("given", given.workload, given.starts, [7], [8], (Broken(0, 5, 7, 8, "capacity"),))
    assert "guaranteed 7 and at 5 moved to 8" in problems(said, is_firm=True)[0]


def test_overtaking_is_found() -> None:
    jobs = [job(1, 0, 10, 6), job(2, 1, 10, 6), job(3, 2, 10, 4)]
    overtaken = scheduled(jobs, [0, 10, 2])
    assert problems(overtaken) == []
    assert "FCFS starts it at 10" in problems(overtaken, is_fcfs=True)[0]


def test_waiting_for_nothing_is_found() -> None:
    assert problems(scheduled([job(1, 0, 10, 6)], [1]), is_fcfs=True)


# Figures of a schedule against sums done by hand.


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


@pytest.mark.parametrize("draw", [lambda s: gantt(s), lambda s: load([s]), lambda s: waits([s])])
def test_equal_schedules_give_equal_pictures(draw: object) -> None:
    assert callable(draw)
    schedule = scheduled([job(1, 0, 10, 6), job(2, 3, 1, 10)], [0, 10])
    first = draw(schedule)
    assert first.startswith(b"\x89PNG")
    assert first == draw(schedule)


def test_a_single_job_of_a_machine_larger_than_the_picture_is_drawn() -> None:
    assert gantt(scheduled([job(1, 5, 1, 100_000)], [5], procs=200_000)).startswith(b"\x89PNG")
