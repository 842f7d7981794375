"""The planned future of the machines: queues of tasks with times, and the idle gaps between them.

Rows are numpy arrays with one value per machine. A gap is idle time between now, or the end of a task, and
the start of the next task of that queue; the open end of a queue is its tail, no gap.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float64]
_GONE = -np.inf
_ROUNDING_S = 1e-6


class Planned(Protocol):
    """A task with its place in time, which a timeline sets."""

    start_s: float
    end_s: float
    seconds: float


_Item = TypeVar("_Item", bound=Planned)


class Timeline(Generic[_Item]):
    """Queues of planned tasks.

    Args:
        free_s: row: from when each machine is free.
        overrun: share of a gap's length by which what goes into it may end after it (equation 4: 1 / n). What
            comes next on the machine moves back as far as needed.

    Attributes:
        tail_s: row: the end of each queue.
        reach_s: what takes longer, on any machine, fits into no gap.
    """

    def __init__(self, free_s: Row, overrun: float = 0.0) -> None:
        n = len(free_s)
        self.free_s = free_s
        self.tail_s = free_s.copy()
        self.queues: list[list[_Item]] = [[] for _ in range(n)]
        self._begin_s = np.full(16, _GONE)
        self._close_s = np.full(16, _GONE)
        self._machine = np.zeros(16, dtype=np.intp)
        self._n_gaps = 0
        self._overrun = overrun
        self.reach_s = _GONE
        #: Row: what takes longer on a machine fits into none of its gaps.
        self._longest_s = np.full(n, _GONE)
        self._buffer, self._is_within = np.empty(n), np.empty(n, dtype=np.bool_)

    def append(self, item: _Item, ready_s: Row, seconds: Row, finish_s: Row, only: int | None = None) -> int:
        """Plan a task behind the queue where it finishes first (HEFT without insertion); the first on ties.

        Args:
            item: gets its times.
            ready_s: when its inputs are on each machine.
            seconds: how long it takes there.
            finish_s: filled with the finish on each machine.
            only: number of the one machine that is allowed.

        Returns:
            The number of its machine.
        """
        tail_s, begin_s = self.tail_s, self._buffer
        np.maximum(tail_s, ready_s, out=begin_s)
        np.add(begin_s, seconds, out=finish_s)
        machine = int(finish_s.argmin()) if only is None else only
        start_s, idle_from_s = begin_s.item(machine), tail_s.item(machine)
        if start_s > idle_from_s:
            self._add_gap(machine, idle_from_s, start_s)
        item.start_s, item.seconds = start_s, seconds.item(machine)
        tail_s[machine] = item.end_s = finish_s.item(machine)
        self.queues[machine].append(item)
        return machine

    def insert(
        self,
        item: _Item,
        ready_s: Row,
        seconds: Row,
        least_s: float,
        only: int | None = None,
    ) -> int | None:
        """Plan a task into the gap in which it ends first.

        Args:
            item: as in `append`.
            ready_s: as in `append`.
            seconds: as in `append`.
            least_s: the least of `seconds`.
            only: as in `append`.

        Returns:
            The number of its machine, None if it fits into no gap.
        """
        found = self.fit(ready_s, seconds, least_s, only)
        return None if found is None else self._insert_at(item, *found, float(seconds[found[0]]))

    def insert_or_append(
        self, item: _Item, ready_s: Row, seconds: Row, least_s: float, finish_s: Row, only: int | None = None
    ) -> int:
        """Plan a task where it ends first, into a gap or behind a queue (HEFT)."""
        found = self.fit(ready_s, seconds, least_s, only)
        if found is not None:
            machine, start_s = found
            np.add(np.maximum(self.tail_s, ready_s, out=self._buffer), seconds, out=finish_s)
            last = int(finish_s.argmin()) if only is None else only
            if (start_s + seconds[machine], machine) <= (finish_s[last], last):
                finish_s[machine] = start_s + seconds[machine]
                return self._insert_at(item, machine, start_s, float(seconds[machine]))
        return self.append(item, ready_s, seconds, finish_s, only)

    def fit(self, ready_s: Row, seconds: Row, least_s: float, only: int | None) -> tuple[int, float] | None:
        """Machine and start of the gap in which a task ends first; see `insert`."""
        if least_s > self.reach_s or not self.may_hold(seconds):
            return None
        n, overrun = self._n_gaps, self._overrun
        begin_s, close_s, machines = self._begin_s[:n], self._close_s[:n], self._machine[:n]
        start_s = np.maximum(begin_s, ready_s[machines])
        end_s = start_s + seconds[machines]
        fits = end_s <= close_s + (close_s - begin_s) * overrun if overrun else end_s <= close_s
        # A task of no length that could start at the very end of a gap does not use the gap.
        fits &= start_s < close_s
        if only is not None:
            fits &= machines == only
        found = np.flatnonzero(fits)
        if not len(found):
            return None
        ends_s = end_s[found]
        ties = found[ends_s == ends_s.min()]
        best = min(ties, key=lambda at: (machines[at], start_s[at])) if len(ties) > 1 else ties[0]
        return int(machines[best]), float(start_s[best])

    def may_hold(self, seconds: Row) -> bool:
        """Whether a machine has a gap that is long enough for a task, whenever its inputs are there."""
        is_within = np.less_equal(seconds, self._longest_s, self._is_within)
        return bool(is_within.item(is_within.argmax()))

    def add_fixed(self, machine: int, items: list[_Item]) -> None:
        """Plan tasks at the times that they have, later where the machine is not free; in their order."""
        at_s = self.free_s.item(machine)
        for each in items:
            if each.start_s < at_s:
                each.start_s = at_s
                each.end_s = at_s + each.seconds
            at_s = each.end_s
        self.queues[machine] = items
        self.tail_s[machine] = at_s
        self._find_gaps(machine)

    def _insert_at(self, item: _Item, machine: int, start_s: float, seconds: float) -> int:
        queue = self.queues[machine]
        item.start_s, item.seconds, item.end_s = start_s, seconds, start_s + seconds
        # Behind tasks of no length that are planned for the same time: one of them may be its parent.
        at = next((n for n, each in enumerate(queue) if each.end_s > start_s), len(queue))
        queue.insert(at, item)
        free_from_s = item.end_s
        for each in queue[at + 1 :]:
            if each.start_s >= free_from_s:
                break
            each.start_s = free_from_s
            each.end_s = free_from_s = free_from_s + each.seconds
        self.tail_s[machine] = queue[-1].end_s
        self._find_gaps(machine)
        return machine

    def _find_gaps(self, machine: int) -> None:
        n = self._n_gaps
        self._close_s[:n][self._machine[:n] == machine] = _GONE
        self._longest_s[machine] = _GONE
        self.reach_s = self._longest_s.item(self._longest_s.argmax())
        at_s = self.free_s.item(machine)
        for each in self.queues[machine]:
            if each.start_s > at_s:
                self._add_gap(machine, at_s, each.start_s)
            at_s = each.end_s

    def _add_gap(self, machine: int, begin_s: float, close_s: float) -> None:
        if self._n_gaps == len(self._begin_s):
            self._compact()
        at = self._n_gaps
        self._begin_s[at], self._close_s[at], self._machine[at] = begin_s, close_s, machine
        self._n_gaps += 1
        # A difference of times is less exact than the times: what fits exactly must get past this.
        longest_s = (close_s - begin_s) * (1 + self._overrun) + _ROUNDING_S
        self._longest_s[machine] = max(self._longest_s.item(machine), longest_s)
        self.reach_s = max(self.reach_s, longest_s)

    def _compact(self) -> None:
        """Forget gaps that are no more, and make place for as many again."""
        kept = self._close_s > _GONE
        n = int(kept.sum())
        size = max(16, 2 * n)

        def moved(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            larger = np.zeros(size, dtype=values.dtype)
            larger[:n] = values[kept]
            return larger

        self._begin_s, self._close_s = moved(self._begin_s), moved(self._close_s)
        self._machine = moved(self._machine)
        self._close_s[n:] = _GONE
        self._n_gaps = n
