"""The count-only backfilling policies against what defines them, on made-up workloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.property.torque.backfilling_drive import (
    CAPACITY,
    JOBS,
    PlainTable,
    by_definition_of_easy,
    by_seconds,
    drive,
)
from torque_sched.simulate.check import problems
from torque_sched.simulate.counts.jobs import StaticOrder, UsageOrder
from torque_sched.simulate.counts.policies import POLICIES, ConservativePolicy, EasyPolicy
from torque_sched.simulate.counts.scheduler import PolicySettings
from torque_sched.simulate.counts.table import Interval, ProcessorTable

VARIANTS = {
    "fcfs": PolicySettings(),
    "easy": PolicySettings(),
    "easy, 3": PolicySettings(depth=3),
    "easy, window": PolicySettings(window_s=15.0),
    "easy, few": PolicySettings(max_jobs=2),
    "conservative": PolicySettings(),
    "conservative, uncompressed": PolicySettings(compress=False),
    "conservative, 2": PolicySettings(depth=2),
    "conservative, window": PolicySettings(window_s=15.0),
    "selective": PolicySettings(),
    "selective, few": PolicySettings(max_jobs=2),
}
ORDERS: dict[str, Callable[[], StaticOrder]] = {
    "fcfs": StaticOrder,
    "priority": lambda: StaticOrder(lambda job: -job.priority),
    "sjf": lambda: StaticOrder(lambda job: job.length_s),
    "fair": lambda: UsageOrder(half_life_s=20.0),
}
orders = st.sampled_from(sorted(ORDERS))


def made(name: str, order: str = "fcfs", table: type[ProcessorTable] = ProcessorTable) -> Any:
    return POLICIES[name.partition(",")[0]](table(CAPACITY), ORDERS[order](), None, VARIANTS[name])


def in_time(jobs: list[Any]) -> list[Any]:
    return [(gap, n, limit, min(ran, limit), user) for gap, n, limit, ran, user in jobs]


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(sorted(VARIANTS)), orders, JOBS)
def test_every_job_runs_once_nothing_is_used_twice_and_short_cuts_change_nothing(
    name: str, order: str, jobs: list[Any]
) -> None:
    schedule, answers = drive(made(name, order), jobs)
    assert problems(schedule, is_fcfs=name == order == "fcfs") == []
    assert answers == drive(made(name, order, PlainTable), jobs)[1]


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(["conservative", "conservative, uncompressed"]), orders, JOBS)
def test_conservative_reservations_only_improve_or_are_reported_as_broken(
    name: str, order: str, jobs: list[Any]
) -> None:
    _, answers = drive(made(name, order), jobs)
    guaranteed: dict[int, float] = {}
    for now_s, answer in answers:
        for moved in answer.moved:
            assert moved.old_s == guaranteed.pop(moved.place) < moved.new_s
        for place, start_s in answer.guaranteed:
            assert now_s < start_s < guaranteed.get(place, float("inf"))
            guaranteed[place] = start_s
        for place in answer.starts:
            assert now_s <= guaranteed.pop(place, now_s)


@settings(max_examples=examples(200), deadline=None)
@given(JOBS)
def test_without_overruns_no_guaranteed_start_moves(jobs: list[Any]) -> None:
    for name in ("easy", "conservative", "conservative, uncompressed", "selective"):
        schedule, _ = drive(made(name), in_time(jobs))
        assert problems(schedule, is_firm=True) == []


@settings(max_examples=examples(150), deadline=None)
@given(JOBS)
def test_conservative_is_the_full_pass_over_the_queue_and_easy_its_definition(jobs: list[Any]) -> None:
    for policy, definition in ((ConservativePolicy, by_seconds), (EasyPolicy, by_definition_of_easy)):
        schedule, _ = drive(policy(ProcessorTable(CAPACITY)), in_time(jobs))
        assert dict(enumerate(schedule.starts)) == definition(in_time(jobs))


@settings(max_examples=examples(200), deadline=None)
@given(JOBS, st.sampled_from([4.0, 10.0]))
def test_resolution_keeps_jobs_apart_and_ends_on_its_multiples(jobs: list[Any], resolution_s: float) -> None:
    schedule, _ = drive(ConservativePolicy(_RoundTable(CAPACITY, resolution_s=resolution_s)), jobs)
    assert problems(schedule) == []


class _RoundTable(ProcessorTable):
    def take(self, interval: Interval) -> None:
        assert interval.end_s % self.resolution_s == 0
        super().take(interval)
