"""Servers that were just in trouble: they are asked after all others for a while, then get another chance."""

from __future__ import annotations

import time
from typing import Dict, Tuple

from yarn_accel.client.binding import Endpoint

__all__ = ["FIRST_S", "LONGEST_S", "Shunned"]

#: How long the first time; twice as long whenever the next chance ends in trouble, too.
FIRST_S = 10.0
LONGEST_S = 120.0


class Shunned:
    """Who is passed over now."""

    def __init__(self) -> None:
        self._pauses: Dict[Endpoint, Tuple[float, float]] = {}

    def note(self, endpoint: Endpoint) -> None:
        """It is in trouble; what comes while it is passed over already changes nothing."""
        now_s = time.monotonic()
        # Of those that nobody names any more nothing is kept.
        self._pauses = {each: pause for each, pause in self._pauses.items() if now_s < pause[0] + LONGEST_S}
        until_s, last_s = self._pauses.get(endpoint, (0.0, 0.0))
        if now_s >= until_s:
            pause_s = min(2 * last_s, LONGEST_S) if last_s else FIRST_S
            self._pauses[endpoint] = now_s + pause_s, pause_s

    def over(self, endpoint: Endpoint) -> None:
        """It works."""
        self._pauses.pop(endpoint, None)

    def has(self, endpoint: Endpoint) -> bool:
        """Whether it is to be passed over now."""
        return time.monotonic() < self._pauses.get(endpoint, (0.0, 0.0))[0]
