"""First come, first served: nobody goes ahead of the first job that cannot start."""

from __future__ import annotations

from typing import TypeVar

from torque_sched.policies.backfilling.entry import Entry
from torque_sched.policies.backfilling.scheduler import Backfilling
from torque_sched.policies.backfilling.table import Spot

N = TypeVar("N")
S = TypeVar("S", bound=Spot)


class Fcfs(Backfilling[N, S]):
    """No backfilling and no promises."""

    def _pass(self, new: list[Entry[N, S]]) -> None:
        table, now_s = self.table, self.now_s
        startable = table.startable()
        for entry in self._turns():
            if entry.is_held:
                continue
            if not entry.kinds & startable:
                break
            spot = table.earliest(entry.job.need, entry.length_s, now_s, now_s)
            if spot is None:
                break
            if self._may(entry):
                table.take(spot)
                entry.spot = spot
                self._start(entry)
                startable = table.startable()
        self._close_ranks()
