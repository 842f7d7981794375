"""The history file: SQLite in WAL mode, one transaction for each cycle.

A process killed at any point leaves the last whole cycle. Each job is counted once, whoever reports it
first: (job id, creation time) is unique. The oldest jobs go when there are more than a bound.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from urllib.parse import quote

from torque_sched.errors import StartupError
from torque_sched.learning.figures import Amounts
from torque_sched.learning.promise_rows import (
    read_expected,
    read_outcomes,
    read_pauses,
    read_promises,
    write_expected,
    write_pauses,
    write_promises,
)
from torque_sched.learning.promises import KeptPromise, Outcome, PromiseFacts
from torque_sched.learning.reservations import Reservations
from torque_sched.learning.rows import (
    BALANCE_COLUMNS,
    BalanceRow,
    CycleFacts,
    EndedJob,
    Expectation,
    JobKey,
    PauseRow,
    Use,
)
from torque_sched.learning.schema import BUSY_S, VERSION, check_files, newer, open_file
from torque_sched.learning.usage import Account, Holder
from torque_sched.learning.usage_rows import charge, put_before, read_usage, write_usage
from torque_sched.policies.predict.fingerprint import Fingerprint

_JOB_COLUMNS = (
    "job", "ctime_s", "user", "script", "shape", "time_limit", "queue", "nodes", "n_procs", "n_gpus",
    "queued_s", "start_s", "end_s", "exit_status", "runtime_s", "cpu_cores", "mem_bytes", "gpus",
    "gpu_mem_bytes", "rate", "source", "said",
)  # fmt: skip
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

    @classmethod
    def read_only(cls, path: Path) -> Store:
        """A store that only looks; nothing is created or changed.

        Raises:
            StartupError: there is none, or it is of another version or damaged.
        """
        store = cls.__new__(cls)
        store.path, store._max_jobs, store.half_life_s = path, 0, 0.0
        try:
            store._db = _open_to_read(path)
            found = int(store._db.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.Error as error:
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
        except sqlite3.Error as error:
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
                charge(db, new.values(), facts.now_s, self.half_life_s)
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
                charge(db, self._all_ended(), now_s, self.half_life_s)

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
        columns = ", ".join(_JOB_COLUMNS)
        query = f"SELECT {columns} FROM jobs WHERE end_s IS NULL OR end_s >= ? ORDER BY seq DESC LIMIT ?"
        return tuple(reversed([_job(row) for row in self._db.execute(query, (since_s, last))]))

    def _all_ended(self) -> Iterator[EndedJob]:
        query = f"SELECT {', '.join(_JOB_COLUMNS)} FROM jobs"
        return (_job(row) for row in self._db.execute(query))

    def usage(self) -> dict[Holder, Account]:
        """What users and groups had of the cluster, each as of its own time."""
        return read_usage(self._db)

    def newest(self, last: int) -> set[JobKey]:
        """The keys of the last so many jobs counted."""
        query = "SELECT job, ctime_s FROM jobs ORDER BY seq DESC LIMIT ?"
        return {(job, ctime_s) for job, ctime_s in self._db.execute(query, (last,))}

    def uses(self) -> dict[tuple[JobKey, str], Use]:
        """Samples of jobs that still run, by job and node."""
        query = (
            "SELECT job, ctime_s, node, n, last_s, cpu_cores, mem_bytes, gpus, gpu_mem_bytes, knows_cpu, "
            "knows_gpu FROM uses"
        )
        rows = self._db.execute(query)
        return {
            ((job, ctime_s), node): Use(n, at_s, cores, mem, gpus, gpu_mem, bool(cpu), bool(gpu))
            for job, ctime_s, node, n, at_s, cores, mem, gpus, gpu_mem, cpu, gpu in rows
        }

    def pending(self) -> dict[JobKey, str]:
        """What was said of jobs that still run."""
        return {
            (job, at): said for job, at, said in self._db.execute("SELECT job, ctime_s, said FROM pending")
        }

    def position(self) -> tuple[str, int] | None:
        """File and offset up to which accounting was read."""
        row = self._db.execute("SELECT file, offset FROM position").fetchone()
        return None if row is None else (str(row[0]), int(row[1]))

    def promises(self) -> tuple[KeptPromise, ...]:
        """Promises to jobs that waited in the last cycle."""
        return read_promises(self._db)

    def outcomes(self, since_s: float = 0.0, job: str = "") -> tuple[Outcome, ...]:
        """Jobs that had a promise and started since a time, oldest first; of one job when it is named."""
        return read_outcomes(self._db, since_s, job)

    def outcomes_of(self, jobs: Iterable[str]) -> tuple[Outcome, ...]:
        """Those of these jobs."""
        return read_outcomes(self._db, jobs=tuple(jobs))

    def expected(self) -> tuple[Expectation, ...]:
        """When jobs were expected to start, those that wait first, then those that started, in that order."""
        return read_expected(self._db)

    def pauses(self) -> tuple[PauseRow, ...]:
        """What failed and was left alone in the last cycle."""
        return read_pauses(self._db)

    def reservations(self) -> Reservations:
        """The reservations in the same file, through the same connection."""
        return Reservations(self._db)

    def balance(self, since_s: float = 0.0) -> tuple[BalanceRow, ...]:
        """The cluster's rows since a time, oldest first."""
        query = f"SELECT {', '.join(BALANCE_COLUMNS)} FROM balance WHERE at_s >= ? ORDER BY at_s"
        return tuple(BalanceRow(*row) for row in self._db.execute(query, (since_s,)))


_INSERT_JOB = (
    f"INSERT OR IGNORE INTO jobs ({', '.join(_JOB_COLUMNS)}) VALUES ({', '.join('?' * len(_JOB_COLUMNS))})"
)
# Numbers have gaps (an ignored insert takes one), so the bound is found by counting.
_DELETE_OLDEST = "DELETE FROM jobs WHERE seq <= (SELECT seq FROM jobs ORDER BY seq DESC LIMIT 1 OFFSET ?)"
_UPSERT_USE = "INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_BALANCE = f"INSERT OR REPLACE INTO balance VALUES ({', '.join('?' * len(BALANCE_COLUMNS))})"


def _open_to_read(path: Path) -> sqlite3.Connection:
    check_files(path)
    # Beside a daemon the shared index is there; without one a folder that is not ours needs `immutable`.
    if not path.is_file():
        raise sqlite3.OperationalError("there is no such file")
    address = f"file:{quote(str(path.resolve()))}?mode=ro"
    for suffix in ("", "&immutable=1"):
        db = sqlite3.connect(address + suffix, uri=True, timeout=BUSY_S, isolation_level=None)
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


def _job(row: Iterable[object]) -> EndedJob:
    values = dict(zip(_JOB_COLUMNS, row, strict=True))
    used = ("runtime_s", "cpu_cores", "mem_bytes", "gpus", "gpu_mem_bytes", "rate")
    kind = Fingerprint(*(str(values.pop(name)) for name in ("user", "script", "shape", "time_limit")))
    amounts = Amounts(*(values.pop(name) for name in used))  # type: ignore[arg-type]
    key = (str(values.pop("job")), float(values.pop("ctime_s")))  # type: ignore[arg-type]
    nodes = json.loads(str(values.pop("nodes")))
    return EndedJob(key=key, kind=kind, nodes=nodes, used=amounts, **values)  # type: ignore[arg-type]


def _use_values(key: tuple[JobKey, str], use: Use) -> tuple[object, ...]:
    return (
        *key[0], key[1], use.n, use.last_s, use.cpu_cores, use.mem_bytes, use.gpus, use.gpu_mem_bytes,
        int(use.knows_cpu), int(use.knows_gpu),
    )  # fmt: skip
