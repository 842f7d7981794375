"""The backfilling policies against what defines them, on made-up workloads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.property.torque.backfilling_drive import (
    ACTIONS,
    CAPACITY,
    JOBS,
    Forgetful,
    PlainTable,
    drive,
    used_at,
)
from torque_sched.errors import ConfigError
from torque_sched.policies.backfilling.conservative import Conservative
from torque_sched.policies.backfilling.count_table import CountTable
from torque_sched.policies.backfilling.easy import Easy
from torque_sched.policies.backfilling.events import Promise
from torque_sched.policies.backfilling.fcfs import Fcfs
from torque_sched.policies.backfilling.order import ByFairShare, ByPriority, FirstCome, ShortestFirst
from torque_sched.policies.backfilling.selective import Selective
from torque_sched.policies.backfilling.settings import Bounds

MAKE: dict[str, Callable[..., Any]] = {
    "fcfs": Fcfs,
    "easy": Easy,
    "easy-3": lambda table, *rest: Easy(table, *rest, depth=3),
    "conservative": Conservative,
    "uncompressed": lambda table, *rest: Conservative(table, *rest, compress=False),
    "depth-2": lambda table, *rest: Conservative(table, *rest, depth=2),
    "selective": Selective,
}
ORDERS: dict[str, Callable[[], Any]] = {
    "fcfs": FirstCome,
    "priority": ByPriority,
    "sjf": ShortestFirst,
    "fair": lambda: ByFairShare(half_life_s=20.0),
}
BOUNDS = st.sampled_from([Bounds(), Bounds(window_s=15.0), Bounds(max_jobs=2)])

names = st.sampled_from(sorted(MAKE))
orders = st.sampled_from(sorted(ORDERS))


@settings(max_examples=examples(150), deadline=None)
@given(names, orders, BOUNDS, JOBS, ACTIONS, st.booleans())
def test_object_that_lives_on_and_one_made_for_each_instant_answer_alike(
    name: str, order: str, bounds: Bounds, jobs: list[Any], actions: list[Any], refuses: bool
) -> None:
    def make() -> Any:
        return MAKE[name](CountTable(CAPACITY), ORDERS[order](), None, bounds)

    lived = drive(make(), jobs, actions, refuses=refuses)
    carried = drive(Forgetful(make), jobs, actions, refuses=refuses)
    assert lived.outcomes == carried.outcomes


@settings(max_examples=examples(150), deadline=None)
@given(names, orders, JOBS, ACTIONS, st.booleans())
def test_short_cuts_change_nothing(
    name: str, order: str, jobs: list[Any], actions: list[Any], refuses: bool
) -> None:
    quick = drive(MAKE[name](CountTable(CAPACITY), ORDERS[order]()), jobs, actions, refuses=refuses)
    plain = drive(MAKE[name](PlainTable(CAPACITY), ORDERS[order]()), jobs, actions, refuses=refuses)
    assert quick.outcomes == plain.outcomes


@settings(max_examples=examples(150), deadline=None)
@given(names, orders, BOUNDS, JOBS, ACTIONS, st.booleans())
def test_every_job_runs_once_and_nothing_is_used_twice(
    name: str, order: str, bounds: Bounds, jobs: list[Any], actions: list[Any], refuses: bool
) -> None:
    resized = any(what in ("shrink", "grow") for _, what, _ in actions)
    n_cancelled = sum(what == "cancel" for _, what, _ in actions)
    run = drive(
        MAKE[name](CountTable(CAPACITY), ORDERS[order](), None, bounds), jobs, actions, refuses=refuses
    )
    assert len(run.starts) >= len(jobs) - n_cancelled
    overran = any(ran > limit for _, _, limit, ran, _ in jobs)
    for start_s in run.starts.values():
        kept = 0
        if not overran:
            kept = sum(n for n, from_s, to_s in run.reserved.values() if from_s <= start_s < to_s)
        if not resized:
            assert used_at(run, jobs, start_s) + kept <= CAPACITY


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(["conservative", "uncompressed"]), orders, JOBS, ACTIONS)
def test_conservative_promises_only_improve_or_are_broken_with_a_reason(
    name: str, order: str, jobs: list[Any], actions: list[Any]
) -> None:
    run = drive(MAKE[name](CountTable(CAPACITY), ORDERS[order]()), jobs, actions)
    promised: dict[Any, Promise] = {}
    for now_s, outcome in run.outcomes:
        for broken in outcome.broken:
            assert broken.old_s == promised.pop(broken.key).start_s
            assert broken.new_s > broken.old_s
        for promise in outcome.promises:
            before = promised.get(promise.key)
            assert promise.made_s == now_s
            if before is None:
                assert promise.first_s == promise.start_s > now_s
            else:
                assert promise.start_s < before.start_s
                assert promise.first_s == before.first_s
            promised[promise.key] = promise
        for started in outcome.starts:
            before = promised.pop(started.key, None)
            assert before is None or now_s <= before.start_s


@settings(max_examples=examples(200), deadline=None)
@given(JOBS)
def test_without_overruns_no_promise_is_broken_and_the_head_meets_its_shadow(jobs: list[Any]) -> None:
    jobs = [(gap, n, limit, min(ran, limit), user) for gap, n, limit, ran, user in jobs]
    for name in ("easy", "conservative", "uncompressed", "selective"):
        policy = MAKE[name](CountTable(CAPACITY))
        run = drive(policy, jobs)
        assert policy.n_broken == 0
        promised: dict[Any, float] = {}
        for now_s, outcome in run.outcomes:
            for started in outcome.starts:
                assert now_s <= promised.get(started.key, math.inf)
            promised |= {promise.key: promise.start_s for promise in outcome.promises}


@settings(max_examples=examples(150), deadline=None)
@given(JOBS)
def test_conservative_is_the_full_pass_over_the_queue(jobs: list[Any]) -> None:
    jobs = [(gap, n, limit, min(ran, limit), user) for gap, n, limit, ran, user in jobs]
    assert drive(Conservative(CountTable(CAPACITY)), jobs).starts == _by_seconds(jobs)


class _Seconds:
    """Conservative backfilling, second by second, with nothing but a row of free processors."""

    def __init__(self, jobs: list[Any]) -> None:
        self.jobs = jobs
        self.length = sum(gap + limit for gap, _, limit, _, _ in jobs) + 1
        self.free = [CAPACITY] * self.length
        self.planned: dict[int, int] = {}
        self.starts: dict[int, int] = {}

    def book(self, key: int, from_s: int, to_s: int, sign: int) -> None:
        for second in range(from_s, to_s):
            self.free[second] -= sign * self.jobs[key][1]

    def plan(self, key: int, now_s: int) -> None:
        _, n, limit, _, _ = self.jobs[key]
        start_s = next(s for s in range(now_s, self.length) if min(self.free[s : s + limit]) >= n)
        self.book(key, start_s, start_s + limit, 1)
        self.planned[key] = start_s

    def ended_early(self, key: int, now_s: int) -> None:
        self.book(key, now_s, self.starts[key] + self.jobs[key][2], -1)
        for other in sorted(self.planned):
            self.book(other, self.planned[other], self.planned[other] + self.jobs[other][2], -1)
            self.plan(other, now_s)

    def second(self, now_s: int, submitted: list[int]) -> None:
        for key, start_s in sorted(self.starts.items()):
            if start_s + self.jobs[key][3] == now_s and self.jobs[key][3] < self.jobs[key][2]:
                self.ended_early(key, now_s)
        for key in submitted:
            self.plan(key, now_s)
        for key in sorted(self.planned):
            if self.planned[key] == now_s:
                self.starts[key] = self.planned.pop(key)


def _by_seconds(jobs: list[Any]) -> dict[int, int]:
    plain = _Seconds(jobs)
    submit = [*itertools.accumulate(gap for gap, *_ in jobs)]
    for now_s in range(plain.length):
        plain.second(now_s, [key for key, at_s in enumerate(submit) if at_s == now_s])
    return plain.starts


@settings(max_examples=examples(150), deadline=None)
@given(names, orders, JOBS, ACTIONS, st.sampled_from([5, 20]))
def test_cycles_may_come_late(
    name: str, order: str, jobs: list[Any], actions: list[Any], cycle_s: int
) -> None:
    def make() -> Any:
        return MAKE[name](CountTable(CAPACITY), ORDERS[order]())

    lived = drive(make(), jobs, actions, cycle_s=cycle_s)
    assert lived.outcomes == drive(Forgetful(make), jobs, actions, cycle_s=cycle_s).outcomes
    assert len(lived.starts) >= len(jobs) - sum(what == "cancel" for _, what, _ in actions)


@settings(max_examples=examples(200), deadline=None)
@given(JOBS, st.sampled_from([4.0, 10.0]))
def test_resolution_keeps_jobs_apart_and_ends_on_its_multiples(jobs: list[Any], resolution_s: float) -> None:
    table = CountTable(CAPACITY, resolution_s=resolution_s)
    run = drive(Conservative(table), jobs)
    assert len(run.starts) == len(jobs)
    for start_s in run.starts.values():
        assert used_at(run, jobs, start_s) <= CAPACITY
    for _, outcome in run.outcomes:
        assert all(started.spot.end_s % resolution_s == 0 for started in outcome.starts)


def test_depth_of_easy_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 is EASY"):
        Easy(CountTable(CAPACITY), depth=0)
