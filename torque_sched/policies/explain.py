"""For one job, every node: does it fit, why not, and what does it score?"""

from __future__ import annotations

from dataclasses import dataclass

from torque_sched.core.decisions import Decision
from torque_sched.core.model import Job, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.policies.context import Context, Prediction
from torque_sched.policies.cycle import Cycle
from torque_sched.policies.decide import decisions_of
from torque_sched.policies.needs import Piece, Shape
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.refusals import Refusal
from torque_sched.policies.search import Who
from torque_sched.policies.settings import Settings
from torque_sched.policies.why import node_refusal

__all__ = ["Explanation", "NodeVerdict", "explain"]


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What one node says to one piece of the job.

    Attributes:
        piece: which piece of the request, counted from 0.
        refusal: why not; None: it fits.
        why: the node's own words (its state, its note), where it has any.
        score: the placement's figure, the smaller the better; None where the node could never take it.
        terms: the figures behind the score.
    """

    node: NodeName
    piece: int
    refusal: Refusal | None
    why: str
    score: float | None
    terms: tuple[tuple[str, float], ...]

    @property
    def fits(self) -> bool:
        """Whether it fits now."""
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision for a job in this snapshot, with every node's verdict as the cycle begins."""

    job: Job
    decision: Decision | None
    """None where the job needs none: it runs, or has ended."""
    nodes: tuple[NodeVerdict, ...]
    prediction: Prediction | None


def explain(snapshot: Snapshot, settings: Settings, context: Context, job: Job) -> Explanation:
    """Why the job runs where it would, or why it waits.

    The job may be unknown to the snapshot: then it is judged as if it were submitted now (``whatif``).
    """
    if job.id not in snapshot.job_by_id:
        snapshot = Snapshot(
            snapshot.now_s,
            snapshot.server,
            snapshot.queues,
            snapshot.nodes,
            (*snapshot.jobs, job),
            snapshot.problems,
        )
    cycle = Cycle(snapshot, settings, context)
    prediction = context.predictions.expect(job)
    shape = cycle.shape(job, prediction)
    who = cycle.search.who(job, cycle.until_s(job))
    verdicts = []
    for place, piece in enumerate(shape.pieces):
        matching = {node.index for node in cycle.search.matching(piece, shape)}
        for node in cycle.ledger.nodes:
            refusal = _refusal(node, piece, shape, who) if node.index in matching else Refusal.NOT_MATCHING
            verdicts.append(_verdict(cycle, node, place, piece, refusal))
    return Explanation(job, _decision(cycle, job), tuple(verdicts), prediction)


def _refusal(node: NodeLedger, piece: Piece, shape: Shape, who: Who) -> Refusal | None:
    return Refusal.TOO_SMALL if node.too_small(piece) else node_refusal(node, piece, shape, who)


def _verdict(
    cycle: Cycle, node: NodeLedger, place: int, piece: Piece, refusal: Refusal | None
) -> NodeVerdict:
    if refusal in {Refusal.NOT_MATCHING, Refusal.TOO_SMALL}:
        return NodeVerdict(node.name, place, refusal, "", None, ())
    why = node.why if refusal is node.blocked else ""
    score, terms = cycle.scorer.score(node, piece), cycle.scorer.terms(node, piece)
    return NodeVerdict(node.name, place, refusal, why, score, terms)


def _decision(cycle: Cycle, job: Job) -> Decision | None:
    """What the whole cycle says; for a held or waiting job what holds it."""
    if job.state is not JobState.QUEUED or job.is_array_parent:
        if job.state in {JobState.HELD, JobState.WAITING, JobState.TRANSIT}:
            return cycle.gate.check(job)
        return None
    return next((decision for decision in decisions_of(cycle) if decision.job == job.id), None)
