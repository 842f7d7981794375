"""What the server has done so far, as numbers; `PipelineServer.stats` puts them together."""

from __future__ import annotations

import collections
import threading
from typing import Any

__all__ = ["COUNTED", "Counters"]

#: Every counter, and what is counted.  requests = all that follow down to `abandoned` + what is still under
#: way.
COUNTED = {
    "requests": "requests received",
    "done": "answered with a result",
    "rejected": "refused because of what they are",
    "failed": "failed for another reason: storage, the server itself",
    "busy": "sent back to try again later",
    "cancelled": "cancelled by the client",
    "abandoned": "whose connection was lost before the answer",
    "duplicates": "of all these, answered from the computation of another request with the same key",
    "bytes_in": "bytes of inputs, received or read",
    "bytes_out": "bytes of outputs, sent or written",
    "connections": "connections that proved a credential",
    "refused": "connections that did not, or were too many",
    "broken": "connections ended because the peer broke the protocol or was too slow",
}


class Counters:
    """Totals, per operation and per stage; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(COUNTED, 0)
        self._operations: dict[str, collections.Counter[str]] = {}
        self._seconds: dict[str, float] = collections.defaultdict(float)
        self._compute_s: dict[str, float] = collections.defaultdict(float)

    def add(self, name: str, n: int = 1) -> None:
        """Count `n` more of one of `COUNTED`."""
        with self._lock:
            self._totals[name] += n

    def add_for(self, operation: str, name: str) -> None:
        """Count one more of ``requests``, ``done``, ``rejected`` or ``failed``, also for its operation."""
        with self._lock:
            self._totals[name] += 1
            self._operations.setdefault(operation, collections.Counter())[name] += 1

    def add_seconds(self, stage: str, seconds: float, operation: str = "") -> None:
        """Count time spent in a stage: ``read``, ``queue``, ``compute`` or ``write``."""
        with self._lock:
            self._seconds[stage] += seconds
            if operation:
                self._compute_s[operation] += seconds

    def snapshot(self) -> dict[str, Any]:
        """All of them, fit for JSON."""
        with self._lock:
            operations = {
                name: {**counts, "compute_s": round(self._compute_s[name], 6)}
                for name, counts in sorted(self._operations.items())
            }
            stages = {name: round(self._seconds[name], 6) for name in ("read", "queue", "compute", "write")}
            return {**self._totals, "operations": operations, "stage_seconds": stages}
