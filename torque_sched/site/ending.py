"""SIGTERM and SIGINT end the process in time, whatever hangs.

The kernel's signal is written to a pipe that a thread of its own reads, so a stuck event loop (a locked
database, a dead file server, a name server that is silent, standard error that nobody reads) does not hinder
it. The first signal asks the service to end by itself. A second one, or the end of the grace, ends the
process at once; nothing is lost by that, as the store is written before anything is answered.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

FORCED = 4
"""Exit code of a process that was told to end and could not in time."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TRACE_S = 0.3


class Ending:
    """Takes the signals while it is entered; for the main thread.

    Args:
        grace_s: so long the service may take to end by itself.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._ask: Callable[[], object] = lambda: None
        self._is_asked = self._is_over = False
        self._lock = threading.Lock()
        self.last: Callable[[], object] = lambda: None
        """Done before the process is ended at once, if it can be."""

    def __enter__(self) -> Ending:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before: dict[signal.Signals, Any] = {
            number: signal.signal(number, _only_write) for number in _SIGNALS
        }
        self._fd_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="ending", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._is_over = True
        self._wake()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def begin(self) -> None:
        """As if a first signal had come, when none has; where the service ends by itself."""
        if not self._is_asked:
            self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def asks(self, ask: Callable[[], object]) -> None:
        """Who is to be asked to end, from another thread; at once, when a signal has come already."""
        with self._lock:
            self._ask = ask
            if self._is_asked:
                self._tell()

    def _tell(self) -> None:
        with suppress(RuntimeError):  # its loop is closed already
            self._ask()

    def _watch(self) -> None:
        os.read(self._reader, 1)
        if self._is_over:
            return
        with self._lock:
            self._is_asked = True
            self._tell()
        select.select([self._reader], [], [], self._grace_s)
        if not self._is_over:
            self._end()

    def _end(self) -> None:
        with suppress(Exception):
            self.last()
        # The trace is for the log; standard error itself may be what hangs.
        trace = threading.Thread(target=_trace, daemon=True)
        trace.start()
        trace.join(_TRACE_S)
        os._exit(FORCED)


def _only_write(number: int, frame: FrameType | None) -> None:
    """Python writes the signal to the pipe."""


def _trace() -> None:
    sys.stderr.write("asked to end, and ended at once; this is where it was:\n")
    sys.stderr.flush()
    faulthandler.dump_traceback(sys.stderr)
