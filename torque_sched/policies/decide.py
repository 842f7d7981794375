"""One decision for every queued job: a pure function of the snapshot, the settings and the context.

Theory of operation. Jobs are taken one by one: those that waited long first, then as the order says. What
concerns the job alone is asked first (`gate`), then limits (`limits`), then nodes (`search`). A start is
booked at once, so later jobs of the cycle see it. A job that finds no nodes may have nodes kept for it
(`backfill`), or is told why (`why`). Free amounts only shrink meanwhile, so a shape that did not fit is not
tried again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from torque_sched.policies.load import Load, PlacedLoad
from torque_sched.policies.needs import Shape, Shapes
from torque_sched.policies.search import Search
from torque_sched.policies.settings import Settings
from torque_sched.policies.why import Why

__all__ = ["Cycle", "decide", "merged", "placed_loads"]


def decide(snapshot: Snapshot, settings: Settings, context: Context) -> tuple[Decision, ...]:
    """Answer every queued job exactly once, in the order of consideration; equal input gives equal answers.

    Starts come in the order in which they should be enacted.
    """
    return tuple(Cycle(snapshot, settings, context).decisions())


class Cycle:
    """The rooms of one cycle; made for one snapshot and used up by it."""

    def __init__(self, snapshot: Snapshot, settings: Settings, context: Context) -> None:
        self.snapshot, self.settings, self.context = snapshot, settings, context
        self.ledger = open_ledger(snapshot, context, settings.nodes, settings.gpus, settings.memory)
        self.scorer = settings.placement.scorer(self.ledger.nodes, context)
        self.search = Search(self.ledger, self.scorer, context)
        self.shapes = Shapes(snapshot, settings.queues, settings.memory)
        self.gate = Gate(snapshot, context, settings.queues, settings.zone)
        self.limits = Limits(snapshot, _starting(snapshot, context), settings.queues.max_is_total)
        self.keeper = settings.backfill.keeper(self.search, snapshot.now_s)
        self.why = Why(self.search, settings.words_of_c)
        self._blocked: set[QueueName] = set()
        self._starts_left = settings.max_starts
        self._reserved_for: Job | None = None
        self._urgent: frozenset[JobId] | None = None

    def decisions(self) -> Iterator[Decision]:
        """One for every queued job."""
        urgent = [job for job in self.snapshot.queued if self.keeper.is_urgent(job)]
        self._urgent = frozenset(job.id for job in urgent)
        others = [job for job in self.snapshot.queued if job.id not in self._urgent]
        for jobs in (urgent, others):
            turns = self.settings.order.turns(jobs, self.snapshot, self.context)
            for job in turns:
                yield self._decide(job, turns)

    def _decide(self, job: Job, turns: Turns) -> Decision:
        if job.queue in self._blocked:
            return Hold(job.id, Reason.STRICT_FIFO)
        decision = self.check(job) or self._place(job, turns)
        if self.settings.queues.strict and not isinstance(decision, Start):
            self._blocked.add(job.queue)
        return decision

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
        self._reserved_for = self._reserved_for or job
        kept = replace(kept, allocation=merged(kept.allocation))
        if "start" in kept.details:
            return kept
        return replace(kept, details={"start": time_text(kept.start_s, self.settings.zone)})

    def _hold(self, job: Job, shape: Shape, until_s: float) -> Hold:
        hold = self.why.hold(job, shape, until_s)
        if hold.reason is not Reason.RESERVED_FOR_OTHERS:
            return hold
        if self._reserved_for is not None:
            whom: str = self._reserved_for.id
        else:
            whom = ", ".join(reservation.name for reservation in self.context.reservations)
        return replace(hold, details={**hold.details, "job": whom})


def merged(shares: tuple[NodeShare, ...]) -> tuple[NodeShare, ...]:
    """Shares of one node joined, in the order in which the nodes first appear."""
    if len(shares) < 2:
        return shares
    by_node: dict[str, NodeShare] = {}
    for share in shares:
        before = by_node.get(share.node)
        if before is not None:
            share = NodeShare(share.node, before.ppn + share.ppn, before.gpus + share.gpus)
        by_node[share.node] = share
    return tuple(by_node.values())


def _starting(snapshot: Snapshot, context: Context) -> list[Job]:
    """Jobs whose start was asked for and is not to be seen yet: limits count them."""
    jobs = (snapshot.job_by_id.get(start.job) for start in context.pending)
    return [job for job in jobs if job is not None and job.state is JobState.QUEUED]


def placed_loads(start: Start, job: Job, context: Context, now_s: float) -> tuple[PlacedLoad, ...]:
    """What a start is expected to use of each node, for `Context.placed` of the cycles to come."""
    prediction = context.predictions.expect(job)
    n_slots = sum(share.ppn for share in start.allocation)
    n_gpus = sum(share.gpus for share in start.allocation)
    loads = []
    for share in start.allocation:
        if prediction is None:
            mem = max(job.request.mem_bytes or 0, (job.request.pmem_bytes or 0) * n_slots)
            load = Load(float(share.ppn), mem * share.ppn / n_slots, float(share.gpus), 0.0)
        else:
            load = prediction.load.scaled(share.ppn / n_slots, share.gpus / n_gpus if n_gpus else 0.0)
        loads.append(PlacedLoad(job.id, share.node, load, now_s))
    return tuple(loads)
