"""What policies plan with: never more than the limit, and nothing from the future."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.sim.logs import job
from torque_sched.errors import ConfigError
from torque_sched.policies.backfilling.events import BatchJob
from torque_sched.sim.estimates import LearnedRuntimes, new_estimates
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
