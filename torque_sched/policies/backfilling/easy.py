"""EASY backfilling: only the first jobs of the line are promised a start; who does not delay them goes ahead.

With depth 1 this is EASY itself (Lifka 1995): the promise is the head's shadow time. The promises are made
anew in every pass, as nobody but the first `depth` has a claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from torque_sched.errors import ConfigError
from torque_sched.policies.backfilling.entry import Entry
from torque_sched.policies.backfilling.estimate import Estimates
from torque_sched.policies.backfilling.events import BreakReason
from torque_sched.policies.backfilling.order import Order
from torque_sched.policies.backfilling.scheduler import Backfilling
from torque_sched.policies.backfilling.settings import Bounds
from torque_sched.policies.backfilling.state import State
from torque_sched.policies.backfilling.table import Spot, Table

__all__ = ["Easy"]

N = TypeVar("N")
S = TypeVar("S", bound=Spot)


class Easy(Backfilling[N, S]):
    """Promises to the first `depth` jobs that cannot start.

    Args:
        table: as `Backfilling`.
        order: as `Backfilling`.
        estimates: as `Backfilling`.
        bounds: as `Backfilling`.
        depth: how many; 1 or more.
    """

    def __init__(
        self,
        table: Table[N, S],
        order: Order | None = None,
        estimates: Estimates | None = None,
        bounds: Bounds | None = None,
        *,
        depth: int = 1,
    ) -> None:
        super().__init__(table, order, estimates, bounds)
        if depth < 1:
            raise ConfigError(f"a reservation depth of {depth}", cure="1 is EASY, fcfs has none")
        self._depth = depth
        self._kept: list[Entry[N, S]] = []
        self._is_settled = False
        self._has_bounds = min(self.bounds.window_s, self.bounds.max_jobs) < math.inf

    def _pass(self, new: list[Entry[N, S]]) -> None:
        tail = self._line[len(self._line) - len(new) :]
        if (
            self._is_settled
            and not (self._freed or self._reservations)
            and self._wake_s > self.now_s
            and (tail == new or {id(entry) for entry in new} == {id(entry) for entry in tail})
        ):
            # The others keep their turns and cannot start yet.
            self._pass_over(tail)
        else:
            self._pass_all()
        self._close_ranks()
        # With these the same pass may answer otherwise the next time.
        self._is_settled = not (self._refused_jobs or self._has_bounds or not self.order.is_static)
        self._wake_s = math.inf
        for entry in self._kept:
            if entry.spot is not None and entry.spot.start_s < self._wake_s:
                self._wake_s = entry.spot.start_s

    def _pass_all(self) -> None:
        """Start what can, and promise anew: nobody but the first `depth` has a claim."""
        waiting = self._waiting
        before = [
            (entry, spot)
            for entry in self._kept
            if (spot := entry.spot) is not None and entry.job.key in waiting
        ]
        self._kept = [entry for entry, _ in before]
        if len(before) == 1 and self.order.is_static and before[0][0] is self._line[0]:
            self._keep_head(*before[0])
        else:
            self._kept = []
            for entry, spot in before:
                self.table.give_back(spot)
                entry.spot = None
            self._pass_over(self._turns())
        for entry, _ in before:
            if entry.job.key in waiting and (entry.spot is None or entry.spot.start_s > entry.told_s):
                reason = BreakReason.LIMIT if entry.is_refused else BreakReason.OUTRANKED
                self._broken.setdefault(entry.job.key, reason)

    def restore(self, state: State[N, S]) -> None:
        """As `Backfilling.restore`."""
        super().restore(state)
        self._kept = [entry for entry in self._line if entry.spot is not None]

    def _keep_head(self, head: Entry[N, S], spot: S) -> None:
        """The same pass where only the head has a promise: it stays, or moves to the earliest start now."""
        earlier = None
        if spot.start_s > self.now_s:
            earlier = self.table.earlier(head.job.need, head.length_s, spot, self.now_s)
        if spot.start_s <= self.now_s or (earlier is not None and earlier.start_s <= self.now_s):
            self._kept = []
            self.table.give_back(spot)
            head.spot = None
            self._pass_over(self._turns())
            return
        if earlier is not None:
            self.table.give_back(spot)
            self.table.take(earlier)
            self._settle(head, earlier)
        self._pass_over(islice(self._line, 1, None))

    def _pass_over(self, turns: Iterable[Entry[N, S]]) -> None:
        table, now_s = self.table, self.now_s
        left = self.bounds.max_jobs
        startable = table.startable()
        for entry in turns:
            if entry.is_held:
                continue
            left -= 1
            if left < 0:
                break
            if entry.kinds & startable:
                spot = table.earliest(entry.job.need, entry.length_s, now_s, now_s)
                if spot is not None:
                    if self._may(entry):
                        table.take(spot)
                        entry.spot = spot
                        self._start(entry)
                        startable = table.startable()
                    continue
            if len(self._kept) < self._depth and self._promise(entry):
                self._kept.append(entry)
