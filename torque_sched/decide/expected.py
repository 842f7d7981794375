"""When waiting jobs will start if jobs run as long as jobs like them did: an expectation that binds nobody.

The jobs that are next are planned one after the other as conservative backfilling would, with learned run
times in the place of walltimes and without what was promised before. So it is an estimate for the other
backfills too, and mostly a sooner start than the guaranteed one, which rests on walltimes. Who does not start
now waits at least until something ends: walltimes decide who goes ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from torque_sched.decide.backfill import ConservativeBackfill, PlanningBackfill
from torque_sched.decide.context import Context, PendingStart
from torque_sched.decide.cycle import Cycle
from torque_sched.decide.decide import DecisionPass
from torque_sched.decide.settings import Settings
from torque_sched.model.cluster import Job, JobId
from torque_sched.model.decisions import Reserve, Start
from torque_sched.model.snapshot import Snapshot

EXPECTED_JOBS = 300
"""So many of the jobs that are next get one."""
_RESOLUTION_S = 30.0
LOOKED_AT = 3
"""So many times as many are looked at, and get an estimate by free slots."""


def expected_starts(
    snapshot: Snapshot,
    settings: Settings,
    context: Context,
    starts: Iterable[Start],
    n_jobs: int = EXPECTED_JOBS,
) -> dict[JobId, float]:
    """Seconds since the epoch, of those jobs for which something is expected; none before a job has ended.

    Args:
        snapshot: now.
        settings: in force.
        context: of the same moment; its promises are left out.
        starts: what was decided to start now; nothing is expected of these.
        n_jobs: planned on nodes; three times as many are looked at, and get an estimate by free slots.

    Raises:
        ConfigError: numpy is not installed.
    """
    queued = snapshot.queued
    if not queued or context.predictions.expect(queued[0]) is None:
        return {}
    pending = tuple(PendingStart(each.job, each.allocation, snapshot.now_s) for each in starts)
    alone = replace(context, promises={}, kept=frozenset(), pending=(*context.pending, *pending))
    snapshot = _first_ones(snapshot, settings, alone, LOOKED_AT * n_jobs)
    rules = _rules(settings, n_jobs)
    chosen = replace(settings, backfill=rules, max_starts=max(settings.max_starts, len(queued)))
    made = DecisionPass(Cycle(snapshot, chosen, alone))
    future = made.future
    assert future is not None
    soonest_s = _next_end_s(made.cycle, future.lengths.end_s)
    found: dict[JobId, float] = {}
    for decision in made.decisions():
        if isinstance(decision, Start):
            found[decision.job] = snapshot.now_s
        elif isinstance(decision, Reserve):
            found[decision.job] = decision.start_s
        elif decision.job in future.estimates:
            found[decision.job] = future.estimates[decision.job]
    return {job: max(at_s, soonest_s) for job, at_s in found.items() if math.isfinite(at_s)}


def _next_end_s(cycle: Cycle, end_of: Callable[[Job], float]) -> float:
    """When the first of all that holds nodes is expected to let them go; now, where nothing does."""
    now_s, context = cycle.snapshot.now_s, cycle.context
    ends = {end_of(each.job) for held in cycle.ledger.held.values() for each in held}
    ends |= {each.end_s for each in context.reservations} | {each.end_s for each in context.dedicated}
    return min((at_s for at_s in ends if at_s > now_s and math.isfinite(at_s)), default=now_s)


def _first_ones(snapshot: Snapshot, settings: Settings, context: Context, n_jobs: int) -> Snapshot:
    """Without those that wait behind so many: they delay nobody before them, and cost."""
    if len(snapshot.queued) <= n_jobs:
        return snapshot
    turns = settings.order.turns(snapshot.queued, snapshot, context)
    kept = {start.job for start in context.pending}
    for job in turns:
        turns.started(job)
        kept.add(job.id)
        n_jobs -= 1
        if n_jobs <= 0:
            break
    waiting = {job.id for job in snapshot.queued} - kept
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.id not in waiting))


def _rules(settings: Settings, n_jobs: int) -> ConservativeBackfill:
    given = settings.backfill.ahead or PlanningBackfill()
    return ConservativeBackfill(
        window_s=given.window_s,
        resolution_s=min(given.resolution_s, _RESOLUTION_S),
        slack_s=0.0,
        max_jobs=LOOKED_AT * n_jobs,
        reservations=n_jobs,
        default_walltime_s=given.default_walltime_s,
        learned=True,
    )
