"""Promises, their outcomes and pauses in the history file, each within the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable

from torque_sched.core.decisions import Promise
from torque_sched.core.model import JobId
from torque_sched.learning.promises import (
    KeptPromise,
    Outcome,
    PromiseFacts,
    allocation_text,
    changes_text,
    read_allocation,
    read_changes,
)
from torque_sched.learning.rows import Expectation, JobKey, PauseRow

_MAX_OUTCOMES = 100_000
_MAX_EXPECTED = 10_000
_MAX_PAUSES = 10_000
_MAX_PROMISES = 50_000

_PROMISE_COLUMNS = (
    "job, ctime_s, start_s, allocation, length_s, made_s, first_s, first_made_s, why_broken, "
    "is_withdrawn, n_better, n_broken, changes"
)
_OUTCOME_COLUMNS = "job, ctime_s, start_s, made_s, first_s, last_s, n_better, n_broken, changes"
_EXPECTED_COLUMNS = "job, ctime_s, told_s, expected_s, start_s"
_PAUSE_COLUMNS = "kind, job, node, failures, until_s, why"


def _insert(table: str, columns: str) -> str:
    return f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({', '.join('?' * len(columns.split(',')))})"


def write_promises(db: sqlite3.Connection, facts: PromiseFacts) -> None:
    """All of the facts."""
    db.executemany("DELETE FROM promises WHERE job = ? AND ctime_s = ?", facts.gone)
    db.executemany(_insert("promises", _PROMISE_COLUMNS), map(_promise_values, facts.kept[:_MAX_PROMISES]))
    if facts.outcomes:
        db.executemany(_insert("outcomes", _OUTCOME_COLUMNS), map(_outcome_values, facts.outcomes))
        db.execute(
            "DELETE FROM outcomes WHERE seq <= (SELECT seq FROM outcomes ORDER BY seq DESC LIMIT 1 OFFSET ?)",
            (_MAX_OUTCOMES,),
        )


def _promise_values(row: KeptPromise) -> tuple[object, ...]:
    was = row.promise
    return (
        *row.key, was.start_s, allocation_text(was.allocation), was.length_s, was.made_s, was.first_s,
        was.first_made_s, was.why_broken, int(row.is_withdrawn), row.n_better, row.n_broken,
        changes_text(row.changes),
    )  # fmt: skip


def _outcome_values(row: Outcome) -> tuple[object, ...]:
    return (
        *row.key, row.start_s, row.made_s, row.first_s, row.last_s, row.n_better, row.n_broken,
        changes_text(row.changes),
    )  # fmt: skip


def read_promises(db: sqlite3.Connection) -> tuple[KeptPromise, ...]:
    """All promises to jobs that waited when the file was written."""
    return tuple(_promise(*row) for row in db.execute(f"SELECT {_PROMISE_COLUMNS} FROM promises"))


def _promise(
    job: str, ctime_s: float, start_s: float, allocation: str, length_s: float, made_s: float, first_s: float,
    first_made_s: float, why_broken: str, is_withdrawn: int, n_better: int, n_broken: int, changes: str,
) -> KeptPromise:  # fmt: skip
    promise = Promise(
        JobId(job), start_s, read_allocation(allocation), length_s, made_s, first_s, first_made_s, n_broken,
        why_broken,
    )  # fmt: skip
    return KeptPromise((job, ctime_s), promise, bool(is_withdrawn), n_better, n_broken, read_changes(changes))


def read_outcomes(
    db: sqlite3.Connection, since_s: float = 0.0, job: str = "", jobs: tuple[str, ...] | None = None
) -> tuple[Outcome, ...]:
    """What became of promises to jobs started since a time, oldest first; of those jobs that are named."""
    named = "" if jobs is None else "AND job IN (SELECT value FROM json_each(?))"
    query = (
        f"SELECT {_OUTCOME_COLUMNS} FROM outcomes WHERE start_s >= ? AND ? IN ('', job) {named} ORDER BY seq"
    )
    return tuple(
        Outcome((name, ctime_s), start_s, made_s, first_s, last_s, n_better, n_broken, read_changes(changes))
        for name, ctime_s, start_s, made_s, first_s, last_s, n_better, n_broken, changes in db.execute(
            query, (since_s, job, *(() if jobs is None else (json.dumps(jobs),)))
        )
    )


def write_expected(db: sqlite3.Connection, rows: Iterable[Expectation], gone: Iterable[JobKey]) -> None:
    """Expectations that changed; of jobs that started only the last ones are kept."""
    values = [(*row.key, row.told_s, row.expected_s, row.start_s) for row in rows]
    db.executemany("DELETE FROM expected WHERE job = ? AND ctime_s = ?", gone)
    if values:
        db.executemany(_insert("expected", _EXPECTED_COLUMNS), values)
        db.execute(
            "DELETE FROM expected WHERE start_s <= "
            "(SELECT start_s FROM expected WHERE start_s IS NOT NULL ORDER BY start_s DESC LIMIT 1 OFFSET ?)",
            (_MAX_EXPECTED,),
        )


def read_expected(db: sqlite3.Connection) -> tuple[Expectation, ...]:
    """All that are kept, those of jobs that wait first, then by start."""
    rows = db.execute(f"SELECT {_EXPECTED_COLUMNS} FROM expected ORDER BY start_s")
    return tuple(
        Expectation((job, ctime_s), told_s, expected_s, start_s)
        for job, ctime_s, told_s, expected_s, start_s in rows
    )


def write_pauses(db: sqlite3.Connection, pauses: Iterable[PauseRow]) -> None:
    """These and no others; of too many those that last longest."""
    kept = sorted(pauses, key=lambda pause: -pause.until_s)[:_MAX_PAUSES]
    db.execute("DELETE FROM pauses")
    values = ((each.kind, each.job, each.node, each.failures, each.until_s, each.why) for each in kept)
    db.executemany(_insert("pauses", _PAUSE_COLUMNS), values)


def read_pauses(db: sqlite3.Connection) -> tuple[PauseRow, ...]:
    """All that are kept."""
    return tuple(PauseRow(*row) for row in db.execute(f"SELECT {_PAUSE_COLUMNS} FROM pauses"))
