"""Made-up workloads, the definitions of the policies written slowly, and a table that knows no short cut."""

from __future__ import annotations

import itertools
import math
from typing import Any

from hypothesis import strategies as st

from tests.unit.torque.simulate.logs import reference_easy
from torque_sched.simulate.counts.experiment import simulate
from torque_sched.simulate.counts.scheduler import CountScheduler, Pass
from torque_sched.simulate.counts.table import Interval, ProcessorTable
from torque_sched.simulate.schedule import Schedule
from torque_sched.simulate.workload import TraceJob, Workload

CAPACITY = 8

JOBS = st.lists(
    st.tuples(
        st.integers(0, 6),  # seconds since the job before
        st.integers(1, CAPACITY),  # processors
        st.integers(1, 20),  # limit
        st.integers(1, 24),  # run time; past the limit it overruns
        st.sampled_from("abc"),  # user
    ),
    min_size=1,
    max_size=25,
)
PRIORITIES = {0: 0.0, 1: 1.0, 2: 2.0}


def workload_of(jobs: list[Any]) -> Workload:
    """Jobs as of `JOBS`; their queues have `PRIORITIES`."""
    submits = itertools.accumulate(gap for gap, *_ in jobs)
    traced = [
        TraceJob(place, submit_s, n, ran, limit, ord(user), 1, 7, n % 3)
        for place, ((_, n, limit, ran, user), submit_s) in enumerate(zip(jobs, submits, strict=True))
    ]
    return Workload(CAPACITY, tuple(traced), len(traced))


def drive(policy: CountScheduler, jobs: list[Any]) -> tuple[Schedule, list[tuple[float, Pass]]]:
    """The schedule, and each answer of the policy with its instant."""
    answers: list[tuple[float, Pass]] = []

    class Recorded:
        def apply(self, now_s: float, *events: Any) -> Pass:
            answers.append((now_s, policy.apply(now_s, *events)))
            return answers[-1][1]

    made = simulate("given", workload_of(jobs), Recorded(), priorities=PRIORITIES)  # type: ignore[arg-type]
    return made, answers


class PlainTable(ProcessorTable):
    """Tries everybody, by really taking out and putting back."""

    def width_bit(self, procs: int) -> int:
        return -1

    def startable(self) -> int:
        return -1

    def startable_past(self) -> tuple[float, int]:
        return math.inf, -1

    def opened(self, interval: Interval, moved_to: Interval | None = None) -> int:
        return -1

    def earlier(self, procs: int, length_s: float, planned: Interval, not_before_s: float) -> Interval | None:
        self.give_back(planned)
        start_s = self.free.earliest(procs, length_s, not_before_s)
        self.take(planned)
        return Interval(procs, start_s, start_s + length_s) if start_s < planned.start_s else None


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


def by_seconds(jobs: list[Any]) -> dict[int, int]:
    plain = _Seconds(jobs)
    submit = [*itertools.accumulate(gap for gap, *_ in jobs)]
    for now_s in range(plain.length):
        plain.second(now_s, [key for key, at_s in enumerate(submit) if at_s == now_s])
    return plain.starts


def by_definition_of_easy(jobs: list[Any]) -> dict[int, float]:
    """When EASY starts each of them."""
    return dict(enumerate(reference_easy(workload_of(jobs))))
