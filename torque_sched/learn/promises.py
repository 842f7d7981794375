"""Promises to waiting jobs from cycle to cycle: what was said, how it changed, why, and if it was kept.

A promise is a start time reported for a job. It may only get earlier; a later one is a broken promise with a
reason, which stands in its history. `PromiseBook` is what the daemon remembers of them: it does no I/O and
hands out what is to be written (`facts`) until `saved` says that it was, so trouble with the file
loses nothing. A job is known by id and creation time, because a server set up anew counts from 1 again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torque_sched.learn.rows import JobKey
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import Decision, GuaranteedStart, Hold, NodeShare, Reserve
from torque_sched.model.reasons import Reason
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, StartProgress

MADE, BETTER, WITHDRAWN, UNEXPLAINED = "made", "better", "withdrawn", "unexplained"
"""Kinds of changes beside those of broken promises, which the policy names."""

_FIRST_CHANGES, _LAST_CHANGES = 4, 12
_ROUNDING_S = 1e-3
_BEGAN = frozenset({JobState.SUSPENDED, JobState.EXITING, JobState.COMPLETED})
_LEAVES_IT = frozenset({Reason.CYCLE_FULL, Reason.SCHEDULING_OFF, Reason.START_PENDING})
"""Holds that say nothing about when the job can start."""
_MAX_UNSAVED = 20_000


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a promise's history; times in seconds since the epoch; ``to_s`` None: withdrawn."""

    at_s: float
    from_s: float | None
    to_s: float | None
    kind: str
    """`MADE`, `BETTER`, `WITHDRAWN`, or why the promise was broken."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class KeptPromise:
    """A promise as it is kept.

    Attributes:
        promise: the last one.
        is_withdrawn: it holds no more, and nothing was promised instead yet.
        n_better: how often the start came nearer.
        n_broken: how often it was put off or withdrawn.
        changes: the first few and the last ones.
    """

    key: JobKey
    promise: GuaranteedStart
    is_withdrawn: bool = False
    n_better: int = 0
    n_broken: int = 0
    changes: tuple[Change, ...] = ()

    def changed(self, change: Change, promise: GuaranteedStart) -> KeptPromise:
        """The same after a change."""
        changes = (*self.changes, change)
        if len(changes) > _FIRST_CHANGES + _LAST_CHANGES:
            changes = (*changes[:_FIRST_CHANGES], *changes[-_LAST_CHANGES:])
        n_broken = self.n_broken + (change.kind not in {MADE, BETTER})
        kept = replace(
            promise,
            first_s=self.promise.first_s,
            first_made_s=self.promise.first_made_s,
            n_broken=n_broken,
            why_broken=change.why if n_broken > self.n_broken else self.promise.why_broken,
        )
        return KeptPromise(
            self.key, kept, change.to_s is None, self.n_better + (change.kind == BETTER), n_broken, changes
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job that had a promise and started.

    Attributes:
        start_s: when it really started.
        made_s: when it was first promised something.
        first_s: the start promised first.
        last_s: the start promised last.
    """

    key: JobKey
    start_s: float
    made_s: float
    first_s: float
    last_s: float
    n_better: int = 0
    n_broken: int = 0
    changes: tuple[Change, ...] = ()

    @property
    def first_error_s(self) -> float:
        """Actual start less the first promise: above 0 it started late."""
        return self.start_s - self.first_s

    @property
    def last_error_s(self) -> float:
        """Actual start less the last promise."""
        return self.start_s - self.last_s

    @property
    def broken_kinds(self) -> tuple[str, ...]:
        """Why it was broken, each kind once."""
        kinds = (each.kind for each in self.changes if each.kind not in {MADE, BETTER})
        return tuple(dict.fromkeys(kinds))


def outcome_of(row: KeptPromise, start_s: float) -> Outcome:
    """What became of a promise when its job started."""
    was = row.promise
    return Outcome(
        row.key, start_s, was.first_made_s, was.first_s, was.start_s, row.n_better, row.n_broken, row.changes
    )


@dataclass(frozen=True, slots=True)
class PromiseFacts:
    """What is to be written: rows that changed, rows that go, and what became of promises."""

    kept: tuple[KeptPromise, ...] = ()
    gone: tuple[JobKey, ...] = ()
    outcomes: tuple[Outcome, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.kept or self.gone or self.outcomes)


@dataclass
class PromiseBook:
    """All promises of jobs that wait.

    Attributes:
        rows: by job.
    """

    rows: dict[JobKey, KeptPromise] = field(default_factory=dict)
    _dirty: dict[JobKey, None] = field(default_factory=dict)
    _gone: dict[JobKey, None] = field(default_factory=dict)
    _outcomes: dict[JobKey, Outcome] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[KeptPromise]) -> PromiseBook:
        """The book a file holds."""
        return cls({row.key: row for row in rows})

    def about(self, job: Job) -> KeptPromise | None:
        """What is promised to a job; None: nothing, and nothing was."""
        return self.rows.get(_key(job))

    def carried(self, snapshot: Snapshot) -> dict[JobId, GuaranteedStart]:
        """The promises to jobs that wait in this snapshot."""
        found = {job.id: self.rows.get(_key(job)) for job in snapshot.queued} if self.rows else {}
        return {job: row.promise for job, row in found.items() if row is not None and not row.is_withdrawn}

    # -- what the snapshot shows

    def observe(self, snapshot: Snapshot, ended: Mapping[JobKey, float | None]) -> list[Outcome]:
        """Settle the promises of jobs that started, and drop those of jobs that are gone.

        Args:
            snapshot: now.
            ended: starts of jobs that ended and may be missing in the snapshot, by accounting.
        """
        settled: list[Outcome] = []
        for key, row in tuple(self.rows.items()):
            job = snapshot.job_by_id.get(JobId(key[0]))
            if job is not None and _key(job) != key:
                job = None
            start_s = started_s(job, snapshot.now_s) if job is not None else ended.get(key)
            if start_s is not None:
                settled.append(outcome_of(row, start_s))
            elif job is not None and not job.state.is_final:
                continue
            self._drop(key)
        for outcome in settled:
            if len(self._outcomes) < _MAX_UNSAVED:
                self._outcomes[outcome.key] = outcome
        return settled

    def _drop(self, key: JobKey) -> None:
        del self.rows[key]
        self._dirty.pop(key, None)
        self._gone[key] = None

    # -- what was decided

    def decided(self, snapshot: Snapshot, decisions: Iterable[Decision]) -> list[tuple[JobId, Change]]:
        """Take in a cycle's decisions; returns what changed, job by job."""
        changes: list[tuple[JobId, Change]] = []
        for decision in decisions:
            job = snapshot.job_by_id.get(decision.job)
            if job is None:
                continue
            key, now_s = _key(job), snapshot.now_s
            row = self.rows.get(key)
            change: Change | None = None
            promise = decision.promise if isinstance(decision, Reserve) else None
            if isinstance(decision, Reserve) and promise is not None and math.isfinite(promise.start_s):
                change = self._promised(key, row, decision, promise, now_s)
            elif isinstance(decision, Hold | Reserve) and row is not None:
                change = self._not_promised(row, decision, now_s)
            if change is not None:
                changes.append((job.id, change))
        return changes

    def _promised(
        self, key: JobKey, row: KeptPromise | None, said: Reserve, promise: GuaranteedStart, now_s: float
    ) -> Change | None:
        start_s = promise.start_s
        if row is None:
            change = Change(now_s, None, start_s, MADE)
            first = replace(promise, made_s=now_s, first_s=start_s, first_made_s=now_s)
            self._put(KeptPromise(key, first, changes=(change,)))
            return change
        was_s = row.promise.start_s
        if row.is_withdrawn:
            change = Change(now_s, None, start_s, MADE, "promised again")
        elif abs(was_s - start_s) < _ROUNDING_S:
            if row.promise.allocation != promise.allocation or row.promise.length_s != promise.length_s:
                same = replace(row.promise, allocation=promise.allocation, length_s=promise.length_s)
                self._put(replace(row, promise=same))
            return None
        elif start_s < was_s:
            change = Change(now_s, was_s, start_s, BETTER)
        else:
            kind = said.broken.value if said.broken is not None else UNEXPLAINED
            change = Change(now_s, was_s, start_s, kind, said.details.get("broken", ""))
        self._put(row.changed(change, promise))
        return change

    def _not_promised(self, row: KeptPromise, said: Hold | Reserve, now_s: float) -> Change | None:
        if row.is_withdrawn or said.reason in _LEAVES_IT:
            return None
        why = said.comment.removeprefix("Not Running: ")
        change = Change(now_s, row.promise.start_s, None, WITHDRAWN, why)
        self._put(row.changed(change, row.promise))
        return change

    def _put(self, row: KeptPromise) -> None:
        self.rows[row.key] = row
        self._dirty[row.key] = None
        self._gone.pop(row.key, None)

    # -- keeping it

    def facts(self) -> PromiseFacts:
        """All that was not written yet."""
        kept = tuple(self.rows[key] for key in self._dirty)
        return PromiseFacts(kept, tuple(self._gone), tuple(self._outcomes.values()))

    def saved(self) -> None:
        """What `facts` said is written."""
        self._dirty.clear()
        self._gone.clear()
        self._outcomes.clear()


def _key(job: Job) -> JobKey:
    return job.id, job.ctime_s or 0.0


def started_s(job: Job, now_s: float) -> float | None:
    """When the job started; None while its node may still refuse it, or when it never ran."""
    if job.state is JobState.RUNNING and job.progress is StartProgress.BEGUN:
        return job.start_s if job.start_s is not None else now_s
    return job.start_s if job.state in _BEGAN else None


# -- as text in the file


def allocation_text(allocation: Iterable[NodeShare]) -> str:
    """An allocation as JSON."""
    return json.dumps([[each.node, each.slots, each.gpus] for each in allocation], separators=(",", ":"))


def read_allocation(text: str) -> tuple[NodeShare, ...]:
    """The inverse of `allocation_text`."""
    return tuple(
        NodeShare(NodeName(str(node)), int(slots), int(gpus)) for node, slots, gpus in json.loads(text)
    )


def changes_text(changes: Iterable[Change]) -> str:
    """A history as JSON."""
    return json.dumps(
        [[each.at_s, each.from_s, each.to_s, each.kind, each.why] for each in changes], separators=(",", ":")
    )


def read_changes(text: str) -> tuple[Change, ...]:
    """The inverse of `changes_text`."""
    return tuple(Change(at, was, now, str(kind), str(why)) for at, was, now, kind, why in json.loads(text))
