"""The rooms of one cycle, and its decisions where jobs are taken one by one.

Jobs come as the order says; waiting long moves nobody ahead. What concerns the job alone is asked first
(`gate`), then limits (`limits`), then nodes (`search`). A start is booked at once, so later jobs of the cycle
see it. A job that finds no nodes may have nodes kept for it (`backfill`), or is told why (`why`). The nodes
that the cycle before kept are kept again before anybody is placed, or a job ahead in the order would take
them each time. Free amounts only shrink meanwhile, so a shape that did not fit is not tried again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torque_sched.core.decisions import Decision, Hold, NodeShare, Reserve, Start
from torque_sched.core.model import Job, JobId, QueueName
from torque_sched.core.reasons import Reason
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.policies.base import Turns
from torque_sched.policies.context import Context, Prediction
from torque_sched.policies.gate import Gate, time_text
from torque_sched.policies.ledger import open_ledger
from torque_sched.policies.limits import Limits
from torque_sched.policies.needs import Shape, Shapes
from torque_sched.policies.search import Search
from torque_sched.policies.settings import Settings
from torque_sched.policies.shares import merged
from torque_sched.policies.why import Why


class Cycle:
    """The rooms of one cycle; made for one snapshot and used up by it."""

    def __init__(self, snapshot: Snapshot, settings: Settings, context: Context) -> None:
        self.snapshot, self.settings, self.context = snapshot, settings, context
        self.ledger = open_ledger(snapshot, context, settings.nodes, settings.gpus, settings.memory)
        self.scorer = settings.placement.scorer(self.ledger.nodes, context)
        self.search = Search(self.ledger, self.scorer, context)
        self.shapes = Shapes(snapshot, settings.queues, settings.memory)
        self.gate = Gate(snapshot, context, settings.queues, settings.zone)
        self.limits = self.new_limits()
        self.keeper = settings.backfill.keeper(self.search, snapshot.now_s)
        self.why = Why(self.search, settings.words_of_c)
        self._blocked: set[QueueName] = set()
        self._starts_left = settings.max_starts
        self._reserved_for: list[JobId] = []
        self._urgent: frozenset[JobId] | None = None

    def decisions(self) -> Iterator[Decision]:
        """One for every queued job, of a backfill that takes jobs one by one."""
        urgent = [job for job in self.snapshot.queued if self.keeper.is_urgent(job)]
        self._urgent = frozenset(job.id for job in urgent)
        groups: tuple[Sequence[Job], ...] = (self.snapshot.queued,)
        if self.keeper.stops_others:
            groups = (urgent, [job for job in self.snapshot.queued if job.id not in self._urgent])
        for jobs in groups:
            turns = self.settings.order.turns(jobs, self.snapshot, self.context)
            again = {} if self.keeper.stops_others else self._keep_again(urgent, turns)
            for job in turns:
                yield self._decide(job, turns, again.get(job.id))

    def _keep_again(self, urgent: Sequence[Job], turns: Turns) -> dict[JobId, Decision]:
        """Starts on nodes that were kept and are free now, and the nodes that are kept on."""
        again: dict[JobId, Decision] = {}
        for job in urgent:
            if job.id in self.context.kept and self.check(job) is None:
                decision = self._place(job, turns)
                if not isinstance(decision, Hold):
                    again[job.id] = decision
        return again

    def _decide(self, job: Job, turns: Turns, again: Decision | None = None) -> Decision:
        if job.queue in self._blocked and again is None:
            return Hold(job.id, Reason.STRICT_FIFO)
        decision = again or self.check(job) or self._place(job, turns)
        # Nobody waits for a job that can never run.
        is_passed = isinstance(decision, Start) or decision.reason.is_for_good
        if self.settings.queues.strict and not is_passed:
            self._blocked.add(job.queue)
        return decision

    def new_limits(self) -> Limits:
        """The limits as the cycle begins."""
        starting = _starting(self.snapshot, self.context)
        return Limits(self.snapshot, starting, self.settings.queues.max_is_total)

    @property
    def starts_left(self) -> int:
        """So many more starts are within `Settings.max_starts`."""
        return self._starts_left

    def may_start_more(self) -> bool:
        """Whether one more start is."""
        return self._starts_left > 0

    def count_start(self) -> None:
        """One start less to go."""
        self._starts_left -= 1

    def never(self, job: Job) -> Hold | None:
        """That not even an idle cluster could run the job, if so."""
        why = self.why.never(self.shape(job, self.context.predictions.expect(job)))
        return Hold(job.id, Reason.NEVER_FITS, {"why": why}) if why else None

    def check(self, job: Job) -> Hold | None:
        """What holds the job whatever the nodes are like."""
        return self.gate.check(job) or self.limits.check(job)

    def shape(self, job: Job, prediction: Prediction | None) -> Shape:
        """What the job needs of the nodes."""
        return self.shapes.of(job, prediction, self._is_urgent(job))

    def _is_urgent(self, job: Job) -> bool:
        return job.id in self._urgent if self._urgent is not None else self.keeper.is_urgent(job)

    def until_s(self, job: Job) -> float:
        """When the job ends at the latest; infinite without a walltime."""
        return math.inf if job.walltime_s is None else self.snapshot.now_s + job.walltime_s

    def _place(self, job: Job, turns: Turns) -> Decision:
        if self._starts_left <= 0:
            return Hold(job.id, Reason.CYCLE_FULL)
        if self.keeper.drains_for is not None:
            return Hold(job.id, Reason.DRAINING)
        shape = self.shape(job, self.context.predictions.expect(job))
        never = self.why.never(shape)
        if never:
            return Hold(job.id, Reason.NEVER_FITS, {"why": never})
        until_s = self.until_s(job)
        placed = self.search.find(job, shape, until_s)
        if placed is None:
            return self._keep(job, shape) or self._hold(job, shape, until_s)
        self._starts_left -= 1
        self.ledger.take(job, shape, placed.parts, until_s)
        self.limits.start(job)
        turns.started(job)
        shares = tuple(NodeShare(node.name, piece.ppn, piece.gpus) for node, piece in placed.parts)
        return Start(job.id, merged(shares), placed.score)

    def _keep(self, job: Job, shape: Shape) -> Reserve | None:
        """Nodes kept for the job, if it is its turn."""
        kept = self.keeper.reserve(job, shape)
        if kept is None:
            return None
        self._reserved_for.append(job.id)
        kept = replace(kept, allocation=merged(kept.allocation))
        if "start" in kept.details:
            return kept
        return replace(kept, details={"start": time_text(kept.start_s, self.settings.zone)})

    def _hold(self, job: Job, shape: Shape, until_s: float) -> Hold:
        hold = self.why.hold(job, shape, until_s, len(self._reserved_for))
        if hold.reason is not Reason.RESERVED_FOR_OTHERS:
            return hold
        if self._reserved_for:
            return replace(hold, details={**hold.details, "job": self._reserved_for[0]})
        return self.kept_off(job, shape, until_s) or hold

    def kept_off(self, job: Job, shape: Shape, until_s: float) -> Hold | None:
        """The advance reservations that keep the job off nodes it could use, if there are any."""
        now_s, zone = self.snapshot.now_s, self.settings.zone
        found = [
            kept
            for kept in self.context.reservations
            if kept.start_s < until_s and now_s < kept.end_s and job.user not in kept.users
        ]
        if found:
            nodes = {node.name for piece in shape.pieces for node in self.search.capable(piece, shape)}
            found = [kept for kept in found if nodes & kept.nodes]
        if not found:
            return None
        names = ("another site" if kept.name.startswith("grid:") else kept.name for kept in found)
        details = {
            "name": ", ".join(dict.fromkeys(names)),
            "start": time_text(min(kept.start_s for kept in found), zone),
            "end": time_text(max(kept.end_s for kept in found), zone),
        }
        return Hold(job.id, Reason.ADVANCE_RESERVATION, details)


def _starting(snapshot: Snapshot, context: Context) -> list[Job]:
    """Jobs whose start was asked for and is not to be seen yet: limits count them."""
    jobs = (snapshot.job_by_id.get(start.job) for start in context.pending)
    return [job for job in jobs if job is not None and job.state is JobState.QUEUED]
