"""The scheduler's log in pbs_sched's place and form, for people and scripts that read it there.

Torque 6: ``MM/DD/YYYY HH:MM:SS.mmm;TYPE; pbs_sched.PID;CLASS;NAME;text`` with TYPE in decimal; Torque 4 and
2.5: no milliseconds and TYPE as four hex digits. One file a day, ``sched_logs/YYYYMMDD``, or one named file.
"""

from __future__ import annotations

import enum
import errno
import logging
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torque_sched.adapters.state_file import open_plain
from torque_sched.errors import StartupError
from torque_sched.model.texts import one_line

_OLD_LINE = re.compile(rb"^[0-9/]{10} [0-9:]{8};[0-9a-f]{4};", re.MULTILINE)
_TAIL_BYTES = 4096
_MOST_CHARACTERS = 10_000
"""Longer texts of one record are cut."""


class Event(enum.IntEnum):
    """Classes of events, as bits of ``log_filter``."""

    ERROR = 1
    SYSTEM = 2
    SCHED = 64
    DEBUG = 128
    DEBUG2 = 256


def dialect_of(folder: Path, file: Path | None = None) -> int:
    """The dialect of the newest lines there, so that of the scheduler before; 6 without any."""
    path = file
    if path is None:
        days = sorted(each for each in folder.glob("[0-9]" * 8) if each.is_file()) if folder.is_dir() else []
        path = next((each for each in reversed(days) if each.stat().st_size), None)
    try:
        with open_plain(path or Path(os.devnull)) as lines:
            lines.seek(max(0, lines.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return 4 if _OLD_LINE.search(lines.read(_TAIL_BYTES)) else 6
    except OSError:
        return 6


class LogFile:
    """Appends lines; changes the file at midnight.

    Args:
        folder: where the daily files are.
        file: one file instead; it is never changed.
        dialect: 6 or 4.
        filter_mask: events of these classes are left out.
        clock: seconds since the epoch.

    Raises:
        StartupError: the file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        file: Path | None = None,
        *,
        dialect: int = 6,
        filter_mask: int = 0,
        program: str = "pbs_sched",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._file = file
        self.dialect = dialect
        self.filter_mask = filter_mask
        self._program = program
        self._clock = clock
        self._day = ""
        self._fd = -1
        self.open()

    def record(self, event: Event, kind: str, name: str, text: str) -> None:
        """One line, whatever the text holds; ``kind`` is Svr, Job, Node or Req.

        A full disk must not stop the scheduler.
        """
        if int(event) & self.filter_mask:
            return
        now_s = self._clock()
        at = time.localtime(now_s)
        is_over = self._file is None and time.strftime("%Y%m%d", at) != self._day
        if is_over or self._fd < 0:  # or it could not be opened the last time
            self.close()
            with suppress(StartupError):
                self.open()
        with suppress(OSError):
            os.write(self._fd, self._line(now_s, at, event, kind, name, text))

    def _line(
        self, now_s: float, at: time.struct_time, event: Event, kind: str, name: str, text: str
    ) -> bytes:
        moment = time.strftime("%m/%d/%Y %H:%M:%S", at)
        if self.dialect >= 6:
            head = f"{moment}.{int(now_s * 1000) % 1000:03d};{int(event):02d}"
        else:
            head = f"{moment};{int(event):04x}"
        words = one_line(" ".join(text.split()), _MOST_CHARACTERS)
        who = f"{self._program:>10.10}.{os.getpid()}"
        return f"{head};{who};{kind};{one_line(name, _MOST_CHARACTERS)};{words}\n".encode("utf-8", "replace")

    def now_s(self) -> float:
        """The time by its clock."""
        return self._clock()

    def open(self) -> None:
        """Open the file of today.

        Raises:
            StartupError: it cannot be written.
        """
        self._day = time.strftime("%Y%m%d", time.localtime(self._clock()))
        path = self._file or self._folder / self._day
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _opened(path, is_named=self._file is not None)
        except OSError as error:
            raise StartupError(
                f"{path}: {error.strerror}", cure="give this user the folder, or name a log with -L"
            ) from error
        self.record(Event.SYSTEM, "Svr", "Log", "Log opened")

    def close(self) -> None:
        """Close it."""
        if self._fd >= 0:
            line_day, self._day = self._day, time.strftime("%Y%m%d", time.localtime(self._clock()))
            self.record(Event.SYSTEM, "Svr", "Log", "Log closed")
            self._day = line_day
            os.close(self._fd)
            self._fd = -1

    def reopen(self) -> None:
        """Close and open it, after somebody moved it away."""
        self.close()
        self.open()


def _opened(path: Path, *, is_named: bool) -> int:
    """The file to append to; where nobody named it, only a plain one without another name: its folder may be
    another account's.

    Raises:
        OSError: it cannot be written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    if is_named:
        return os.open(path, flags, 0o644)
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(fd)
        raise OSError(errno.EINVAL, "is no plain file, or has another name")
    return fd


class LogHandler(logging.Handler):
    """Sends the package's own log records to a `LogFile`."""

    def __init__(self, file: LogFile) -> None:
        super().__init__(logging.INFO)
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        """One line; errors have the C daemon's ``LOG_ERROR::`` in front."""
        text = record.getMessage()
        name = record.name.rpartition(".")[2]
        if record.exc_info:
            text += f": {record.exc_info[1]!r}"
        if record.levelno >= logging.ERROR:
            self._file.record(Event.ERROR, "Svr", name, f"LOG_ERROR::{text}")
        else:
            self._file.record(Event.SYSTEM, "Svr", name, text)
