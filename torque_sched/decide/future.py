"""The nodes' future, as a rule that plans ahead has it: what is free later, and what waiting jobs need of it.

All that holds or closes nodes is kept from cycle to cycle (`Occupancy`); a cycle plans on a copy of it.
Jobs without a reservation get an estimated start by the count of free slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from torque_sched.decide.backfill import PlanningBackfill
from torque_sched.decide.context import Lengths
from torque_sched.decide.cycle import Cycle
from torque_sched.decide.needs import Candidate, ResourceChunk
from torque_sched.decide.occupancy import Occupancy
from torque_sched.decide.plan import WhyBroken
from torque_sched.decide.search import Placed
from torque_sched.decide.steps import SLOTS
from torque_sched.decide.table import NodeTable
from torque_sched.decide.timeline import Needs, Timeline
from torque_sched.model.availability import Availability
from torque_sched.model.cluster import Job, JobId

_COARSE_S = 600.0
"""An estimate to ten minutes: the steps stay few."""


class Future:
    """What is free later, and what waiting jobs need of it.

    Attributes:
        rule: in force.
        lengths: how long jobs are planned to run.
        kept_out: who may not use which nodes when.
        occupancy: what holds the nodes and is no waiting job's.
        timeline: of the nodes.
        estimates: starts by counts of slots, of jobs that hold no reservation.
        why_broken: finds why a guaranteed start is put off.
    """

    def __init__(self, cycle: Cycle, rule: PlanningBackfill, kept: Occupancy | None = None) -> None:
        self._cycle, self.rule = cycle, rule
        snapshot, context, ledger = cycle.snapshot, cycle.context, cycle.ledger
        self.now_s = snapshot.now_s
        predictions = context.predictions if rule.learned else None
        # Half of the slack is for starts that come late, half for ends that do.
        self.lengths = Lengths(self.now_s, predictions, rule.default_walltime_s, rule.slack_s / 2)
        self.occupancy = kept or Occupancy()
        self.occupancy.update(snapshot, context, ledger, rule, self.lengths)
        self.kept_out = self.occupancy.kept_out
        self._ends: dict[JobId, float] = {}
        needs = Needs(cycle.search, self.occupancy.rows, self.occupancy.resources)
        table = self.occupancy.table(rule)
        n_starts = cycle.settings.max_starts
        self.timeline = Timeline(
            table, self.occupancy, cycle.search, needs, n_starts, self.end_s, cycle.expected_shape
        )
        self.estimates: dict[JobId, float] = {}
        self.why_broken = WhyBroken(ledger, context, self.lengths, cycle.settings.zone, self.now_s)
        self._candidates: dict[JobId, Candidate] = {}

    def candidate(self, job: Job, may_now: bool = True) -> Candidate:
        """The job as it takes part in the plan; `may_now`: it may start in this cycle."""
        found = self._candidates.get(job.id)
        if found is not None:
            return found
        cycle = self._cycle
        shape = cycle.outline(job)
        prefix = cycle.settings.queues.dedicated_prefix
        is_dedicated = bool(prefix) and job.queue.startswith(prefix)
        bits = self.kept_out.of(job.user, shape.user, is_dedicated)
        pauses = cycle.context.back_off.pairs.get(job.id, {})
        paused = [name for name, pause in pauses.items() if pause.until_s > self.now_s]
        pools = enumerate(self.occupancy.pools)
        of_pools = tuple((place, pool.name, n) for place, pool in pools if (n := pool.asked(job)))
        need = self.timeline.needs.of(shape, bits, paused, of_pools)
        found = Candidate(job, shape, need, self.lengths.length_s(job), may_now)
        self._candidates[job.id] = found
        return found

    def start(self, job: Job) -> Placed | None:
        """Start the job now, if it fits beside all that is planned."""
        one = self.candidate(job)
        start = self.timeline.now(one)
        if start is None:
            return None
        self.timeline.begin(one, start)
        return start.placed

    def capacity_beside(self, job: Job) -> Callable[[int, ResourceChunk], bool]:
        """Whether a node can take a piece of the job now, beside what others start on or hold."""
        return self.timeline.capacity_beside(self.candidate(job))

    def end_s(self, job: Job) -> float:
        """When a job that holds nodes will let them go; asked once for all of its nodes."""
        found = self.occupancy.end_s(job.id)
        if found is None:
            found = self._ends.get(job.id)
        if found is None:
            found = self._ends[job.id] = self.lengths.end_s(job)
        return found

    def estimate(self, jobs: Sequence[Job]) -> None:
        """Starts by the count of free slots, in the order of these jobs, that nothing but nodes holds."""
        if not jobs:
            return
        table = self.timeline.table
        counts, soon_s = Counts(table), self.now_s + self.rule.resolution_s
        for job in jobs:
            length_s = table.end_of(0.0, self.lengths.length_s(job))
            self.estimates[job.id] = counts.plan(job.request.n_procs, length_s, soon_s)


class Counts:
    """Free slots of the whole cluster over time, beside all that runs or is planned in a table.

    Says when jobs without a reservation may start: an estimate, and no more. Which nodes the slots are on is
    not looked at, so properties, GPUs and slots scattered over nodes are missed. In return thousands of jobs
    cost little: one step function for the whole cluster.
    """

    def __init__(self, table: NodeTable) -> None:
        steps, now_s = table.steps, table.now_s
        at, free = steps.at[:, : steps.width], np.maximum(steps.free[SLOTS, :, : steps.width], 0)
        begins = np.isfinite(at)
        grown = np.diff(free, axis=1, prepend=free[:, :1])[begins]
        rounded = np.ceil(np.maximum(at[begins], now_s) / _COARSE_S) * _COARSE_S
        times, place = np.unique(rounded, return_inverse=True)
        totals = np.zeros(len(times), np.int64)
        np.add.at(totals, place, grown)
        levels = [int(free[:, 0].sum()), *(int(free[:, 0].sum()) + np.cumsum(totals)).tolist()]
        self._capacity = max(levels)
        self._free = Availability(self._capacity, now_s)
        edges = [now_s, *times.tolist(), math.inf]
        for level, start_s, end_s in zip(levels, edges, edges[1:], strict=False):
            if level < self._capacity and end_s > start_s:
                self._free.take(self._capacity - level, start_s, end_s)
        #: Slots -> length -> start: nothing as wide and at least so long begins earlier.
        self._bounds: dict[int, dict[float, float]] = {}

    def plan(self, n_slots: int, length_s: float, not_before_s: float) -> float:
        """The first time for which the slots suffice; they are taken. Infinite: never."""
        if n_slots > self._capacity or math.isinf(length_s):
            return math.inf
        length_s = math.ceil(length_s / _COARSE_S) * _COARSE_S
        known = self._bounds.setdefault(n_slots, {})
        from_s = max(
            (start_s for length, start_s in known.items() if length <= length_s), default=not_before_s
        )
        start_s = self._free.earliest(n_slots, length_s, max(from_s, not_before_s))
        if math.isfinite(start_s):
            self._free.take(n_slots, start_s, start_s + length_s)
            known[length_s] = start_s
        return start_s
