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
from torque_sched.policies.backfilling.events import BreakReason, JobKey
from torque_sched.policies.backfilling.order import Order
from torque_sched.policies.backfilling.scheduler import Backfilling
from torque_sched.policies.backfilling.settings import Bounds
from torque_sched.policies.backfilling.state import State
from torque_sched.policies.backfilling.table import Spot, Table

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
        #: What was promised before this pass, given back for it.
        self._given_back: dict[JobKey, S] = {}
        self._is_settled = False
        self._has_bounds = min(self.bounds.window_s, self.bounds.max_jobs) < math.inf

    def _pass(self, new: list[Entry[N, S]]) -> None:
        is_settled = self._is_settled and not (self._freed or self._reservations)
        if is_settled and self._wake_s > self.now_s and self._are_last(new):
            # The others keep their turns and cannot start yet.
            self._pass_over(self._line[len(self._line) - len(new) :])
        else:
            self._pass_all()
        self._close_ranks()
        # With these the same pass may answer otherwise the next time.
        self._is_settled = not (self._refused_jobs or self._has_bounds or not self.order.is_static)
        self._wake_s = math.inf
        for entry in self._kept:
            if entry.spot is not None and entry.spot.start_s < self._wake_s:
                self._wake_s = entry.spot.start_s

    def _are_last(self, new: list[Entry[N, S]]) -> bool:
        tail = self._line[len(self._line) - len(new) :]
        return tail == new or {id(entry) for entry in new} == {id(entry) for entry in tail}

    def _pass_all(self) -> None:
        """Start what can, and promise anew: nobody but the first `depth` has a claim."""
        kept, line = self._kept, self._line
        if len(kept) == 1 and line and kept[0] is line[0] and self.order.is_static and self._keeps(kept[0]):
            self._pass_over(islice(line, 1, None))
            return
        waiting = self._waiting
        before: list[Entry[N, S]] = []
        for entry in kept:
            if entry.spot is not None and entry.job.key in waiting:
                self.table.give_back(entry.spot)
                self._given_back[entry.job.key] = entry.spot
                entry.spot = None
                before.append(entry)
        self._kept = []
        self._pass_over(self._turns())
        self._given_back.clear()
        for entry in before:
            if entry.job.key in waiting and (entry.spot is None or entry.spot.start_s > entry.told_s):
                reason = BreakReason.LIMIT if entry.is_refused else BreakReason.OUTRANKED
                self._broken.setdefault(entry.job.key, reason)

    def restore(self, state: State[N, S]) -> None:
        """As `Backfilling.restore`."""
        super().restore(state)
        self._kept = [entry for entry in self._line if entry.spot is not None]

    def _keeps(self, head: Entry[N, S]) -> bool:
        """Whether the only job with a promise cannot start yet: its promise stays, or moves forward."""
        spot = head.spot
        if spot is None or spot.start_s <= self.now_s:
            return False
        earlier = self.table.earlier(head.job.need, head.length_s, spot, self.now_s)
        if earlier is None:
            return True
        if earlier.start_s <= self.now_s:
            return False
        self.table.give_back(spot)
        self.table.take(earlier)
        self._settle(head, earlier)
        return True

    def _pass_over(self, turns: Iterable[Entry[N, S]]) -> None:
        """Start who can, and promise a start to the first who cannot."""
        left = self.bounds.max_jobs
        turns = iter(turns)
        while len(self._kept) < self._depth:
            entry = next(turns, None)
            if entry is None:
                return
            if entry.is_held:
                continue
            left -= 1
            if left < 0:
                return
            if not self._takes_turn(entry) and self._promise(entry):
                self._kept.append(entry)
        self._backfill(turns, left)

    def _promise(self, entry: Entry[N, S]) -> bool:
        """As `Backfilling._promise`; what was promised before stays, where it is free and nothing is sooner.

        A table of nodes may ask more of a new promise than of an old one: slots for idle GPUs.
        """
        before = self._given_back.pop(entry.job.key, None)
        if before is None or before.start_s <= self.now_s:
            return super()._promise(entry)
        spot = self.table.earliest(entry.job.need, entry.length_s, self.now_s, before.start_s)
        if spot is None:
            if not self.table.fits(before):
                return super()._promise(entry)
            spot = before
        self.table.take(spot)
        self._settle(entry, spot)
        return True

    def _backfill(self, turns: Iterable[Entry[N, S]], left: float) -> None:
        """Start who can; nobody else is promised anything."""
        table, now_s = self.table, self.now_s
        startable = table.startable()
        if not startable:
            return
        if left == math.inf and self.order.is_static:
            until_s, long = table.startable_past()
            turns = [
                entry
                for entry in turns
                if (kinds := entry.kinds) & startable and (kinds & long or now_s + entry.length_s <= until_s)
            ]
        for entry in turns:
            if entry.is_held:
                continue
            left -= 1
            if left < 0:
                return
            if entry.kinds & startable and self._takes_turn(entry):
                startable = table.startable()
                if not startable:
                    return

    def _takes_turn(self, entry: Entry[N, S]) -> bool:
        """Whether there is room for it now; it starts, unless it must not."""
        spot = self.table.earliest(entry.job.need, entry.length_s, self.now_s, self.now_s)
        if spot is None:
            spot = self._late(entry)
        if spot is None:
            return False
        if self._may(entry):
            self.table.take(spot)
            entry.spot = spot
            self._start(entry)
        return True

    def _late(self, entry: Entry[N, S]) -> S | None:
        """What was promised for a time that has come: a start somewhat late ends as planned."""
        before = self._given_back.get(entry.job.key)
        if before is None or before.start_s > self.now_s or not self.table.fits(before):
            return None
        self.table.take(before)
        spot = self.table.settle(entry.job.need, entry.length_s, before)
        self.table.give_back(before)
        return spot
