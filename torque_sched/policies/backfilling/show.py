"""What people ask of a plan: when does this job start, and what could start now?

Both make the whole decision of a cycle, with all jobs that wait, and read the answer from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torque_sched.core.decisions import Decision, Hold, NodeShare, Promise, Reserve, Start
from torque_sched.core.model import Job, JobId, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.policies.backfill import PlanningBackfill
from torque_sched.policies.context import Context
from torque_sched.policies.cycle import Cycle
from torque_sched.policies.decide import decisions_of, plan_of
from torque_sched.policies.gate import time_text
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.settings import Settings

if TYPE_CHECKING:
    from torque_sched.policies.backfilling.live import LivePlan

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
    promise: Promise | None
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
        held = cycle.gate.check(job)
        why = (held.comment,) if held is not None else ()
        return PlannedStart(job.id, None, (), False, None, held, why)
    decisions = tuple(decisions_of(cycle))
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
        yield from _kept_out(cycle, job)
        yield from _in_its_way(cycle, decision)
    prediction = cycle.context.predictions.expect(job)
    if prediction is not None and prediction.evidence:
        yield f"expected by {prediction.evidence}"
    if job.walltime_s is None:
        yield "it names no walltime, so it fits nowhere before a guaranteed start"


def _place(job: Job, decisions: tuple[Decision, ...]) -> int:
    return next((place for place, each in enumerate(decisions) if each.job == job.id), 0)


def _kept_out(cycle: Cycle, job: Job) -> Iterator[str]:
    """Times kept for others that it would run into if it started now."""
    zone, now_s, until_s = cycle.settings.zone, cycle.snapshot.now_s, cycle.until_s(job)
    for window in cycle.context.dedicated:
        if window.start_s < until_s and now_s < window.end_s:
            yield (
                f"dedicated time from {time_text(window.start_s, zone)} to {time_text(window.end_s, zone)}: "
                "it would run into it"
            )
    for kept in cycle.context.reservations:
        if kept.start_s < until_s and now_s < kept.end_s and job.user not in kept.users:
            yield (
                f"{len(kept.nodes)} nodes are kept for others ({kept.name}) "
                f"from {time_text(kept.start_s, zone)} to {time_text(kept.end_s, zone)}"
            )


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
    backfill = settings.backfill
    if isinstance(backfill, PlanningBackfill):
        plan = plan_of(cycle, backfill)
        for _ in plan.decisions():
            pass
        return tuple(_by_plan(cycle, plan, user))
    for _ in cycle.decisions():
        pass
    return tuple(each for node in cycle.ledger.nodes for each in _by_ledger(node, snapshot.now_s, user))


def _by_plan(cycle: Cycle, plan: LivePlan, user: str) -> Iterator[FreeNode]:
    from torque_sched.policies.backfilling.node_steps import BITS, GPUS, MEMORY, PLENTY, SLOTS

    steps, now_s = plan.table.steps, cycle.snapshot.now_s
    bits = plan.kept_out.of(user, "", is_dedicated=False)
    for node in cycle.ledger.nodes:
        if node.blocked is not None:
            continue
        at = steps.at[node.index, : steps.width].tolist()
        slots, gpus, memory, kept = (
            steps.free[amount, node.index, : steps.width].tolist() for amount in (SLOTS, GPUS, MEMORY, BITS)
        )
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
            if each.until_s - plan.table.slack_s > now_s:
                yield replace(each, until_s=each.until_s - plan.table.slack_s)


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
    if node.blocked is not None or node.slots_free <= 0:
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
