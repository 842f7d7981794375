"""The accounts of one cycle, and which jobs take part in its plan by admission and limits."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from torque_sched.decide.admission import AdmissionCheck, Limits
from torque_sched.decide.backfill import PRIORITY, PlanningBackfill
from torque_sched.decide.context import Context, Prediction
from torque_sched.decide.ledger import KeptAccounts, open_ledger
from torque_sched.decide.needs import Fit, ResourceChunk, Shape, Shapes
from torque_sched.decide.plan import Priority, outranked
from torque_sched.decide.search import Search
from torque_sched.decide.settings import Settings
from torque_sched.decide.throttling import QosOrder
from torque_sched.decide.why import Why
from torque_sched.model.cluster import Job, JobId, NodeName, QueueName
from torque_sched.model.decisions import Hold
from torque_sched.model.reasons import Reason
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.model.states import JobState
from torque_sched.model.texts import time_text


class Cycle:
    """The accounts of one cycle: what each question of its pass is asked of.

    Args:
        snapshot: now.
        settings: in force.
        context: of the same moment.
        kept: accounts of the cycle before (`decide.Decider`).
    """

    def __init__(
        self, snapshot: Snapshot, settings: Settings, context: Context, kept: KeptAccounts | None = None
    ) -> None:
        self.snapshot, self.settings, self.context = snapshot, settings, context
        self.ledger = open_ledger(snapshot, context, settings.nodes, settings.gpus, settings.memory, kept)
        self.scorer = settings.placement.scorer(self.ledger.nodes, context)
        self.search = Search(self.ledger, self.scorer, context)
        self.shapes = Shapes(snapshot, settings.queues, settings.memory)
        self.admission = AdmissionCheck(snapshot, context, settings.queues, settings.zone)
        self.limits = self.new_limits()
        self.why = Why(self.search, settings.words_of_c)
        self.starts_left = settings.max_starts
        self._kept_off: dict[tuple[Fit, str, float, float], dict[str, str] | None] = {}

    def new_limits(self) -> Limits:
        """The limits as the cycle begins."""
        starting = _starting(self.snapshot, self.context)
        settings = self.settings
        return Limits(
            self.snapshot, starting, settings.queues.max_is_total, settings.throttling, self._may_run
        )

    def _may_run(self, job: Job) -> bool:
        """Whether nothing but limits and busy nodes keeps the job from running."""
        return self.admission.check(job) is None and self.never(job) is None

    def never(self, job: Job) -> Hold | None:
        """That not even an idle cluster could run the job, if so."""
        why = self.why.never(self.outline(job))
        return Hold(job.id, Reason.NEVER_FITS, {"why": why}) if why else None

    def check(self, job: Job) -> Hold | None:
        """What holds the job whatever the nodes are like."""
        return self.admission.check(job) or self.limits.check(job)

    def shape(self, job: Job, prediction: Prediction | None) -> Shape:
        """What the job needs of the nodes."""
        return self.shapes.of(job, prediction, self._may_use_kept(job))

    def expected_shape(self, job: Job) -> Shape:
        """What the job needs of the nodes, and what history expects it to use there."""
        return self.shape(job, self.context.predictions.expect(job))

    def outline(self, job: Job) -> Shape:
        """A shape that fits the same nodes; history is asked only where that depends on it."""
        return self.expected_shape(job) if self.settings.memory.admission else self.shape(job, None)

    def _may_use_kept(self, job: Job) -> bool:
        """Whether it may use slots kept for idle GPUs: its reservation is due, or nodes drain for it."""
        ahead = self.settings.backfill.ahead
        if ahead is None:
            return self.is_urgent(job)
        promise = self.context.promises.get(job.id)
        return promise is not None and promise.start_s <= self.snapshot.now_s + ahead.resolution_s

    def is_urgent(self, job: Job) -> bool:
        """Whether a rule that looks no further than now lets it hold a reservation."""
        rule = self.settings.backfill
        # A job without any time of submission does not count as waiting since 1970.
        if rule.ahead is not None or job.queued_s <= 0:
            return False
        waited_s = self.snapshot.now_s - job.queued_s
        if rule.may_hold(waited_s, math.inf):
            return True
        if job.walltime_s is None or not rule.may_hold(waited_s, job.walltime_s):
            return False
        is_wide = job.request.n_pieces == 1 and job.request.n_procs > max(1, self.median_slots / 2)
        return is_wide and not self.is_any_starving

    @functools.cached_property
    def median_slots(self) -> int:
        """The slots of a node that half of the nodes do not exceed; 0: there is no node."""
        slots = sorted(node.slots for node in self.snapshot.nodes)
        return slots[(len(slots) - 1) // 2] if slots else 0

    @functools.cached_property
    def is_any_starving(self) -> bool:
        """Whether a job may hold a reservation however long it is, and waits for nodes alone."""
        rule, now_s = self.settings.backfill, self.snapshot.now_s
        return any(
            job.queued_s > 0 and rule.may_hold(now_s - job.queued_s, math.inf) and self.check(job) is None
            for job in self.snapshot.queued
        )

    def priority(self, job: Job) -> Priority:
        """By which one job outranks another, where the rule lets it."""
        order = self.settings.order
        return order.priority_of(job) if isinstance(order, QosOrder) else 0, job.priority

    def until_s(self, job: Job) -> float:
        """When the job ends at the latest; infinite without a walltime."""
        return math.inf if job.walltime_s is None else self.snapshot.now_s + job.walltime_s

    def kept_off(self, job: Job, shape: Shape, until_s: float, ends_by_s: float = math.inf) -> Hold | None:
        """The advance reservation that keeps the job off nodes it could use, if there is one.

        Args:
            job: a waiting job.
            shape: what it needs of the nodes.
            until_s: when it would end if it started now.
            ends_by_s: reservations that end later do not count.
        """
        key = (shape.fit, job.user, until_s, ends_by_s)
        if key not in self._kept_off:
            self._kept_off[key] = self._details_of(shape, job.user, until_s, ends_by_s)
        details = self._kept_off[key]
        return None if details is None else Hold(job.id, Reason.ADVANCE_RESERVATION, details)

    def kept_on(self, node: NodeName, user: str, until_s: float) -> str:
        """The advance reservation that keeps a user's job off one node, in words; empty: there is none."""
        now_s = self.snapshot.now_s
        found = blocking_by_node(self._of_others(user), {node}, now_s, until_s - now_s)
        if node not in found:
            return ""
        _, last = found[node]
        return f"{last.shown_name}, until {time_text(last.end_s, self.settings.zone)}"

    def _of_others(self, user: str, ends_by_s: float = math.inf) -> list[Reservation]:
        now_s = self.snapshot.now_s
        return [
            kept
            for kept in sorted(self.context.reservations, key=lambda each: each.start_s)
            if now_s < kept.end_s <= ends_by_s and user not in kept.users
        ]

    def _details_of(self, shape: Shape, user: str, until_s: float, ends_by_s: float) -> dict[str, str] | None:
        now_s, zone = self.snapshot.now_s, self.settings.zone
        of_others = self._of_others(user, ends_by_s)
        if not any(kept.start_s < until_s for kept in of_others):
            return None
        found = [
            blocking
            for piece in shape.pieces
            if (blocking := self._last_of(piece, shape, of_others, until_s - now_s)) is not None
        ]
        if not found:
            return None
        _, last = max(found, key=lambda each: each[0])
        # Of one that comes again and again its next time.
        last = next(kept for kept in of_others if kept.name == last.name)
        start, end = time_text(last.start_s, zone), time_text(last.end_s, zone)
        return {"name": last.shown_name, "start": start, "end": end}

    def _last_of(
        self, piece: ResourceChunk, shape: Shape, kept_nodes: Sequence[Reservation], length_s: float
    ) -> tuple[float, Reservation] | None:
        """When the reservations leave enough nodes for a piece, and the one that ends then.

        Nodes that do not fit for another cause count only if no others are reserved.
        """
        capable = self.search.capable(piece, shape)
        last = blocking_by_node(kept_nodes, {node.name for node in capable}, self.snapshot.now_s, length_s)
        takers = [node for node in capable if node.refusal(piece, shape) is None]
        if not any(node.name in last for node in takers):
            takers = [node for node in capable if node.name in last]
        is_alone = not (shape.procs or shape.may_share)
        missing = piece.count
        blocked: list[tuple[float, int, Reservation]] = []
        for node in takers:
            n_pieces = 1 if is_alone else node.slots // piece.slots
            if node.name in last:
                at_s, kept = last[node.name]
                blocked.append((at_s, n_pieces, kept))
            else:
                missing -= n_pieces
        found = None
        for at_s, n_pieces, kept in sorted(blocked, key=lambda each: each[0]):
            found = at_s, kept
            missing -= n_pieces
            if missing <= 0:
                break
        return found


def blocking_by_node(
    reservations: Iterable[Reservation], names: Set[NodeName], now_s: float, length_s: float
) -> dict[NodeName, tuple[float, Reservation]]:
    """Of each node with reservations in the way of a job, when they let it start, and the one that ends then.

    Args:
        reservations: by their starts.
        names: of the nodes that count.
        now_s: the present.
        length_s: of the job.
    """
    found: dict[NodeName, tuple[float, Reservation]] = {}
    for kept in reservations:
        for name in kept.nodes & names:
            at_s = found[name][0] if name in found else now_s
            if at_s < kept.end_s and kept.start_s < at_s + length_s:
                found[name] = kept.end_s, kept
    return found


def _starting(snapshot: Snapshot, context: Context) -> list[Job]:
    """Jobs whose start was asked for and is not to be seen yet: limits count them."""
    jobs = (snapshot.job_by_id.get(start.job) for start in context.pending)
    return [job for job in jobs if job is not None and job.state is JobState.QUEUED]


@dataclass(slots=True)
class Eligible:
    """The queued jobs of a cycle, sorted out.

    Attributes:
        planned: jobs that may be promised something, in order.
        others: jobs that may start if that delays nobody, in order: more than are planned, or beyond a limit
            as soon as all before them run.
        not_now: of `planned`, those that may start later only.
        beyond: of `others`, those that hold no reservation because enough jobs before them do.
        holds: the reason of everybody else, and `others` and `not_now` too if nothing better comes.
    """

    planned: list[Job] = field(default_factory=list)
    others: list[Job] = field(default_factory=list)
    not_now: set[JobId] = field(default_factory=set)
    beyond: set[JobId] = field(default_factory=set)
    holds: dict[JobId, Hold] = field(default_factory=dict)


_LATER = frozenset({Reason.DEDICATED_TIME, Reason.CROSSES_DEDICATED_TIME, Reason.JOB_BACK_OFF})
"""What ends by itself: such a job may be promised a later start."""


def eligible(cycle: Cycle, jobs: Sequence[Job], rules: PlanningBackfill, promised: Set[JobId]) -> Eligible:
    """Ask admission and limits about every job."""
    sieve = _Sieve(cycle, rules, promised)
    held = {job.id: sieve.hold(job) for job in jobs}
    if rules.outrank == PRIORITY:
        # Who is held, or beyond a limit, takes nobody's place.
        able = (job for job in jobs if held[job.id] is None and cycle.limits.check(job) is None)
        sieve.promised -= outranked(able, promised, cycle.priority).keys()
    sieve.n_new -= sum(1 for job in jobs if job.id in sieve.promised)
    for job in jobs:
        hold = held[job.id]
        if hold is not None:
            sieve.found.holds[job.id] = hold
        else:
            sieve.sort(job)
    return sieve.found


class _Sieve:
    def __init__(self, cycle: Cycle, rules: PlanningBackfill, promised: Set[JobId]) -> None:
        self._cycle, self._rules, self.promised = cycle, rules, promised
        self._limits = cycle.new_limits()
        self._strict = cycle.settings.queues.strict
        #: Queues whose first job takes part, or is held: strictly in order, nobody may go ahead of it.
        self._waits: set[QueueName] = set()
        self._held: set[QueueName] = set()
        self._n_looked_at = 0
        # Fcfs promises nothing: its jobs start in order, as many as can.
        self.n_new = rules.most_reservations if rules.keeps_promises else rules.max_jobs
        self.found = Eligible()

    def hold(self, job: Job) -> Hold | None:
        """What keeps the job out of the plan altogether."""
        if job.queue in self._held:
            return Hold(job.id, Reason.STRICT_FIFO)
        hold = self._cycle.admission.check(job) or self._cycle.never(job)
        if hold is not None and hold.reason in _LATER:
            self.found.holds[job.id] = hold
            self.found.not_now.add(job.id)
            hold = None
        if hold is not None:
            if self._strict and not hold.reason.is_for_good:
                self._held.add(job.queue)
            return hold
        self._n_looked_at += 1
        if self._n_looked_at > self._rules.max_jobs and job.id not in self.promised:
            return Hold(job.id, Reason.BEYOND_LIMIT, {"limit": str(self._rules.max_jobs)})
        return None

    def sort(self, job: Job) -> None:
        """Whether the job may be promised something."""
        if job.queue in self._waits:
            self.found.holds[job.id] = Hold(job.id, Reason.STRICT_FIFO)
            self.found.others.append(job)
            return
        limit = self._limits.check(job)
        if limit is not None and limit.reason is Reason.NOT_ENOUGH_RESOURCE:
            self.found.holds[job.id] = limit
            limit = self._limits.check(job, later=True)
        if self._strict and not (limit is not None and limit.reason.lets_others_pass):
            self._waits.add(job.queue)
        if limit is not None:
            self.found.holds[job.id] = limit
            self.found.others.append(job)
        elif job.id in self.promised or self.n_new > 0:
            self.n_new -= job.id not in self.promised
            self.found.planned.append(job)
            # Strictly in order, nobody starts before it.
            take = self._limits.promise if self._rules.lets_others_ahead else self._limits.start
            take(job)
        else:
            self.found.beyond.add(job.id)
            self.found.others.append(job)
