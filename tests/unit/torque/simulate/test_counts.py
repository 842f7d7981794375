"""The count-only policies by example; `tests/property/torque/test_backfilling.py` has the laws."""

from __future__ import annotations

import csv
import gzip
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.backfill import TRACES
from tests.unit.torque.simulate.logs import job as traced
from torque_sched.errors import ConfigError
from torque_sched.simulate.counts.estimates import ExactRuntimes, LearnedRuntimes, new_estimates
from torque_sched.simulate.counts.experiment import Plan, run
from torque_sched.simulate.counts.jobs import CountJob, StaticOrder, UsageOrder
from torque_sched.simulate.counts.policies import ConservativePolicy, EasyPolicy, FcfsPolicy, SelectivePolicy
from torque_sched.simulate.counts.scheduler import OVERRUN, Moved, PolicySettings
from torque_sched.simulate.counts.table import ProcessorTable
from torque_sched.simulate.workload import Workload, read_trace

job = CountJob


def submit(policy: Any, now_s: float, *jobs: CountJob) -> Any:
    return policy.apply(now_s, [], jobs)


def test_easy_keeps_the_head_and_lets_pass_who_does_not_delay_it() -> None:
    policy = EasyPolicy(ProcessorTable(338))
    assert submit(policy, 0, job(1, 300, 100, 0)).starts == [1]
    answer = submit(policy, 1, job(2, 338, 50, 1))
    assert (answer.guaranteed, answer.wake_s) == ([(2, 100)], 100)
    assert submit(policy, 2, job(3, 10, 1000, 2)).starts == []
    assert submit(policy, 3, job(4, 10, 97, 3)).starts == [4]
    assert policy.apply(100, [1, 4], []).starts == [2]
    assert policy.apply(150, [2], []).starts == [3]


def test_easy_of_depth_two_keeps_the_second_as_well() -> None:
    jobs = [(1, 8, 10, 0), (2, 8, 10, 0), (3, 9, 10, 0), (4, 2, 25, 0)]
    one, two = (EasyPolicy(ProcessorTable(10), settings=PolicySettings(depth=depth)) for depth in (None, 2))
    assert submit(one, 0, *(job(*each) for each in jobs)).starts == [1, 4]
    assert one.reservations == {2: 10}
    assert submit(two, 0, *(job(*each) for each in jobs)).starts == [1]
    assert two.reservations == {2: 10, 3: 20}


def test_who_ends_between_two_reservations_must_leave_room_for_the_first_only() -> None:
    policy = EasyPolicy(ProcessorTable(10), settings=PolicySettings(depth=2))
    jobs = job(1, 4, 50, 0), job(2, 7, 100, 0), job(3, 9, 10, 0), job(4, 3, 140, 0)
    assert submit(policy, 0, *jobs).starts == [1, 4]
    assert policy.reservations == {2: 50, 3: 150}


def test_an_end_as_planned_moves_no_reservation() -> None:
    policy = ConservativePolicy(ProcessorTable(5))
    submit(policy, 0, job(1, 5, 6, 0), job(2, 1, 6, 0), job(3, 5, 5, 0), job(4, 4, 2, 0))
    # The fourth leaves a better place to the third, whose turn is over.
    assert policy.apply(1, [1], []).starts == [2, 4]
    assert policy.reservations == {3: 8}
    policy.apply(3, [4], [])
    assert policy.reservations == {3: 8}


def test_no_more_jobs_have_reservations_than_the_depth() -> None:
    policy = ConservativePolicy(ProcessorTable(10), settings=PolicySettings(depth=1))
    submit(policy, 0, job(1, 8, 10, 0))
    assert submit(policy, 1, job(2, 8, 10, 1), job(3, 9, 10, 1), job(4, 2, 25, 1)).starts == [4]
    assert policy.reservations == {2: 10}


def test_an_overrun_moves_guaranteed_starts_and_says_so() -> None:
    policy = ConservativePolicy(ProcessorTable(10))
    submit(policy, 0, job(1, 10, 100, 0), job(2, 10, 10, 0))
    answer = policy.apply(100, [], [])
    assert answer.moved == [Moved(2, OVERRUN, 100, 160)]
    assert (answer.guaranteed, answer.wake_s) == ([(2, 160)], 160)
    assert policy.apply(160, [], []).moved == [Moved(2, OVERRUN, 160, 280)]
    assert policy.apply(170, [1], []).starts == [2]


def test_selective_reserves_for_those_who_waited_long_for_their_length() -> None:
    policy = SelectivePolicy(ProcessorTable(10), settings=PolicySettings(threshold=3))
    submit(policy, 0, job(1, 10, 100, 0), job(2, 10, 10, 0), job(3, 10, 40, 0))
    assert policy.reservations == {}
    submit(policy, 21, job(4, 1, 1, 21))
    assert policy.reservations == {2: 100}
    submit(policy, 81, job(5, 1, 100, 81))
    assert policy.reservations == {2: 100, 3: 110, 4: 150}


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (StaticOrder(), [2, 3, 4]),
        (StaticOrder(lambda each: -each.priority), [3, 2, 4]),
        (StaticOrder(lambda each: each.length_s), [4, 3, 2]),
        (UsageOrder(half_life_s=7 * 86_400.0), [3, 4, 2]),
    ],
)
def test_orders(order: Any, expected: list[int]) -> None:
    policy = FcfsPolicy(ProcessorTable(10), order)
    submit(policy, 0, job(1, 10, 100, 0, "ann"))
    submit(policy, 1, job(2, 10, 30, 1, "ann", 1))
    submit(policy, 2, job(3, 10, 20, 2, "bob", 2))
    submit(policy, 3, job(4, 10, 10, 3, "cid"))
    seen, running = [], 1
    for now_s in (100, 130, 160):
        [running] = policy.apply(now_s, [running], []).starts
        seen.append(running)
    assert seen == expected


def test_usage_is_forgotten_and_corrected() -> None:
    order = UsageOrder(half_life_s=100)
    big = job(1, 10, 50, 0, "ann")
    order.started(big, 0)
    assert order.rank(big) == 500
    order.ended(big, 25, 25)
    assert order.rank(big) == pytest.approx(250)
    order.started(job(2, 1, 0, 125, "bob"), 125)
    assert order.rank(big) == pytest.approx(125)


def test_exact_estimates_guarantee_the_starts_that_will_be() -> None:
    policy = ConservativePolicy(ProcessorTable(10), estimates=ExactRuntimes([0, 30, 5]))
    submit(policy, 0, job(1, 10, 100, 0), job(2, 10, 10, 0))
    assert policy.reservations == {2: 30}


def test_wrong_events_and_settings_are_refused() -> None:
    policy = ConservativePolicy(ProcessorTable(10))
    submit(policy, 0, job(1, 10, 100, 0))
    with pytest.raises(ValueError, match="job 7 ended"):
        policy.apply(1, [7], [])
    with pytest.raises(ValueError, match="time went back"):
        policy.apply(-1, [], [])
    with pytest.raises(ConfigError, match="expansion factor"):
        PolicySettings(threshold=0.5)
    with pytest.raises(ConfigError, match="reservation depth of 0"):
        PolicySettings(depth=0)
    with pytest.raises(ConfigError, match="user, exact, learned, upper"):
        new_estimates("wishful", Workload(10, (), 0))


# Learned run times: never more than the limit, and nothing from the future.


def test_the_same_job_again_is_expected_to_take_as_long() -> None:
    jobs = [traced(n, 10 * n, 50, 1, 3600) for n in range(6)]
    learned = LearnedRuntimes(jobs)
    assert learned.estimate_s(job(0, 1, 3600, 0)) == 3600, "nothing is learned yet"
    for place in range(5):
        asked = job(place, 1, 3600, 10 * place)
        learned.estimate_s(asked)
        learned.ended(asked, 50)
    assert learned.estimate_s(job(5, 1, 3600, 50)) == pytest.approx(50, abs=1)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 3)), max_size=30))
def test_an_estimate_is_whole_and_within_the_limit(rows: list[tuple[int, int, int]]) -> None:
    jobs = [traced(n, n, run, procs, run + more) for n, (run, more, procs) in enumerate(rows)]
    learned = LearnedRuntimes(jobs)
    for place, each in enumerate(jobs):
        asked = job(place, each.procs, each.limit_s, place)
        estimate_s = learned.estimate_s(asked)
        assert 1 <= estimate_s <= each.limit_s
        assert estimate_s == int(estimate_s)
        learned.ended(asked, each.run_s)


def test_the_cautious_estimate_is_the_larger_one() -> None:
    jobs = [traced(n, 10 * n, 50 + 20 * (n % 3), 1, 3600) for n in range(40)]
    both = LearnedRuntimes(jobs), LearnedRuntimes(jobs, is_cautious=True)
    for place in range(39):
        asked = job(place, 1, 3600, 10 * place)
        for learned in both:
            learned.estimate_s(asked)
            learned.ended(asked, jobs[place].run_s)
    expected_s, upper_s = (learned.estimate_s(job(39, 1, 3600, 390)) for learned in both)
    assert 50 <= expected_s < upper_s < 3600


def test_an_estimate_that_ran_out_grows_up_to_the_limit_and_past_it_by_doubled_minutes() -> None:
    learned, asked = LearnedRuntimes([traced(1, 0, 500, 1, 1000)]), job(0, 1, 1000, 0)
    assert learned.corrected_s(asked, 100) == 160
    asked.n_overruns = 3
    assert learned.corrected_s(asked, 990) == 1000
    assert learned.corrected_s(asked, 1000) == 1480


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_each_start_is_that_of_an_independent_simulator(policy: str) -> None:
    plan = Plan((policy,), check=True)
    [result] = run("ctc", read_trace(TRACES / "ctc_1000_tiefree.swf.gz"), plan).results
    assert result.problems == ()
    with gzip.open(TRACES / "ctc_1000_tiefree.pyss_starts.csv.gz", "rt", encoding="utf-8") as lines:
        table = {int(row["job"]): row[f"start_{policy}"] for row in csv.DictReader(lines)}
    assert dict(result.schedule.rows()) == table
