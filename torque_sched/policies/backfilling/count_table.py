"""The table of traces: equal processors, only their number counts."""

from __future__ import annotations

import math
from typing import NamedTuple

from torque_sched.core.availability import Availability


class CountSpot(NamedTuple):
    """So many processors during [start_s, end_s)."""

    n: int
    start_s: float
    end_s: float


class CountTable:
    """`Table` over an `Availability`; a need is a number of processors.

    Args:
        capacity: processors of the machine.
        now_s: the first time that matters.
        resolution_s: ends are rounded up to its multiples, so that the table stays short; 0 keeps them exact.
    """

    def __init__(self, capacity: int, now_s: float = 0.0, resolution_s: float = 0.0) -> None:
        self.free = Availability(capacity, now_s)
        self.resolution_s = resolution_s
        self._class_widths()

    def advance(self, now_s: float) -> None:
        """As `Table.advance`."""
        self.free.advance(now_s)

    def startable(self) -> int:
        """As `Table.startable`."""
        free = self.free.free_now
        return self._up_to[free >> self._shift] if free > 0 else 0

    def startable_past(self) -> tuple[float, int]:
        """As `Table.startable_past`."""
        falls = self.free.falls()
        free = falls[1][1] if len(falls) > 1 else 0
        return falls[0][0], self._up_to[free >> self._shift] if free > 0 else 0

    def earliest(
        self, need: int, length_s: float, not_before_s: float, no_later_s: float = math.inf
    ) -> CountSpot | None:
        """As `Table.earliest`."""
        end_s = not_before_s + length_s
        if self.resolution_s:
            end_s = self._end(end_s)
        if no_later_s <= not_before_s:
            is_free = self.free.least(not_before_s, end_s) >= need
            return CountSpot(need, not_before_s, end_s) if is_free else None
        start_s = self.free.earliest(need, end_s - not_before_s, not_before_s, no_later_s)
        if self.resolution_s and start_s != not_before_s:
            # Every later point is a multiple, so the rounded length is enough from there on.
            start_s = self.free.earliest(need, self._end(length_s), not_before_s, no_later_s)
            if start_s == not_before_s:
                later_s = self.free.next_point(not_before_s)
                start_s = self.free.earliest(need, self._end(length_s), later_s, no_later_s)
        return None if start_s == math.inf else CountSpot(need, start_s, self._end(start_s + length_s))

    def earlier(self, need: int, length_s: float, spot: CountSpot, not_before_s: float) -> CountSpot | None:
        """As `Table.earlier`."""
        if self.resolution_s:
            self.free.give_back(*spot)
            found = self.earliest(need, length_s, not_before_s, spot.start_s)
            self.free.take(*spot)
            return found if found is not None and found.start_s < spot.start_s else None
        before_s = spot.start_s
        start_s = self.free.earliest(need, spot.end_s - before_s, not_before_s, math.inf, before_s)
        return None if start_s >= before_s else CountSpot(need, start_s, start_s + length_s)

    def take(self, spot: CountSpot) -> None:
        """As `Table.take`."""
        n, start_s, end_s = spot
        self.free.add(-n, start_s, end_s)

    def give_back(self, spot: CountSpot) -> None:
        """As `Table.give_back`."""
        n, start_s, end_s = spot
        self.free.add(n, start_s, end_s)

    def fits(self, spot: CountSpot) -> bool:
        """As `Table.fits`."""
        return self.free.least(spot.start_s, spot.end_s) >= spot.n

    def lasting(self, spot: CountSpot, start_s: float, end_s: float) -> CountSpot:
        """As `Table.lasting`."""
        return CountSpot(spot.n, start_s, self._end(end_s))

    def force(self, spot: CountSpot) -> None:
        """As `Table.force`: what is free may become negative."""
        self.free.force(*spot)

    def reshape(self, change: object) -> None:
        """The machine has so many processors from now on."""
        if not isinstance(change, int):
            raise TypeError(f"a new capacity is a whole number, not {change!r}")
        self.free.resize(change)
        self._class_widths()

    def kinds(self, need: int) -> int:
        """As `Table.kinds`: one bit for each width, or for some neighbouring widths on large machines."""
        return 1 << (need >> self._shift)

    def opened(self, spot: CountSpot, moved_to: CountSpot | None = None) -> int:
        """As `Table.opened`: the widths that were more than was free at some time of it, and are not now."""
        start_s = spot.start_s if moved_to is None else max(spot.start_s, moved_to.end_s)
        found, up_to, shift, n = 0, self._up_to, self._shift, spot.n
        for free in self.free.levels(start_s, spot.end_s):
            if free < n:
                return -1
            # Widths from free - n + 1 to free.
            found |= up_to[free >> shift] ^ up_to[(free - n + 1) >> shift] >> 1
        return found

    def _class_widths(self) -> None:
        self._shift = max(self.free.capacity.bit_length() - 9, 0)
        self._up_to = [(2 << i) - 1 for i in range((self.free.capacity >> self._shift) + 1)]

    def settle(self, need: int, length_s: float, spot: CountSpot) -> CountSpot | None:
        """As `Table.settle`."""
        return spot

    def _end(self, end_s: float) -> float:
        if not self.resolution_s or end_s == math.inf:
            return end_s
        return math.ceil(end_s / self.resolution_s) * self.resolution_s
