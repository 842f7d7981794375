"""Who starts now, and what is reserved for whom: one pass over the jobs that may start, by the rule in force.

Theory of operation. Reservations of the cycle before come first. Each is kept where it is, or on other nodes
at the same time, or up to the slack later: so much may starts and ends be late. One that cannot be kept gets
the earliest start there is, before all jobs without a reservation; those that can be kept never give way to
it. Then what is due starts, what is reserved improves if the rule says so (compression), and each other job
has its turn: it starts, or something is reserved for it if the rule lets it, or it waits. A rule that
reserves anew in each cycle (`renews`) gives its reservations back before the turns.

The pass books in the timeline as it goes, and returns what it decided: starts in their order, the candidates
with their bookings, the promises of these, and the promises that it broke, each with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import TYPE_CHECKING

from torque_sched.decide.backfill import PRIORITY, PlanningBackfill
from torque_sched.decide.context import Context, Lengths
from torque_sched.decide.draining import DrainPlan
from torque_sched.decide.ledger import Ledger
from torque_sched.decide.needs import Candidate
from torque_sched.decide.node_ledger import NodeLedger, Refusal
from torque_sched.decide.search import StartNow
from torque_sched.model.cluster import Job, JobId
from torque_sched.model.decisions import GuaranteedStart, NodeShare
from torque_sched.model.reasons import Broken
from torque_sched.model.texts import time_text

if TYPE_CHECKING:
    from torque_sched.decide.table import Booking
    from torque_sched.decide.timeline import Timeline


@dataclass(slots=True)
class Planned:
    """What a pass decided.

    Attributes:
        starts: in the order in which they should be enacted.
        reserved: jobs for which something is kept, in the order of turns; each has its `booking`.
        promises: the start guaranteed to each of these.
        broken: jobs whose guaranteed start is put off or lost, each with the cause, also in words.
        drained: the job for which nodes drain, because nobody knows when they will be free.
        without_place: jobs that may hold a reservation, but no place for them is known within the window.
    """

    starts: dict[Candidate, StartNow] = field(default_factory=dict)
    reserved: list[Candidate] = field(default_factory=list)
    promises: dict[JobId, GuaranteedStart] = field(default_factory=dict)
    broken: dict[JobId, tuple[Broken, str]] = field(default_factory=dict)
    drained: tuple[Candidate, DrainPlan] | None = None
    without_place: set[JobId] = field(default_factory=set)


def plan(
    timeline: Timeline,
    jobs: Sequence[Candidate],
    promises: Mapping[JobId, GuaranteedStart],
    rule: PlanningBackfill,
    why_broken: Callable[[Candidate, GuaranteedStart], tuple[Broken, str]],
    *,
    may_drain: bool = False,
    priority: Callable[[Job], Priority] = lambda job: (0, job.priority),
) -> Planned:
    """Plan the jobs, given in the order of their turns.

    Args:
        timeline: what runs, is closed or kept out of the plan; the pass books in it.
        jobs: that may start, or be promised something.
        promises: the starts guaranteed before.
        rule: in force.
        why_broken: finds why a guaranteed start cannot be kept.
        may_drain: whether nodes drain for a job that no end of a running job is known for.
        priority: of a job, where the rule lets one job outrank another.
    """
    if rule.outrank == PRIORITY:
        by_id = outranked((one.job for one in jobs), promises.keys(), priority)
        for one in jobs:
            one.outranked_by = by_id.get(one.job.id)
    made = _Pass(timeline, jobs, promises, rule, may_drain)
    made.carry()
    if rule.renews:
        made.give_back()
    else:
        made.start_due()
    while True:
        if rule.improves:
            made.improve()
        made.take_turns()
        # Whoever was refused gave its place back: plan again.
        if rule.renews or not made.start_due():
            break
    made.promise(why_broken)
    return made.planned


class _Pass:
    """One pass; used up by it."""

    def __init__(
        self,
        timeline: Timeline,
        jobs: Sequence[Candidate],
        promises: Mapping[JobId, GuaranteedStart],
        rule: PlanningBackfill,
        may_drain: bool,
    ) -> None:
        self._timeline, self._jobs, self._promises, self._rule = timeline, jobs, promises, rule
        self._now_s, self._may_drain = timeline.now_s, may_drain
        self.planned = Planned()
        #: Jobs that were due and had to give their place back: not in this cycle.
        self._refused: set[Candidate] = set()
        #: Jobs whose turn to start is the next cycle, as this one may start no more.
        self._left_for_next: set[Candidate] = set()
        #: What was kept for a job before its turn, where the rule renews.
        self._given_back: dict[Candidate, Booking] = {}

    # -- reservations of the cycle before

    def carry(self) -> None:
        """Take them, before anybody else gets anything."""
        known = ((one, self._promises.get(one.job.id)) for one in self._jobs if one.outranked_by is None)
        carried = [(one, before) for one, before in known if before is not None]
        # A job that is to run longer than it was promised for comes after those that are not.
        by_start = sorted(carried, key=lambda each: (each[0].length_s > each[1].length_s, each[1].start_s))
        for one, before in by_start:
            self._keep_as_it_was(one, before)
        for one, before in by_start:
            if self._waits(one):
                self._place(one, before.start_s, max(before.start_s, self._now_s) + self._rule.late_s)
        for one, _ in carried:
            if self._waits(one):
                self._place(one, self._now_s, self._now_s + self._rule.window_s)
        self._put_off([one for one, _ in carried])

    def _keep_as_it_was(self, one: Candidate, before: GuaranteedStart) -> None:
        timeline = self._timeline
        end_s = timeline.table.end_of(before.start_s, one.length_s)
        booking = timeline.needs.booking(timeline.table, one.need, before.start_s, end_s, before.allocation)
        if booking is not None and timeline.table.fits(booking):
            timeline.take(one, booking)

    def _put_off(self, carried: Sequence[Candidate]) -> None:
        """Of what is due, plan what is more than this cycle may start for the next time there is.

        Its place stays kept for it. Tried and refused now, it would lose its promise to a limit of ours.
        """
        timeline = self._timeline
        n_starts = timeline.starts_left
        for one in carried:
            if one.booking is None or one.booking.start_s > self._now_s:
                continue
            n_starts -= 1
            if n_starts < 0:
                next_s = timeline.table.rounded(math.nextafter(self._now_s, math.inf))
                timeline.put_off(one, replace(one.booking, start_s=next_s))
                self._left_for_next.add(one)

    def give_back(self) -> None:
        """Nobody but the first jobs has a claim: what was kept is reserved anew, or not."""
        held = [one for one in self._jobs if one.booking is not None]
        if len(held) == 1 and held[0] is self._jobs[0] and self._stays(held[0]):
            return
        for one in held:
            booking = self._timeline.give_back(one)
            if booking is not None:
                self._given_back[one] = booking

    def _stays(self, head: Candidate) -> bool:
        """Whether the only job with a reservation cannot start yet: it stays, or moves forward."""
        booking = head.booking
        if booking is None or booking.start_s <= self._now_s:
            return False
        sooner = self._timeline.sooner(head, booking)
        if isinstance(sooner, StartNow):
            return False
        if sooner is not None:
            self._timeline.give_back(head)
            self._timeline.take(head, sooner)
        return True

    def start_due(self) -> bool:
        """Start what is reserved for now; whether anybody had to give its place back."""
        gave_back = False
        for one in self._jobs:
            if one.booking is None or one.booking.start_s > self._now_s:
                continue
            start = self._timeline.due(one, one.booking)
            if start is not None:
                self._begin(one, start)
                continue
            self._timeline.give_back(one)
            self._refused.add(one)
            gave_back = True
        return gave_back

    def improve(self) -> None:
        """Move every reservation to the earliest start there is now, in the order of turns."""
        for one in self._jobs:
            if one.booking is None or one.booking.start_s <= self._now_s:
                continue
            sooner = self._timeline.sooner(one, one.booking)
            if isinstance(sooner, StartNow):
                self._begin(one, sooner)
            elif sooner is not None:
                self._timeline.give_back(one)
                self._timeline.take(one, sooner)

    # -- turns

    def take_turns(self) -> None:
        """Each job for which nothing is kept starts, gets a reservation, or waits."""
        rule, n_reserved = self._rule, sum(one.booking is not None for one in self._jobs)
        for one in self._jobs:
            if not self._waits(one) or one in self._refused:
                continue
            start = self._timeline.now(one)
            is_refused = one.is_refused
            start = start or self._late(one)
            if start is not None:
                self._begin(one, start)
            elif n_reserved < rule.n_reservations and rule.may_hold(
                self._now_s - one.job.queued_s, one.length_s
            ):
                self._reserve(one, is_refused)
                n_reserved += one.booking is not None
            elif not rule.lets_others_ahead:
                break

    def _late(self, one: Candidate) -> StartNow | None:
        """What was reserved for a time that has come: a start somewhat late ends as planned."""
        before = self._given_back.get(one)
        if before is None or before.start_s > self._now_s or not self._timeline.table.fits(before):
            return None
        self._timeline.take(one, before)
        start = self._timeline.due(one, before)
        if start is None:
            self._timeline.give_back(one)
        return start

    def _reserve(self, one: Candidate, is_refused: bool) -> None:
        """Keep the first place there is; what was kept before stays, where it is free and nothing is sooner.

        The table may ask more of a new reservation than of an old one: slots for idle GPUs.
        """
        timeline, last_s = self._timeline, self._now_s + self._rule.window_s
        before = self._given_back.get(one)
        if before is not None and before.start_s > self._now_s:
            sooner = None if is_refused else timeline.later(one, self._now_s, before.start_s)
            if sooner is not None or timeline.table.fits(before):
                timeline.take(one, sooner or before)
                return
        if not is_refused:
            self._place_later(one, self._now_s, last_s)

    # -- bookings

    def _waits(self, one: Candidate) -> bool:
        return one.booking is None and one not in self.planned.starts

    def _place(self, one: Candidate, not_before_s: float, no_later_s: float) -> None:
        """The first place between these times; now, it starts."""
        if not_before_s <= self._now_s:
            start = self._timeline.now(one)
            if start is not None:
                self._begin(one, start)
                return
            if one.is_refused or no_later_s <= self._now_s:
                return
        self._place_later(one, not_before_s, no_later_s)

    def _place_later(self, one: Candidate, not_before_s: float, no_later_s: float) -> None:
        booking = self._timeline.later(one, not_before_s, no_later_s)
        if booking is not None:
            self._timeline.take(one, booking)
            return
        if not_before_s <= self._now_s and no_later_s >= self._now_s + self._rule.window_s:
            self.planned.without_place.add(one.job.id)
        if self._may_drain and one.may_now and no_later_s >= self._now_s + self._rule.window_s:
            drained = self._timeline.drain(one)
            if drained is not None:
                self._may_drain = False
                self.planned.drained = one, drained

    def _begin(self, one: Candidate, start: StartNow) -> None:
        self._timeline.begin(one, start)
        self.planned.starts[one] = start

    # -- promises

    def promise(self, why_broken: Callable[[Candidate, GuaranteedStart], tuple[Broken, str]]) -> None:
        """Guarantee the start of each reservation; find why one guaranteed before is put off or lost."""
        planned = self.planned
        planned.reserved = [one for one in self._jobs if one.booking is not None]
        allocations = self._timeline.allocations(planned.reserved, self._promises)
        for one in self._jobs:
            job, before = one.job.id, self._promises.get(one.job.id)
            if one.booking is not None:
                start_s = one.booking.start_s
                if before is not None and self._is_put_off(one, start_s, before.start_s):
                    planned.broken[job] = why_broken(one, before)
                planned.promises[job] = self._promised(one, allocations[job], start_s, before)
            elif before is not None and self._waits(one) and not self._rule.renews:
                planned.broken[job] = why_broken(one, before)

    def _is_put_off(self, one: Candidate, start_s: float, before_s: float) -> bool:
        """Whether the start is later than the guaranteed one, and not only as the clock or this cycle has it.

        Where a running job outlasts its limit, each cycle expects its end a little later: these steps add up.
        """
        waits_for_nodes = start_s > self._now_s and one not in self._left_for_next
        return waits_for_nodes and start_s - before_s > self._rule.late_s

    def _promised(
        self,
        one: Candidate,
        allocation: tuple[NodeShare, ...],
        start_s: float,
        before: GuaranteedStart | None,
    ) -> GuaranteedStart:
        job, now_s = one.job.id, self._now_s
        if before is None:
            return GuaranteedStart(job, start_s, allocation, one.length_s, now_s, start_s, now_s)
        made = replace(before, allocation=allocation, length_s=one.length_s)
        broken = self.planned.broken.get(job)
        if broken is None:
            made = replace(made, start_s=min(start_s, before.start_s))
        else:
            made = replace(made, start_s=start_s, n_broken=before.n_broken + 1, why_broken=broken[1])
        return made if made.start_s == before.start_s else replace(made, made_s=now_s)


Priority = tuple[int, int]
"""Of a job: the priority of its QoS, then its own (``qsub -p``)."""


def outranked(
    jobs: Iterable[Job], promised: Set[JobId], priority: Callable[[Job], Priority]
) -> dict[JobId, Job]:
    """Jobs whose reservations a job of higher priority takes over that comes first, each with that job.

    Args:
        jobs: in the order of their turns.
        promised: those that hold a reservation.
        priority: of a job.
    """
    found: dict[JobId, Job] = {}
    highest: Job | None = None
    for job in jobs:
        if job.id not in promised:
            highest = job if highest is None or priority(job) > priority(highest) else highest
        elif highest is not None and priority(highest) > priority(job):
            found[job.id] = highest
    return found


class WhyBroken:
    """Finds why a guaranteed start cannot be kept, from what stands in its way now.

    Args:
        ledger: of now.
        context: of the same moment.
        lengths: how long jobs are planned to run.
        zone: of times in words.
        now_s: the present.
    """

    def __init__(
        self, ledger: Ledger, context: Context, lengths: Lengths, zone: tzinfo, now_s: float
    ) -> None:
        self._ledger, self._context, self._lengths = ledger, context, lengths
        self._zone, self._now_s = zone, now_s

    def __call__(self, one: Candidate, promise: GuaranteedStart) -> tuple[Broken, str]:
        """The cause and a sentence that names node, reservation or job."""
        job = one.job
        if one.outranked_by is not None:
            return Broken.OUTRANKED, f"job {one.outranked_by.id} of higher priority goes first"
        for share in promise.allocation:
            entry = self._ledger.by_name.get(share.node)
            if entry is None:
                return Broken.NODE_FAILED, f"node {share.node} is gone"
            if entry.blocked is not None:
                kind = Broken.NODE_FAILED if entry.blocked is Refusal.UNUSABLE else Broken.NODES
                return kind, f"node {share.node}: {entry.why or entry.blocked.value}"
        kept = self._reservation(job, promise)
        if kept:
            return Broken.RESERVATION, kept
        if promise.length_s < self._lengths.length_s(job):
            return Broken.SETTINGS, "it is to run longer than when the start was guaranteed"
        for share in promise.allocation:
            late = self._overran(self._ledger.by_name[share.node], promise)
            if late:
                return Broken.OVERRUN, late
        return Broken.NODES, self._taken(promise) or "its nodes are less free than they were planned to be"

    def _taken(self, promise: GuaranteedStart) -> str:
        """The job that runs on its nodes and is to end the latest, later than the promised start."""
        found: list[tuple[float, str]] = []
        for share in promise.allocation:
            for held in self._ledger.held.get(share.node, ()):
                end_s = self._lengths.end_s(held.job)
                if end_s > promise.start_s:
                    until = time_text(end_s, self._zone) if math.isfinite(end_s) else "no known end"
                    found.append((end_s, f"job {held.job.id} may run on {share.node} until {until}"))
        return max(found, default=(0.0, ""))[1]

    def _reservation(self, job: Job, promise: GuaranteedStart) -> str:
        nodes = {share.node for share in promise.allocation}
        end_s = promise.start_s + promise.length_s
        begin_s = max(promise.start_s, self._now_s)
        found = [
            kept
            for kept in self._context.reservations
            if kept.start_s < end_s and begin_s < kept.end_s
            and job.user not in kept.users and nodes & kept.nodes
        ]  # fmt: skip
        if found:
            return f"reservation {max(found, key=lambda kept: kept.end_s).name} keeps its nodes"
        for window in self._context.dedicated:
            if window.start_s < end_s and promise.start_s < window.end_s:
                return "dedicated time was set"
        return ""

    def _overran(self, entry: NodeLedger, promise: GuaranteedStart) -> str:
        for held in self._ledger.held.get(entry.name, ()):
            if self._lengths.end_s(held.job) > promise.start_s and self._lengths.overran(held.job):
                return f"job {held.job.id} on {entry.name} runs longer than planned"
        return ""
