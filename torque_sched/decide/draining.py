"""Reservations by the accounts of now alone: nodes drain for a job that waits for them; no numpy.

A job that may hold a reservation gets the nodes that can be free soonest, by the limits of what runs there.
The nodes drain: until the job starts only what ends earlier, or what the job leaves over, may start there. As
ends of running jobs only get nearer, so does its start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torque_sched.decide.context import Lengths
from torque_sched.decide.ledger import Ledger
from torque_sched.decide.needs import ResourceChunk, Shape, Wanted, times
from torque_sched.decide.needs import wanted as wanted_by
from torque_sched.decide.node_ledger import End, NodeEnds, NodeLedger, Ready
from torque_sched.decide.search import Search
from torque_sched.model.cluster import Job
from torque_sched.model.decisions import NodeShare, Reserve

_ASSUMED_S = 86_400.0


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """Which nodes a job could have when; ``is_known`` is false where running jobs set no limit."""

    start_s: float
    parts: tuple[tuple[NodeLedger, ResourceChunk], ...]
    is_known: bool

    def book(self, ledger: Ledger, now_s: float) -> None:
        """Keep the nodes: from the start on if that is known, else from now on."""
        from_s = self.start_s if self.is_known else now_s
        for node, piece in self.parts:
            held = [e for e in ends_of(ledger, node, now_s).ends if e.end_s <= self.start_s]
            slots = node.slots_free + sum(e.held.slots for e in held) - piece.slots
            gpus = node.gpus_free + sum(e.held.gpus for e in held) - piece.gpus
            memory = node.mem_free_bytes + sum(e.held.mem_bytes for e in held) - piece.mem_bytes
            if piece.vmem_bytes:
                swap = (
                    node.vmem_free_bytes + sum(e.held.with_swap_bytes for e in held) - piece.with_swap_bytes
                )
                memory = min(memory, swap)
            node.promise(from_s, slots, gpus, memory)
            ledger.touch(node)

    def as_reserve(self, job: Job) -> Reserve:
        """The decision."""
        allocation = tuple(NodeShare(node.name, piece.slots, piece.gpus) for node, piece in self.parts)
        details = {} if self.is_known else {"start": "unknown, running jobs have no walltime"}
        return Reserve(job.id, self.start_s, allocation, details=details)


def ends_of(ledger: Ledger, node: NodeLedger, now_s: float) -> NodeEnds:
    """When jobs on a node end at the latest, soonest first."""
    known = node.ends
    if known is not None and known.is_good(now_s):
        return known
    lengths = Lengths(now_s, None, default_s=0.0, slack_s=0.0)
    ends: list[End] = []
    until_s = math.inf
    for held in ledger.held.get(node.name, ()):
        end_s = lengths.end_s(held.job)
        is_known = end_s < math.inf
        ends.append(End(end_s if is_known else now_s + _ASSUMED_S, is_known, held))
        until_s = min(until_s, end_s if is_known and lengths.is_steady(held.job) else now_s)
    ends.sort(key=lambda end: end.end_s)
    node.ends = NodeEnds(now_s, until_s, ends)
    return node.ends


def _ready(
    ledger: Ledger, node: NodeLedger, piece: ResourceChunk, wanted: Wanted, shape: Shape, now_s: float
) -> Ready | None:
    """When the piece fits on the node at the latest; None: not within what is known."""
    if node.promised_s < float("inf"):
        return None
    ends = ends_of(ledger, node, now_s)
    if wanted in ends.ready:
        return ends.ready[wanted]
    ready = _first_ready(node, ends.ends, piece, shape, now_s)
    if ready is None or ready[0] > now_s:
        ends.ready[wanted] = ready
    return ready


def _first_ready(
    node: NodeLedger, ends: list[End], piece: ResourceChunk, shape: Shape, now_s: float
) -> Ready | None:
    if node.blocked is not None or node.reserved or (piece.gpus and not all(node.gpus_clean)):
        return None
    slots, gpus, at_s, is_known = node.slots_free, node.gpus_free, now_s, True
    memory, swap = node.mem_free_bytes, node.vmem_free_bytes
    left = len(ends)
    for end in [None, *ends]:
        if end is None and node.refusal(piece, shape) is not None:
            continue  # Even where the amounts would do: the memory in use, its company, a bad GPU.
        if end is not None:
            slots, gpus = slots + end.held.slots, gpus + end.held.gpus
            memory, swap = memory + end.held.mem_bytes, swap + end.held.with_swap_bytes
            at_s, is_known, left = end.end_s, is_known and end.is_known, left - 1
        alone = left == 0 or not (shape.empty or node.is_closed or shape.access)
        has_memory = memory >= piece.mem_bytes and (not piece.vmem_bytes or swap >= piece.with_swap_bytes)
        if slots >= piece.slots and gpus >= piece.gpus and has_memory and alone:
            return at_s, is_known
    return None


def plan_start(search: Search, job: Job, shape: Shape, now_s: float) -> DrainPlan | None:
    """The nodes that can be free for the job soonest, by the limits of what runs there; None: none can."""
    plan = _plan(search, job, shape, now_s, whole=False)
    if plan is None and (shape.procs or shape.may_share):
        # What is free now on each node is too little of the cluster: whole nodes have to drain.
        plan = _plan(search, job, shape, now_s, whole=True)
    return plan


def _plan(search: Search, job: Job, shape: Shape, now_s: float, *, whole: bool) -> DrainPlan | None:
    """As `plan_start`; ``whole``: of pieces that may share, a node is to take as many as it has slots for."""
    ledger = search.ledger
    pauses = search.who(job, now_s).pauses
    taken = {node.index for node in ledger.nodes if node.name in pauses} if pauses else set()
    parts: list[tuple[NodeLedger, ResourceChunk]] = []
    start_s, is_known = now_s, True
    for piece in sorted(search.apart(shape), key=lambda piece: len(search.capable(piece, shape))):
        ready = []
        wanted = wanted_by(piece, shape)
        for node in search.capable(piece, shape):
            if node.index in taken:
                continue
            if whole or shape.gpus_anywhere:
                gpus = min(shape.gpus_anywhere, node.node.gpus) or piece.gpus
                asked = times(piece, _most(node, piece)) if whole else piece
                asked = asked if gpus <= asked.gpus else replace(asked, gpus=gpus)
                at = _ready(ledger, node, asked, wanted_by(asked, shape), shape, now_s)
            else:
                at = _ready(ledger, node, piece, wanted, shape, now_s)
            if at is not None:
                ready.append((not at[1], at[0], node.index))
        ready.sort()
        chosen = list(_choose(ledger, shape, piece, _gpus_first(ledger, shape, ready), whole))
        if sum(n for _, _, n in chosen) < piece.count:
            return None
        if sum(one.gpus for _, one, _ in chosen) < shape.gpus_anywhere:
            return None
        for (unknown, at_s, index), one, _ in chosen:
            start_s, is_known = max(start_s, at_s), is_known and not unknown
            taken.add(index)
            parts.append((ledger.nodes[index], one))
    return DrainPlan(start_s, tuple(parts), is_known)


def _gpus_first(
    ledger: Ledger, shape: Shape, ready: list[tuple[bool, float, int]]
) -> list[tuple[bool, float, int]]:
    """The nodes in order, those first that have the GPUs of ``-l procs=N,gpus=M``."""
    wanted = shape.gpus_anywhere
    first: list[tuple[bool, float, int]] = []
    rest: list[tuple[bool, float, int]] = []
    for entry in ready:
        gpus = ledger.nodes[entry[2]].node.gpus
        (first if wanted > 0 and gpus else rest).append(entry)
        wanted -= gpus
    return first + rest


def _most(node: NodeLedger, piece: ResourceChunk) -> int:
    """How many equal pieces the idle node takes, at most ``piece.count``."""
    limits = [
        most // each
        for most, each in (
            (node.slots, piece.slots),
            (node.node.gpus, piece.gpus),
            (node.most_mem_bytes, piece.mem_bytes),
            (node.most_vmem_bytes, piece.vmem_bytes),
        )
        if each and most < float("inf")
    ]
    return max(1, int(min([*limits, piece.count])))


def _choose(
    ledger: Ledger, shape: Shape, piece: ResourceChunk, ready: list[tuple[bool, float, int]], whole: bool
) -> Iterator[tuple[tuple[bool, float, int], ResourceChunk, int]]:
    """Nodes in the order in which they are ready, each with what it is to hold and of how many pieces."""
    may_share = bool(shape.procs) or shape.may_share
    left, gpus = piece.count, shape.gpus_anywhere
    made: dict[tuple[int, int], ResourceChunk] = {}
    for entry in ready:
        if not left:
            return
        node = ledger.nodes[entry[2]]
        own_gpus = min(gpus, node.node.gpus)
        gpus -= own_gpus
        # Where pieces may share, a node is kept for as many as are free on it now, and at least one, or for
        # all it can take; GPUs that still have no node need a processor each.
        most = _most(node, piece) if whole else node.slots_free // piece.slots
        n = max(1, min(left, most)) if may_share and not gpus else 1
        key = n, own_gpus
        if key not in made:
            made[key] = times(piece, n, piece.gpus * n + own_gpus)
        yield entry, made[key], n
        left -= n
