"""For one job, every node: does it fit, why not, what does it score, and what would a start there break?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torque_sched.core.decisions import Decision, Hold, Reserve, Start
from torque_sched.core.model import Job, NodeName
from torque_sched.core.reasons import Reason
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.policies.backfill import PlanningBackfill
from torque_sched.policies.context import Context, Prediction
from torque_sched.policies.cycle import Cycle
from torque_sched.policies.decide import plan_of
from torque_sched.policies.needs import Piece, Shape
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.refusals import Refusal
from torque_sched.policies.search import Who
from torque_sched.policies.settings import Settings
from torque_sched.policies.why import kept_words, node_refusal


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What one node says to one piece of the job.

    Attributes:
        piece: which piece of the request, counted from 0.
        refusal: why not; None: it fits.
        why: the node's own words (its state, its note), where it has any.
        score: the placement's figure, the smaller the better; None where the node could never take it.
        terms: the figures behind the score.
        breaks: where it fits and the job waits all the same: what a start there now would break.
    """

    node: NodeName
    piece: int
    refusal: Refusal | None
    why: str
    score: float | None
    terms: tuple[tuple[str, float], ...]
    breaks: str = ""

    @property
    def fits(self) -> bool:
        """Whether there is room now, whoever it is kept for."""
        return self.refusal is None

    @property
    def words(self) -> str:
        """Yes or no, and why."""
        if self.refusal is None:
            return f"fits, but {self.breaks}" if self.breaks else "yes"
        return f"no: {self.refusal.value}" + (f" ({self.why})" if self.why else "")


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
    decision, breaks = _decided(cycle, job, shape, who)
    judged = (replace(each, breaks=breaks(each)) if each.fits else each for each in verdicts)
    return Explanation(job, decision, tuple(judged), prediction)


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


def _decided(
    cycle: Cycle, job: Job, shape: Shape, who: Who
) -> tuple[Decision | None, Callable[[NodeVerdict], str]]:
    """What the whole cycle says (of a held job what holds it), and what a start now would break."""
    if job.state is not JobState.QUEUED or job.is_array_parent:
        held = cycle.gate.check(job) if job.state in _SET_ASIDE else None
        return held, lambda _: "" if held is None else _holds(held)
    backfill = cycle.settings.backfill
    plan = plan_of(cycle, backfill) if isinstance(backfill, PlanningBackfill) else None
    decisions = tuple((plan or cycle).decisions())
    decision = next((each for each in decisions if each.job == job.id), None)
    if decision is None or isinstance(decision, Start):
        return decision, lambda _: ""
    if plan is not None:
        who = replace(who, has_room=plan.room_beside(job))
    return decision, _Breaks(cycle, decision, decisions, shape, who).of


class _Breaks:
    """What a start now would break on nodes that fit, when the cycle is decided."""

    def __init__(
        self, cycle: Cycle, decision: Hold | Reserve, decisions: Sequence[Decision], shape: Shape, who: Who
    ) -> None:
        self._cycle, self._decision, self._shape, self._who = cycle, decision, shape, who
        self._starts: Counter[NodeName] = Counter()
        self._kept: Counter[NodeName] = Counter()
        for each in decisions:
            if each.job == decision.job or isinstance(each, Hold):
                continue
            nodes = {share.node for share in each.allocation}
            if isinstance(each, Start):
                self._starts.update(nodes)
            elif each.start_s < who.until_s:
                self._kept.update(nodes)
        own = decision.allocation if isinstance(decision, Reserve) else ()
        self._own = frozenset(share.node for share in own)

    def of(self, verdict: NodeVerdict) -> str:
        """In words; of a node that has room for the job at the beginning of the cycle."""
        piece, node = self._shape.pieces[verdict.piece], self._cycle.ledger.by_name[verdict.node]
        refusal = node_refusal(node, piece, self._shape, self._who)
        if refusal is None:
            return self._free(piece)
        if verdict.node in self._own and not self._kept[verdict.node] and refusal is Refusal.RESERVED:
            return "kept for it until all its nodes are free"
        starts, kept = self._starts[verdict.node], self._kept[verdict.node]
        told = [kept_words(kept)] if kept else []
        if starts and refusal is not Refusal.RESERVED:
            told.insert(0, f"taken by {starts} {_jobs(starts)} before it, which {_start(starts)} now")
        return ", ".join(told) or refusal.value

    def _free(self, piece: Piece) -> str:
        """Nobody else has the node: something else is in the way."""
        if isinstance(self._decision, Hold) and self._decision.reason not in _OF_NODES:
            return _holds(self._decision)
        search, shape = self._cycle.search, self._shape
        free = [
            node for node in search.matching(piece, shape)
            if not node.too_small(piece) and node_refusal(node, piece, shape, self._who) is None
        ]  # fmt: skip
        if len(free) < piece.count:
            return f"the job needs {piece.count} such nodes and {len(free)} are free for it"
        return _holds(self._decision)


_SET_ASIDE = frozenset({JobState.HELD, JobState.WAITING, JobState.TRANSIT})
_OF_NODES = frozenset(
    {Reason.NOT_ENOUGH_NODES, Reason.RESERVED_FOR_OTHERS, *(refusal.reason for refusal in Refusal)}
)


def _holds(decision: Hold | Reserve) -> str:
    return decision.comment.removeprefix("Not Running: ")


def _jobs(n: int) -> str:
    return "job" if n == 1 else "jobs"


def _start(n: int) -> str:
    return "starts" if n == 1 else "start"
