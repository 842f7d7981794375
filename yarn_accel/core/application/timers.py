"""Who wants to be looked at again, and when: one alarm per key, moved for nothing.

An alarm that is set later than before leaves its old entry in the heap; when that comes up it is put back.
So a heartbeat that moves an alarm costs one entry of a dictionary.
"""

from __future__ import annotations

import heapq

__all__ = ["NEVER", "Timers"]

NEVER = float("inf")


class Timers:
    """Alarms by key, each at one time."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}
        self._heaped_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, key: str, at_s: float) -> None:
        """Ring for `key` at this time and at no other; `NEVER`: not at all."""
        if at_s == NEVER:
            self._at_s.pop(key, None)
            return
        self._at_s[key] = at_s
        if at_s < self._heaped_s.get(key, NEVER):
            self._heaped_s[key] = at_s
            heapq.heappush(self._heap, (at_s, key))

    def at(self, key: str) -> float:
        """When it rings for `key`."""
        return self._at_s.get(key, NEVER)

    def due(self, now_s: float, n_max: int) -> list[str]:
        """Keys whose time has come, at most so many; their alarms are off then."""
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
        """No alarm rings before; one may ring later than this, never earlier."""
        return self._heap[0][0] if self._heap else NEVER
