"""Servers that failed recently: each is tried after all others for a while, longer after every failure."""

from __future__ import annotations

import time
from typing import Dict, Tuple

from yarn_accel.client.binding import Endpoint

__all__ = ["FIRST_S", "LONGEST_S", "ServerBackoff"]

#: Seconds after the first failure; they double with every failure that follows a retry.
FIRST_S = 10.0
LONGEST_S = 120.0


class ServerBackoff:
    """The back-off of every server of one client."""

    def __init__(self) -> None:
        self._pauses: Dict[Endpoint, Tuple[float, float]] = {}

    def record_failure(self, endpoint: Endpoint) -> None:
        """Begin a back-off; a failure during one changes nothing."""
        now_s = time.monotonic()
        # Servers that are named no more are forgotten.
        self._pauses = {each: pause for each, pause in self._pauses.items() if now_s < pause[0] + LONGEST_S}
        until_s, last_s = self._pauses.get(endpoint, (0.0, 0.0))
        if now_s >= until_s:
            pause_s = min(2 * last_s, LONGEST_S) if last_s else FIRST_S
            self._pauses[endpoint] = now_s + pause_s, pause_s

    def record_success(self, endpoint: Endpoint) -> None:
        """End the back-off: the server answered."""
        self._pauses.pop(endpoint, None)

    def is_on(self, endpoint: Endpoint) -> bool:
        """Whether the server is in back-off."""
        return time.monotonic() < self._pauses.get(endpoint, (0.0, 0.0))[0]
