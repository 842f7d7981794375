"""Questions about a cycle: why does a job wait, when does it start, and what could start now?

`explain` says of every node whether it fits one job, its score, and what a start there would break;
`showstart` when the job starts; `showbf` which resources are free. Each makes the whole decision of a cycle,
with all jobs that wait, and reads the answer from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torque_sched.decide.context import Context, Prediction
from torque_sched.decide.cycle import Cycle
from torque_sched.decide.decide import DecisionPass
from torque_sched.decide.needs import ResourceChunk, Shape
from torque_sched.decide.node_ledger import NodeLedger, Refusal
from torque_sched.decide.search import SearchConstraints
from torque_sched.decide.settings import Settings
from torque_sched.decide.why import Keepers, kept_words, node_refusal
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import Decision, GuaranteedStart, Hold, NodeShare, Reserve, Start
from torque_sched.model.reasons import Reason
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState
from torque_sched.model.texts import time_text

if TYPE_CHECKING:
    from torque_sched.decide.future import Future


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
        """Whether the job fits now, whoever the node is kept for."""
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
            verdicts.append(_verdict(cycle, node, place, piece, refusal, who))
    decision, breaks = _decided(cycle, job, shape, who)
    judged = (replace(each, breaks=breaks(each)) if each.fits else each for each in verdicts)
    return Explanation(job, decision, tuple(judged), prediction)


def _refusal(node: NodeLedger, piece: ResourceChunk, shape: Shape, who: SearchConstraints) -> Refusal | None:
    return Refusal.TOO_SMALL if node.too_small(piece) else node_refusal(node, piece, shape, who)


def _verdict(
    cycle: Cycle,
    node: NodeLedger,
    place: int,
    piece: ResourceChunk,
    refusal: Refusal | None,
    who: SearchConstraints,
) -> NodeVerdict:
    if refusal in {Refusal.NOT_MATCHING, Refusal.TOO_SMALL}:
        return NodeVerdict(node.name, place, refusal, "", None, ())
    why = node.why if refusal is node.blocked else ""
    if refusal is Refusal.RESERVED:
        why = cycle.kept_on(node.name, who.user, who.until_s)
    score, terms = cycle.scorer.score(node, piece), cycle.scorer.terms(node, piece)
    return NodeVerdict(node.name, place, refusal, why, score, terms)


def _decided(
    cycle: Cycle, job: Job, shape: Shape, who: SearchConstraints
) -> tuple[Decision | None, Callable[[NodeVerdict], str]]:
    """What the whole cycle says (of a held job what holds it), and what a start now would break."""
    if job.state is not JobState.QUEUED or job.is_array_parent:
        held = cycle.admission.check(job) if job.state in _SET_ASIDE else None
        return held, lambda _: "" if held is None else _holds(held)
    made = DecisionPass(cycle)
    decisions = made.decisions()
    decision = next((each for each in decisions if each.job == job.id), None)
    if decision is None or isinstance(decision, Start):
        return decision, lambda _: ""
    if made.future is not None:
        who = replace(who, has_capacity=made.future.capacity_beside(job))
    return decision, _Breaks(cycle, decision, decisions, made.keepers, shape, who).of


class _Breaks:
    """What a start now would break on nodes that fit, when the cycle is decided."""

    def __init__(
        self,
        cycle: Cycle,
        decision: Hold | Reserve,
        decisions: Sequence[Decision],
        keepers: Keepers,
        shape: Shape,
        who: SearchConstraints,
    ) -> None:
        self._cycle, self._decision, self._shape, self._who = cycle, decision, shape, who
        self._keepers = keepers
        self._starts: Counter[NodeName] = Counter()
        for each in decisions:
            if isinstance(each, Start):
                self._starts.update({share.node for share in each.allocation})
        own = decision.allocation if isinstance(decision, Reserve) else ()
        self._own = frozenset(share.node for share in own)

    def of(self, verdict: NodeVerdict) -> str:
        """In words; of a node that fits the job at the beginning of the cycle."""
        piece, node = self._shape.pieces[verdict.piece], self._cycle.ledger.by_name[verdict.node]
        refusal = node_refusal(node, piece, self._shape, self._who)
        if refusal is None:
            return self._free(piece)
        kept = [job for job in self._keepers.of((node,), self._who.until_s) if job != self._decision.job]
        if verdict.node in self._own and not kept and refusal is Refusal.RESERVED:
            return "kept for it until all its nodes are free"
        starts = self._starts[verdict.node]
        words = [kept_words(len(kept))] if kept else []
        if starts and refusal is not Refusal.RESERVED:
            words.insert(0, f"taken by {starts} {_jobs(starts)} before it, which {_start(starts)} now")
        return ", ".join(words) or refusal.value

    def _free(self, piece: ResourceChunk) -> str:
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


_NAMED = 4


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """When one job starts by the plan of this moment.

    Attributes:
        start_s: None: not known.
        allocation: its nodes; empty where the start is only estimated.
        promise: what it is, or would be, promised.
        decision: None: the job needs none.
        evidence: sentences.
        starts: all that start now.
    """

    job: JobId
    start_s: float | None
    allocation: tuple[NodeShare, ...]
    is_promise: bool
    promise: GuaranteedStart | None
    decision: Decision | None
    evidence: tuple[str, ...]
    starts: tuple[Start, ...] = ()


@dataclass(frozen=True, slots=True)
class FreeNode:
    """What is free of a node now and stays so until ``until_s``; less for longer is another one."""

    node: NodeName
    slots: int
    gpus: int
    mem_bytes: float
    until_s: float
    properties: tuple[str, ...]


def showstart(snapshot: Snapshot, settings: Settings, context: Context, job: Job) -> PlannedStart:
    """The planned start of a job; one unknown to the snapshot is planned as if submitted now, the last."""
    if job.id not in snapshot.job_by_id:
        snapshot = replace(snapshot, jobs=(*snapshot.jobs, job))
    cycle = Cycle(snapshot, settings, context)
    if job.state is not JobState.QUEUED or job.is_array_parent:
        held = cycle.admission.check(job)
        why = (held.comment,) if held is not None else ()
        return PlannedStart(job.id, None, (), False, None, held, why)
    decisions = DecisionPass(cycle).decisions()
    decision = next((each for each in decisions if each.job == job.id), None)
    evidence = tuple(_evidence(cycle, job, decision, decisions))
    starts = tuple(each for each in decisions if isinstance(each, Start))
    if isinstance(decision, Start):
        return PlannedStart(job.id, snapshot.now_s, decision.allocation, False, None, decision, evidence)
    if isinstance(decision, Reserve) and math.isfinite(decision.start_s):
        promise = decision.promise
        return PlannedStart(
            job.id, decision.start_s, decision.allocation, promise is not None, promise, decision, evidence,
            starts,
        )  # fmt: skip
    return PlannedStart(job.id, None, (), False, None, decision, evidence, starts)


def _evidence(
    cycle: Cycle, job: Job, decision: Decision | None, decisions: tuple[Decision, ...]
) -> Iterator[str]:
    if isinstance(decision, Hold):
        yield decision.comment
        if "estimated start" in decision.details:
            yield f"by the count of free slots it may start about {decision.details['estimated start']}"
        return
    before = [each for each in decisions[: _place(job, decisions)] if isinstance(each, Reserve)]
    if before:
        promised = sum(each.promise is not None for each in before)
        yield f"{len(before)} waiting jobs come before it, {promised} of them with a guaranteed start"
    if isinstance(decision, Reserve):
        if "why broken" in decision.details:
            yield f"put off: {decision.details['why broken']}"
        yield from _kept_out(cycle, job, decision.start_s)
        yield from _in_its_way(cycle, decision)
    prediction = cycle.context.predictions.expect(job)
    if prediction is not None and prediction.evidence:
        yield f"expected by {prediction.evidence}"
    if job.walltime_s is None:
        yield "it names no walltime, so it fits nowhere before a guaranteed start"


def _place(job: Job, decisions: tuple[Decision, ...]) -> int:
    return next((place for place, each in enumerate(decisions) if each.job == job.id), 0)


def _kept_out(cycle: Cycle, job: Job, starts_s: float) -> Iterator[str]:
    """Times kept for others until it starts, into which it would run if it started now."""
    zone, now_s, until_s = cycle.settings.zone, cycle.snapshot.now_s, cycle.until_s(job)
    for window in cycle.context.dedicated:
        if window.start_s < until_s and now_s < window.end_s:
            yield (
                f"dedicated time from {time_text(window.start_s, zone)} to {time_text(window.end_s, zone)}: "
                "it would run into it"
            )
    shape = cycle.expected_shape(job)
    kept = cycle.kept_off(job, shape, until_s, ends_by_s=starts_s)
    if kept is not None:
        yield f"{kept.details['name']} keeps nodes from {kept.details['start']} to {kept.details['end']}"


def _in_its_way(cycle: Cycle, decision: Reserve) -> Iterator[str]:
    """What runs on its nodes until then."""
    for share in decision.allocation[:_NAMED]:
        for held in cycle.ledger.held.get(share.node, ())[:_NAMED]:
            job = held.job
            if job.walltime_s is None:
                yield f"{job.id} runs on {share.node} and names no walltime"
            elif job.start_s is not None:
                until = time_text(job.start_s + job.walltime_s, cycle.settings.zone)
                yield f"{job.id} may run on {share.node} until {until}"


def showbf(snapshot: Snapshot, settings: Settings, context: Context, user: str = "") -> tuple[FreeNode, ...]:
    """What is free now beside all that runs, is promised or reserved, in the server's order of nodes.

    Args:
        snapshot: now.
        settings: with any backfill.
        context: of the same moment.
        user: whose reservations may be used; empty: nobody's.
    """
    cycle = Cycle(snapshot, settings, context)
    made = DecisionPass(cycle)
    made.decisions()
    if made.future is None:
        return tuple(each for node in cycle.ledger.nodes for each in _by_ledger(node, snapshot.now_s, user))
    return tuple(_by_plan(cycle, made.future, user))


def _by_plan(cycle: Cycle, future: Future, user: str) -> Iterator[FreeNode]:
    from torque_sched.decide.steps import BITS, GPUS, MEMORY, PLENTY, SLOTS

    steps, now_s = future.timeline.table.steps, cycle.snapshot.now_s
    bits = future.kept_out.of(user, "", is_dedicated=False)
    #: Of each row of several nodes, how many free ones were reported.
    reported: Counter[int] = Counter()
    for node in cycle.ledger.nodes:
        row = int(future.occupancy.rows.of[node.index])
        has_many = bool(future.timeline.table.has_many[row])
        if node.blocked is not None or node.node.only_for or (has_many and not node.slots_free):
            continue
        at = steps.at[row, : steps.width].tolist()
        slots, gpus, memory, kept = (
            steps.free[amount, row, : steps.width].tolist() for amount in (SLOTS, GPUS, MEMORY, BITS)
        )
        if has_many:
            slots = [int(n > reported[row]) for n in slots]
            memory = [min(node.mem_free_bytes, PLENTY)] * len(slots)
            reported[row] += 1
        spans = []
        for place, begins_s in enumerate(at):
            ends_s = at[place + 1] if place + 1 < len(at) else math.inf
            if math.isinf(begins_s) and begins_s > 0:
                break
            if ends_s <= now_s:
                continue
            is_kept = bool(kept[place] & bits)
            free = (0, 0, 0.0) if is_kept else (slots[place], gpus[place], float(memory[place]))
            spans.append((ends_s, *free))
        for each in _stairs(node, spans, float(PLENTY)):
            # Plans add the slack to what a job asks for, so it may ask for so much less.
            if each.until_s - future.timeline.table.slack_s > now_s:
                yield replace(each, until_s=each.until_s - future.timeline.table.slack_s)


def _stairs(
    node: NodeLedger, spans: list[tuple[float, int, int, float]], plenty: float
) -> Iterator[FreeNode]:
    """The most for each length of time: amounts fall, times rise."""
    least = (node.slots_free, node.gpus_free, math.inf)
    until_s = -math.inf
    for ends_s, slots, gpus, mem_bytes in spans:
        now = (min(least[0], slots), min(least[1], gpus), min(least[2], mem_bytes))
        if now[:2] != least[:2] and until_s > -math.inf:
            yield from _free(node, least, until_s, plenty)
        least, until_s = now, ends_s
    yield from _free(node, least, until_s, plenty)


def _free(
    node: NodeLedger, amounts: tuple[int, int, float], until_s: float, plenty: float
) -> Iterator[FreeNode]:
    slots, gpus, mem_bytes = amounts
    if slots > 0:
        memory = math.inf if mem_bytes >= plenty else max(0.0, mem_bytes)
        yield FreeNode(node.name, slots, max(0, gpus), memory, until_s, node.node.properties)


def _by_ledger(node: NodeLedger, now_s: float, user: str) -> Iterator[FreeNode]:
    if node.blocked is not None or node.slots_free <= 0 or node.node.only_for:
        return
    begins = [start_s for start_s, end_s, users in node.reserved if user not in users and end_s > now_s]
    until_s = min(begins, default=math.inf)
    if until_s <= now_s:
        return
    first_s = min(until_s, node.promised_s)
    if first_s > now_s:
        yield FreeNode(
            node.name, node.slots_free, node.gpus_free, node.mem_free_bytes, first_s, node.node.properties
        )
    if first_s < until_s and node.spare_slots > 0:
        slots, gpus = min(node.slots_free, node.spare_slots), max(0, min(node.gpus_free, node.spare_gpus))
        memory = max(0.0, min(node.mem_free_bytes, node.spare_bytes))
        yield FreeNode(node.name, slots, gpus, memory, until_s, node.node.properties)
