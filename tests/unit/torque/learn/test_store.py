"""The history file: versions, bounds, once for each job, whole cycles only."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tests.examples import examples
from torque_sched.errors import StartupError
from torque_sched.learn import History
from torque_sched.learn.figures import Amounts
from torque_sched.learn.predictors import Fingerprint
from torque_sched.learn.rows import BalanceRow, CycleFacts, EndedJob, JobKey, Use
from torque_sched.learn.schema import VERSION, migrate
from torque_sched.learn.store import Store


def ended(number: int, *, ctime_s: float = 1.0, source: str = "qstat") -> EndedJob:
    kind = Fingerprint("ada", "relax", "1x2", "3600")
    used = Amounts(100.0, 1.5, 2.0**30, None, None, 1.0)
    key = (f"{number}.head", ctime_s)
    return EndedJob(key, kind, "batch", {"n1": 2}, 2, 0, 1.0, 2.0, 100.0 + number, 0, used, source, "{}")


def balance(at_s: float) -> BalanceRow:
    return BalanceRow(at_s, 4, 1, 2, 0.5, 0.1, 0.2, 0.3, 0.05, 8, 2, 1, 3, 60.0)


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    key: JobKey = ("9.head", 5.0)
    use = Use(3, 50.0, 4.5, 1e9, 0.5, 1e8, True, False)
    store = Store(path)
    jobs, position = (ended(1), ended(2)), ("20261120", 99)
    store.record(CycleFacts(jobs, {(key, "n1"): use}, {key: "said"}, balance(7.0), position, 60.0))
    store.close()
    again = Store(path)
    assert again.ended(10) == jobs
    assert again.ended(10, since_s=101.5) == (ended(2),)
    assert again.uses() == {(key, "n1"): use}
    assert again.pending() == {key: "said"}
    assert (again.balance(), again.position()) == ((balance(7.0),), position)
    again.close()


def test_an_ended_job_leaves_no_traces_of_its_run_nor_in_the_end_does_one_never_seen_to_end() -> None:
    store = Store(None)
    ended_key, old, young = ((f"{number}.head", 1.0) for number in (1, 2, 3))
    store.record(CycleFacts((), {(ended_key, "n1"): Use(1), (ended_key, "n2"): Use(1)}, {ended_key: "said"}))
    store.record(CycleFacts((ended(1),)))
    assert (len(store.uses()), len(store.pending())) == (0, 0)
    late_s = 40 * 86400.0
    for key, at_s in ((old, 10.0), (young, late_s)):
        store.record(CycleFacts(uses={(key, "n1"): Use(1, at_s)}, pending={key: "x"}, now_s=at_s))
    store.tidy(late_s)
    assert store.uses().keys() == {(young, "n1")}
    assert store.pending() == {young: "x"}
    store.close()


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_older_file_is_brought_to_this_version_with_its_jobs(tmp_path: Path, version: int) -> None:
    path = tmp_path / "history.sqlite"
    db = sqlite3.connect(path, isolation_level=None)
    migrate(db, "old", up_to=version)
    db.execute(
        "INSERT INTO jobs (job, ctime_s, user, script, shape, time_limit, queue, nodes, n_procs, "
        "n_gpus, rate, source, said) "
        "VALUES ('7.head', 1.0, 'ada', 'relax', '1x1', '', 'batch', '{}', 1, 0, 1.0, 'qstat', '')"
    )
    db.close()
    store = Store(path)
    assert [job.key for job in store.ended(5)] == [("7.head", 1.0)]
    store.record(CycleFacts(balance=balance(1.0)))
    assert store.promises() == store.outcomes() == store.pauses() == store.reservations().live(0.0) == ()
    store.close()
    found = sqlite3.connect(path)
    assert found.execute("PRAGMA user_version").fetchone()[0] == VERSION
    found.close()


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StartupError, match="install the newer release"):
        Store(path)
    with pytest.raises(StartupError, match="install the newer release"):
        Store.read_only(path)
    assert path.read_bytes() == before


def test_damage_that_shows_only_when_it_is_read_is_named(tmp_path: Path) -> None:
    """Its first pages are well, so it can be opened."""
    path = tmp_path / "history.sqlite"
    store = Store(path)
    store.record(CycleFacts(tuple(ended(number) for number in range(1, 2000))))
    store.close()
    content = bytearray(path.read_bytes())
    content[131_072:] = b"\xa5" * (len(content) - 131_072)
    path.write_bytes(content)
    with (
        pytest.raises(StartupError, match=r"history\.sqlite cannot be read .*restart the daemon"),
        Store.looked_at(path) as seen,
    ):
        seen.ended(10)
    with pytest.raises(StartupError, match="restart the daemon"):
        History.copy_of(path)


def test_reading_only_changes_and_creates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with pytest.raises(StartupError, match="no such file"):
        Store.read_only(path)
    assert not list(tmp_path.iterdir())
    store = Store(path)
    store.record(CycleFacts((ended(1),)))
    reader = Store.read_only(path)
    assert reader.n_jobs() == 1
    store.record(CycleFacts((ended(2),)))
    assert reader.n_jobs() == 2
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.record(CycleFacts((ended(3),)))
    reader.close()
    store.close()


class StoreMachine(RuleBasedStateMachine):
    """Any order of reports, repeats and failed transactions: the file has what a dictionary would have."""

    keys = Bundle("keys")

    @initialize()
    def begin(self) -> None:
        self.store = Store(None, max_jobs=5)
        self.seen: dict[JobKey, None] = {}
        self.counted: list[JobKey] = []

    @rule(
        target=keys,
        number=st.integers(1, 30),
        ctime_s=st.sampled_from([1.0, 2.0]),
        source=st.sampled_from(["qstat", "accounting"]),
    )
    def report(self, number: int, ctime_s: float, source: str) -> JobKey:
        """A server set up anew begins at 1 again: that is another job."""
        job = ended(number, ctime_s=ctime_s, source=source)
        known = {each.key for each in self.store.ended(100)}
        new = self.store.record(CycleFacts((job, job)))
        assert new == ({job.key} if job.key not in known else frozenset())
        if new:
            self.counted.append(job.key)
        return job.key

    @rule(key=keys)
    def fail(self, key: JobKey) -> None:
        wrong = CycleFacts((ended(99),), None, {key: None})  # type: ignore[dict-item]
        with pytest.raises(sqlite3.IntegrityError):
            self.store.record(wrong)

    @invariant()
    def holds_the_last_counted(self) -> None:
        if hasattr(self, "store"):
            assert [job.key for job in self.store.ended(100)] == self.counted[-5:]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=examples(30), stateful_step_count=20, deadline=None)
