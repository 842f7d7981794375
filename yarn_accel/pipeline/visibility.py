"""What of the server's state and troubles is shown to whom, and how often."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

#: The tenant who sees everything: whoever can read the master secret can issue its credential.
OPERATOR = "operator"


def visible(stats: dict[str, Any], tenant: str) -> dict[str, Any]:
    """The statistics as a tenant may see them: nothing of other tenants, no faults, no process ids."""
    if tenant == OPERATOR:
        return stats
    own = {name: item for name, item in stats["tenants"].items() if name == tenant}
    workers = [
        {key: worker[key] for key in ("device", "device_kind", "state") if key in worker}
        for worker in stats["workers"]
    ]
    health = {**stats["health"], "problems": []}
    return {**stats, "tenants": own, "workers": workers, "health": health}


class Sparing(logging.Filter):
    """Lets a few lines a second through and counts the rest, so that no peer can fill a disk with its faults.

    Args:
        per_s: lines a second.
        clock: monotonic seconds.
    """

    def __init__(self, per_s: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._per_s = per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s = clock()
        self._n_lines = 0
        self._n_hidden = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is written; the first one after a flood tells how many were not."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._since_s >= 1.0:
                self._since_s, self._n_lines = now_s, 0
                if self._n_hidden:
                    record.msg = f"({self._n_hidden} lines like this one were left out) {record.msg}"
                    self._n_hidden = 0
            self._n_lines += 1
            if self._n_lines > self._per_s:
                self._n_hidden += 1
                return False
        return True
