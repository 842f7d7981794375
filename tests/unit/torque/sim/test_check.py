"""Every invariant catches the schedule that breaks it, and passes the one at its edge."""

from __future__ import annotations

from tests.unit.torque.sim.logs import job, scheduled
from torque_sched.sim.check import problems
from torque_sched.sim.schedule import Broken, Schedule


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
