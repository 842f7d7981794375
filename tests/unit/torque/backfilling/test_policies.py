"""The backfilling policies by example; `tests/property/torque/test_backfilling.py` has the laws."""

from __future__ import annotations

import math
from typing import Any

import pytest

from torque_sched.errors import ConfigError
from torque_sched.policies.backfilling.conservative import Conservative
from torque_sched.policies.backfilling.count_table import CountSpot, CountTable
from torque_sched.policies.backfilling.easy import Easy
from torque_sched.policies.backfilling.estimate import ExactEstimates, LearnedEstimates
from torque_sched.policies.backfilling.events import (
    BatchJob,
    Began,
    BreakReason,
    Broken,
    Cancelled,
    Ended,
    Held,
    Overran,
    Promise,
    Released,
    ReservationDropped,
    ReservationMade,
    Reshaped,
    Submitted,
)
from torque_sched.policies.backfilling.fcfs import Fcfs
from torque_sched.policies.backfilling.order import ByFairShare, ByPriority, ShortestFirst
from torque_sched.policies.backfilling.selective import Selective
from torque_sched.policies.predict.chain import ChainPredictor
from torque_sched.policies.predict.fingerprint import Fingerprint


def job(key: int, n: int, limit_s: float, submit_s: float = 0.0, **more: Any) -> BatchJob[int]:
    return BatchJob(key, n, limit_s, submit_s, n_procs=n, **more)


def submit(policy: Any, now_s: float, *jobs: BatchJob[int]) -> Any:
    return policy.apply([Submitted(each) for each in jobs], now_s)


def started(outcome: Any) -> list[Any]:
    return [each.key for each in outcome.starts]


def promised(policy: Any) -> dict[Any, float]:
    return {each.key: each.start_s for each in policy.promises}


def test_easy_keeps_the_head_and_lets_pass_who_does_not_delay_it() -> None:
    policy = Easy(CountTable(338))
    assert started(submit(policy, 0, job(1, 300, 100))) == [1]
    outcome = submit(policy, 1, job(2, 338, 50, 1))
    assert outcome.promises == (Promise(2, 100, 1, 100),)
    assert outcome.wake_s == 100
    assert started(submit(policy, 2, job(3, 10, 1000, 2))) == []
    assert started(submit(policy, 3, job(4, 10, 97, 3))) == [4]
    assert started(policy.apply([Ended(1), Ended(4)], 100)) == [2]
    assert started(policy.apply([Ended(2)], 150)) == [3]


def test_easy_of_depth_two_keeps_the_second_as_well() -> None:
    jobs = [job(1, 8, 10), job(2, 8, 10), job(3, 9, 10), job(4, 2, 25)]
    one, two = Easy(CountTable(10)), Easy(CountTable(10), depth=2)
    assert started(submit(one, 0, *jobs)) == [1, 4]
    assert promised(one) == {2: 10}
    assert started(submit(two, 0, *jobs)) == [1]
    assert promised(two) == {2: 10, 3: 20}


def test_who_ends_between_two_promises_must_leave_room_for_the_first_only() -> None:
    policy = Easy(CountTable(10), depth=2)
    assert started(submit(policy, 0, job(1, 4, 50), job(2, 7, 100), job(3, 9, 10), job(4, 3, 140))) == [1, 4]
    assert promised(policy) == {2: 50, 3: 150}


def test_fcfs_lets_nobody_pass() -> None:
    policy = Fcfs(CountTable(10))
    assert started(submit(policy, 0, job(1, 6, 10), job(2, 6, 10), job(3, 1, 1))) == [1]
    assert policy.promises == ()
    assert started(policy.apply([Ended(1)], 4)) == [2, 3]


def test_conservative_lets_nobody_delay_anybody() -> None:
    policy = Conservative(CountTable(10))
    jobs = [job(1, 6, 10), job(2, 6, 10), job(3, 8, 10), job(4, 4, 30), job(5, 3, 30), job(6, 4, 20)]
    assert started(submit(policy, 0, *jobs)) == [1, 6]
    assert promised(policy) == {2: 10, 3: 20, 4: 30, 5: 30}


def test_compression_follows_the_line_after_an_early_end_only() -> None:
    jobs = [job(1, 10, 100), job(2, 10, 10), job(3, 5, 10)]
    policy = Conservative(CountTable(10))
    submit(policy, 0, *jobs)
    outcome = policy.apply([Ended(1)], 40)
    assert started(outcome) == [2]
    assert outcome.promises == (Promise(3, 50, 40, 110),)
    printed = Conservative(CountTable(10), compress=False)
    submit(printed, 0, *jobs)
    assert started(printed.apply([Ended(1)], 40)) == []
    assert promised(printed) == {2: 100, 3: 110}
    assert started(printed.apply([], 100)) == [2]


def test_an_end_as_planned_moves_no_promise() -> None:
    policy = Conservative(CountTable(5))
    submit(policy, 0, job(1, 5, 6), job(2, 1, 6), job(3, 5, 5), job(4, 4, 2))
    # The fourth leaves a better place to the third, whose turn is over.
    assert started(policy.apply([Ended(1)], 1)) == [2, 4]
    assert promised(policy) == {3: 8}
    policy.apply([Ended(4)], 3)
    assert promised(policy) == {3: 8}


def test_promises_are_given_to_no_more_than_the_depth() -> None:
    policy = Conservative(CountTable(10), depth=1)
    submit(policy, 0, job(1, 8, 10))
    assert started(submit(policy, 1, job(2, 8, 10), job(3, 9, 10), job(4, 2, 25))) == [4]
    assert promised(policy) == {2: 10}


def test_overrun_breaks_promises_and_says_so() -> None:
    policy = Conservative(CountTable(10))
    submit(policy, 0, job(1, 10, 100), job(2, 10, 10))
    outcome = policy.apply([], 100)
    assert outcome.broken == (Broken(2, BreakReason.OVERRUN, 100, 160),)
    assert outcome.promises == (Promise(2, 160, 100, 160),)
    assert policy.n_broken == 1
    assert outcome.wake_s == 160
    outcome = policy.apply([Overran(1, 500)], 150)
    assert outcome.broken == (Broken(2, BreakReason.OVERRUN, 160, 500),)
    assert started(policy.apply([Ended(1)], 170)) == [2]


def test_failed_nodes_break_only_the_promises_that_no_longer_fit() -> None:
    policy = Conservative(CountTable(10))
    submit(policy, 0, job(1, 6, 100), job(2, 6, 10), job(3, 10, 10))
    outcome = policy.apply([Reshaped(8)], 5)
    assert outcome.broken == (Broken(3, BreakReason.CAPACITY, 110, math.inf),)
    assert promised(policy) == {2: 100}
    outcome = policy.apply([Reshaped(10)], 6)
    assert outcome.promises == (Promise(3, 110, 6, 110),)


def test_advance_reservations_never_move() -> None:
    policy = Conservative(CountTable(10))
    submit(policy, 0, job(1, 10, 100), job(2, 10, 50))
    assert policy.apply([ReservationMade("polite", 4, 120, 200, False)], 1).refused == ("polite",)
    outcome = policy.apply([ReservationMade("admin", 4, 120, 200)], 2)
    assert outcome.broken == (Broken(2, BreakReason.RESERVATION, 100, 200),)
    assert policy.apply([ReservationMade("admin", 1, 120, 200)], 3).refused == ("admin",)
    assert started(policy.apply([Ended(1)], 40)) == [2]
    policy.apply([Ended(2)], 60)
    submit(policy, 60, job(3, 10, 80, 60))
    assert promised(policy) == {3: 200}
    assert started(policy.apply([ReservationDropped("admin")], 70)) == [3]


def test_held_jobs_keep_their_place_but_no_promise() -> None:
    policy = Conservative(CountTable(10))
    submit(policy, 0, job(1, 10, 100), job(2, 10, 10), job(3, 10, 10))
    outcome = policy.apply([Held(2)], 1)
    assert outcome.broken == (Broken(2, BreakReason.LIMIT, 100, math.inf),)
    assert promised(policy) == {3: 100}
    policy.apply([Released(2)], 2)
    assert promised(policy) == {2: 110, 3: 100}
    policy.apply([Cancelled(3)], 3)
    assert promised(policy) == {2: 100}


def test_who_may_not_start_is_asked_again_and_others_go_ahead() -> None:
    policy = Conservative(CountTable(10))
    submit(policy, 0, job(1, 10, 100), job(2, 10, 10), job(3, 10, 10))
    outcome = policy.apply([Ended(1)], 100, lambda key: key != 2)
    assert started(outcome) == [3]
    assert outcome.broken == (Broken(2, BreakReason.LIMIT, 100, math.inf),)
    assert started(policy.apply([Ended(3)], 105)) == [2]


def test_a_late_cycle_gives_the_job_its_whole_time() -> None:
    policy = Conservative(CountTable(10))
    submit(policy, 0, job(1, 10, 100), job(2, 10, 10), job(3, 10, 10))
    outcome = policy.apply([Ended(1)], 104)
    assert outcome.starts[0].spot == CountSpot(10, 104, 114)
    assert outcome.broken == (Broken(3, BreakReason.OVERRUN, 110, 114),)


def test_a_job_started_by_hand_is_a_fact() -> None:
    policy = Conservative(CountTable(10))
    submit(policy, 0, job(1, 6, 100), job(2, 6, 10), job(3, 6, 20))
    outcome = policy.apply([Began(job(3, 6, 20), CountSpot(4, 5, 150))], 5)
    assert policy.running == (1, 3)
    assert outcome.broken == ()
    outcome = policy.apply([Began(job(9, 6, 20), CountSpot(3, 6, 150))], 6)
    assert outcome.broken == (Broken(2, BreakReason.OUTRANKED, 100, 150),)


def test_selective_promises_to_those_who_waited_long_for_their_length() -> None:
    policy = Selective(CountTable(10), threshold=3)
    submit(policy, 0, job(1, 10, 100), job(2, 10, 10), job(3, 10, 40))
    assert promised(policy) == {}
    submit(policy, 21, job(4, 1, 1, 21))
    assert promised(policy) == {2: 100}
    submit(policy, 81, job(5, 1, 100, 81))
    assert promised(policy) == {2: 100, 3: 110, 4: 150}


@pytest.mark.parametrize(
    ("order", "expected"),
    [(ByPriority(), [3, 2, 4]), (ShortestFirst(), [4, 3, 2]), (ByFairShare(), [3, 4, 2])],
)
def test_orders(order: Any, expected: list[int]) -> None:
    policy = Fcfs(CountTable(10), order)
    submit(policy, 0, job(1, 10, 100, user="ann"))
    submit(policy, 1, job(2, 10, 30, 1, user="ann", priority=1))
    submit(policy, 2, job(3, 10, 20, 2, user="bob", priority=2))
    submit(policy, 3, job(4, 10, 10, 3, user="cid"))
    seen, running = [], 1
    for now_s in (100, 130, 160):
        outcome = policy.apply([Ended(running)], now_s)
        running = outcome.starts[0].key
        seen.append(running)
    assert seen == expected


def test_fair_share_forgets_and_corrects() -> None:
    order = ByFairShare(half_life_s=100, shares={"ann": 2})
    big = job(1, 10, 50, user="ann")
    order.started(big, 50, 0)
    assert order.rank(big, 50, 0) == 250
    order.ended(big, 50, 25, 25)
    assert order.rank(big, 50, 25) == pytest.approx(125)
    order.started(job(2, 1, 1, user="bob"), 0, 125)
    assert order.rank(big, 50, 125) == pytest.approx(62.5)
    twin = ByFairShare(half_life_s=100, shares={"ann": 2})
    twin.restore(order.state())
    assert twin.state() == order.state()


def test_exact_estimates_promise_what_will_be() -> None:
    policy = Conservative(CountTable(10), estimates=ExactEstimates({1: 30, 2: 5}))
    submit(policy, 0, job(1, 10, 100), job(2, 10, 10))
    assert promised(policy) == {2: 30}


def test_learned_estimates_are_corrected_when_they_are_too_short() -> None:
    def same(_: Any) -> Fingerprint:
        return Fingerprint("ann", "relax")

    learned = LearnedEstimates(ChainPredictor(), same)
    policy = Conservative(CountTable(10), estimates=learned)
    submit(policy, 0, job(1, 10, 1000))
    policy.apply([Ended(1)], 30)
    submit(policy, 100, job(2, 10, 1000, 100), job(3, 10, 1000, 100))
    assert promised(policy) == {3: 130}
    outcome = policy.apply([], 130)
    assert outcome.broken == (Broken(3, BreakReason.OVERRUN, 130, 190),)
    assert learned.corrected_s(job(2, 1, 1000), 990, 3) == 1000
    assert learned.corrected_s(job(2, 1, 1000), 1000, 0) == 1060


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([Ended(7)], "job 7 ended"),
        ([Cancelled(7)], "job 7 does not wait"),
        ([Overran(7, 5)], "job 7 overran"),
        ([ReservationDropped("x")], "no reservation 'x'"),
        ([Submitted(job(1, 1, 1))], "a second time"),
    ],
)
def test_events_that_cannot_be_are_refused(events: list[Any], said: str) -> None:
    policy = Conservative(CountTable(10))
    submit(policy, 0, job(1, 10, 100))
    with pytest.raises(ValueError, match=said):
        policy.apply(events, 1)


def test_time_never_goes_back() -> None:
    policy = Easy(CountTable(10))
    policy.apply([], 5)
    with pytest.raises(ValueError, match="time went back"):
        policy.apply([], 4)


def test_settings_without_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="expansion factor"):
        Selective(CountTable(10), threshold=0.5)
    with pytest.raises(ConfigError, match="reservation depth"):
        Easy(CountTable(10), depth=0)
