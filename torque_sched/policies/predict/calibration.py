"""Upper bounds that hold as often as they promise."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_KEPT = 400
_STEP = 0.01
_GROWTH = 2.0
_LEAST, _MOST = 0.3, 0.999


class UpperBound:
    """A quantile of recent misses whose level follows how often it was right (adaptive conformal prediction).

    Raw quantiles of past values covered between 0.84 and 1.00 of the outcomes of real logs instead of 0.90:
    what comes next differs from what was. So after each outcome above the bound the level rises, and falls a
    little after each below, such that both balance at `coverage`. Where even the largest recent miss is too
    little (a cluster whose use rises all morning), the bound grows beyond it in steps of the misses' range.

    Args:
        coverage: share of outcomes that should not exceed the bound, 0 to 1.
    """

    def __init__(self, coverage: float = 0.9) -> None:
        self._coverage = coverage
        self._level = coverage
        self._beyond = 0.0
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def bound(self, value: float, scale: float) -> float:
        """The bound above an expected `value` whose usual error is `scale`."""
        if not self._sorted:
            return value + scale
        place = min(int(self._level * len(self._sorted)), len(self._sorted) - 1)
        return value + (self._sorted[place] + self._beyond) * scale

    def observe(self, outcome: float, value: float, scale: float, bound: float) -> None:
        """Learn from an outcome of which `value` was expected and `bound` said."""
        miss = (outcome - value) / scale
        insort(self._sorted, miss)
        self._order.append(miss)
        if len(self._order) > _KEPT:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        is_covered = outcome <= bound
        step = _STEP * (self._coverage - (1.0 if is_covered else 0.0))
        if self._level >= _MOST and (self._beyond or step > 0):
            spread = self._sorted[-1] - self._sorted[0]
            self._beyond = max(0.0, self._beyond + _GROWTH * step * spread)
        else:
            self._level = min(_MOST, max(_LEAST, self._level + step))
