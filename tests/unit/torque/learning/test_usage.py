"""Fair-share usage: what was allocated, by user and group, once for each job, fading, over restarts."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.learning.build import NOW_S, job, snapshot
from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import Job, JobId, NodeName, UsedResources
from torque_sched.learning import History, HistorySettings
from torque_sched.learning.schema import migrate
from torque_sched.learning.store import Store
from torque_sched.learning.usage import (
    GROUP,
    USER,
    Account,
    Run,
    charged,
    left,
    pending_runs,
    spent,
)
from torque_sched.policies.context import PendingStart

DAY_S = 86_400.0
LONG = HistorySettings(half_life_s=1e12)


def done(number: int, *, user: str = "ada", group: str = "phys", **more: object) -> Job:
    """Two slots for 100 s until now, whatever it used of them."""
    values: dict[str, object] = {"start_s": NOW_S - 100.0, "cores": 0.0, **more}
    return replace(job(number, "C", user=user, **values), group=group)  # type: ignore[arg-type]


# -- the formulas

times = st.floats(0, 1e7)
runs = st.builds(
    Run, st.just("ada"), st.just("phys"), st.integers(1, 100).map(float), st.integers(0, 8).map(float),
    st.just(0.0), st.floats(0, 1e6),
).map(lambda run: replace(run, start_s=run.end_s - run.end_s / 3))  # fmt: skip


@given(st.lists(runs, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_an_account_does_not_depend_on_the_order_in_which_jobs_are_charged(some: list[Run], choose) -> None:  # type: ignore[no-untyped-def]
    def total(these: list[Run]) -> Account:
        account = None
        for run in these:
            account = charged(account, run, 2e6, DAY_S)
        assert account is not None
        return account.at(2e6, DAY_S)

    mixed = list(some)
    choose.shuffle(mixed)
    assert total(mixed).proc_s == pytest.approx(total(some).proc_s, rel=1e-9, abs=1e-12)
    assert total(mixed).gpu_s == pytest.approx(total(some).gpu_s, rel=1e-9, abs=1e-12)


@given(times, times, times)
def test_a_long_run_counts_as_its_parts_do(length_s: float, more_s: float, age_s: float) -> None:
    whole = spent(length_s + more_s, age_s, DAY_S)
    assert whole == pytest.approx(spent(more_s, age_s, DAY_S) + spent(length_s, age_s + more_s, DAY_S))
    assert 0 <= whole <= (length_s + more_s) * (1 + 1e-9)


def test_usage_counts_half_after_the_half_life_and_never_more_than_before() -> None:
    account = Account(80.0, 8.0, 1000.0)
    assert account.at(1000.0 + DAY_S, DAY_S) == Account(40.0, 4.0, 1000.0 + DAY_S)
    assert account.at(0.0, DAY_S).proc_s == 80.0
    assert account.weighed(10.0) == 160.0
    assert left(1.0, 0.0) == spent(10.0, 0.0, 0.0) == 0.0


# -- in the history


def test_slots_count_for_the_time_they_were_held_used_or_not() -> None:
    memory = History.open(None, LONG)
    memory.observe(snapshot(done(1), done(2, user="bob", cores=2.0)))
    assert memory.usage(NOW_S) == pytest.approx({"ada": 200.0, "bob": 200.0}, rel=1e-6)
    accounts = memory.used.accounts(NOW_S)
    assert accounts[GROUP, "phys"].proc_s == pytest.approx(400.0, rel=1e-6)


def test_a_gpu_second_counts_as_the_key_says() -> None:
    for weight in (0.0, 10.0, 25.0):
        memory = History.open(None, replace(LONG, gpu_weight=weight))
        memory.observe(snapshot(done(1, gpus=4)))
        assert memory.usage(NOW_S)["ada"] == pytest.approx(200.0 + weight * 400.0, rel=1e-6)


def test_running_and_suspended_jobs_and_starts_on_their_way_count() -> None:
    memory = History.open(None, LONG)
    began, waits = job(1, "R", start_s=NOW_S - 50.0), job(3, user="eve")
    asleep = job(2, "S", user="bob", start_s=NOW_S - 40.0)
    seen = snapshot(began, asleep, waits)
    memory.observe(seen)
    pending = (PendingStart(JobId("3.head"), (NodeShare(NodeName("n1"), 4, 1),), NOW_S - 5.0),)
    usage = memory.usage(NOW_S, pending_runs(seen, pending))
    assert usage == pytest.approx({"ada": 100.0, "bob": 80.0, "eve": 5 * (4 + 10.0)}, rel=1e-6)


def test_what_a_job_counts_does_not_jump_when_it_ends() -> None:
    memory = History.open(None, HistorySettings(half_life_s=1000.0))
    long = job(1, "R", start_s=NOW_S - 5000.0)
    memory.observe(snapshot(long))
    before = memory.usage(NOW_S)["ada"]
    memory.observe(snapshot(done(1, start_s=NOW_S - 5000.0, runtime_s=5000.0)))
    assert memory.usage(NOW_S)["ada"] == pytest.approx(before)
    assert before < 2 * 1000.0 / 0.69


def test_a_job_that_is_seen_ended_twice_counts_once_also_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    for _ in range(3):
        memory = History.open(path, LONG)
        memory.observe(snapshot(done(1)))
        memory.observe(snapshot())
        memory.observe(snapshot(done(1)))
        assert memory.usage(NOW_S) == pytest.approx({"ada": 200.0}, rel=1e-6)
        memory.close()
    again = History.open(path, LONG)
    assert again.usage(NOW_S) == pytest.approx({"ada": 200.0}, rel=1e-6)
    assert History.copy_of(path, LONG).usage(NOW_S) == again.usage(NOW_S)
    again.close()


def test_more_jobs_than_are_remembered_count_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    few = replace(LONG, max_jobs=10, rebuild_jobs=5)
    memory = History.open(path, few)
    for number in range(40):
        memory.observe(snapshot(done(number)))
    memory.close()
    again = History.open(path, few)
    assert again.usage(NOW_S)["ada"] == pytest.approx(40 * 200.0, rel=1e-6)
    again.close()


def test_nothing_is_lost_or_counted_twice_while_the_file_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    memory = History.open(path, LONG)
    record, fails = memory._store.record, [True]

    def failing(*args: object) -> object:
        if fails[0]:
            raise sqlite3.OperationalError("disk I/O error")
        return record(*args)  # type: ignore[arg-type]

    memory._store.record = failing  # type: ignore[method-assign,assignment]
    memory.observe(snapshot(done(1)))
    memory.observe(snapshot(done(2)))
    assert memory.usage(NOW_S)["ada"] == pytest.approx(400.0, rel=1e-6)
    fails[0] = False
    memory.observe(snapshot(done(3)))
    assert memory.usage(NOW_S)["ada"] == pytest.approx(600.0, rel=1e-6)
    memory.close()
    again = History.open(path, LONG)
    assert again.usage(NOW_S)["ada"] == pytest.approx(600.0, rel=1e-6)
    again.close()


@pytest.mark.parametrize("step_s", [-400 * DAY_S, -600.0, 600.0])
def test_steps_of_the_clock_do_no_harm(step_s: float) -> None:
    memory = History.open(None, HistorySettings(half_life_s=DAY_S))
    memory.observe(snapshot(done(1)))
    stepped_s = NOW_S + step_s
    before, after = memory.usage(NOW_S)["ada"], memory.usage(stepped_s)["ada"]
    assert 0.99 * before < after <= before
    memory.observe(snapshot(done(2, user="bob", start_s=stepped_s - 100.0), now_s=stepped_s))
    # Both fade from the new time on, and equally.
    later = memory.usage(stepped_s + DAY_S)
    assert later["ada"] == pytest.approx(later["bob"], rel=0.01)
    assert later["ada"] == pytest.approx(before / 2, rel=0.01)


def test_a_job_whose_times_make_no_sense_counts_for_what_its_mom_measured() -> None:
    memory = History.open(None, LONG)
    odd = replace(done(1), start_s=NOW_S + 5000.0, comp_s=NOW_S)
    never = replace(done(2), start_s=None, used=UsedResources())
    memory.observe(snapshot(odd, never))
    assert memory.usage(NOW_S) == pytest.approx({"ada": 200.0}, rel=1e-6)


def test_a_file_of_the_version_before_begins_with_the_jobs_it_has(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    db = sqlite3.connect(path, isolation_level=None)
    migrate(db, "old", up_to=3)
    db.execute(
        "INSERT INTO jobs (job, ctime_s, user, script, shape, time_limit, queue, nodes, n_procs, "
        "n_gpus, start_s, end_s, runtime_s, rate, source, said) VALUES ('7.head', 1.0, 'ada', 'relax', "
        "'1x1', '', 'batch', '{\"n1\":2}', 2, 1, 1000.0, 1100.0, 99.0, 1.0, 'qstat', '')"
    )
    db.close()
    for _ in range(2):
        memory = History.open(path, LONG)
        assert memory.used.accounts(NOW_S)[USER, "ada"].gpu_s == pytest.approx(100.0, rel=0.01)
        assert memory.usage(NOW_S)["ada"] == pytest.approx(200.0 + 10 * 100.0, rel=0.01)
        memory.close()


def test_what_another_scheduler_counted_is_taken_over_anew_not_once_more(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    for amount in (800.0, 800.0, 100.0):
        memory = History.open(path, LONG)
        assert memory.take_over_usage({"ada": amount}, NOW_S)
        assert memory.usage(NOW_S) == pytest.approx({"ada": amount})
        memory.close()
    # Where accounting tells the same jobs, it goes.
    memory = History.open(path, LONG, accounting=tmp_path)
    assert not memory.take_over_usage({"ada": 100.0}, NOW_S)
    assert memory.usage(NOW_S) == {}
    memory.close()
    with Store.looked_at(path) as store:
        assert store.usage() == {}
