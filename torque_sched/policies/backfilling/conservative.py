"""Conservative backfilling: every job is promised a start when it is submitted, and a promise only improves.

A job goes ahead of others where it delays none of them (Mu'alem, Feitelson 2001; Lu, Han, Sun 2007, section
3.2.2). When a job ends, what it leaves free is used by compression: every waiting job, in the order of the
line, is moved to the earliest start there is for it now; once for every job that ends early. The paper prints
the algorithm without this step: then promises that rest on too long walltimes never improve
(`compress=False`).

Compression without trying everybody. A job that was tried in vain can only be helped by a time that has
become free enough for it since. So every give-back is logged as the set of widths it opened (`Table.opened`):
those that were more than was free, and are not any more. `_log` holds these sets since the begin of the last
compression; `Entry.seen` says how many of them a job has been tried on. The result is that of trying
everybody.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import accumulate
from operator import or_
from typing import TypeVar

from torque_sched.policies.backfilling.entry import Entry, by_rank
from torque_sched.policies.backfilling.estimate import Estimates
from torque_sched.policies.backfilling.events import BreakReason, JobKey
from torque_sched.policies.backfilling.order import Order
from torque_sched.policies.backfilling.scheduler import Backfilling
from torque_sched.policies.backfilling.settings import Bounds
from torque_sched.policies.backfilling.state import State
from torque_sched.policies.backfilling.table import Spot, Table

N = TypeVar("N")
S = TypeVar("S", bound=Spot)

_EVERYBODY = -1


class Conservative(Backfilling[N, S]):
    """Promises to everybody.

    Args:
        table: as `Backfilling`.
        order: as `Backfilling`.
        estimates: as `Backfilling`.
        bounds: as `Backfilling`.
        compress: whether promises improve when jobs end early.
        depth: at most so many jobs have a promise; the others start where they delay none of these.
    """

    def __init__(
        self,
        table: Table[N, S],
        order: Order | None = None,
        estimates: Estimates | None = None,
        bounds: Bounds | None = None,
        *,
        compress: bool = True,
        depth: float = math.inf,
    ) -> None:
        super().__init__(table, order, estimates, bounds)
        self._compresses = compress
        self._depth = depth
        self._has_unpromised = True
        self._log: list[int] = [_EVERYBODY]
        #: Promised starts, those that are out of date among them.
        self._due: list[tuple[float, int, JobKey]] = []

    def deserves_promise(self, entry: Entry[N, S]) -> bool:
        """Whether a job that cannot start now is promised a start."""
        return True

    def _end(self, key: JobKey) -> S:
        # A job that ends as planned frees nothing that was not known: compression is for early ends.
        was_freed = self._freed
        spot = super()._end(key)
        self._freed = was_freed
        if spot.end_s > self.now_s and self._compresses:
            self._log.append(self.table.opened(spot))
            if not self.order.is_static:
                self._sort()
            self._compress()
        return spot

    def _settle(self, entry: Entry[N, S], spot: S) -> None:
        super()._settle(entry, spot)
        heappush(self._due, (spot.start_s, entry.rank[2], entry.job.key))

    def restore(self, state: State[N, S]) -> None:
        """As `Backfilling.restore`."""
        super().restore(state)
        for entry in self._line:
            if entry.spot is not None:
                heappush(self._due, (entry.spot.start_s, entry.rank[2], entry.job.key))

    def _lose(self, entry: Entry[N, S], reason: BreakReason) -> None:
        super()._lose(entry, reason)
        self._has_unpromised = True

    def _pass(self, new: list[Entry[N, S]]) -> None:
        if not self.order.is_static:
            self._sort()
        if self._wake_s <= self.now_s:
            # Before anybody else gets what is not planned: memory free by the mom, one of the cycle's starts.
            self._start_due()
        self._plan(new)
        while self._wake_s <= self.now_s:
            self._freed = False
            self._start_due()
            if not self._freed:
                break
            # Whoever was refused gave its place back, or a late start took somebody's: plan again.
            self._plan([])

    def _plan(self, new: list[Entry[N, S]]) -> None:
        """Improve promises after something was freed, and make those that are missing."""
        if self._freed:
            if self._compresses:
                self._log.append(_EVERYBODY)
                self._compress()
            else:
                self._find_wake()
        if self._has_unpromised or len(new) > 1 or (new and self._depth < math.inf):
            self._plan_missing()
        elif new:
            self._has_unpromised = not self._consider(new[0], 0)

    def _compress(self) -> None:
        """Move every promised job to the earliest start there is now, in the order of the line."""
        before = self._log
        opened_since = [*accumulate(reversed(before), or_, initial=0)]
        if not opened_since[-1]:
            return
        opened_since.reverse()
        log: list[int] = []
        opened, table, now_s = 0, self.table, self.now_s
        for entry in self._line:
            spot = entry.spot
            if spot is not None:
                if spot.start_s > now_s and (opened_since[entry.seen] | opened) & entry.kinds:
                    better = table.earlier(entry.job.need, entry.length_s, spot, now_s)
                    if better is not None:
                        table.give_back(spot)
                        table.take(better)
                        self._settle(entry, better)
                        log.append(table.opened(spot, better))
                        opened |= log[-1]
                entry.seen = len(log)
        self._log = log
        self._find_wake()

    def _plan_missing(self) -> None:
        """Jobs without a promise, in the order of the line."""
        left = self.bounds.max_jobs
        self._has_unpromised = False
        n_promised = 0
        for entry in self._line:
            if entry.spot is None:
                left -= 1
                if left < 0 or not self._consider(entry, n_promised):
                    self._has_unpromised = True
                    continue
            n_promised += 1

    def _consider(self, entry: Entry[N, S], n_promised: int) -> bool:
        """A job without a promise: whether it has one now, or may start now."""
        if entry.is_held or entry.is_refused:
            return False
        if n_promised < self._depth and self.deserves_promise(entry):
            if not self._promise(entry):
                return False
        elif not self._try_now(entry):
            return False
        entry.seen = len(self._log)
        if entry.spot is not None:
            self._wake_s = min(self._wake_s, entry.spot.start_s)
        return True

    def _try_now(self, entry: Entry[N, S]) -> bool:
        if not entry.kinds & self.table.startable():
            return False
        spot = self.table.earliest(entry.job.need, entry.length_s, self.now_s, self.now_s)
        if spot is None:
            return False
        self.table.take(spot)
        self._settle(entry, spot)
        return True

    def _start_due(self) -> None:
        """Start what is promised for now."""
        now_s, heap = self.now_s, self._due
        due: dict[int, Entry[N, S]] = {}
        while heap and heap[0][0] <= now_s:
            entry = self._promised(*heappop(heap))
            if entry is not None:
                due[entry.rank[2]] = entry
        for entry in sorted(due.values(), key=by_rank):
            if entry.spot is None or entry.spot.start_s > now_s:
                continue
            if not self._may(entry):
                self._demote(entry, BreakReason.LIMIT)
            elif not self._start_settled(entry):
                self._demote(entry, BreakReason.CAPACITY)
            else:
                continue
            self._freed = True
        self._close_ranks()
        self._find_wake()

    def _promised(self, start_s: float, seq: int, key: JobKey) -> Entry[N, S] | None:
        """The job with this promise; None where it is out of date."""
        entry = self._waiting.get(key)
        if entry is None or entry.spot is None or entry.rank[2] != seq or entry.spot.start_s != start_s:
            return None
        return entry

    def _find_wake(self) -> None:
        heap = self._due
        while heap and self._promised(*heap[0]) is None:
            heappop(heap)
        self._wake_s = heap[0][0] if heap else math.inf

    def _start_settled(self, entry: Entry[N, S]) -> bool:
        """Start it where the table finally says."""
        if entry.spot is None:
            return False
        spot = self.table.settle(entry.job.need, entry.length_s, entry.spot)
        if spot is None:
            self._refuse(entry)
            return False
        if spot is not entry.spot:
            self.table.give_back(entry.spot)
            self.table.take(spot)
            entry.spot = spot
        self._start(entry)
        return True
