"""The control word: a few numbers a worker writes and its owner reads, also after the worker has died.

It is the first page of a memfd that both map.  Behind it, by way of the file, lies what `faulthandler` wrote
when the worker was killed by a fault of its own.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Container
from enum import IntEnum
from typing import Final

N_LANES = 3
"""Batches a GPU worker is at: one is copied in and another copied out while a third is computed."""

TICK_S = 0.2
"""How often a worker says that it is alive."""

_PAGE_BYTES = 4096
_LAST_WORDS_BYTES = 16384


class LaneState(IntEnum):
    """What a lane of a worker is at."""

    IDLE = 0
    READING = 1
    """At a job whose inputs are intact."""
    OVERWRITING = 2
    """At a job whose inputs are being destroyed."""


class ControlWord:
    """Shared by the two ends of one worker; each field is a 64-bit number.

    Attributes:
        fd: to be passed to the worker.
        words: `SINCE_NS` (``time.monotonic_ns()`` when it last began a job), and for lane ``i``, from index
            ``i * LANE`` on: `STATE`, `FIRST` (id of the first job it is at), `COUNT` (how many, when they are
            computed as one); `MEASURING`: whether it is at a calibration; `ALIVE_NS`: when a thread of the
            process last ran that computes nothing, written every `TICK_S`.
    """

    STATE: Final = 0
    FIRST: Final = 1
    COUNT: Final = 2
    SINCE_NS: Final = 3
    LANE: Final = 4
    MEASURING: Final = 7
    ALIVE_NS: Final = N_LANES * LANE

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd if fd >= 0 else os.memfd_create("yarn-accel-worker", os.MFD_CLOEXEC)
        if fd < 0:
            os.ftruncate(self.fd, _PAGE_BYTES)
            os.lseek(self.fd, _PAGE_BYTES, os.SEEK_SET)
        self._map = mmap.mmap(self.fd, _PAGE_BYTES)
        self.words = memoryview(self._map).cast("Q")

    def keep_ticking(self) -> None:
        """Say that this process is alive, again and again; never returns."""
        while True:
            self.words[self.ALIVE_NS] = time.monotonic_ns()
            time.sleep(TICK_S)

    def job_at(self, jobs: Container[int]) -> tuple[LaneState, int, int]:
        """What the worker is at among these jobs: state, id of the first, how many; 0: at none of them."""
        for lane in range(N_LANES):
            first = self.words[lane * self.LANE + self.FIRST]
            if first in jobs:
                return self._state(lane), first, self.words[lane * self.LANE + self.COUNT]
        return LaneState.IDLE, 0, 0

    def last_frames(self) -> list[str]:
        """Where the worker was when a fault killed it, innermost first; empty when none did."""
        text = os.pread(self.fd, _LAST_WORDS_BYTES, _PAGE_BYTES).decode("utf-8", "replace")
        # All threads are listed, in no order: the one that failed is called the current one.
        before, _, after = text.partition("Current thread")
        lines = (after or before).partition("\n\n")[0].splitlines()
        return [line.strip() for line in lines if " line " in line]

    def close(self) -> None:
        """Give back memory and descriptor."""
        self.words.release()
        self._map.close()
        os.close(self.fd)

    def _state(self, lane: int) -> LaneState:
        return LaneState(min(self.words[lane * self.LANE + self.STATE], LaneState.OVERWRITING))
