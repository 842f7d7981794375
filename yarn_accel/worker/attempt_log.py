"""The logs of attempts: bounded each, and bounded in number."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from yarn_accel.core.tasks.attempt_orders import AttemptId


class AttemptLog:
    """A log of at most so many bytes: its begin as it comes, and its end when it is closed.

    Args:
        make: makes its file, once there is something to write: that takes longer than a short task.
    """

    def __init__(self, make: Callable[[], BinaryIO], max_bytes: int) -> None:
        self._make = make
        self._made: BinaryIO | None = None
        self._left = max_bytes // 2
        self._tail = bytearray()
        self._max_tail = max_bytes // 2
        self._n_dropped = 0

    def write(self, text: bytes) -> None:
        """Add to it."""
        head, rest = text[: self._left], text[self._left :]
        if head:
            self._file.write(head)
            self._file.flush()
            self._left -= len(head)
        self._tail += rest
        excess = len(self._tail) - self._max_tail
        if excess > 0:
            del self._tail[:excess]
            self._n_dropped += excess

    def close(self) -> None:
        """Write its end."""
        if self._n_dropped:
            self._file.write(b"\n[%d bytes are left out here]\n" % self._n_dropped)
        if self._tail:
            self._file.write(self._tail)
        if self._made is not None:
            self._made.close()

    @property
    def _file(self) -> BinaryIO:
        if self._made is None:
            self._made = self._make()
        return self._made


class LogFolder:
    """A folder of logs; safe between threads.

    Args:
        max_bytes: of each log.
        max_logs: of which the oldest are deleted, those of earlier workers, too.
    """

    def __init__(self, folder: Path, max_bytes: int, max_logs: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        old = sorted(folder.glob("attempt_*.log"), key=lambda each: each.stat().st_mtime)
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_logs = max_logs
        self._logs = collections.deque(old)
        self._lock = threading.Lock()

    def begin(self, attempt: AttemptId) -> AttemptLog:
        """A new log; an attempt that prints nothing has no file."""
        return AttemptLog(lambda: self._made(self._folder / f"{attempt}.log"), self._max_bytes)

    def _made(self, path: Path) -> BinaryIO:
        with self._lock:
            self._logs.append(path)
            while len(self._logs) > self._max_logs:
                self._logs.popleft().unlink(missing_ok=True)
        return path.open("wb")
