"""The history file: SQLite in WAL mode, one transaction for each cycle.

A process killed at any point leaves the last whole cycle. Each job is counted once, whoever reports it
first: (job id, creation time) is unique. The oldest jobs go when there are more than a bound.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torque_sched.errors import StartupError
from torque_sched.learn.figures import Amounts
from torque_sched.learn.predictors import Fingerprint
from torque_sched.learn.promise_rows import (
    EXPECTED,
    OUTCOMES,
    PAUSES,
    PROMISES,
    read_expected,
    read_outcomes,
    read_pauses,
    read_promises,
    write_expected,
    write_pauses,
    write_promises,
)
from torque_sched.learn.promises import KeptPromise, Outcome, PromiseFacts
from torque_sched.learn.reservations import RESERVATIONS, Reservations
from torque_sched.learn.rows import (
    BALANCE_COLUMNS,
    BalanceRow,
    CycleFacts,
    EndedJob,
    Expectation,
    JobKey,
    PauseRow,
    Use,
)
from torque_sched.learn.schema import BUSY_S, VERSION, check_files, newer, open_file, text_or_bytes
from torque_sched.learn.unreadable import UNREADABLE, RowForm, UnreadableRows
from torque_sched.learn.usage import USAGE, Account, Holder, charge, put_before, read_usage, write_usage

_LEFT_OVER_S = 30 * 86400.0
"""Traces of running jobs that never ended before our eyes are dropped after this."""
_MAX_BALANCE = 50_000
_NO_PROMISES = PromiseFacts()
_LARGEST = 2**31
"""A request may name more processors than a column holds."""


class Store:
    """One history file, for one writer; readers may look at any time.

    Args:
        path: the file; None: in memory, gone with the process.
        max_jobs: ended jobs kept.
        half_life_s: after this time usage counts half; an attribute that may change.
    """

    def __init__(self, path: Path | None, max_jobs: int = 200_000, half_life_s: float = 86400.0) -> None:
        """Open or create the file, and bring it to this release's version.

        Raises:
            StartupError: the file is no history, damaged, newer, or cannot be written.
        """
        self.path = path
        self._max_jobs, self.half_life_s = max_jobs, half_life_s
        self._db = open_file(path)
        self.unreadable = UnreadableRows()
        """Rows that were left out since the file was opened."""

    @classmethod
    def read_only(cls, path: Path) -> Store:
        """A store that only looks; nothing is created or changed.

        Raises:
            StartupError: there is none, or it is of another version or damaged.
        """
        store = cls.__new__(cls)
        store.path, store._max_jobs, store.half_life_s = path, 0, 0.0
        store.unreadable = UnreadableRows()
        try:
            store._db = open_to_read(path)
            found = int(store._db.execute("PRAGMA user_version").fetchone()[0])
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StartupError(
                f"the history {path} cannot be read ({error})",
                cure="give the file the daemon's `history` names",
            ) from error
        if found != VERSION:
            store._db.close()
            if found > VERSION:
                raise newer(str(path), found)
            raise StartupError(
                f"{path} has version {found}, not {VERSION}", cure="let this release's daemon open it once"
            )
        return store

    @classmethod
    @contextmanager
    def looked_at(cls, path: Path) -> Iterator[Store]:
        """The same for a while, with an error in words where the file turns out to be damaged further in.

        Raises:
            StartupError: as `read_only`, and what SQLite finds meanwhile.
        """
        store = cls.read_only(path)
        try:
            yield store
        except (sqlite3.Error, *UNREADABLE) as error:
            raise StartupError(
                f"the history {path} cannot be read ({error})",
                cure="restart the daemon, which puts a damaged file aside and begins a new one",
            ) from error
        finally:
            store.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def record(
        self,
        facts: CycleFacts,
        promises: PromiseFacts = _NO_PROMISES,
        pauses: Iterable[PauseRow] | None = None,
    ) -> frozenset[JobKey]:
        """Write all facts of a cycle, or none of them; returns the jobs that were not counted before.

        Args:
            facts: what was learned.
            promises: what changed in them.
            pauses: all there are now; None: as before.

        Raises:
            sqlite3.Error: nothing was written (disk full, locked for long); the facts may be given again.
        """
        new: dict[JobKey, EndedJob] = {}
        with self._transaction() as db:
            for job in facts.ended:
                if db.execute(_INSERT_JOB, _job_values(job)).rowcount:
                    new[job.key] = job
            if facts.now_s:
                charge(db, new.values(), facts.now_s, self.half_life_s, self.unreadable)
            gone = [job.key for job in facts.ended]
            db.executemany(_UPSERT_USE, (_use_values(key, use) for key, use in (facts.uses or {}).items()))
            db.executemany(
                "INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?)",
                ((*key, facts.now_s, text) for key, text in (facts.pending or {}).items()),
            )
            db.executemany("DELETE FROM uses WHERE job = ? AND ctime_s = ?", gone)
            db.executemany("DELETE FROM pending WHERE job = ? AND ctime_s = ?", gone)
            write_expected(db, facts.expected, facts.expected_gone)
            if facts.balance is not None:
                db.execute(_INSERT_BALANCE, astuple(facts.balance))
            if facts.position is not None:
                db.execute("INSERT OR REPLACE INTO position VALUES (1, ?, ?)", facts.position)
            if new:
                db.execute(_DELETE_OLDEST, (self._max_jobs,))
            if promises:
                write_promises(db, promises)
            if pauses is not None:
                write_pauses(db, pauses)
        return frozenset(new)

    def begin_usage(self, now_s: float) -> None:
        """Charge the jobs that are here already to users who have no accounts yet; once in a file's life.

        Raises:
            sqlite3.Error: nothing was changed.
        """
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM usage LIMIT 1").fetchone() is None:
                charge(db, JOBS.read(db, self.unreadable), now_s, self.half_life_s, self.unreadable)

    def put_usage(self, accounts: Mapping[Holder, Account]) -> None:
        """These accounts, whatever was there of them.

        Raises:
            sqlite3.Error: nothing was changed.
        """
        with self._transaction() as db:
            write_usage(db, accounts)

    def put_usage_before(self, usage: Mapping[str, float], at_s: float) -> None:
        """Usage by user as the scheduler before this one counted it; what was taken over earlier goes.

        Raises:
            sqlite3.Error: nothing was changed.
        """
        with self._transaction() as db:
            put_before(db, usage, at_s)

    def tidy(self, now_s: float) -> None:
        """Drop what belongs to jobs that were never seen to end, and old balance.

        Raises:
            sqlite3.Error: nothing was changed.
        """
        with self._transaction() as db:
            db.execute("DELETE FROM uses WHERE last_s < ?", (now_s - _LEFT_OVER_S,))
            db.execute("DELETE FROM pending WHERE since_s < ?", (now_s - _LEFT_OVER_S,))
            db.execute(
                "DELETE FROM balance WHERE at_s NOT IN (SELECT at_s FROM balance ORDER BY at_s DESC LIMIT ?)",
                (_MAX_BALANCE,),
            )

    # -- reading

    def n_jobs(self) -> int:
        """Ended jobs kept."""
        return int(self._db.execute("SELECT COUNT(*) FROM jobs").fetchone()[0])

    def ended(self, last: int, since_s: float = 0.0) -> tuple[EndedJob, ...]:
        """The last so many jobs in the order they were counted, of those that ended after ``since_s``."""
        rest = "WHERE end_s IS NULL OR end_s >= ? ORDER BY seq DESC LIMIT ?"
        return tuple(reversed([*JOBS.read(self._db, self.unreadable, rest, (since_s, last))]))

    def usage(self) -> dict[Holder, Account]:
        """What users and groups had of the cluster, each as of its own time."""
        return read_usage(self._db, self.unreadable)

    def newest(self, last: int) -> set[JobKey]:
        """The keys of the last so many jobs counted."""
        query = "SELECT job, ctime_s FROM jobs ORDER BY seq DESC LIMIT ?"
        return {(job, ctime_s) for job, ctime_s in self._db.execute(query, (last,))}

    def uses(self) -> dict[tuple[JobKey, str], Use]:
        """Samples of jobs that still run, by job and node."""
        return dict(USES.read(self._db, self.unreadable))

    def pending(self) -> dict[JobKey, str]:
        """What was said of jobs that still run."""
        return dict(PENDING.read(self._db, self.unreadable))

    def position(self) -> tuple[str, int] | None:
        """File and offset up to which accounting was read."""
        return next(POSITION.read(self._db, self.unreadable), None)

    def promises(self) -> tuple[KeptPromise, ...]:
        """Promises to jobs that waited in the last cycle."""
        return read_promises(self._db, self.unreadable)

    def outcomes(self, since_s: float = 0.0, job: str = "") -> tuple[Outcome, ...]:
        """Jobs that had a promise and started since a time, oldest first; of one job when it is named."""
        return read_outcomes(self._db, self.unreadable, since_s, job)

    def outcomes_of(self, jobs: Iterable[str]) -> tuple[Outcome, ...]:
        """Those of these jobs."""
        return read_outcomes(self._db, self.unreadable, jobs=tuple(jobs))

    def expected(self) -> tuple[Expectation, ...]:
        """When jobs were expected to start, those that wait first, then those that started, in that order."""
        return read_expected(self._db, self.unreadable)

    def pauses(self) -> tuple[PauseRow, ...]:
        """What failed and was left alone in the last cycle."""
        return read_pauses(self._db, self.unreadable)

    def reservations(self) -> Reservations:
        """The reservations in the same file, through the same connection."""
        return Reservations(self._db, unreadable=self.unreadable)

    def balance(self, since_s: float = 0.0) -> tuple[BalanceRow, ...]:
        """The cluster's rows since a time, oldest first."""
        return tuple(BALANCE.read(self._db, self.unreadable, "WHERE at_s >= ? ORDER BY at_s", (since_s,)))


def is_damage(error: Exception) -> bool:
    """Whether a file that could not be read is damaged; it may as well be locked, or the disk full."""
    is_said = str(error).startswith(("no such", "Could not decode"))
    is_of_the_file = isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.OperationalError
    )
    return is_said or is_of_the_file or isinstance(error, UNREADABLE)


# Numbers have gaps (an ignored insert takes one), so the bound is found by counting.
_DELETE_OLDEST = "DELETE FROM jobs WHERE seq <= (SELECT seq FROM jobs ORDER BY seq DESC LIMIT 1 OFFSET ?)"
_UPSERT_USE = "INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_BALANCE = f"INSERT OR REPLACE INTO balance VALUES ({', '.join('?' * len(BALANCE_COLUMNS))})"


def open_to_read(path: Path) -> sqlite3.Connection:
    """The file of a history, of any version, that nothing is written to.

    Raises:
        sqlite3.Error: it cannot be read. StartupError: it is no file.
    """
    check_files(path)
    # Beside a daemon the shared index is there; without one a folder that is not ours needs `immutable`.
    if not path.is_file():
        raise sqlite3.OperationalError("there is no such file")
    address = f"file:{quote(str(path.resolve()))}?mode=ro"
    for suffix in ("", "&immutable=1"):
        db = sqlite3.connect(address + suffix, uri=True, timeout=BUSY_S, isolation_level=None)
        db.text_factory = text_or_bytes
        try:
            db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            return db
        except sqlite3.OperationalError:
            db.close()
            if suffix:
                raise
    raise AssertionError


def _job_values(job: EndedJob) -> tuple[object, ...]:
    kind, used = job.kind, job.used
    nodes = json.dumps(dict(job.nodes), separators=(",", ":"))
    return (
        *job.key, kind.user, kind.script, kind.shape, kind.limit, job.queue, nodes,
        min(job.n_procs, _LARGEST), min(job.n_gpus, _LARGEST), job.queued_s, job.start_s, job.end_s,
        job.exit_status, used.runtime_s, used.cpu_cores, used.mem_bytes,
        used.gpus, used.gpu_mem_bytes, used.rate, job.source, job.said,
    )  # fmt: skip


def _job(*row: object) -> EndedJob:
    values: dict[str, Any] = dict(zip(_JOB_COLUMNS, row, strict=True))
    used = ("runtime_s", "cpu_cores", "mem_bytes", "gpus", "gpu_mem_bytes", "rate")
    if any(values[name] is not None and not 0 <= values[name] < math.inf for name in used):
        raise ValueError("an amount that no job uses")
    kind = Fingerprint(*(values.pop(name) for name in ("user", "script", "shape", "time_limit")))
    amounts = Amounts(*(values.pop(name) for name in used))
    nodes = json.loads(values.pop("nodes"))
    if not isinstance(nodes, dict) or any(type(n) is not int for n in nodes.values()):
        raise ValueError("nodes does not say how many slots each had")
    return EndedJob(
        key=(values.pop("job"), values.pop("ctime_s")), kind=kind, nodes=nodes, used=amounts, **values
    )


def _use(job: str, ctime_s: float, node: str, *values: Any) -> tuple[tuple[JobKey, str], Use]:
    return ((job, ctime_s), node), Use(*values[:-2], *map(bool, values[-2:]))


_JOB_COLUMNS = (
    "job", "ctime_s", "user", "script", "shape", "time_limit", "queue", "nodes", "n_procs", "n_gpus",
    "queued_s", "start_s", "end_s", "exit_status", "runtime_s", "cpu_cores", "mem_bytes", "gpus",
    "gpu_mem_bytes", "rate", "source", "said",
)  # fmt: skip
JOBS = RowForm("jobs", _JOB_COLUMNS, _job)
USES = RowForm(
    "uses",
    ("job", "ctime_s", "node", "n", "last_s", "cpu_cores", "mem_bytes", "gpus", "gpu_mem_bytes", "knows_cpu",
     "knows_gpu"),
    _use,
)  # fmt: skip
PENDING = RowForm(
    "pending", ("job", "ctime_s", "said"), lambda job, ctime_s, said: ((job, ctime_s), said)
)  # fmt: skip
POSITION = RowForm("position", ("file", "offset"), lambda file, offset: (file, offset))
BALANCE = RowForm("balance", BALANCE_COLUMNS, BalanceRow)
ALL_ROWS: tuple[RowForm[Any], ...] = (
    JOBS, USES, PENDING, POSITION, BALANCE, PROMISES, OUTCOMES, EXPECTED, PAUSES, USAGE, RESERVATIONS,
)  # fmt: skip
"""Every table of the file."""
_INSERT_JOB = (
    f"INSERT OR IGNORE INTO jobs ({', '.join(_JOB_COLUMNS)}) VALUES ({', '.join('?' * len(_JOB_COLUMNS))})"
)


def _use_values(key: tuple[JobKey, str], use: Use) -> tuple[object, ...]:
    return (
        *key[0], key[1], use.n, use.last_s, use.cpu_cores, use.mem_bytes, use.gpus, use.gpu_mem_bytes,
        int(use.knows_cpu), int(use.knows_gpu),
    )  # fmt: skip
