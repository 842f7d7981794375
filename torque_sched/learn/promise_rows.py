"""Promises, their outcomes and pauses in the history file, each within the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from torque_sched.learn.promises import (
    KeptPromise,
    Outcome,
    PromiseFacts,
    allocation_text,
    changes_text,
    read_allocation,
    read_changes,
)
from torque_sched.learn.rows import Expectation, JobKey, PauseRow
from torque_sched.learn.unreadable import RowForm, UnreadableRows
from torque_sched.model.cluster import JobId
from torque_sched.model.decisions import GuaranteedStart

_MAX_OUTCOMES = 100_000
_MAX_EXPECTED = 10_000
_MAX_PAUSES = 10_000
_MAX_PROMISES = 50_000


def _promise(
    job: str, ctime_s: float, start_s: float, allocation: str, length_s: float, made_s: float, first_s: float,
    first_made_s: float, why_broken: str, is_withdrawn: int, n_better: int, n_broken: int, changes: str,
) -> KeptPromise:  # fmt: skip
    promise = GuaranteedStart(
        JobId(job), start_s, read_allocation(allocation), length_s, made_s, first_s, first_made_s, n_broken,
        why_broken,
    )  # fmt: skip
    return KeptPromise((job, ctime_s), promise, bool(is_withdrawn), n_better, n_broken, read_changes(changes))


def _outcome(
    job: str, ctime_s: float, start_s: float, made_s: float, first_s: float, last_s: float, n_better: int,
    n_broken: int, changes: str,
) -> Outcome:  # fmt: skip
    key = (job, ctime_s)
    return Outcome(key, start_s, made_s, first_s, last_s, n_better, n_broken, read_changes(changes))


def _expectation(
    job: str, ctime_s: float, first_s: float, expected_s: float, start_s: float | None
) -> Expectation:
    return Expectation((job, ctime_s), first_s, expected_s, start_s)


PROMISES = RowForm(
    "promises",
    ("job", "ctime_s", "start_s", "allocation", "length_s", "made_s", "first_s", "first_made_s", "why_broken",
     "is_withdrawn", "n_better", "n_broken", "changes"),
    _promise,
)  # fmt: skip
OUTCOMES = RowForm(
    "outcomes",
    ("job", "ctime_s", "start_s", "made_s", "first_s", "last_s", "n_better", "n_broken", "changes"),
    _outcome,
)
EXPECTED = RowForm("expected", ("job", "ctime_s", "told_s", "expected_s", "start_s"), _expectation)
PAUSES = RowForm("pauses", ("kind", "job", "node", "failures", "until_s", "why"), PauseRow)


def _insert(form: RowForm[Any]) -> str:
    columns = form.columns
    return (
        f"INSERT OR REPLACE INTO {form.table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    )


def write_promises(db: sqlite3.Connection, facts: PromiseFacts) -> None:
    """All of the facts."""
    db.executemany("DELETE FROM promises WHERE job = ? AND ctime_s = ?", facts.gone)
    db.executemany(_insert(PROMISES), map(_promise_values, facts.kept[:_MAX_PROMISES]))
    if facts.outcomes:
        db.executemany(_insert(OUTCOMES), map(_outcome_values, facts.outcomes))
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


def read_promises(db: sqlite3.Connection, found: UnreadableRows) -> tuple[KeptPromise, ...]:
    """All promises to jobs that waited when the file was written."""
    return tuple(PROMISES.read(db, found))


def read_outcomes(
    db: sqlite3.Connection,
    found: UnreadableRows,
    since_s: float = 0.0,
    job: str = "",
    jobs: tuple[str, ...] | None = None,
) -> tuple[Outcome, ...]:
    """What became of promises to jobs started since a time, oldest first; of those jobs that are named."""
    named = "" if jobs is None else "AND job IN (SELECT value FROM json_each(?))"
    given = (since_s, job, *(() if jobs is None else (json.dumps(jobs),)))
    rest = f"WHERE start_s >= ? AND ? IN ('', job) {named} ORDER BY seq"
    return tuple(OUTCOMES.read(db, found, rest, given))


def write_expected(db: sqlite3.Connection, rows: Iterable[Expectation], gone: Iterable[JobKey]) -> None:
    """Expectations that changed; of jobs that started only the last ones are kept."""
    values = [(*row.key, row.first_s, row.expected_s, row.start_s) for row in rows]
    db.executemany("DELETE FROM expected WHERE job = ? AND ctime_s = ?", gone)
    if values:
        db.executemany(_insert(EXPECTED), values)
        db.execute(
            "DELETE FROM expected WHERE start_s <= "
            "(SELECT start_s FROM expected WHERE start_s IS NOT NULL ORDER BY start_s DESC LIMIT 1 OFFSET ?)",
            (_MAX_EXPECTED,),
        )


def read_expected(db: sqlite3.Connection, found: UnreadableRows) -> tuple[Expectation, ...]:
    """All that are kept, those of jobs that wait first, then by start."""
    return tuple(EXPECTED.read(db, found, "ORDER BY start_s"))


def write_pauses(db: sqlite3.Connection, pauses: Iterable[PauseRow]) -> None:
    """These and no others; of too many those that last longest."""
    kept = sorted(pauses, key=lambda pause: -pause.until_s)[:_MAX_PAUSES]
    db.execute("DELETE FROM pauses")
    values = ((each.kind, each.job, each.node, each.failures, each.until_s, each.why) for each in kept)
    db.executemany(_insert(PAUSES), values)


def read_pauses(db: sqlite3.Connection, found: UnreadableRows) -> tuple[PauseRow, ...]:
    """All that are kept."""
    return tuple(PAUSES.read(db, found))
