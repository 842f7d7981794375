"""Nodes that swallow jobs: each job sent there ends at once in failure, the node looks idle, gets the next.

One user's broken script looks the same from one job, so a node is only suspected when different jobs of at
least two users fail there in a short time, nothing worked there meanwhile, and jobs work elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from torque_sched.core.model import Job, JobId, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.daemon.back_off import Pauses, Steps
from torque_sched.daemon.finding import Finding
from torque_sched.policies.context import Pause


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
        ended = [job for job in snapshot.jobs if job.state is JobState.COMPLETED and job.exec_host]
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
        ends = self._ends.setdefault(job.exec_host[0].node, deque(maxlen=200))
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
