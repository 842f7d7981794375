"""The usage of users, groups and accounts in the history file, each within the caller's transaction."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping

from torque_sched.learn.rows import EndedJob
from torque_sched.learn.unreadable import RowForm, UnreadableRows
from torque_sched.learn.usage import BEFORE, KINDS, Account, Holder, charged, run_of_ended


def _account(kind: str, name: str, proc_s: float, gpu_s: float, at_s: float) -> tuple[Holder, Account]:
    if kind not in KINDS:
        raise ValueError("no kind of a holder")
    if not (math.isfinite(proc_s) and math.isfinite(gpu_s) and math.isfinite(at_s)):
        raise ValueError("a number that is not finite")
    return (kind, name), Account(proc_s, gpu_s, at_s)


USAGE = RowForm("usage", ("kind", "name", "proc_s", "gpu_s", "at_s"), _account)


def read_usage(db: sqlite3.Connection, found: UnreadableRows) -> dict[Holder, Account]:
    """All accounts, each as of its own time."""
    return dict(USAGE.read(db, found))


def write_usage(db: sqlite3.Connection, accounts: Mapping[Holder, Account]) -> None:
    """These accounts; others stay as they are."""
    db.executemany(
        "INSERT OR REPLACE INTO usage (kind, name, proc_s, gpu_s, at_s) VALUES (?, ?, ?, ?, ?)",
        ((*holder, each.proc_s, each.gpu_s, each.at_s) for holder, each in accounts.items()),
    )


def charge(
    db: sqlite3.Connection,
    jobs: Iterable[EndedJob],
    now_s: float,
    half_life_s: float,
    found: UnreadableRows,
) -> None:
    """Charge jobs that were not counted before, and take back what a clock had put into the future."""
    db.execute("UPDATE usage SET at_s = ? WHERE at_s > ?", (now_s, now_s))
    runs = [run for job in jobs if (run := run_of_ended(job)) is not None]
    if not runs:
        return
    accounts, changed = read_usage(db, found), {}
    for run in runs:
        for holder in run.holders:
            accounts[holder] = changed[holder] = charged(accounts.get(holder), run, now_s, half_life_s)
    write_usage(db, changed)


def put_before(db: sqlite3.Connection, usage: Mapping[str, float], at_s: float) -> None:
    """What the scheduler before this one counted, in place of what was taken over from it earlier."""
    db.execute("DELETE FROM usage WHERE kind = ?", (BEFORE,))
    write_usage(db, {(BEFORE, user): Account(amount, 0.0, at_s) for user, amount in usage.items()})
