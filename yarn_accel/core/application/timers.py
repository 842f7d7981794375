"""One timer per key, cheap to postpone.

A timer that is postponed keeps its old entry in the heap, which is moved when it becomes due.  So a heartbeat
that postpones a timer costs one dictionary entry.
"""

from __future__ import annotations

import heapq

NEVER = float("inf")


class Timers:
    """Timers by key, each with one time."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}
        self._heaped_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, key: str, at_s: float) -> None:
        """Set the one timer of `key`; `NEVER` cancels it."""
        if at_s == NEVER:
            self._at_s.pop(key, None)
            return
        self._at_s[key] = at_s
        if at_s < self._heaped_s.get(key, NEVER):
            self._heaped_s[key] = at_s
            heapq.heappush(self._heap, (at_s, key))

    def at(self, key: str) -> float:
        """When the timer of `key` fires."""
        return self._at_s.get(key, NEVER)

    def due(self, now_s: float, n_max: int) -> list[str]:
        """Remove and return at most `n_max` keys whose timers are due."""
        keys: list[str] = []
        while self._heap and self._heap[0][0] <= now_s and len(keys) < n_max:
            heaped_s, key = heapq.heappop(self._heap)
            if heaped_s != self._heaped_s.get(key):
                continue
            del self._heaped_s[key]
            at_s = self._at_s.get(key, NEVER)
            if at_s <= now_s:
                del self._at_s[key]
                keys.append(key)
            else:
                self.set(key, at_s)
        return keys

    def next_s(self) -> float:
        """A lower bound of the time at which the next timer fires."""
        return self._heap[0][0] if self._heap else NEVER
