"""Free capacity over future time, as a step function: the job/time table of backfilling.

Theory of operation. Two lists of the same length hold the steps: `_at` the times, rising, and `_free` what
is free from that time until the next; the last step has no end. Intervals are half-open, so a job that ends
at t and one that begins at t do not meet. Equal neighbours are joined, so there are at most two steps per
job. A search is one pass from the first allowed time: go to the first step with enough, go on until the
job's end, and from a step that fails go on behind it (Lu, Han, Sun 2007, section 3.2.2, steps b.a to b.c);
it never goes back, so it is linear in the steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right


class Availability:
    """How many of `capacity` equal processors are free at every time from `now_s` on.

    Args:
        capacity: processors of the machine.
        now_s: the first time that matters.
    """

    __slots__ = ("_at", "_falls", "_free", "capacity")

    def __init__(self, capacity: int, now_s: float = 0.0) -> None:
        if capacity < 0:
            raise ValueError(f"a machine of {capacity} processors")
        self.capacity = capacity
        self._at = [now_s]
        self._free = [capacity]
        self._falls: tuple[tuple[float, int], ...] = ()

    @property
    def now_s(self) -> float:
        """What was before is forgotten."""
        return self._at[0]

    @property
    def free_now(self) -> int:
        """Free processors at `now_s`."""
        return self._free[0]

    @property
    def n_points(self) -> int:
        """Length of the table."""
        return len(self._at)

    def points(self) -> tuple[tuple[float, int], ...]:
        """Every step as (its time, free from then on)."""
        return tuple(zip(self._at, self._free, strict=True))

    def copy(self) -> Availability:
        """An independent table with the same steps."""
        twin = Availability(self.capacity)
        twin._at = self._at.copy()
        twin._free = self._free.copy()
        return twin

    def free_at(self, at_s: float) -> int:
        """Free processors at a time; before `now_s` as at `now_s`."""
        return self._free[max(bisect_right(self._at, at_s) - 1, 0)]

    def least(self, start_s: float, end_s: float) -> int:
        """The fewest free processors during [start_s, end_s)."""
        at = self._at
        first = bisect_right(at, start_s) - 1 if start_s > at[0] else 0
        return min(self._free[first : max(bisect_left(at, end_s), first + 1)])

    def falls(self) -> tuple[tuple[float, int], ...]:
        """The least that is free from now until a time, as falling steps: (until when, how many).

        The last step is without end. Kept until the table changes.
        """
        if self._falls:
            return self._falls
        free = self._free
        fewest, lowest = free[0], min(free)
        steps: list[tuple[float, int]] = []
        i = 0
        while fewest > lowest:
            while free[i] >= fewest:
                i += 1
            steps.append((self._at[i], fewest))
            fewest = free[i]
        self._falls = (*steps, (math.inf, lowest))
        return self._falls

    def levels(self, start_s: float, end_s: float) -> list[int]:
        """What is free in every step that touches [start_s, end_s)."""
        first = max(bisect_right(self._at, start_s) - 1, 0)
        return self._free[first : bisect_left(self._at, end_s)]

    def bottleneck(self, start_s: float, end_s: float) -> tuple[int, float]:
        """The fewest free processors during [start_s, end_s), and until when the last such step lasts."""
        at, free = self._at, self._free
        first = max(bisect_right(at, start_s) - 1, 0)
        i = max(bisect_left(at, end_s), first + 1) - 1
        fewest = min(free[first : i + 1])
        while free[i] != fewest:
            i -= 1
        return fewest, at[i + 1] if i + 1 < len(at) else math.inf

    def next_point(self, after_s: float) -> float:
        """The first point after a time; infinite behind the last."""
        i = bisect_right(self._at, after_s)
        return self._at[i] if i < len(self._at) else math.inf

    def earliest(
        self,
        n: int,
        length_s: float,
        not_before_s: float,
        no_later_s: float = math.inf,
        own_from_s: float = math.inf,
    ) -> float:
        """The first start in [not_before_s, no_later_s] with `n` free for `length_s`; infinite: none is.

        `own_from_s` is where the job itself is in the table, and a start before that is looked for as if it
        were taken out: from there on its own processors are free for it, so only what is before can stand in
        its way.
        """
        at, free = self._at, self._free
        until = len(at) if own_from_s == math.inf else bisect_left(at, own_from_s)
        stop = until if no_later_s == math.inf else bisect_right(at, no_later_s, 0, until)
        i = bisect_right(at, not_before_s) - 1
        if i < 0:
            i, start_s = 0, at[0]
        else:
            start_s = not_before_s
        if start_s > no_later_s:
            return math.inf
        while True:
            if free[i] < n:
                i += 1
                while i < stop and free[i] < n:
                    i += 1
                if i >= stop:
                    return math.inf
                start_s = at[i]
            last = bisect_left(at, start_s + length_s, i + 1, until)
            # Back from the end: whatever begins before the last step that fails would fail there too.
            while last > i and free[last - 1] >= n:
                last -= 1
            if last == i:
                return start_s
            i = last - 1

    def take(self, n: int, start_s: float, end_s: float) -> None:
        """Nobody else gets these `n` during [start_s, end_s).

        Raises:
            ValueError: not so many are free at some time of it; nothing is changed.
        """
        self.add(-n, start_s, end_s)

    def force(self, n: int, start_s: float, end_s: float) -> None:
        """Like `take`, but a fact: what is free may become negative."""
        self.add(-n, start_s, end_s, is_checked=False)

    def give_back(self, n: int, start_s: float, end_s: float) -> None:
        """The opposite of `take`, also of a part of what was taken.

        Raises:
            ValueError: more than the capacity would be free; nothing is changed.
        """
        self.add(n, start_s, end_s)

    def add(self, n: int, start_s: float, end_s: float, *, is_checked: bool = True) -> None:
        """What is free during [start_s, end_s) grows by `n`, the past left out: all of the three above."""
        at, free = self._at, self._free
        if start_s < at[0]:
            start_s = at[0]
        if end_s <= start_s:
            return
        i = bisect_left(at, start_s)
        j = bisect_left(at, end_s, i)
        is_cut = i == len(at) or at[i] != start_s
        inside = free[i - is_cut : j]
        if is_checked and not (min(inside) + n >= 0 if n < 0 else max(inside) + n <= self.capacity):
            raise ValueError(_refusal(n, min(inside), start_s, end_s))
        self._falls = ()
        if j < len(at) and at[j] == end_s:
            if free[j] == inside[-1] + n:
                del at[j], free[j]
        elif end_s != math.inf:
            at.insert(j, end_s)
            free.insert(j, inside[-1])
        free[i:j] = [value + n for value in inside]
        if is_cut:
            at.insert(i, start_s)
        elif i and free[i - 1] == free[i]:
            del at[i], free[i]

    def advance(self, now_s: float) -> None:
        """Forget what lies before `now_s`."""
        at = self._at
        if now_s <= at[0]:
            return
        if len(at) > 1 and at[1] <= now_s:
            i = bisect_right(at, now_s) - 1
            del at[:i], self._free[:i]
            self._falls = ()
        at[0] = now_s

    def resize(self, capacity: int) -> None:
        """The machine has another size from now on.

        What is taken stays taken: if that is more than there is, a negative number is free until it ends.
        """
        more = capacity - self.capacity
        self._falls = ()
        self.capacity = capacity
        self._free = [value + more for value in self._free]


def _refusal(n: int, fewest: int, start_s: float, end_s: float) -> str:
    if n < 0:
        return f"{-n} are not free during [{start_s:g}, {end_s:g}): only {fewest}"
    return f"{n} too many given back during [{start_s:g}, {end_s:g})"
