"""The policy object for a site's choice of backfilling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torque_sched.core.model import JobId
from torque_sched.policies.backfill import (
    ConservativeBackfill,
    EasyBackfill,
    FcfsBackfill,
    PlanningBackfill,
    SelectiveBackfill,
)
from torque_sched.policies.backfilling.conservative import Conservative
from torque_sched.policies.backfilling.easy import Easy
from torque_sched.policies.backfilling.events import BatchJob
from torque_sched.policies.backfilling.fcfs import Fcfs
from torque_sched.policies.backfilling.node_table import NodeNeed, NodeSpot, NodeTable
from torque_sched.policies.backfilling.order import FirstCome
from torque_sched.policies.backfilling.scheduler import Backfilling
from torque_sched.policies.backfilling.selective import Selective
from torque_sched.policies.backfilling.settings import Bounds


class _InTurn(FirstCome):
    """By the position in the order of turns."""

    def __init__(self, positions: Mapping[JobId, int]) -> None:
        self._positions = positions

    def rank(self, job: BatchJob[Any], length_s: float, now_s: float) -> float:
        """Its position."""
        return float(self._positions[JobId(str(job.key))])


def new_policy(
    rules: PlanningBackfill, table: NodeTable, positions: Mapping[JobId, int]
) -> Backfilling[NodeNeed, NodeSpot]:
    """A fresh policy for one cycle."""
    order, bounds = _InTurn(positions), Bounds(window_s=rules.window_s)
    match rules:
        case FcfsBackfill():
            return Fcfs(table, order, bounds=bounds)
        case EasyBackfill():
            return Easy(table, order, bounds=bounds, depth=rules.depth)
        case SelectiveBackfill():
            return Selective(table, order, bounds=bounds, threshold=rules.threshold)
        case ConservativeBackfill():
            return Conservative(table, order, bounds=bounds, compress=rules.compress)
    raise TypeError(f"no planning backfill: {rules!r}")
