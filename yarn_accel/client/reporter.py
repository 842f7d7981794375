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
import time
from typing import Callable, Dict, Iterator, Optional, TextIO, Tuple

COUNTER_GROUP = "yarn-accel"
COUNTER_NAMES = ("records_in", "sent", "done", "cpu_fallback", "rejected", "bytes")
KEEP_ALIVE_S = 30.0
#: Counters of single records are written together so often.
_FLUSH_EVERY_S = 1.0
_MAX_TEXT = 500
#: A wait is said when it has lasted so long, and then at growing intervals up to the longest.
FIRST_S = 8.0
_LONGEST_PAUSE_S = 300.0
_LOOK_S = 1.0


class Reporter:
    """Writes reporter lines; safe to use from several threads.

    Args:
        stream: where the lines go; the task's standard error unless given.
        is_silent: write nothing, only add up: nobody reads lines of this form.

    Attributes:
        totals: the sum of every counter reported so far, by ``(group, name)``.
    """

    def __init__(self, stream: Optional[TextIO] = None, *, is_silent: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_silent = is_silent
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
        self.counter(COUNTER_GROUP, name, amount)

    def total(self, name: str) -> int:
        """The sum of one of this project's own counters so far."""
        return self.totals.get((COUNTER_GROUP, name), 0)

    def status(self, text: str) -> None:
        """Show ``text`` (one line) as the task's status, which also counts as a sign of life."""
        with self._lock:
            self._write("reporter:status:" + _line(text))

    def progress(self) -> str:
        """The work done so far, as a status that keeps Hadoop from killing a task that waits for a server."""
        names = ("records_in", "sent", "done", "rejected")
        return ", ".join("{} {}".format(name.replace("_", " "), self.total(name)) for name in names)

    def waiting(self, text: str) -> None:
        """Say what a caller waits for, on standard error and, unless it is silent, in Hadoop's status."""
        with self._lock:
            if not self._is_silent:
                self._write("reporter:status:" + _line(text))
            self._stream.write("yarn-accel: {}\n".format(_line(text)))
            self._stream.flush()

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
        if not self._is_silent:
            self._stream.write(line + "\n")
            self._stream.flush()


class WaitReporter:
    """Says what somebody waits for once that takes `FIRST_S`, then after twice as long, and so on.

    So a long wait differs from a hang. A thread of its own writes, because whoever waits may be stuck in a
    system call; it starts with the first wait.

    Args:
        say: gets each sentence; `Reporter.waiting`.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._waits: Dict[object, _Wait] = {}
        self._is_over = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def note(self, who: object, text: str) -> None:
        """`who` waits for this now; since when, if it waits already, stays."""
        wait = self._waits.get(who)
        if wait is not None:
            wait.text = text
            return
        self._waits[who] = _Wait(text, time.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="waits", daemon=True)
            self._thread.start()

    def clear(self, who: object) -> None:
        """`who` waits no more."""
        self._waits.pop(who, None)

    @contextlib.contextmanager
    def during(self, text: str) -> Iterator[None]:
        """The block waits for this."""
        who = object()
        self.note(who, text)
        try:
            yield
        finally:
            self.clear(who)

    def sentence(self) -> str:
        """The oldest wait that has been said; empty: there is none."""
        said = [wait for wait in list(self._waits.values()) if wait.is_said]
        return min(said, key=lambda wait: wait.since_s).sentence(time.monotonic()) if said else ""

    def look(self, now_s: float) -> None:
        """Say what is due."""
        for wait in list(self._waits.values()):
            if now_s >= wait.due_s:
                wait.is_said = True
                wait.due_s = now_s + min(max(now_s - wait.since_s, FIRST_S), _LONGEST_PAUSE_S)
                with contextlib.suppress(OSError, ValueError):  # nobody reads it, or the stream is closed
                    self._say(wait.sentence(now_s))

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(min(FIRST_S, _LOOK_S)):
            self.look(time.monotonic())


class _Wait:
    def __init__(self, text: str, now_s: float) -> None:
        self.text = text
        self.since_s, self.due_s = now_s, now_s + FIRST_S
        self.is_said = False

    def sentence(self, now_s: float) -> str:
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - (now_s - self.since_s)))
        # The dispatcher's own texts of a busy server or storage begin so already.
        text = self.text if self.text.startswith("waiting for ") else "waiting for " + self.text
        return "{}, since {} ({:.0f} s)".format(text, began, now_s - self.since_s)


class CounterBatch:
    """Adds to a reporter's counters about once per second, so that a small record costs no line.

    Args:
        clock: as `time.monotonic`.
    """

    def __init__(self, reporter: Reporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._reporter = reporter
        self._clock = clock
        self._lock = threading.Lock()
        self._amounts: Dict[str, int] = {}
        self._due_s = clock() + _FLUSH_EVERY_S

    def add(self, **amounts: int) -> None:
        """Add to some of this project's own counters, now or soon."""
        with self._lock:
            for name, amount in amounts.items():
                self._amounts[name] = self._amounts.get(name, 0) + amount
        if self._clock() >= self._due_s:
            self.flush()

    def flush(self) -> None:
        """Write what is not written."""
        with self._lock:
            amounts, self._amounts = self._amounts, {}
            self._due_s = self._clock() + _FLUSH_EVERY_S
        for name, amount in amounts.items():
            self._reporter.count(name, amount)


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_TEXT]


def _field(text: str) -> str:
    return _line(text.replace(",", " "))
