"""Progress of a job: one changing line on a terminal, time-stamped lines in a log."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.status import Status


def results_console() -> Console:
    """Standard output for results; wide enough for tables when it is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


class Progress:
    """Shows progress lines; `report` may be called from several threads.

    Args:
        console: where to write (standard error, so that results on standard output stay clean).
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._started_s = time.monotonic()
        self._lock = threading.Lock()
        self._last = ""
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._status = self.console.status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def report(self, text: str) -> None:
        """Show what is going on now."""
        with self._lock:
            if text == self._last:
                return
            self._last = text
            if self._status is not None:
                self._status.update(f"[dim]{self._clock()}[/dim] {_plain(text)}")
            else:
                self.console.print(f"{self._clock()} {_plain(text)}", soft_wrap=True)

    def milestone(self, text: str) -> None:
        """A line that stays: something is done."""
        with self._lock:
            self.console.print(f"[dim]{self._clock()}[/dim] [green]✓[/green] {_plain(text)}", soft_wrap=True)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started_s:6.1f} s"


def _plain(text: str) -> str:
    """The text without meaning to rich, whose markup uses square brackets."""
    return text.replace("[", "\\[")
