"""When jobs that are promised nothing may start, by counting free slots: an estimate, and no more.

Which nodes the slots are on is not looked at, so properties, GPUs and slots scattered over nodes are missed.
In return thousands of jobs cost little: one step function for the whole cluster.
"""

from __future__ import annotations

import math

import numpy as np

from torque_sched.core.availability import Availability
from torque_sched.policies.backfilling.node_steps import SLOTS
from torque_sched.policies.backfilling.node_table import NodeTable

_COARSE_S = 600.0
"""An estimate to ten minutes: the steps stay few."""


class Counts:
    """Free slots of the whole cluster over time, beside all that runs or is planned in a table."""

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
