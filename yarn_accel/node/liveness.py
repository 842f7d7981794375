"""Tells a pipeline server that hangs from one that is slow; pure, no clock.

Two facts decide: how long a probe has been unanswered, and whether the process used CPU time meanwhile.  A
stopped or deadlocked process uses none; a server on a busy machine answers late, but gets some.

Time is the sum of the intervals between two `Liveness.tick` calls, each counted as `MAX_TICK_S` at most, so
the time in which the caller itself did not run is nobody's silence.
"""

from __future__ import annotations

import enum

MAX_TICK_S = 0.5
#: An unanswered probe means silence after so long, with the last part of it without CPU time.
SILENT_S, _SILENT_IDLE_S = 1.6, 1.0
#: The same for a process that uses CPU time.
SILENT_BUSY_S = 8.0
#: Silence without CPU time means a hang after so long ...
HUNG_S = 5.0
#: ... after so long where a slow start explains it, or CPU time is not known ...
HUNG_UNSURE_S = 30.0
#: ... and silence of a process that uses CPU time after so long.
HUNG_BUSY_S = 60.0


class Verdict(enum.Enum):
    """What the probes say."""

    RESPONSIVE = "responsive"
    SILENT = "silent"
    HUNG = "hung"


class Liveness:
    """The record of one server process."""

    def __init__(self) -> None:
        self._has_answered = False
        self._is_asked = False
        self._silent_s = 0.0
        self._idle_s = 0.0
        self._cpu_ticks: int | None = None

    @property
    def is_asked(self) -> bool:
        """A probe is unanswered."""
        return self._is_asked

    def asked(self) -> None:
        """A probe was sent; silence counts from the first one that is not answered."""
        self._is_asked = True

    def answered(self) -> None:
        """A probe was answered."""
        self._has_answered, self._is_asked = True, False
        self._silent_s, self._idle_s, self._cpu_ticks = 0.0, 0.0, None

    def tick(self, elapsed_s: float, cpu_ticks: int | None) -> None:
        """Time passed.

        Args:
            elapsed_s: since the last call.
            cpu_ticks: CPU time of the process, in the kernel's ticks; None: not known.
        """
        if not self._is_asked:
            return
        step_s = min(elapsed_s, MAX_TICK_S)
        self._silent_s += step_s
        is_idle = cpu_ticks is None or cpu_ticks == self._cpu_ticks
        self._idle_s = self._idle_s + step_s if is_idle else 0.0
        self._cpu_ticks = cpu_ticks

    def verdict(self) -> Verdict:
        """What is known now."""
        is_idle = self._idle_s >= _SILENT_IDLE_S
        if self._silent_s < (SILENT_S if is_idle else SILENT_BUSY_S):
            return Verdict.RESPONSIVE
        is_sure = self._has_answered and self._cpu_ticks is not None
        is_hung = self._idle_s >= (HUNG_S if is_sure else HUNG_UNSURE_S) or self._silent_s >= HUNG_BUSY_S
        return Verdict.HUNG if is_hung else Verdict.SILENT
