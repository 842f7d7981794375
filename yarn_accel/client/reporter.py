"""Tell Hadoop Streaming that a task is alive, what it is doing and how much it has done.

Streaming reads lines of the form ``reporter:counter:GROUP,NAME,AMOUNT`` and ``reporter:status:TEXT`` from a
task's standard error; every other line goes to the task's log. A task that shows no sign of life for
``mapreduce.task.timeout`` (ten minutes by default) is killed, so a task that waits for a server says so now
and then.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Callable, Dict, Iterator, Optional, TextIO, Tuple

__all__ = ["COUNTER_NAMES", "GROUP", "Reporter"]

GROUP = "yarn-accel"
COUNTER_NAMES = ("records_in", "sent", "done", "cpu_fallback", "rejected", "bytes")
KEEP_ALIVE_S = 30.0
_MAX_TEXT = 500


class Reporter:
    """Writes reporter lines; safe to use from several threads.

    Args:
        stream: where the lines go; the task's standard error unless given.

    Attributes:
        totals: the sum of every counter reported so far, by ``(group, name)``.
    """

    def __init__(self, stream: Optional[TextIO] = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._lock = threading.Lock()
        self.totals: Dict[Tuple[str, str], int] = {}

    def counter(self, group: str, name: str, amount: int = 1) -> None:
        """Add ``amount`` to a counter of the job; nothing is written for 0.

        Streaming splits the line at commas and wants exactly three fields, so commas and line ends in the
        names become spaces.
        """
        if not amount:
            return
        group, name = _field(group), _field(name)
        with self._lock:
            self.totals[group, name] = self.totals.get((group, name), 0) + amount
            self._write("reporter:counter:{},{},{}".format(group, name, amount))

    def count(self, name: str, amount: int = 1) -> None:
        """Add to one of this project's own counters (group ``yarn-accel``)."""
        self.counter(GROUP, name, amount)

    def total(self, name: str) -> int:
        """The sum of one of this project's own counters so far."""
        return self.totals.get((GROUP, name), 0)

    def status(self, text: str) -> None:
        """Show ``text`` (one line) as the task's status, which also counts as a sign of life."""
        with self._lock:
            self._write("reporter:status:" + _line(text))

    def note(self, text: str) -> None:
        """Write one ordinary line to the task's log; never mistaken for a reporter line."""
        line = _line(text)
        with self._lock:
            self._write(" " + line if line.startswith("reporter:") else line)

    @contextlib.contextmanager
    def keep_alive(self, describe: Callable[[], str], interval_s: float = KEEP_ALIVE_S) -> Iterator[None]:
        """Repeat a status line from a background thread until the block is left.

        Args:
            describe: called for each line, from that thread; what the task is doing at that moment.
            interval_s: seconds between two lines.
        """
        done = threading.Event()

        def beat() -> None:
            while not done.wait(interval_s):
                self.status(describe())

        thread = threading.Thread(target=beat, name="keep-alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_TEXT]


def _field(text: str) -> str:
    return _line(text.replace(",", " "))
