"""The same runs in the simulator: equal nodes, links, applications, policy objects and overhead of a task."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.hdas_live.setting import GPUS, N_COMPUTE, Overheads, ScaledApp, world
from yarn_accel.core.tasks.policies.registry import make
from yarn_accel.core.tasks.use_over_time import use_over_time
from yarn_accel.sim.simulator import simulate

_N_POINTS = 200


@dataclass(frozen=True)
class SimulatedRun:
    """One run, in the terms of `runs.LiveRun`."""

    makespan_s: float
    mean_delay: float
    gpu_computing: float
    link_used: float
    use: Sequence[tuple[float, float, float]] = field(default=())


def simulated_run(
    apps: Sequence[ScaledApp], policy: str, overheads: Overheads, starts_s: Mapping[str, float]
) -> SimulatedRun:
    """Simulate a mix under a policy with perfect knowledge of its tasks' times.

    Args:
        starts_s: application -> when it was submitted live.
    """
    described = world(apps, policy, overheads, starts_s)
    nodes = [spec.node for spec, _ in described.resources()]
    outcome = simulate(described, make(policy, described.settings), nodes)
    used = [rows for node in nodes if (rows := outcome.use[node])]
    tables = [use_over_time(rows, outcome.makespan_s, _N_POINTS) for rows in used]
    use = [
        (
            number * outcome.makespan_s / _N_POINTS,
            sum(table.gpus_computing[number] for table in tables),
            sum(table.io_bytes_per_s[number] or 0.0 for table in tables),
        )
        for number in range(_N_POINTS)
    ]
    return SimulatedRun(
        outcome.makespan_s,
        outcome.mean_delay,
        statistics.fmean(gpus for _, gpus, _ in use) / (N_COMPUTE * GPUS),
        statistics.fmean(io for _, _, io in use) / (N_COMPUTE * overheads.link_bytes_per_s),
        use,
    )
