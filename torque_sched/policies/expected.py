"""When waiting jobs will start if jobs run as long as jobs like them did: an expectation that binds nobody.

The jobs that are next are planned one after the other as conservative backfilling would, with learned run
times in the place of walltimes and without what was promised before. So it is an estimate for the other
backfills too, and mostly a sooner start than the guaranteed one, which rests on walltimes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torque_sched.core.decisions import Reserve, Start
from torque_sched.core.model import JobId
from torque_sched.core.snapshot import Snapshot
from torque_sched.policies.backfill import ConservativeBackfill, PlanningBackfill
from torque_sched.policies.context import Context
from torque_sched.policies.cycle import Cycle
from torque_sched.policies.decide import plan_of
from torque_sched.policies.settings import Settings

__all__ = ["EXPECTED_JOBS", "expected_starts"]

EXPECTED_JOBS = 300
"""So many of the jobs that are next get one."""
_RESOLUTION_S = 30.0
_COUNTED = 10


def expected_starts(
    snapshot: Snapshot, settings: Settings, context: Context, n_jobs: int = EXPECTED_JOBS
) -> dict[JobId, float]:
    """Seconds since the epoch, of those jobs for which something is expected; none before a job has ended.

    Args:
        snapshot: now.
        settings: in force.
        context: of the same moment; its promises are left out.
        n_jobs: planned on nodes; ten times as many get an estimate by free slots.

    Raises:
        ConfigError: numpy is not installed.
    """
    queued = snapshot.queued
    if not queued or context.predictions.expect(queued[0]) is None:
        return {}
    rules = _rules(settings, n_jobs)
    chosen = replace(settings, backfill=rules, max_starts=max(settings.max_starts, len(queued)))
    alone = replace(context, promises={}, kept=frozenset())
    plan = plan_of(Cycle(snapshot, chosen, alone), rules)
    found: dict[JobId, float] = {}
    for decision in plan.decisions():
        if isinstance(decision, Start):
            found[decision.job] = snapshot.now_s
        elif isinstance(decision, Reserve):
            found[decision.job] = decision.start_s
        elif decision.job in plan.estimates:
            found[decision.job] = plan.estimates[decision.job]
    return {job: at_s for job, at_s in found.items() if math.isfinite(at_s)}


def _rules(settings: Settings, n_jobs: int) -> ConservativeBackfill:
    given = settings.backfill if isinstance(settings.backfill, PlanningBackfill) else PlanningBackfill()
    return ConservativeBackfill(
        window_s=given.window_s,
        resolution_s=min(given.resolution_s, _RESOLUTION_S),
        slack_s=0.0,
        max_jobs=_COUNTED * n_jobs,
        node_exact_jobs=n_jobs,
        default_walltime_s=given.default_walltime_s,
        learned=True,
    )
