"""Which jobs take part in a cycle's plan, and what the others are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from torque_sched.core.decisions import Hold
from torque_sched.core.model import Job, JobId, QueueName
from torque_sched.core.reasons import Reason
from torque_sched.policies.backfill import FcfsBackfill, PlanningBackfill
from torque_sched.policies.cycle import Cycle


@dataclass(frozen=True, slots=True)
class Sifted:
    """The queued jobs of a cycle, sorted out.

    Attributes:
        planned: jobs that may be promised something, in order.
        others: jobs that may start if that delays nobody, in order: more than are planned, or beyond a limit
            as soon as all before them run.
        not_now: of `planned`, those that may start later only.
        holds: what everybody else is told, and `others` and `not_now` too if nothing better comes.
        positions: of all jobs, in the order of their turns.
    """

    planned: tuple[Job, ...]
    others: tuple[Job, ...]
    not_now: frozenset[JobId]
    holds: Mapping[JobId, Hold]
    positions: Mapping[JobId, int]


_LATER = frozenset({Reason.DEDICATED_TIME, Reason.CROSSES_DEDICATED_TIME, Reason.JOB_BACK_OFF})
"""What ends by itself: such a job may be promised a later start."""


def sift(cycle: Cycle, jobs: Sequence[Job], rules: PlanningBackfill, promised: Set[JobId]) -> Sifted:
    """Ask the gate and the limits about every job."""
    sieve = _Sieve(cycle, rules, promised)
    sieve.n_new -= sum(1 for job in jobs if job.id in promised)
    for job in jobs:
        hold = sieve.hold(job)
        if hold is not None:
            sieve.holds[job.id] = hold
        else:
            sieve.sort(job)
    positions = {job.id: place for place, job in enumerate(jobs)}
    return Sifted(tuple(sieve.planned), tuple(sieve.others), frozenset(sieve.not_now), sieve.holds, positions)


class _Sieve:
    def __init__(self, cycle: Cycle, rules: PlanningBackfill, promised: Set[JobId]) -> None:
        self._cycle, self._rules, self._promised = cycle, rules, promised
        self._limits = cycle.new_limits()
        self._strict = cycle.settings.queues.strict
        #: Queues whose first job takes part, or is held: strictly in order, nobody may go ahead of it.
        self._waits: set[QueueName] = set()
        self._held: set[QueueName] = set()
        self._n_looked_at = 0
        # Fcfs promises nothing: its jobs start in order, as many as can.
        self.n_new = rules.max_jobs if isinstance(rules, FcfsBackfill) else rules.node_exact_jobs
        self.planned: list[Job] = []
        self.others: list[Job] = []
        self.not_now: set[JobId] = set()
        self.holds: dict[JobId, Hold] = {}

    def hold(self, job: Job) -> Hold | None:
        """What keeps the job out of the plan altogether."""
        if job.queue in self._held:
            return Hold(job.id, Reason.STRICT_FIFO)
        hold = self._cycle.gate.check(job) or self._cycle.never(job)
        if hold is not None and hold.reason in _LATER:
            self.holds[job.id] = hold
            self.not_now.add(job.id)
            hold = None
        if hold is not None:
            if self._strict and not hold.reason.is_for_good:
                self._held.add(job.queue)
            return hold
        self._n_looked_at += 1
        if self._n_looked_at > self._rules.max_jobs and job.id not in self._promised:
            return Hold(job.id, Reason.BEYOND_LIMIT, {"limit": str(self._rules.max_jobs)})
        return None

    def sort(self, job: Job) -> None:
        """Whether the job may be promised something."""
        if job.queue in self._waits:
            self.holds[job.id] = Hold(job.id, Reason.STRICT_FIFO)
            self.others.append(job)
            return
        limit = self._limits.check(job)
        if self._strict and not (limit is not None and limit.reason.is_for_good):
            self._waits.add(job.queue)
        if limit is not None:
            self.holds[job.id] = limit
            self.others.append(job)
        elif job.id in self._promised or self.n_new > 0:
            self.n_new -= job.id not in self._promised
            self.planned.append(job)
            self._limits.start(job)
        else:
            self.others.append(job)
