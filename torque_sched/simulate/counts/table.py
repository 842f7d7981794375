"""Free processors over future time, and a quick look at which jobs may find enough there."""

from __future__ import annotations

import math
from typing import NamedTuple

from torque_sched.model.availability import Availability


class Interval(NamedTuple):
    """So many processors during [start_s, end_s)."""

    procs: int
    start_s: float
    end_s: float


class ProcessorTable:
    """An `Availability` whose ends may be rounded.

    A set of widths is an integer with one bit for each width, or for some neighbouring widths on a machine of
    512 or more processors: `width_bit`.

    Args:
        capacity: processors of the machine.
        now_s: the first time that matters.
        resolution_s: ends are rounded up to its multiples, so that the table stays short; 0 keeps them exact.
    """

    def __init__(self, capacity: int, now_s: float = 0.0, resolution_s: float = 0.0) -> None:
        self.free = Availability(capacity, now_s)
        self.resolution_s = resolution_s
        self._shift = max(capacity.bit_length() - 9, 0)
        self._up_to = [(2 << i) - 1 for i in range((capacity >> self._shift) + 1)]

    def width_bit(self, procs: int) -> int:
        """The bit of a width."""
        return 1 << (procs >> self._shift)

    def startable(self) -> int:
        """The widths that are free at this moment."""
        free = self.free.free_now
        return self._up_to[free >> self._shift] if free > 0 else 0

    def startable_past(self) -> tuple[float, int]:
        """A time, and those of the startable widths that may run beyond it."""
        falls = self.free.falls()
        free = falls[1][1] if len(falls) > 1 else 0
        return falls[0][0], self._up_to[free >> self._shift] if free > 0 else 0

    def earliest(
        self, procs: int, length_s: float, not_before_s: float, no_later_s: float = math.inf
    ) -> Interval | None:
        """The first interval that starts in [not_before_s, no_later_s] and is free; None: there is none."""
        end_s = not_before_s + length_s
        if self.resolution_s:
            end_s = self.rounded(end_s)
        if no_later_s <= not_before_s:
            is_free = self.free.least(not_before_s, end_s) >= procs
            return Interval(procs, not_before_s, end_s) if is_free else None
        start_s = self.free.earliest(procs, end_s - not_before_s, not_before_s, no_later_s)
        if self.resolution_s and start_s != not_before_s:
            # Every later point is a multiple, so the rounded length is enough from there on.
            start_s = self.free.earliest(procs, self.rounded(length_s), not_before_s, no_later_s)
            if start_s == not_before_s:
                later_s = self.free.next_point(not_before_s)
                start_s = self.free.earliest(procs, self.rounded(length_s), later_s, no_later_s)
        return None if start_s == math.inf else Interval(procs, start_s, self.rounded(start_s + length_s))

    def earlier(self, procs: int, length_s: float, planned: Interval, not_before_s: float) -> Interval | None:
        """The first interval that starts before `planned`, as if `planned` were free; None: there is none."""
        before_s = planned.start_s
        if self.resolution_s:
            self.give_back(planned)
            found = self.earliest(procs, length_s, not_before_s, before_s)
            self.take(planned)
            return found if found is not None and found.start_s < before_s else None
        start_s = self.free.earliest(procs, planned.end_s - before_s, not_before_s, math.inf, before_s)
        return None if start_s >= before_s else Interval(procs, start_s, start_s + length_s)

    def take(self, interval: Interval) -> None:
        """Nobody else gets it. Raises ValueError where it is not free."""
        procs, start_s, end_s = interval
        self.free.add(-procs, start_s, end_s)

    def give_back(self, interval: Interval) -> None:
        """Its part from now on is free again."""
        procs, start_s, end_s = interval
        self.free.add(procs, start_s, end_s)

    def fits(self, interval: Interval) -> bool:
        """Whether it is free."""
        return self.free.least(interval.start_s, interval.end_s) >= interval.procs

    def opened(self, interval: Interval, moved_to: Interval | None = None) -> int:
        """The widths that may fit somewhere now, and did not before `interval` was given back.

        Args:
            interval: was given back just now.
            moved_to: was taken for it.
        """
        start_s = interval.start_s if moved_to is None else max(interval.start_s, moved_to.end_s)
        found, up_to, shift, procs = 0, self._up_to, self._shift, interval.procs
        for free in self.free.levels(start_s, interval.end_s):
            if free < procs:
                return -1
            # Widths from free - procs + 1 to free.
            found |= up_to[free >> shift] ^ up_to[(free - procs + 1) >> shift] >> 1
        return found

    def rounded(self, end_s: float) -> float:
        """An end, rounded up to a multiple of the resolution."""
        if not self.resolution_s or end_s == math.inf:
            return end_s
        return math.ceil(end_s / self.resolution_s) * self.resolution_s
