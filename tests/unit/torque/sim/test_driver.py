"""The clock and the policies on it, against slow schedulers written apart from them."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.torque.sim.logs import job, reference_conservative, reference_easy
from torque_sched.errors import TorqueSchedError
from torque_sched.policies.backfilling.events import Ended, Outcome, Started, Submitted
from torque_sched.sim.check import problems
from torque_sched.sim.driver import simulate
from torque_sched.sim.experiment import ORDERS, POLICIES, Plan, new_policy
from torque_sched.sim.schedule import Schedule
from torque_sched.sim.workload import Choice, Overrun, Workload, read_trace, workload_of

TRACES = Path(__file__).resolve().parents[4] / "benchmarks" / "traces"
PROCS = 10
ROWS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(1, PROCS), st.integers(0, 40)), max_size=30
)


def workload(rows: Sequence[tuple[int, int, int, int]]) -> Workload:
    """Rows of (submission, run time, width, what the limit is longer by)."""
    rows = sorted(rows)
    jobs = [job(n, submit, run, procs, run + more) for n, (submit, run, procs, more) in enumerate(rows)]
    return Workload(PROCS, tuple(jobs), len(jobs))


def scheduled(name: str, jobs: Workload, **plan: Any) -> Schedule:
    return simulate(name, jobs, new_policy(name, jobs, Plan((name,), **plan)))


@settings(deadline=None)
@given(ROWS)
def test_fcfs_starts_each_as_soon_as_it_can(rows: list[tuple[int, int, int, int]]) -> None:
    assert problems(scheduled("fcfs", workload(rows)), is_fcfs=True) == []


@settings(deadline=None)
@given(ROWS)
def test_easy_is_easy(rows: list[tuple[int, int, int, int]]) -> None:
    jobs = workload(rows)
    assert scheduled("easy", jobs).starts == reference_easy(jobs)


@settings(deadline=None)
@given(ROWS, st.booleans())
def test_conservative_is_conservative(rows: list[tuple[int, int, int, int]], compress: bool) -> None:
    jobs = workload(rows)
    ours = scheduled("conservative", jobs, compress=compress)
    assert ours.starts == reference_conservative(jobs, compress=compress)


@settings(deadline=None)
@given(
    ROWS,
    st.sampled_from(POLICIES),
    st.sampled_from(("user", "exact", "learned", "upper")),
    st.sampled_from(ORDERS),
)
def test_whatever_is_asked_for_the_invariants_hold(
    rows: list[tuple[int, int, int, int]], policy: str, estimates: str, order: str
) -> None:
    jobs = workload(rows)
    schedule = scheduled(policy, jobs, estimates=estimates, order=order)
    assert problems(schedule) == []
    assert schedule.n_events == 2 * len(jobs.jobs)


@settings(deadline=None)
@given(ROWS)
def test_with_right_limits_no_promise_is_ever_broken(rows: list[tuple[int, int, int, int]]) -> None:
    schedule = scheduled("conservative", workload(rows))
    assert schedule.broken == ()
    pairs = zip(schedule.first_promises, schedule.starts, strict=True)
    assert all(start <= first for first, start in pairs if first is not None)


def test_a_job_that_runs_past_its_limit_breaks_promises_and_that_is_said() -> None:
    jobs = Workload(PROCS, (job(1, 0, 100, 10, 20), job(2, 1, 5, 10, 5)), 2)
    schedule = scheduled("conservative", jobs)
    assert schedule.starts == [0, 100]
    assert schedule.first_promises[1] == 20
    assert schedule.broken
    assert {each.place for each in schedule.broken} == {1}
    assert problems(schedule) == []


def test_equal_runs_have_equal_hashes_and_others_have_not() -> None:
    jobs = workload([(0, 10, 6, 5), (1, 10, 6, 0), (2, 5, 4, 0)])
    first, again, other = (scheduled(name, jobs) for name in ("easy", "easy", "fcfs"))
    assert first == again
    assert first.digest == again.digest != other.digest


def test_fractions_of_seconds_are_kept() -> None:
    jobs = Workload(PROCS, tuple(job(n, n / 3, 0.1, 10) for n in range(50)), 50)
    schedule = scheduled("conservative", jobs)
    assert schedule.starts == [n / 3 for n in range(50)]
    assert problems(schedule) == []


class _Told:
    """Notes what it is told, and starts everything at once."""

    def __init__(self) -> None:
        self.instants: list[tuple[float, list[str]]] = []

    def apply(self, events: Sequence[Any], now_s: float) -> Outcome[Any]:
        self.instants.append((now_s, [type(each).__name__ for each in events]))
        return Outcome(tuple(Started(e.job.key, None) for e in events if isinstance(e, Submitted)))


def test_an_instant_is_told_once_and_terminations_first() -> None:
    told = _Told()
    simulate("told", Workload(PROCS, (job(1, 0, 5, 1), job(2, 0, 5, 1), job(3, 5, 1, 1)), 3), told)
    assert told.instants == [
        (0, ["Submitted", "Submitted"]), (5, ["Ended", "Ended", "Submitted"]), (6, ["Ended"]),
    ]  # fmt: skip


class _Lazy:
    def apply(self, events: Sequence[Any], now_s: float) -> Outcome[Any]:
        return Outcome()


class _Hasty:
    def apply(self, events: Sequence[Any], now_s: float) -> Outcome[Any]:
        return Outcome((Started(1, None),))


class _Restless:
    def apply(self, events: Sequence[Any], now_s: float) -> Outcome[Any]:
        return Outcome(wake_s=now_s)


@pytest.mark.parametrize(
    ("policy", "words"),
    [(_Lazy(), "2 jobs waiting for ever"), (_Hasty(), "does not wait"), (_Restless(), "asked again")],
)
def test_a_policy_that_goes_wrong_is_refused(policy: Any, words: str) -> None:
    jobs = Workload(PROCS, (job(1, 0, 5, 1), job(2, 1, 5, 1)), 2)
    with pytest.raises(TorqueSchedError, match=words):
        simulate("wrong", jobs, policy)


def test_nothing_to_do_ends_at_once() -> None:
    schedule = scheduled("easy", Workload(PROCS, (), 0))
    assert (schedule.starts, schedule.n_events) == ([], 0)


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_every_start_equals_the_referees(policy: str) -> None:
    """The referee is another simulator; its table came with the trace (benchmarks/traces/README.md)."""
    with gzip.open(TRACES / "ctc_1000_tiefree.pyss_starts.csv.gz", "rt") as lines:
        header, *table = (line.strip().split(",") for line in lines)
    column = header.index(f"start_{policy}")
    jobs = workload_of(read_trace(TRACES / "ctc_1000_tiefree.swf.gz"), Choice())
    ours = dict(scheduled(policy, jobs).rows())
    assert len(table) == len(ours) == 1000
    assert {int(row[0]): row[column] for row in table} == ours


def test_extended_overruns_run_their_whole_time() -> None:
    trace = read_trace(TRACES / "ctc_1000.swf.gz")
    jobs = workload_of(trace, Choice(max_jobs=200, overrun=Overrun.EXTEND))
    cut = Workload(jobs.procs, tuple(each._replace(limit_s=each.limit_s // 2 + 1) for each in jobs.jobs), 200)
    schedule = scheduled("conservative", cut)
    assert problems(schedule) == []
    assert schedule.broken


def test_ended_events_come_for_every_job() -> None:
    told = _Told()
    simulate("told", workload([(0, 5, 1, 0), (3, 9, 2, 0)]), told)
    assert sum(names.count(Ended.__name__) for _, names in told.instants) == 2
