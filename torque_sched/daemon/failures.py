"""Failures of late: jobs and nodes that are left alone for a while, nodes that swallow jobs.

A pause grows with each failure in a row and always ends (`Pauses`). A black hole is a node on which each job
ends at once in failure: it looks idle and gets the next. One user's broken script looks the same from one
job, so a node is only suspected when different jobs of at least two users fail there in a short time, nothing
worked there meanwhile, and jobs work elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from torque_sched.decide.context import Pause
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState


@dataclass(frozen=True, slots=True)
class Finding:
    """Something an administrator should know of: one log line."""

    kind: str
    """``start-confirmed``, ``start-failed``, ``node-paused``, ``black-hole``."""
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class BlackHoleRules:
    """When a node is suspected.

    Attributes:
        quick_s: a job that failed within this time counts against its first node.
        window_s: ... for this long.
        jobs: so many such jobs ...
        users: ... of so many users.
        pause: how long the node is left alone.
    """

    quick_s: float = 15.0
    window_s: float = 900.0
    jobs: int = 5
    users: int = 2
    pause: Steps = field(default_factory=lambda: Steps(600.0, 14400.0))


@dataclass(frozen=True, slots=True)
class _End:
    at_s: float
    user: str
    failed: bool


class BlackHoles:
    """Ends of jobs by node, and the nodes that are paused for them."""

    def __init__(self, rules: BlackHoleRules) -> None:
        self._rules = rules
        self._ends: dict[NodeName, deque[_End]] = {}
        self._counted: set[JobId] = set()
        self._pauses: Pauses[NodeName] = Pauses(rules.pause)

    def use(self, rules: BlackHoleRules) -> None:
        """Judge by other rules from now on."""
        self._rules, self._pauses.steps = rules, rules.pause

    def paused(self, now_s: float) -> Mapping[NodeName, Pause]:
        """Nodes to be left alone."""
        return self._pauses.active(now_s)

    @property
    def pauses(self) -> Pauses[NodeName]:
        """All pauses, to be kept and restored."""
        return self._pauses

    def observe(self, snapshot: Snapshot) -> list[Finding]:
        """Count jobs that ended since; a finding for each node newly suspected."""
        ended = [job for job in snapshot.jobs if job.state is JobState.COMPLETED and job.allocated_slots]
        for job in ended:
            if job.id not in self._counted:
                self._count(job, snapshot.now_s)
        self._counted = {job.id for job in ended}
        self._pauses.prune(snapshot.now_s)
        since_s = snapshot.now_s - self._rules.window_s
        for node, ends in tuple(self._ends.items()):
            while ends and ends[0].at_s < since_s:
                ends.popleft()
            if not ends:
                del self._ends[node]
        return [found for node in tuple(self._ends) if (found := self._judge(node, snapshot.now_s))]

    def _count(self, job: Job, now_s: float) -> None:
        ran_s = job.total_runtime_s if job.total_runtime_s is not None else job.used.walltime_s
        failed = bool(job.exit_status) and ran_s is not None and ran_s < self._rules.quick_s
        # qdel's SIGTERM says nothing about the node.
        if job.exit_status is None or job.exit_status >= 256:
            return
        at_s = job.comp_s if job.comp_s is not None else now_s
        ends = self._ends.setdefault(job.allocated_slots[0].node, deque(maxlen=200))
        ends.append(_End(min(at_s, now_s), job.user, failed))

    def _judge(self, node: NodeName, now_s: float) -> Finding | None:
        ends = self._ends[node]
        if node in self._pauses.active(now_s) or not all(end.failed for end in ends):
            return None
        users = {end.user for end in ends}
        if len(ends) < self._rules.jobs or len(users) < self._rules.users:
            return None
        works_elsewhere = any(
            not end.failed for other, others in self._ends.items() if other != node for end in others
        )
        if not works_elsewhere:
            return None
        why = f"{len(ends)} jobs of {len(users)} users failed here at once"
        pause_s = self._pauses.failed(node, now_s, why)
        self._ends[node].clear()
        text = f"black hole: {why}; left alone for {pause_s:.0f} s"
        return Finding("black-hole", node, text)


Key = TypeVar("Key", bound=Hashable)
_ROUNDING_S = 1.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Pauses of ``first_s``, twice that, four times that ... at most ``longest_s``."""

    first_s: float
    longest_s: float

    def pause_s(self, failures: int) -> float:
        """The pause after this many failures in a row."""
        return min(self.longest_s, self.first_s * 2.0 ** min(40, failures - 1))


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures in a row of one key, and until when it is left alone for them."""

    failures: int
    until_s: float
    why: str


class Pauses(Generic[Key]):
    """Pauses by key.

    A key whose pause ended longer ago than the pause was long starts over with the first step.

    Attributes:
        steps: may be replaced; a pause under way that is longer than the new steps allow is over.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._entries: dict[Key, Failures] = {}

    def failed(self, key: Key, now_s: float, why: str) -> float:
        """Note a failure; returns how long the pause is. One during a pause does not lengthen it."""
        entry = self._entries.get(key)
        if entry is not None and self._is_active(entry, now_s):
            self._entries[key] = replace(entry, why=why)
            return entry.until_s - now_s
        failures = 1
        if entry is not None and now_s - entry.until_s < self.steps.pause_s(entry.failures):
            failures = entry.failures + 1
        pause_s = self.steps.pause_s(failures)
        self._entries[key] = Failures(failures, now_s + pause_s, why)
        return pause_s

    def worked(self, key: Key) -> None:
        """All is forgiven."""
        self._entries.pop(key, None)

    def active(self, now_s: float) -> dict[Key, Pause]:
        """Those not to be tried now."""
        return {
            key: Pause(entry.until_s, entry.why)
            for key, entry in self._entries.items()
            if self._is_active(entry, now_s)
        }

    def _is_active(self, entry: Failures, now_s: float) -> bool:
        # One that has longer to go than it was long began by a clock that was put back since.
        return 0 < entry.until_s - now_s <= self.steps.pause_s(entry.failures) + _ROUNDING_S

    def entries(self) -> dict[Key, Failures]:
        """All that is not forgotten, to be restored by a daemon started anew."""
        return dict(self._entries)

    def restore(self, key: Key, entry: Failures, now_s: float) -> None:
        """Go on with what a daemon before knew; no pause gets longer than these steps allow."""
        until_s = min(entry.until_s, now_s + self.steps.longest_s)
        self._entries[key] = replace(entry, until_s=until_s)

    def names(self) -> tuple[Key, ...]:
        """All keys with a failure not yet forgotten."""
        return tuple(self._entries)

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop keys that are no more."""
        for key in tuple(keys):
            self._entries.pop(key, None)

    def prune(self, now_s: float) -> None:
        """Drop what would start over with the first step anyway."""
        old = [k for k, e in self._entries.items() if now_s - e.until_s >= self.steps.pause_s(e.failures)]
        self.forget(old)
