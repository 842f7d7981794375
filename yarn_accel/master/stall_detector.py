"""Detects that this process did not run: stopped, swapped out, its machine suspended, or its loop blocked.

After a stall its timers are late, and messages that arrived meanwhile wait in the sockets.  A task wakes at
short intervals; the delay of its last wake-up is the length of the stall.  A stall of a machine whose clocks
stop as well, such as a paused virtual machine, stays unnoticed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_INTERVAL_S = 0.25
#: Shorter ones delay others little, and a busy machine has many.
_LEAST_S = 0.5


def since_boot_s() -> float:
    """A monotonic clock that goes on while the machine is suspended, where the system has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class StallDetector:
    """Watches one event loop.

    Args:
        clock: see `since_boot_s`.
        tell: takes the length of a stall in seconds, when it is over.

    Attributes:
        stalled_s: all stalls together.
    """

    def __init__(self, clock: Callable[[], float], tell: Callable[[float], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._awake_s: float | None = None
        self.stalled_s = 0.0

    async def watch(self) -> None:
        """Stay awake until cancelled; before that, nothing is a stall."""
        self._awake_s = self._clock()
        try:
            while True:
                await asyncio.sleep(_INTERVAL_S)
                self.look()
        finally:
            self._awake_s = None

    def look(self) -> None:
        """Tell of the stall that has just ended, if there was one.

        It counts without the usual pause, so that time goes on even where every pause is too long.
        """
        if self._awake_s is None:
            return
        now_s = self._clock()
        for_s, self._awake_s = now_s - self._awake_s - _INTERVAL_S, now_s
        if for_s >= _LEAST_S:
            self.stalled_s += for_s
            self._tell(for_s)
