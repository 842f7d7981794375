"""One decision for every queued job: a pure function of the snapshot, the settings and the context.

Every rule of backfilling takes this one pass: admission -> limits -> order -> nodes -> plan -> why.

- `AdmissionCheck` and `Limits` say who may start at all. Jobs come as the order says; waiting long moves
  nobody ahead.
- A rule that plans ahead (`PlanningBackfill`) has a table of the nodes' future (`Future`). Jobs that may be
  promised something are planned on it first, all at once (`plan`). Limits count reservations like running
  jobs, so that none is lost to a limit. For the other rules a job's reservation is nodes that drain for it
  (`draining`); those that drained in the cycle before do so again before anybody is placed, or a job ahead in
  the order would take them each time.
- All other jobs have their turns one by one: nodes are searched, and a start is booked at once, so that later
  jobs of the cycle see it. Free amounts only shrink meanwhile: a shape that did not fit is not tried again.
- A job that waits gets the reason: its reservation, its limit, or what keeps it from the nodes (`why`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torque_sched.decide.context import Context, Load, PlacedLoad
from torque_sched.decide.cycle import Cycle, Eligible, eligible
from torque_sched.decide.draining import plan_start
from torque_sched.decide.ledger import KeptAccounts
from torque_sched.decide.needs import Candidate, Shape
from torque_sched.decide.order import JobOrder
from torque_sched.decide.plan import Planned, plan
from torque_sched.decide.search import Placed
from torque_sched.decide.settings import Settings
from torque_sched.decide.why import Keepers, kept_words
from torque_sched.errors import ConfigError
from torque_sched.extras import install_command
from torque_sched.model.cluster import Job, JobId, QueueName
from torque_sched.model.decisions import Decision, GuaranteedStart, Hold, Reserve, Start
from torque_sched.model.reasons import Broken, Reason
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.texts import expected_words, guaranteed_words, time_text

if TYPE_CHECKING:
    from torque_sched.decide.future import Future
    from torque_sched.decide.occupancy import Occupancy


def decide(snapshot: Snapshot, settings: Settings, context: Context) -> tuple[Decision, ...]:
    """Answer every queued job exactly once, in the order of consideration; equal input gives equal answers.

    Starts come in the order in which they should be enacted.
    """
    return DecisionPass(Cycle(snapshot, settings, context)).decisions()


class Decider:
    """Decides cycle after cycle as `decide` does, and keeps what does not change from one to the next.

    Attributes:
        occupancy: of the cycle before, if its rule planned ahead.
    """

    def __init__(self) -> None:
        self._kept = KeptAccounts()
        self.occupancy: Occupancy | None = None

    def decide(self, snapshot: Snapshot, settings: Settings, context: Context) -> tuple[Decision, ...]:
        """As `decide`: the same answers, whatever was decided before."""
        made = DecisionPass(Cycle(snapshot, settings, context, self._kept), self.occupancy)
        if made.future is not None:
            self.occupancy = made.future.occupancy
        return made.decisions()


def planner() -> type[Future]:
    """What rules that plan ahead need; asked at start, too, so that no daemon runs that cannot decide.

    Raises:
        ConfigError: numpy is not installed.
    """
    try:
        from torque_sched.decide.future import Future
    except ModuleNotFoundError as exc:
        if exc.name != "numpy":
            raise
        raise ConfigError(
            "this backfill plans with numpy, which is not installed",
            cure=f"{install_command('numpy')}, or set backfill: aged",
        ) from exc
    return Future


def placed_loads(start: Start, job: Job, context: Context, now_s: float) -> tuple[PlacedLoad, ...]:
    """What a start is expected to use of each node, for `Context.placed` of the cycles to come."""
    prediction = context.predictions.expect(job)
    n_slots = sum(share.slots for share in start.allocation)
    n_gpus = sum(share.gpus for share in start.allocation)
    loads = []
    for share in start.allocation:
        if prediction is None:
            mem = max(job.request.mem_bytes or 0, (job.request.pmem_bytes or 0) * n_slots)
            load = Load(float(share.slots), mem * share.slots / n_slots, float(share.gpus), 0.0)
        else:
            load = prediction.load.scaled(share.slots / n_slots, share.gpus / n_gpus if n_gpus else 0.0)
        loads.append(PlacedLoad(job.id, share.node, load, now_s))
    return tuple(loads)


_OF_THE_CYCLE = frozenset({Reason.CYCLE_FULL, Reason.NOT_FIRST})
"""Holds that say nothing of nodes."""


class DecisionPass:
    """The pass of one cycle; used up by `decisions`.

    Args:
        cycle: the accounts of now.
        occupancy: of the cycle before, for a rule that plans ahead; None: none is kept.

    Attributes:
        cycle: the accounts.
        future: of the nodes, if the rule plans ahead.
        keepers: jobs for which nodes are kept.

    Raises:
        ConfigError: the rule plans ahead, and numpy is not installed.
    """

    def __init__(self, cycle: Cycle, occupancy: Occupancy | None = None) -> None:
        self.cycle, self._rule = cycle, cycle.settings.backfill
        ahead = self._rule.ahead
        self.future: Future | None = None if ahead is None else planner()(cycle, ahead, occupancy)
        self._eligible = Eligible()
        self._planned = Planned()
        self._made: dict[JobId, Start | Reserve] = {}
        #: The reason of those jobs that neither start nor have a reservation, if nothing better comes.
        self._holds: dict[JobId, Hold] = {}
        #: Queues whose jobs go strictly in order, and one of them waits.
        self._stuck: set[QueueName] = set()
        self.keepers = Keepers()
        #: A job that may hold a reservation found no nodes, and the rule lets nobody ahead of it.
        self._is_drained = False

    def decisions(self) -> tuple[Decision, ...]:
        """One for every queued job, in the order of consideration."""
        cycle, made = self.cycle, list[Decision]()
        for jobs in self._groups():
            turns = cycle.settings.order.turns(jobs, cycle.snapshot, cycle.context)
            if self.future is None:
                self._reserve_again(jobs, turns)
                considered = []
                for job in cycle.limits.soft_last(turns):
                    self._turn(job, turns)
                    considered.append(job)
            else:
                considered = _in_order(turns)
                self._plan(considered, self.future)
                self._start_others(turns, self.future)
            made += map(self._answer, considered)
        return tuple(made)

    # -- order

    def _groups(self) -> tuple[Sequence[Job], ...]:
        """The queued jobs; those first that may stop all others."""
        queued = self.cycle.snapshot.queued
        if self.future is not None or self._rule.lets_others_ahead:
            return (queued,)
        urgent = [job for job in queued if self.cycle.is_urgent(job)]
        first = {job.id for job in urgent}
        return urgent, [job for job in queued if job.id not in first]

    # -- plan

    def _plan(self, jobs: Sequence[Job], future: Future) -> None:
        """Sort the jobs out, and plan those that may be promised something."""
        cycle, rule = self.cycle, future.rule
        promises = cycle.context.promises
        self._eligible = found = eligible(cycle, jobs, rule, frozenset(promises))
        self._holds = dict(found.holds)
        self._planned = planned = plan(
            future.timeline,
            [future.candidate(job, job.id not in found.not_now) for job in found.planned],
            promises if rule.keeps_promises else {},
            rule,
            future.why_broken,
            may_drain=rule.keeps_promises and future.occupancy.has_unknown_ends,
            priority=cycle.priority,
        )
        if planned.drained is not None:
            one, drained = planned.drained
            self._reserve(drained.as_reserve(one.job), future.now_s)
        for one in planned.reserved:
            job = one.job.id
            kept = guaranteed_start(cycle, one, planned.promises[job], planned.broken.get(job))
            self._reserve(kept, kept.start_s)
        for one, start in planned.starts.items():
            self._start(one.job, start.placed)

    def _reserve_again(self, jobs: Sequence[Job], turns: JobOrder) -> None:
        """Starts on nodes that were kept and are free now, and the nodes that are kept on."""
        cycle = self.cycle
        for job in jobs if self._rule.lets_others_ahead else ():
            if job.id in cycle.context.kept and cycle.is_urgent(job) and cycle.check(job) is None:
                self._place(job, turns)
        self._holds.clear()

    # -- turns

    def _start_others(self, turns: JobOrder, future: Future) -> None:
        """Start what delays no reservation, and takes no reserving job's place in a limit."""
        if not self._rule.lets_others_ahead:
            return
        cycle, found = self.cycle, self._eligible
        for one in self._planned.reserved:
            cycle.limits.promise(one.job)
        if cycle.settings.queues.strict:
            waiting = (job for job in found.planned if not isinstance(self._made.get(job.id), Start))
            self._stuck.update(job.queue for job in waiting)
        for job in cycle.limits.soft_last(found.others):
            if not future.timeline.starts_left:
                break
            self._turn(job, turns)
        others = (job for job in found.others if job.id not in self._made and job.id not in found.holds)
        future.estimate(list(others))

    def _turn(self, job: Job, turns: JobOrder) -> None:
        """The job starts, nodes drain for it, or it waits."""
        if job.id not in self._made:
            if job.queue in self._stuck:
                self._holds.setdefault(job.id, Hold(job.id, Reason.STRICT_FIFO))
                return
            # Of jobs that others are planned before, admission was asked when they were sorted out.
            hold = self.cycle.check(job) if self.future is None else self.cycle.limits.check(job)
            if hold is not None:
                self._holds[job.id] = hold
            elif job.id not in self._eligible.not_now:
                self._place(job, turns)
        if self.cycle.settings.queues.strict and not self._lets_pass(job):
            self._stuck.add(job.queue)

    def _lets_pass(self, job: Job) -> bool:
        """Whether those behind it in a strict queue have their turns: nobody waits for what can never run."""
        made, hold = self._made.get(job.id), self._holds.get(job.id)
        return isinstance(made, Start) or (hold is not None and hold.reason.lets_others_pass)

    def _place(self, job: Job, turns: JobOrder) -> None:
        """Start the job where it fits now; else keep nodes for it, or tell it why there are none."""
        cycle = self.cycle
        if self.future is not None:
            placed = self.future.start(job)
            if placed is not None:
                self._start(job, placed)
            return
        hold = self._hold_of_cycle(job)
        if hold is not None:
            self._holds[job.id] = hold
            return
        shape = cycle.outline(job)
        never = cycle.why.never(shape)
        if never:
            self._holds[job.id] = Hold(job.id, Reason.NEVER_FITS, {"why": never})
            return
        until_s = cycle.until_s(job)
        placed = None
        if not cycle.search.is_hopeless(job, shape, until_s):
            shape = cycle.expected_shape(job)
            placed = cycle.search.find(job, shape, until_s)
        if placed is not None:
            cycle.starts_left -= 1
            cycle.ledger.take(job, shape, placed.parts, until_s)
            self._start(job, placed)
            turns.started(job)
        elif not self._drain(job, shape):
            self._holds[job.id] = self._lacks_nodes(job, shape, until_s)

    def _start(self, job: Job, placed: Placed) -> None:
        self._made[job.id] = placed.start(job)
        self.cycle.limits.start(job)

    def _reserve(self, kept: Reserve, from_s: float) -> None:
        self._made[kept.job] = kept
        self.keepers.add(kept.job, (share.node for share in kept.allocation), from_s)

    def _hold_of_cycle(self, job: Job) -> Hold | None:
        """That nobody else starts in this cycle, if so."""
        if self.cycle.starts_left <= 0:
            return Hold(job.id, Reason.CYCLE_FULL)
        return Hold(job.id, Reason.DRAINING) if self._is_drained else None

    def _drain(self, job: Job, shape: Shape) -> bool:
        """Keep nodes for the job, if the rule lets it hold a reservation."""
        cycle, rule = self.cycle, self._rule
        if not cycle.is_urgent(job):
            return False
        self._is_drained = not rule.lets_others_ahead
        if len(self.keepers.jobs) >= (rule.n_reservations if cycle.is_any_starving else 1):
            return False
        drained = plan_start(cycle.search, job, shape, cycle.snapshot.now_s)
        if drained is None:
            return False
        drained.book(cycle.ledger, cycle.snapshot.now_s)
        kept = drained.as_reserve(job)
        if "start" not in kept.details:
            kept = replace(kept, details={"start": time_text(kept.start_s, cycle.settings.zone)})
        self._reserve(kept, drained.start_s if drained.is_known else cycle.snapshot.now_s)
        return True

    # -- why

    def _answer(self, job: Job) -> Decision:
        """What was made of the job, or why it waits."""
        made = self._made.get(job.id)
        if made is not None:
            return made
        hold = self._holds.get(job.id)
        if self.future is None:
            return hold or Hold(job.id, Reason.CYCLE_FULL)
        return self._without_guarantee(job, hold or self._lacks_capacity(job, self.future), self.future)

    def _lacks_nodes(self, job: Job, shape: Shape, until_s: float) -> Hold:
        """What keeps the job from nodes, at its turn."""
        hold = self.cycle.why.hold(job, shape, until_s, self.keepers)
        if hold.reason is not Reason.RESERVED_FOR_OTHERS or hold.details["job"] != "-":
            return hold
        return self.cycle.kept_off(job, shape, until_s) or hold

    def _lacks_capacity(self, job: Job, future: Future) -> Hold:
        """What keeps the job from nodes beside all that is planned, as the cycle ends."""
        cycle, keepers = self.cycle, self.keepers
        if not future.timeline.starts_left:
            return Hold(job.id, Reason.CYCLE_FULL)
        if not self._rule.lets_others_ahead:
            first = next(
                each for each in self._eligible.planned if not isinstance(self._made.get(each.id), Start)
            )
            if first.id != job.id:
                return Hold(job.id, Reason.NOT_FIRST, {"job": first.id})
        one = future.candidate(job)
        until_s = future.now_s + one.length_s
        hold = cycle.why.hold(job, one.shape, until_s)
        if hold.reason is not Reason.RESERVED_FOR_OTHERS and not cycle.why.fits_alone(one.shape):
            return hold
        # Free nodes there are, but not for so long.
        kept = cycle.kept_off(job, one.shape, until_s)
        if not keepers.jobs:
            return kept or hold
        hold = cycle.why.hold(job, one.shape, until_s, keepers, future.capacity_beside(job))
        is_counted = hold.reason in {Reason.RESERVED_FOR_OTHERS, Reason.NOT_ENOUGH_NODES}
        if is_counted and hold.details.get("job", "-") != "-":
            return hold
        if kept is not None:
            return kept
        capable = (node for piece in one.shape.pieces for node in cycle.search.capable(piece, one.shape))
        jobs = keepers.of(capable, until_s) or keepers.jobs
        if is_counted:
            return replace(hold, details={**hold.details, "job": jobs[0]})
        # Each piece fits beside them, not all at once.
        why = f"it has not enough room beside what is {kept_words(len(jobs))}"
        return Hold(job.id, Reason.RESERVED_FOR_OTHERS, {"why": why, "job": jobs[0]})

    def _without_guarantee(self, job: Job, hold: Hold, future: Future) -> Hold:
        """The hold with all that is known of its start."""
        zone, details = self.cycle.settings.zone, dict(hold.details)
        estimate_s = future.estimates.get(job.id, math.inf)
        if math.isfinite(estimate_s):
            details["estimated start"] = time_text(estimate_s, zone)
        why_none = self._why_no_guarantee(job, future)
        if why_none and hold.reason not in _OF_THE_CYCLE:
            details["no guarantee"] = why_none
        before = self.cycle.context.promises.get(job.id)
        if before is not None:
            details["guaranteed start"] = time_text(before.start_s, zone)
        broken = self._planned.broken.get(job.id)
        if broken is not None:
            details["why broken"] = broken[1]
        return replace(hold, details=details)

    def _why_no_guarantee(self, job: Job, future: Future) -> str:
        """Why a job that nothing but nodes holds has no reservation, where the rule lets it hold one."""
        if job.id in self._holds or not future.rule.keeps_promises:
            return ""
        if job.id in self._eligible.beyond:
            return f"only the first {future.rule.reservations} waiting jobs hold reservations"
        if job.id in self._planned.without_place:
            days = future.rule.window_s / 86_400
            window = f"{days:g} days" if days > 1 else f"{days * 24:g} hours"
            return f"no place for it is free within {window}"
        return ""


def _in_order(turns: JobOrder) -> list[Job]:
    """The jobs in the order of their turns, as if each got what it wants at its turn."""
    jobs = []
    for job in turns:
        turns.started(job)
        jobs.append(job)
    return jobs


def guaranteed_start(
    cycle: Cycle, one: Candidate, promise: GuaranteedStart, broken: tuple[Broken, str] | None
) -> Reserve:
    """The answer for a job with a guaranteed start.

    Args:
        cycle: of the answer.
        one: the job, which has a booking.
        promise: made to it.
        broken: why its promise of the cycle before was not kept; None: it was, or there was none.
    """
    zone, start_s = cycle.settings.zone, promise.start_s if one.booking is None else one.booking.start_s
    start = guaranteed_words(start_s, zone) + _waits_for(cycle, one, start_s)
    details = {"start": start, "expected": expected_words(None, zone)}
    if broken is not None:
        details["broken"] = broken[1]
    if one.job.id in cycle.context.promises:
        details["first guaranteed start"] = time_text(promise.first_s, zone)
        details["guaranteed since"] = time_text(promise.first_made_s, zone)
        if promise.n_broken:
            details["times broken"] = str(promise.n_broken)
            details["why broken"] = promise.why_broken
    kind = None if broken is None else broken[0]
    return Reserve(one.job.id, start_s, promise.allocation, Reason.GUARANTEED, details, promise, kind)


def _waits_for(cycle: Cycle, one: Candidate, start_s: float) -> str:
    """What it does not run into before, for its owner."""
    zone, now_s = cycle.settings.zone, cycle.snapshot.now_s
    until_s = now_s + one.length_s
    for window in cycle.context.dedicated:
        if window.start_s < until_s and now_s < window.end_s <= start_s:
            return f" (dedicated time until {time_text(window.end_s, zone)})"
    kept = cycle.kept_off(one.job, one.shape, until_s, ends_by_s=start_s)
    if kept is None:
        return ""
    return f" ({kept.details['name']} keeps nodes until {kept.details['end']})"
