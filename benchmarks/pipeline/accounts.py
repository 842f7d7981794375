"""Who used how many CPU seconds: what a wall time is bound by where everything shares a few cores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """What was used.

    Attributes:
        wall_s: how long it took.
        cpu_s: CPU seconds by who used them.
    """

    wall_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)

    def add(self, other: Usage) -> None:
        """Take another one in."""
        self.wall_s += other.wall_s
        for who, seconds in other.cpu_s.items():
            self.cpu_s[who] = self.cpu_s.get(who, 0.0) + seconds


class Accounts:
    """CPU seconds of processes by group, threads that have ended included.

    Args:
        pids: the processes of each group, by its name.
    """

    def __init__(self, pids: Mapping[str, list[int]]) -> None:
        self._pids = pids

    @contextmanager
    def noted(self) -> Iterator[Usage]:
        """Fills in what is used inside, when it is left."""
        usage = Usage()
        before, start_s = self._read(), time.perf_counter()
        yield usage
        usage.wall_s = time.perf_counter() - start_s
        usage.cpu_s = {who: seconds - before[who] for who, seconds in self._read().items()}

    def _read(self) -> dict[str, float]:
        return {who: sum(map(_cpu_s, pids)) for who, pids in self._pids.items()}


def _cpu_s(pid: int) -> float:
    """User and system time so far; 0 of a process that is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return 0.0
