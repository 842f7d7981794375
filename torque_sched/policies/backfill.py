"""Keeps nodes for jobs that have waited long, so that small jobs cannot starve large ones.

A cycle starts what fits, in order. A large job then never starts if small ones always fit first. So an
aged job gets the nodes that can be free soonest, and until then only what ends earlier, or what the aged job
leaves over, may start there: the nodes drain for it. As ends of running jobs only get nearer, so does its
start. The order stays as it is: a job that goes first by priority or fair share takes what is free, and only
what was kept before it came is kept from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torque_sched.core.decisions import NodeShare, Reserve
from torque_sched.core.model import Job
from torque_sched.core.states import JobState
from torque_sched.errors import ConfigError
from torque_sched.policies.base import Keeper
from torque_sched.policies.ledger import Held, Ledger
from torque_sched.policies.needs import Piece, Shape
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.search import Search
from torque_sched.policies.spread import times

_ASSUMED_S = 86_400.0
_OVERRUN_S = 60.0
"""A job past its walltime is about to be ended by its mom."""


@dataclass(frozen=True, slots=True)
class NoReservations:
    """Skips what does not fit and never comes back to it: large jobs may starve."""

    def keeper(self, search: Search, now_s: float) -> Keeper:
        """As `Backfill.keeper`."""
        return _Keeper(search, now_s, float("inf"), 0)


@dataclass(frozen=True, slots=True)
class AgedReservations:
    """Nodes drain for the jobs that have waited longest.

    Attributes:
        after_s: a job that waited so long is aged: nodes are kept for it, its place in the order stays. The
            default is a day, as ``max_starve`` of the sched_config that Torque ships.
        depth: for how many aged jobs at once.
    """

    after_s: float = 86_400.0
    depth: int = 4

    def keeper(self, search: Search, now_s: float) -> Keeper:
        """As `Backfill.keeper`."""
        return _Keeper(search, now_s, self.after_s, self.depth)


@dataclass(frozen=True, slots=True)
class DrainForStarving:
    """The C daemon's ``help_starving_jobs``: while a starving job waits for nodes, nothing else starts.

    Unlike the C daemon's, a job that waits for a limit or for anything but nodes does not stop the cluster.
    """

    max_starve_s: float = 86_400.0

    def keeper(self, search: Search, now_s: float) -> Keeper:
        """As `Backfill.keeper`."""
        return _Drain(search, now_s, self.max_starve_s, 1)


@dataclass(frozen=True, slots=True)
class PlanningBackfill:
    """Waiting jobs are planned on the nodes' free capacity over time (`policies.backfilling`); needs numpy.

    Attributes:
        window_s: nothing is promised further ahead than this.
        resolution_s: promised starts and planned ends are multiples of this.
        slack_s: a job may start, and be ended after its limit, this much late without harm to any promise.
        max_jobs: so many waiting jobs are looked at in one cycle, in their order.
        node_exact_jobs: so many of them may be promised nodes; the rest start where they delay nobody.
        default_walltime_s: what a job without walltime is taken to need; 0: unknown, so it starts only where
            nothing is promised later.
        learned: plan with learned run times instead of walltimes; promises that rest on a wrong one are
            broken, and told.
    """

    window_s: float = 7 * 86_400.0
    resolution_s: float = 60.0
    slack_s: float = 60.0
    max_jobs: int = 10_000
    node_exact_jobs: int = 1000
    default_walltime_s: float = 0.0
    learned: bool = False

    def __post_init__(self) -> None:
        if self.resolution_s <= 0 or self.window_s <= 0 or self.slack_s < 0 or self.default_walltime_s < 0:
            raise ConfigError(
                "backfill: a time that makes no sense",
                cure="window_s and resolution_s are above 0, slack_s and default_walltime_s not below",
            )
        if self.max_jobs < 1 or self.node_exact_jobs < 1:
            raise ConfigError("backfill: max_jobs and node_exact_jobs must be at least 1")

    def keeper(self, search: Search, now_s: float) -> Keeper:
        """As `Backfill.keeper`: nobody is urgent, all is in the plan."""
        return _Keeper(search, now_s, float("inf"), 0)


@dataclass(frozen=True, slots=True)
class FcfsBackfill(PlanningBackfill):
    """No backfilling: nobody goes ahead of the first job that cannot start. Strict, and wasteful."""


@dataclass(frozen=True, slots=True)
class EasyBackfill(PlanningBackfill):
    """The first jobs that cannot start are promised nodes, the others go ahead where they do not delay these.

    Attributes:
        depth: how many; 1 is EASY itself.
    """

    depth: int = 1

    def __post_init__(self) -> None:
        PlanningBackfill.__post_init__(self)
        if self.depth < 1:
            raise ConfigError("backfill: a depth of less than 1", cure="1 is EASY; fcfs reserves nothing")


@dataclass(frozen=True, slots=True)
class ConservativeBackfill(PlanningBackfill):
    """Every job is promised nodes and a start that can only become sooner; nobody delays a promise.

    Attributes:
        compress: promises become sooner when jobs end early.
    """

    compress: bool = True


@dataclass(frozen=True, slots=True)
class SelectiveBackfill(PlanningBackfill):
    """Jobs are promised nodes once they have waited long for their length.

    Attributes:
        threshold: the expansion factor, (waited + walltime) / walltime, from which on.
    """

    threshold: float = 2.0


class _Keeper:
    def __init__(self, search: Search, now_s: float, after_s: float, depth: int) -> None:
        self._search, self._now_s = search, now_s
        self._after_s, self._left = after_s, depth

    def is_urgent(self, job: Job) -> bool:
        # A job without any time of submission does not count as waiting since 1970.
        return 0 < job.queued_s <= self._now_s - self._after_s

    def reserve(self, job: Job, shape: Shape) -> Reserve | None:
        if not self._left or not self.is_urgent(job):
            return None
        plan = plan_start(self._search, job, shape, self._now_s)
        if plan is None:
            return None
        self._left -= 1
        plan.book(self._search.ledger, self._now_s)
        return plan.as_reserve(job)

    @property
    def stops_others(self) -> bool:
        return False

    @property
    def drains_for(self) -> Job | None:
        return None


class _Drain(_Keeper):
    _starving: Job | None = None

    @property
    def stops_others(self) -> bool:
        return True

    def reserve(self, job: Job, shape: Shape) -> Reserve | None:
        if self._starving is None and self.is_urgent(job):
            self._starving = job
        return super().reserve(job, shape)

    @property
    def drains_for(self) -> Job | None:
        return self._starving


@dataclass(frozen=True, slots=True)
class Plan:
    """Which nodes a job could have when; ``is_known`` is false where running jobs set no limit."""

    start_s: float
    parts: tuple[tuple[NodeLedger, Piece], ...]
    is_known: bool

    def book(self, ledger: Ledger, now_s: float) -> None:
        """Keep the nodes: from the start on if that is known, else from now on."""
        from_s = self.start_s if self.is_known else now_s
        for node, piece in self.parts:
            held = [e for e in _ends(ledger, node, now_s) if e.end_s <= self.start_s]
            slots = node.slots_free + sum(e.held.slots for e in held) - piece.ppn
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
        allocation = tuple(NodeShare(node.name, piece.ppn, piece.gpus) for node, piece in self.parts)
        details = {} if self.is_known else {"start": "unknown, running jobs have no walltime"}
        return Reserve(job.id, self.start_s, allocation, details=details)


@dataclass(frozen=True, slots=True)
class _End:
    end_s: float
    is_known: bool
    held: Held


def _ends(ledger: Ledger, node: NodeLedger, now_s: float) -> list[_End]:
    """When jobs on a node end at the latest, soonest first."""
    ends = []
    for held in ledger.held.get(node.name, ()):
        job = held.job
        if job.state is JobState.SUSPENDED or job.walltime_s is None:
            ends.append(_End(now_s + _ASSUMED_S, False, held))
            continue
        if job.walltime_remaining_s is not None:
            end_s = now_s + job.walltime_remaining_s
        else:
            end_s = (now_s if job.start_s is None else job.start_s) + job.walltime_s
        ends.append(_End(max(end_s, now_s + _OVERRUN_S), True, held))
    ends.sort(key=lambda end: end.end_s)
    return ends


def _ready(
    ledger: Ledger, node: NodeLedger, piece: Piece, shape: Shape, now_s: float
) -> tuple[float, bool] | None:
    """When the piece fits on the node at the latest; None: not within what is known."""
    if node.blocked is not None or node.reserved or node.promised_s < float("inf"):
        return None
    if piece.gpus and not all(node.gpus_clean):
        return None
    slots, gpus, at_s, is_known = node.slots_free, node.gpus_free, now_s, True
    memory, swap = node.mem_free_bytes, node.vmem_free_bytes
    ends = _ends(ledger, node, now_s)
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
        if slots >= piece.ppn and gpus >= piece.gpus and has_memory and alone:
            return at_s, is_known
    return None


def plan_start(search: Search, job: Job, shape: Shape, now_s: float) -> Plan | None:
    """The nodes that can be free for the job soonest, by the limits of what runs there; None: none can."""
    plan = _plan(search, job, shape, now_s, whole=False)
    if plan is None and (shape.procs or shape.may_share):
        # What is free now on each node is too little of the cluster: whole nodes have to drain.
        plan = _plan(search, job, shape, now_s, whole=True)
    return plan


def _plan(search: Search, job: Job, shape: Shape, now_s: float, *, whole: bool) -> Plan | None:
    """As `plan_start`; ``whole``: of pieces that may share, a node is to take as many as it has slots for."""
    ledger = search.ledger
    pauses = search.who(job, now_s).pauses
    taken = {node.index for node in ledger.nodes if node.name in pauses} if pauses else set()
    parts: list[tuple[NodeLedger, Piece]] = []
    start_s, is_known = now_s, True
    for piece in sorted(search.apart(shape), key=lambda piece: len(search.capable(piece, shape))):
        ready = []
        for node in search.capable(piece, shape):
            gpus = min(shape.gpus_anywhere, node.node.gpus) or piece.gpus
            at = None
            if node.index not in taken:
                wanted = times(piece, _most(node, piece)) if whole else piece
                at = _ready(ledger, node, replace(wanted, gpus=max(gpus, wanted.gpus)), shape, now_s)
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
    return Plan(start_s, tuple(parts), is_known)


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


def _most(node: NodeLedger, piece: Piece) -> int:
    """How many equal pieces the idle node takes, at most ``piece.count``."""
    rooms = [
        most // each
        for most, each in (
            (node.np, piece.ppn),
            (node.node.gpus, piece.gpus),
            (node.most_mem_bytes, piece.mem_bytes),
            (node.most_vmem_bytes, piece.vmem_bytes),
        )
        if each and most < float("inf")
    ]
    return max(1, int(min([*rooms, piece.count])))


def _choose(
    ledger: Ledger, shape: Shape, piece: Piece, ready: list[tuple[bool, float, int]], whole: bool
) -> Iterator[tuple[tuple[bool, float, int], Piece, int]]:
    """Nodes in the order in which they are ready, each with what it is to hold and of how many pieces."""
    may_share = bool(shape.procs) or shape.may_share
    left, gpus = piece.count, shape.gpus_anywhere
    for entry in ready:
        if not left:
            return
        node = ledger.nodes[entry[2]]
        own_gpus = min(gpus, node.node.gpus)
        gpus -= own_gpus
        # Where pieces may share, a node is kept for as many as are free on it now, and at least one, or for
        # all it can take; GPUs that still have no node need a processor each.
        most = _most(node, piece) if whole else node.slots_free // piece.ppn
        n = max(1, min(left, most)) if may_share and not gpus else 1
        yield entry, times(piece, n, piece.gpus * n + own_gpus), n
        left -= n
