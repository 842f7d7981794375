"""Fair-share usage: what was allocated, by user and group, once for each job, fading, over restarts."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.learn.build import NOW_S, job, node, snapshot
from torque_sched.decide.context import Context, PendingStart
from torque_sched.decide.decide import decide
from torque_sched.decide.rules import MemoryRules, Rates
from torque_sched.decide.settings import Settings
from torque_sched.errors import ConfigError, ModelError
from torque_sched.learn import History, HistorySettings
from torque_sched.learn.ensemble import PredictorEnsemble
from torque_sched.learn.figures import Amounts, Figure, amounts_of, cpu_rate, figures_of, share
from torque_sched.learn.predictors import Fingerprint
from torque_sched.learn.rows import fingerprint_of, script_of, shape_of
from torque_sched.learn.schema import VERSION, migrate
from torque_sched.learn.store import Store
from torque_sched.learn.usage import ACCOUNT, GROUP, USER, Account, Run, charged, left, pending_runs, spent
from torque_sched.model.cluster import Job, JobId, NodeName, Queue, QueueName, Server, UsedResources
from torque_sched.model.decisions import Decision, Hold, NodeShare, Start
from torque_sched.model.reasons import Reason
from torque_sched.model.request import Chunk, GenericResource, Request
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState

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
    path, once = tmp_path / "history.sqlite", pytest.approx({"ada": 200.0}, rel=1e-6)
    for _ in range(3):
        with closing(History.open(path, LONG)) as memory:
            for seen in (snapshot(done(1)), snapshot(), snapshot(done(1))):
                memory.observe(seen)
            assert memory.usage(NOW_S) == once
    with closing(History.open(path, LONG)) as again:
        assert again.usage(NOW_S) == once
        assert History.copy_of(path, LONG).usage(NOW_S) == again.usage(NOW_S)


def test_more_jobs_than_are_remembered_count_all_the_same(tmp_path: Path) -> None:
    path, few = tmp_path / "history.sqlite", replace(LONG, max_jobs=10, rebuild_jobs=5)
    with closing(History.open(path, few)) as memory:
        for number in range(40):
            memory.observe(snapshot(done(number)))
    with closing(History.open(path, few)) as again:
        assert again.usage(NOW_S)["ada"] == pytest.approx(40 * 200.0, rel=1e-6)


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


@pytest.mark.parametrize("version", [4, VERSION])
def test_an_older_file_counts_by_account_from_now_on(tmp_path: Path, version: int) -> None:
    path = tmp_path / "history.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate(db, "old", up_to=version)
        db.execute("INSERT INTO usage VALUES ('user', 'ada', 50.0, 0.0, ?)", (NOW_S,))
        db.execute("INSERT INTO usage VALUES ('group', 'phys', 70.0, 0.0, ?)", (NOW_S,))
    for _ in range(2):
        with closing(History.open(path, LONG)) as memory:
            memory.observe(snapshot(replace(done(1), account="p1"), replace(done(2), account="x user=bob")))
            found = memory.used.by_kind(NOW_S)
            assert found[USER] == pytest.approx({"ada": 450.0})
            assert found[GROUP] == pytest.approx({"phys": 470.0})
            assert found[ACCOUNT] == pytest.approx({"p1": 200.0, "x user=bob": 200.0})


holders = st.tuples(
    *(st.sampled_from(names) for names in (["ada", "bob"], ["phys", "chem"], ["", "p1", "p2"]))
)


@given(st.lists(st.tuples(holders, st.floats(1, 1000), st.booleans()), max_size=8))
def test_usage_of_users_of_groups_and_of_accounts_adds_up_to_the_same(
    some: list[tuple[tuple[str, str, str], float, bool]],
) -> None:
    jobs = []
    for number, ((user, group, account), length_s, is_done) in enumerate(some, 1):
        one = replace(done(number, user=user, group=group), start_s=NOW_S - length_s)
        one = one if is_done else replace(one, state=JobState.RUNNING, comp_s=None, exit_status=None)
        jobs.append(replace(one, account=account))
    with closing(History.open(None, LONG)) as memory:
        memory.observe(snapshot(*jobs))
        found = {kind: sum(names.values()) for kind, names in memory.used.by_kind(NOW_S).items()}
    total = sum(2 * length_s for _, length_s, _ in some)
    charged_s = sum(2 * length_s for (_, _, account), length_s, _ in some if account)
    assert found == pytest.approx({USER: total, GROUP: total, ACCOUNT: charged_s})


def test_what_another_scheduler_counted_is_taken_over_anew_not_once_more(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    for amount in (800.0, 800.0, 100.0):
        with closing(History.open(path, LONG)) as memory:
            assert memory.take_over_usage({"ada": amount}, NOW_S)
            assert memory.usage(NOW_S) == pytest.approx({"ada": amount})
    # Where accounting tells the same jobs, it goes.
    with closing(History.open(path, LONG, accounting=tmp_path)) as memory:
        assert not memory.take_over_usage({"ada": 100.0}, NOW_S)
        assert memory.usage(NOW_S) == {}
    with Store.looked_at(path) as store:
        assert store.usage() == {}


# Amounts belong to the job; shares and times depend on the node.


def test_busy_cores_are_the_same_everywhere_and_their_share_is_not() -> None:
    used = amounts_of(job(1, "C", cores=3.0))
    assert used is not None
    assert used.cpu_cores is not None
    assert [share(used.cpu_cores, n_cores) for n_cores in (12, 4, 2)] == [0.25, 0.75, 1.0]
    assert share(1.0, 0) == 0.0


def test_figures_return_to_amounts() -> None:
    used = Amounts(100.0, 3.0, 2.0**31, 1.5, 2.0**33)
    figures = figures_of(used, 4, 2, 0)
    back = {figure: figure.amount(value, 4, 2) for figure, value in figures.items()}
    expected = {
        Figure.CPU: 3.0, Figure.MEMORY: 2.0**31, Figure.GPU: 1.5, Figure.GPU_MEMORY: 2.0**33,
        Figure.RUNTIME: 100.0,
    }  # fmt: skip
    assert back == pytest.approx(expected)


@pytest.mark.parametrize(("status", "counts"), [(0, True), (1, True), (-11, True), (-1, False), (-3, False)])
def test_a_job_that_never_ran_teaches_nothing(status: int, counts: bool) -> None:
    assert (amounts_of(job(1, "C", exit_status=status)) is not None) == counts


def test_the_run_time_of_a_deleted_job_says_nothing_but_its_memory_does() -> None:
    used = Amounts(10.0, 1.0, 2.0**30)
    assert set(figures_of(used, 1, 0, 271)) == {Figure.CPU, Figure.MEMORY}
    assert Figure.RUNTIME in figures_of(used, 1, 0, 1)


def test_a_job_gone_before_mom_looked_shows_zeros_that_are_no_measurement() -> None:
    unseen = amounts_of(replace(job(1, "C", runtime_s=3.0), used=UsedResources(0.0, 3.0, 0)))
    assert unseen is not None
    assert (unseen.cpu_cores, unseen.mem_bytes, unseen.runtime_s) == (None, None, 3.0)


@given(
    st.builds(
        Amounts, runtime_s=st.none() | st.floats(0, 1e9), cpu_cores=st.none() | st.floats(0, 1e6),
        mem_bytes=st.none() | st.floats(0, 1e18), gpus=st.none() | st.floats(0, 64),
        gpu_mem_bytes=st.none() | st.floats(0, 1e15), rate=st.floats(0.01, 1e5),
    ),
    st.integers(0, 4096), st.integers(0, 64), st.none() | st.integers(-20, 512),
)  # fmt: skip
def test_whatever_is_learned_is_a_finite_number(
    used: Amounts, procs: int, gpus: int, status: int | None
) -> None:
    figures = figures_of(used, procs, gpus, status)
    assert all(math.isfinite(value) for value in figures.values())
    assert gpus or not figures.keys() & {Figure.GPU, Figure.GPU_MEMORY}


def test_a_rate_is_found_by_name_then_by_property() -> None:
    rates = {"n1": Rates(3.0), "slow": Rates(0.5)}
    assert cpu_rate(node("n1", properties=("slow",)), rates) == 3.0
    assert cpu_rate(node("n2", properties=("big", "slow")), rates) == 0.5
    assert cpu_rate(node("n3"), rates) == 1.0


# Which jobs count as the same kind.


SCRIPTS = {
    "relax": ("relax-017", "relax_18.sh", "relax.pbs"),
    **{"run": ("run0042",), "job": ("job7",), "my_task": ("my_task12",), "case": ("case20170304",)},
    **{"namd2": ("namd2", "namd2-0017"), "h264": ("h264",), "12345": ("12345",), "": ("STDIN", "")},
}


@pytest.mark.parametrize(
    ("name", "script"), [(name, key) for key, names in SCRIPTS.items() for name in names]
)
def test_the_number_of_a_run_is_not_part_of_the_script(name: str, script: str) -> None:
    assert script_of(job(1, name=name)) == script


def test_a_member_of_an_array_is_of_the_kind_of_the_array() -> None:
    assert script_of(job(1, name="align2-5", array_index=5)) == "align2"


@pytest.mark.parametrize(
    ("request_", "shape"),
    [
        (Request(chunks=(Chunk(2, 4, 1), Chunk(1, 1))), "2x4+1,1x1"),
        (Request(procs=16), "p16"),
        (Request(), "1x1"),
        (Request(gres=(GenericResource("gpus", 2),)), "1x1,g2"),
    ],
)
def test_shape_says_what_is_asked_for(request_: Request, shape: str) -> None:
    found = shape_of(Job(JobId("1.head"), JobState.QUEUED, QueueName("batch"), request_))
    assert found == shape


def test_a_fingerprint_has_user_script_shape_and_limit() -> None:
    kind = fingerprint_of(job(3, name="relax-3", user="ada", ppn=4, gpus=1, walltime_s=7200))
    assert (kind.user, kind.script, kind.shape, kind.limit) == ("ada", "relax", "1x4+1", "7200")
    assert fingerprint_of(job(3, walltime_s=None)).limit == ""


# Of several predictors the first answers, and the others are recorded beside it.


KIND = Fingerprint("ada", "relax", "1x2", "3600")


def test_the_first_predictor_answers_and_each_answer_is_recorded() -> None:
    """The mean over all runs stays at the old value; a short window follows."""
    for names in (("seed", "chain"), ("chain", "seed")):
        forecast = PredictorEnsemble(names)
        for value in [1.0] * 30 + [5.0] * 15:
            forecast.observe(KIND, value)
        predicted = forecast.predict(KIND)
        assert (predicted.predictor, predicted.by_name.keys()) == (names[0], {"seed", "chain"})
        assert predicted.by_name["chain"].value == pytest.approx(5.0, abs=0.1)
        assert predicted.by_name["seed"].value == pytest.approx((30 + 75) / 45)
        assert predicted.estimate.value == predicted.by_name[names[0]].value


def test_a_bound_is_never_below_the_value() -> None:
    forecast = PredictorEnsemble(("seed", "chain"))
    for n in range(50):
        forecast.observe(KIND, float(n % 7))
        estimate = forecast.predict(KIND).estimate
        assert estimate.upper is not None
        assert estimate.upper >= estimate.value


def test_unknown_names_and_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="known are chain, seed"):
        PredictorEnsemble(("crystal ball",))
    with pytest.raises(ModelError):
        PredictorEnsemble(("chain",)).observe(KIND, float("nan"))


# With memory admission a job waits while jobs like it used more than is free, for a while, and is told.


LIMIT_S = 3600.0


def decided(waiting: Job, *, is_on: bool = True, n_similar: int = 5, now_s: float = NOW_S + 60) -> Decision:
    """A job whose like used 62 GiB each, on a node of 64 GiB of which 60 are free."""
    history = History.open(None)
    machine = node(rectime_s=now_s)
    queues = (Queue(name=QueueName("batch")),)
    server = Server(name="head")
    ended = [job(100 + n, "C", mem_bytes=62 << 30, start_s=NOW_S - 5000) for n in range(n_similar)]
    history.observe(Snapshot(now_s - 30, server, queues, (machine,), tuple(ended)))
    look = Snapshot(now_s, server, queues, (machine,), (waiting,))
    history.observe(look)
    context = Context(predictions=history.predictions(), measured=history.measured(look))
    settings = Settings(memory=MemoryRules(admission=is_on, admission_limit_s=LIMIT_S))
    (decision,) = decide(look, settings, context)
    return decision


@pytest.mark.parametrize(
    ("asked", "changes", "waits"),
    [
        (job(1), {"is_on": False}, False),
        (job(1), {}, True),
        (job(1), {"now_s": NOW_S + 1 + LIMIT_S + 1}, False),
        (job(1), {"n_similar": 2}, False),
        (job(1), {"n_similar": 3}, True),
        (job(1, user="eve", name="tiny"), {}, False),
    ],
    ids=["off", "on", "waited long", "too few like it", "enough like it", "of somebody else"],
)
def test_a_job_waits_for_learned_memory(asked: Job, changes: dict[str, Any], waits: bool) -> None:
    decision = decided(asked, **changes)
    assert isinstance(decision, Hold if waits else Start)
    if isinstance(decision, Hold):
        assert decision.reason is Reason.LEARNED_MEMORY
        assert "Jobs like this one used more memory than is free now" in decision.comment
