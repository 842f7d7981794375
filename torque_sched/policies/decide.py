"""One decision for every queued job: a pure function of the snapshot, the settings and the context.

Jobs are taken one by one (`cycle`), or planned all together (`backfilling`), as the backfill in force has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torque_sched.core.decisions import Decision, Start
from torque_sched.core.model import Job
from torque_sched.core.snapshot import Snapshot
from torque_sched.errors import ConfigError
from torque_sched.extras import install_command
from torque_sched.policies.backfill import PlanningBackfill
from torque_sched.policies.context import Context
from torque_sched.policies.cycle import Cycle
from torque_sched.policies.load import Load, PlacedLoad
from torque_sched.policies.settings import Settings

if TYPE_CHECKING:
    from torque_sched.policies.backfilling.live import LivePlan


def planner() -> type[LivePlan]:
    """What plans a cycle; asked at start, too, so that no daemon runs that cannot decide.

    Raises:
        ConfigError: numpy is not installed.
    """
    try:
        from torque_sched.policies.backfilling.live import LivePlan
    except ModuleNotFoundError as exc:
        if exc.name != "numpy":
            raise
        raise ConfigError(
            "this backfill plans with numpy, which is not installed",
            cure=f"{install_command('numpy')}, or set backfill: aged",
        ) from exc
    return LivePlan


def plan_of(cycle: Cycle, backfill: PlanningBackfill) -> LivePlan:
    """The plan of a cycle.

    Raises:
        ConfigError: numpy is not installed.
    """
    return planner()(cycle, backfill)


def decide(snapshot: Snapshot, settings: Settings, context: Context) -> tuple[Decision, ...]:
    """Answer every queued job exactly once, in the order of consideration; equal input gives equal answers.

    Starts come in the order in which they should be enacted.
    """
    return tuple(decisions_of(Cycle(snapshot, settings, context)))


def decisions_of(cycle: Cycle) -> Iterator[Decision]:
    """One for every queued job, by the backfill in force; uses the cycle up."""
    backfill = cycle.settings.backfill
    return (plan_of(cycle, backfill) if isinstance(backfill, PlanningBackfill) else cycle).decisions()


def placed_loads(start: Start, job: Job, context: Context, now_s: float) -> tuple[PlacedLoad, ...]:
    """What a start is expected to use of each node, for `Context.placed` of the cycles to come."""
    prediction = context.predictions.expect(job)
    n_slots = sum(share.ppn for share in start.allocation)
    n_gpus = sum(share.gpus for share in start.allocation)
    loads = []
    for share in start.allocation:
        if prediction is None:
            mem = max(job.request.mem_bytes or 0, (job.request.pmem_bytes or 0) * n_slots)
            load = Load(float(share.ppn), mem * share.ppn / n_slots, float(share.gpus), 0.0)
        else:
            load = prediction.load.scaled(share.ppn / n_slots, share.gpus / n_gpus if n_gpus else 0.0)
        loads.append(PlacedLoad(job.id, share.node, load, now_s))
    return tuple(loads)
