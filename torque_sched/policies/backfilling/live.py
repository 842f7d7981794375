"""Backfilling in a live cycle: the policy object of the simulator over the node-aware table.

Theory of operation. The table is opened from the snapshot: what runs, what is closed, what is kept. The
promises of the cycle before are restored, and one pass of the policy over the jobs in the order of their
turns starts jobs, makes promises better (compression) and makes new ones. Jobs held by the gate or a limit
take no part: they have no reservation. Limits count promised jobs like running ones, so a promise is not
lost to a limit. Last, jobs beyond those that may be promised something start where that delays no promise
at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from torque_sched.core.decisions import Decision, Hold, NodeShare, Promise, Reserve, Start
from torque_sched.core.model import Job, JobId
from torque_sched.core.reasons import Reason
from torque_sched.policies.backfill import FcfsBackfill, Plan, PlanningBackfill, plan_start
from torque_sched.policies.backfilling.breaking import Breaking
from torque_sched.policies.backfilling.carrying import Carried, put_off, retake
from torque_sched.policies.backfilling.choice import new_policy
from torque_sched.policies.backfilling.counting import Counts
from torque_sched.policies.backfilling.events import BatchJob, Submitted
from torque_sched.policies.backfilling.lengths import Lengths
from torque_sched.policies.backfilling.live_table import Candidate, LiveTable
from torque_sched.policies.backfilling.node_needs import Needs
from torque_sched.policies.backfilling.node_table import NodeNeed, NodeSpot
from torque_sched.policies.backfilling.opening import KeptOut, capacity_of, occupy
from torque_sched.policies.backfilling.scheduler import Backfilling
from torque_sched.policies.backfilling.sifting import Sifted, sift
from torque_sched.policies.backfilling.state import State, WaitingJob
from torque_sched.policies.cycle import Cycle
from torque_sched.policies.gate import time_text
from torque_sched.policies.needs import Piece
from torque_sched.policies.search import Placed
from torque_sched.policies.shares import merged
from torque_sched.policies.start_words import expected_words, guaranteed_words
from torque_sched.policies.why import kept_words


class LivePlan:
    """The plan of one cycle; made for it and used up by it."""

    def __init__(self, cycle: Cycle, rules: PlanningBackfill) -> None:
        self.cycle, self.rules = cycle, rules
        snapshot, context = cycle.snapshot, cycle.context
        self.now_s = snapshot.now_s
        predictions = context.predictions if rules.learned else None
        # Half of the slack is for starts that come late, half for ends that do.
        self.lengths = Lengths(self.now_s, predictions, rules.default_walltime_s, rules.slack_s / 2)
        self.needs = Needs(cycle.search)
        self.kept_out = KeptOut(context.reservations, context.dedicated)
        self.table = self._open_table()
        self._starts: dict[JobId, Start] = {}
        self._plans: dict[JobId, NodeSpot] = {}
        #: Starts by counts, of jobs that are promised nothing.
        self.estimates: dict[JobId, float] = {}
        self._drain: tuple[JobId, Plan] | None = None
        held = (each.job for entries in cycle.ledger.held.values() for each in entries)
        is_unknown = any(math.isinf(self.lengths.end_s(job)) for job in held)
        self._may_drain = is_unknown and not isinstance(rules, FcfsBackfill)
        self._candidates: dict[JobId, tuple[Candidate, NodeNeed]] = {}

    def _open_table(self) -> LiveTable:
        ledger, rules = self.cycle.ledger, self.rules
        table = LiveTable(
            tuple(entry.name for entry in ledger.nodes),
            capacity_of(ledger),
            self.now_s,
            resolution_s=rules.resolution_s,
            window_s=rules.window_s,
            slack_s=rules.slack_s,
            search=self.cycle.search,
            needs=self.needs,
            may_start_more=self.cycle.may_start_more,
            enact=self._enact,
            unplanned=self._drain_for,
        )
        occupy(table, ledger, self.cycle.context, self.kept_out, self.lengths.end_s)
        return table

    def decisions(self) -> Iterator[Decision]:
        """One for every queued job, in the order of consideration."""
        jobs = self._in_order()
        sifted = sift(self.cycle, jobs, self.rules, frozenset(self.cycle.context.promises))
        self._run_policy(sifted)
        if not isinstance(self.rules, FcfsBackfill):
            self._start_others(sifted)
        breaking = Breaking(self.cycle, self.lengths)
        for job in jobs:
            yield self._decision(job, sifted, breaking)

    def room_beside(self, job: Job) -> Callable[[int, Piece], bool]:
        """Whether a node has room for a piece of the job now, beside what `decisions` gave others."""
        candidate, need = self._candidate(job)
        own = self._plans.get(job.id)
        if own is not None:
            self.table.give_back(own)
        return self.table.has_room(need, self.now_s + candidate.length_s)

    def _in_order(self) -> list[Job]:
        """Queued jobs in the order of their turns, as if each got what it wants at its turn."""
        cycle = self.cycle
        turns = cycle.settings.order.turns(cycle.snapshot.queued, cycle.snapshot, cycle.context)
        jobs = []
        for job in turns:
            turns.started(job)
            jobs.append(job)
        return jobs

    # -- the policy's pass

    def _run_policy(self, sifted: Sifted) -> None:
        # Fcfs promises nothing: what another policy promised before would be in its own way.
        promises = {} if isinstance(self.rules, FcfsBackfill) else self.cycle.context.promises
        carried: list[Carried] = []
        batches: dict[JobId, BatchJob[NodeNeed]] = {}
        for place, job in enumerate(sifted.planned):
            candidate, need = self._candidate(job, job.id not in sifted.not_now)
            batches[job.id] = BatchJob(
                job.id, need, candidate.length_s, job.queued_s, job.user, -float(place), job.request.n_procs
            )
            if job.id in promises:
                carried.append(Carried(promises[job.id], need, candidate.length_s))
        retake(self.table, self.needs, carried, self.rules.slack_s)
        put_off(self.table, carried, self.cycle.starts_left)
        kept = [one for one in carried if one.spot is not None]
        waiting = tuple(
            WaitingJob(batches.pop(one.promise.job), one.length_s, seq, one.spot, one.promise.made_s)
            for seq, one in enumerate(kept)
        )
        policy = new_policy(self.rules, self.table, sifted.positions)
        self.table.is_restoring = True
        policy.restore(State(self.now_s, waiting, next_seq=len(kept), freed=self.cycle.context.freed))
        self.table.is_restoring = False
        policy.apply([Submitted(batch) for batch in batches.values()], self.now_s)
        self._read(policy)

    def _read(self, policy: Backfilling[NodeNeed, NodeSpot]) -> None:
        for key in policy.waiting:
            spot = policy.spot_of(key)
            if spot is not None:
                self._plans[JobId(str(key))] = spot

    def _candidate(self, job: Job, may_now: bool = True) -> tuple[Candidate, NodeNeed]:
        found = self._candidates.get(job.id)
        if found is not None:
            return found
        cycle = self.cycle
        promise = cycle.context.promises.get(job.id)
        is_due = promise is not None and promise.start_s <= self.now_s + self.rules.resolution_s
        shape = cycle.shapes.of(job, cycle.context.predictions.expect(job), is_due)
        candidate = Candidate(job, shape, self.lengths.length_s(job), may_now)
        prefix = cycle.settings.queues.dedicated_prefix
        is_dedicated = bool(prefix) and job.queue.startswith(prefix)
        bits = self.kept_out.of(job.user, shape.user, is_dedicated)
        pauses = cycle.context.back_off.pairs.get(job.id, {})
        paused = [name for name, pause in pauses.items() if pause.until_s > self.now_s]
        found = candidate, self.needs.of(shape, bits, paused, candidate)
        self._candidates[job.id] = found
        return found

    def _enact(self, candidate: Candidate, placed: Placed) -> None:
        """The job starts now: all accounts of the cycle have to know."""
        cycle, job = self.cycle, candidate.job
        until_s = self.now_s + candidate.length_s
        cycle.ledger.take(job, candidate.shape, placed.parts, until_s)
        cycle.limits.start(job)
        cycle.count_start()
        shares = tuple(NodeShare(node.name, piece.ppn, piece.gpus) for node, piece in placed.parts)
        self._starts[job.id] = Start(job.id, merged(shares), placed.score)

    def _drain_for(self, candidate: Candidate) -> None:
        """For want of walltimes nobody knows when nodes are free: keep some from now on, for one such job."""
        if not self._may_drain or self._drain is not None:
            return
        plan = plan_start(self.cycle.search, candidate.job, candidate.shape, self.now_s)
        if plan is None or plan.is_known:
            return
        self._drain = candidate.job.id, plan
        for node, piece in plan.parts:
            less = (
                -piece.ppn,
                -piece.gpus,
                -int(piece.mem_bytes),
                -int(piece.with_swap_bytes),
            )
            self.table.close(node.index, self.now_s, math.inf, less)

    # -- jobs that are promised nothing

    def _start_others(self, sifted: Sifted) -> None:
        """Start what delays no promise, and takes no promised job's place in a limit."""
        cycle = self.cycle
        for job_id in self._plans:
            cycle.limits.start(cycle.snapshot.job_by_id[job_id])
        is_strict = cycle.settings.queues.strict
        stuck = {job.queue for job in sifted.planned if job.id not in self._starts} if is_strict else set()
        for job in sifted.others:
            if not cycle.may_start_more():
                break
            if job.queue in stuck:
                continue
            if cycle.limits.check(job) is None and job.id not in sifted.not_now:
                candidate, need = self._candidate(job)
                spot = self.table.earliest(need, candidate.length_s, self.now_s, self.now_s)
                if spot is not None:
                    self.table.take(spot)
            hold = sifted.holds.get(job.id)
            is_for_good = hold is not None and hold.reason.is_for_good
            if is_strict and job.id not in self._starts and not is_for_good:
                stuck.add(job.queue)
        self._estimate(sifted)

    def _estimate(self, sifted: Sifted) -> None:
        """By counts, in order, for jobs that nothing but nodes holds."""
        waiting = [job for job in sifted.others if job.id not in self._starts and job.id not in sifted.holds]
        if not waiting:
            return
        counts, soon_s = Counts(self.table), self.now_s + self.rules.resolution_s
        for job in waiting:
            length_s = self.table.end_of(0.0, self._candidate(job)[0].length_s)
            self.estimates[job.id] = counts.plan(job.request.n_procs, length_s, soon_s)

    # -- answers

    def _decision(self, job: Job, sifted: Sifted, breaking: Breaking) -> Decision:
        start = self._starts.get(job.id)
        if start is not None:
            return start
        before = self.cycle.context.promises.get(job.id)
        spot = self._plans.get(job.id)
        if spot is not None:
            return self._reserve(job, spot, before, breaking)
        if self._drain is not None and self._drain[0] == job.id:
            return self._drain[1].as_reserve(job)
        hold = sifted.holds.get(job.id) or self._hold(job, sifted)
        estimate_s = self.estimates.get(job.id, math.inf)
        if math.isfinite(estimate_s):
            told = time_text(estimate_s, self.cycle.settings.zone)
            hold = replace(hold, details={**hold.details, "estimated start": told})
        if before is not None:
            told = time_text(before.start_s, self.cycle.settings.zone)
            hold = replace(hold, details={**hold.details, "guaranteed start": told})
        return hold

    def _reserve(self, job: Job, spot: NodeSpot, before: Promise | None, breaking: Breaking) -> Reserve:
        zone = self.cycle.settings.zone
        allocation = merged(spot.shares)
        start = guaranteed_words(spot.start_s, zone) + self._waits_for(job, spot)
        details = {"start": start, "expected": expected_words(None, zone)}
        length_s = self._candidates[job.id][0].length_s
        if before is None:
            made = Promise(job.id, spot.start_s, allocation, length_s, self.now_s, spot.start_s, self.now_s)
            return Reserve(job.id, spot.start_s, allocation, Reason.GUARANTEED, details, made)
        late_s = spot.start_s - max(before.start_s, self.now_s)
        broken = None
        if late_s <= max(self.rules.slack_s, self.rules.resolution_s):
            # A little late is no other promise.
            start_s = min(spot.start_s, before.start_s)
            promise = replace(before, start_s=start_s, allocation=allocation, length_s=length_s)
        else:
            broken, words = breaking.cause(job, before)
            details["broken"] = words
            n_broken = before.n_broken + 1
            promise = replace(before, start_s=spot.start_s, allocation=allocation, length_s=length_s)
            promise = replace(promise, n_broken=n_broken, why_broken=words)
        if promise.start_s != before.start_s:
            promise = replace(promise, made_s=self.now_s)
        details["first guaranteed start"] = time_text(promise.first_s, zone)
        details["guaranteed since"] = time_text(promise.first_made_s, zone)
        if promise.n_broken:
            details["times broken"] = str(promise.n_broken)
            details["why broken"] = promise.why_broken
        return Reserve(job.id, spot.start_s, allocation, Reason.GUARANTEED, details, promise, broken)

    def _waits_for(self, job: Job, spot: NodeSpot) -> str:
        """What it does not run into before, for its owner."""
        cycle, zone = self.cycle, self.cycle.settings.zone
        until_s = self.now_s + self._candidates[job.id][0].length_s
        for window in cycle.context.dedicated:
            if window.start_s < until_s and self.now_s < window.end_s <= spot.start_s:
                return f" (dedicated time until {time_text(window.end_s, zone)})"
        kept = cycle.kept_off(job, self._candidates[job.id][0].shape, until_s)
        if kept is None or not any(r.end_s <= spot.start_s for r in cycle.context.reservations):
            return ""
        return f" ({kept.details['name']} keeps nodes until {kept.details['end']})"

    def _hold(self, job: Job, sifted: Sifted) -> Hold:
        """Why a job that nothing holds neither starts nor is promised anything."""
        cycle = self.cycle
        if not cycle.may_start_more():
            return Hold(job.id, Reason.CYCLE_FULL)
        if isinstance(self.rules, FcfsBackfill):
            first = next(one for one in sifted.planned if one.id not in self._starts)
            if first.id != job.id:
                return Hold(job.id, Reason.NOT_FIRST, {"job": first.id})
        candidate, _ = self._candidate(job)
        until_s = self.now_s + candidate.length_s
        hold = cycle.why.hold(job, candidate.shape, until_s)
        if hold.reason is not Reason.RESERVED_FOR_OTHERS and not cycle.why.fits_alone(candidate.shape):
            return hold
        # Free nodes there are, but not for so long.
        kept = cycle.kept_off(job, candidate.shape, until_s)
        drained = (self._drain[0],) if self._drain is not None else ()
        keepers = (*drained, *self._plans)
        if kept is not None or not keepers:
            return kept or hold
        hold = cycle.why.hold(job, candidate.shape, until_s, len(keepers), self.room_beside(job))
        details = hold.details
        if hold.reason not in {Reason.RESERVED_FOR_OTHERS, Reason.NOT_ENOUGH_NODES}:
            # Room for each piece there is beside them, not for all at once.
            details = {"why": f"it has not enough room beside what is {kept_words(len(keepers))}"}
            hold = Hold(job.id, Reason.RESERVED_FOR_OTHERS, details)
        return replace(hold, details={**details, "job": keepers[0]})
