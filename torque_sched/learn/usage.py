"""What users, groups and accounts had of the cluster, forgotten by half-lives: what fair share weighs.

Counted is what was allocated, used or not: processors and GPUs times wall time. Each second of it counts half
one half-life after it passed, so a job that ran for days counts the same whether it is looked at while it
runs or after it. Formulas only: every time is an argument, and one that lies ahead counts as now.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torque_sched.decide.context import PendingStart
from torque_sched.decide.fair_share import DEFAULT_GPU_WEIGHT, weighed
from torque_sched.learn.rows import EndedJob
from torque_sched.learn.unreadable import RowForm, UnreadableRows
from torque_sched.model.cluster import Job
from torque_sched.model.snapshot import Snapshot

USER, GROUP, ACCOUNT, BEFORE = "user", "group", "account", "before"
"""Kinds of holders; `BEFORE`: of a user, as the scheduler before this one counted."""
KINDS = frozenset({USER, GROUP, ACCOUNT, BEFORE})

Holder = tuple[str, str]
"""Kind and name."""

_LARGEST = float(2**31)
"""A request may name more processors than any cluster has."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one job holds, or held: all from ``start_s`` to ``end_s``."""

    user: str
    group: str
    n_procs: float
    n_gpus: float
    start_s: float
    end_s: float
    account: str = ""
    """``qsub -A``."""

    @property
    def holders(self) -> tuple[Holder, ...]:
        """To whom it is charged."""
        names = ((USER, self.user), (GROUP, self.group), (ACCOUNT, self.account))
        return tuple((kind, name) for kind, name in names if name)


@dataclass(frozen=True, slots=True)
class Account:
    """Processor seconds and GPU seconds, as much as counted at ``at_s``."""

    proc_s: float = 0.0
    gpu_s: float = 0.0
    at_s: float = 0.0

    def at(self, now_s: float, half_life_s: float) -> Account:
        """The same at another time; never more than before, also where that time is an earlier one."""
        share = left(now_s - self.at_s, half_life_s)
        return Account(self.proc_s * share, self.gpu_s * share, now_s)

    def plus(self, run: Run, half_life_s: float) -> Account:
        """With a run; as of the later of both."""
        at_s = max(self.at_s, run.end_s) if self.proc_s or self.gpu_s else run.end_s
        was = self.at(at_s, half_life_s)
        seconds = spent(run.end_s - run.start_s, at_s - run.end_s, half_life_s)
        return Account(was.proc_s + run.n_procs * seconds, was.gpu_s + run.n_gpus * seconds, at_s)

    def weighed(self, gpu_weight: float) -> float:
        """In processor seconds."""
        return weighed(self.proc_s, self.gpu_s, gpu_weight)


def left(elapsed_s: float, half_life_s: float) -> float:
    """The share of a usage that still counts after a time.

    >>> left(20.0, 10.0), left(-5.0, 10.0)
    (0.25, 1.0)
    """
    return 0.5 ** (max(0.0, elapsed_s) / half_life_s) if half_life_s > 0 else 0.0


def spent(length_s: float, age_s: float, half_life_s: float) -> float:
    """How many seconds count of a time that passed, each of them by its own age.

    >>> round(spent(10.0, 0.0, 1e9), 3), round(spent(1e9, 0.0, 10.0), 3)
    (10.0, 14.427)

    Args:
        length_s: how long it was.
        age_s: how long ago it ended.
        half_life_s: 0: nothing counts.
    """
    if half_life_s <= 0 or length_s <= 0:
        return 0.0
    rate = math.log(2) / half_life_s
    return left(age_s, half_life_s) * -math.expm1(-length_s * rate) / rate


def charged(account: Account | None, run: Run, now_s: float, half_life_s: float) -> Account:
    """An account with one more run, neither of them from the future."""
    was = account or Account(at_s=run.end_s)
    was = replace(was, at_s=min(was.at_s, now_s))
    ahead_s = max(0.0, run.end_s - now_s)
    return was.plus(replace(run, start_s=run.start_s - ahead_s, end_s=run.end_s - ahead_s), half_life_s)


def run_of_ended(job: EndedJob) -> Run | None:
    """What a job held that ended; None: nobody knows for how long."""
    runtime_s = job.used.runtime_s or 0.0
    end_s = job.end_s if job.end_s is not None else (job.start_s or 0.0) + runtime_s
    start_s = job.start_s if job.start_s is not None else end_s - runtime_s
    # Clocks that were set meanwhile: the node's own figure is right.
    length_s = end_s - start_s if end_s > start_s else runtime_s
    if not (job.kind.user and end_s and length_s > 0):
        return None
    n_procs = sum(job.nodes.values()) or job.n_procs
    start_s, n_gpus = end_s - length_s, _bounded(job.n_gpus)
    return Run(job.kind.user, job.group, _bounded(n_procs), n_gpus, start_s, end_s, job.account)


def run_of_job(job: Job, now_s: float) -> Run | None:
    """What a job that runs holds since it started."""
    if job.start_s is None or not job.user:
        return None
    n_procs = job.n_slots_held or job.request.n_procs
    n_gpus = len(job.allocated_gpus) or job.request.n_gpus
    start_s = min(job.start_s, now_s)
    return Run(job.user, job.group, _bounded(n_procs), _bounded(n_gpus), start_s, now_s, job.account)


def pending_runs(snapshot: Snapshot, pending: Iterable[PendingStart]) -> list[Run]:
    """What starts hold that were asked for and that no look shows running yet."""
    runs = []
    for start in pending:
        job = snapshot.job_by_id.get(start.job)
        if job is None or not job.user or job.start_s is not None:
            continue
        n_procs = sum(share.slots for share in start.allocation)
        n_gpus = sum(share.gpus for share in start.allocation)
        since_s = min(start.asked_s, snapshot.now_s)
        runs.append(Run(job.user, job.group, n_procs, n_gpus, since_s, snapshot.now_s, job.account))
    return runs


def _bounded(amount: float) -> float:
    return min(float(amount), _LARGEST)


class Usage:
    """What all users, groups and accounts had: of jobs that ended, and of those that hold something now.

    Args:
        half_life_s: after this time usage counts half.
        gpu_weight: what a GPU second counts, in processor seconds.
    """

    def __init__(self, half_life_s: float, gpu_weight: float = DEFAULT_GPU_WEIGHT) -> None:
        self.half_life_s, self.gpu_weight = half_life_s, gpu_weight
        self._ended: dict[Holder, Account] = {}
        self._running: list[Run] = []

    def put(self, accounts: Mapping[Holder, Account]) -> None:
        """These of jobs that ended, and no others."""
        self._ended = dict(accounts)

    def add(self, jobs: Iterable[EndedJob], now_s: float) -> None:
        """Charge jobs that ended."""
        for run in filter(None, map(run_of_ended, jobs)):
            for holder in run.holders:
                self._ended[holder] = charged(self._ended.get(holder), run, now_s, self.half_life_s)

    def see(self, snapshot: Snapshot) -> None:
        """Take what runs, or is suspended, in place of what did before; no account is from the future."""
        now_s = snapshot.now_s
        jobs = (*snapshot.running, *snapshot.suspended)
        self._running = [run for job in jobs if (run := run_of_job(job, now_s)) is not None]
        for holder, account in self._ended.items():
            if account.at_s > now_s:
                self._ended[holder] = replace(account, at_s=now_s)

    def accounts(self, now_s: float, pending: Iterable[Run] = ()) -> dict[Holder, Account]:
        """All accounts as of now; what a scheduler before this one counted is in those of its users."""
        sums: dict[Holder, tuple[float, float]] = {}

        def add(holder: Holder, proc_s: float, gpu_s: float) -> None:
            was = sums.get(holder, (0.0, 0.0))
            sums[holder] = was[0] + proc_s, was[1] + gpu_s

        for (kind, name), account in self._ended.items():
            now = account.at(now_s, self.half_life_s)
            add((USER if kind == BEFORE else kind, name), now.proc_s, now.gpu_s)
        for run in (*self._running, *pending):
            seconds = spent(now_s - run.start_s, 0.0, self.half_life_s)
            for holder in run.holders:
                add(holder, run.n_procs * seconds, run.n_gpus * seconds)
        return {holder: Account(proc_s, gpu_s, now_s) for holder, (proc_s, gpu_s) in sums.items()}

    def by_kind(self, now_s: float, pending: Iterable[Run] = ()) -> dict[str, dict[str, float]]:
        """Processor seconds with GPU seconds weighed in, by name, of users, groups and accounts."""
        found: dict[str, dict[str, float]] = {USER: {}, GROUP: {}, ACCOUNT: {}}
        for (kind, name), each in self.accounts(now_s, pending).items():
            found[kind][name] = each.weighed(self.gpu_weight)
        return found


# -- in the history file, each within the caller's transaction


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
