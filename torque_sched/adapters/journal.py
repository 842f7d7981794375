"""The journal of cycles: append-only JSON lines in files of bounded length and number.

A line is written by one call, so after a crash at most the last line of a file is torn; the reader leaves
it out and a new daemon begins a new file. What is in a line is the caller's matter.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torque_sched.adapters.state_file import open_plain
from torque_sched.errors import RecordError, StartupError

_PREFIX = "cycles-"
_SUFFIX = ".jsonl"
_NAME = re.compile(re.escape(_PREFIX) + r"([0-9]{8}-[0-9]{6})-([0-9]{4})" + re.escape(_SUFFIX))


class Journal:
    """Writes lines; the oldest files go when there are too many.

    Args:
        folder: made when it is not there.
        file_bytes: a file is closed when it is this long.
        n_files: so many files are kept, the one being written among them.
        clock: seconds since the epoch, for the names of files.

    Raises:
        StartupError: the folder cannot be made.
    """

    def __init__(
        self, folder: Path, *, file_bytes: int, n_files: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._n_files = n_files
        self._clock = clock
        self._fd = -1
        self._written = 0
        self.path: Path | None = None
        """The file being written."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        except OSError as error:
            raise StartupError(
                f"{folder}: {error.strerror}", cure="give this user the folder, or set journal.enabled: false"
            ) from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            OSError: the disk is full or the folder is gone; nothing half is counted as written.
        """
        data = json.dumps(record, separators=(",", ":")).encode("utf-8") + b"\n"
        if self._fd < 0 or self._written + len(data) > self._file_bytes:
            self._next_file()
        written = os.write(self._fd, data)
        self._written += written
        if written < len(data):
            self.close()  # a torn line; the next one goes into another file
            raise OSError("the disk is full")

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _next_file(self) -> None:
        self.close()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self._clock()))
        # Names sort by age, also where several files are begun in one second and the first are gone already,
        # or where the clock was put back: the oldest name is the next to go.
        ours = [found for path in _files(self._folder) if (found := _NAME.fullmatch(path.name))]
        first = 0
        if ours and ours[-1][1] >= stamp:
            stamp, first = ours[-1][1], int(ours[-1][2]) + 1
        for number in range(first, 10000):
            path = self._folder / f"{_PREFIX}{stamp}-{number:04d}{_SUFFIX}"
            with suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._fd = os.open(path, flags, 0o640)
                self.path = path
                break
        self._written = 0
        for old in _files(self._folder)[: -self._n_files]:
            with suppress(OSError):
                old.unlink()


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))


def read_journal(place: Path) -> Iterator[dict[str, Any] | RecordError]:
    """Every whole line of a file, or of all files of a folder, oldest first.

    A folder may be read while a daemon writes: an old file that it removes meanwhile is passed over. For a
    line that is no JSON mapping an error comes that names file and line; the others go on.

    Raises:
        OSError: it cannot be read.
    """
    if not place.is_dir():
        yield from _lines(place)
        return
    for path in _files(place):
        try:
            yield from _lines(path)
        except FileNotFoundError:
            continue


def _lines(path: Path) -> Iterator[dict[str, Any] | RecordError]:
    with open_plain(path) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break  # torn by a crash
            yield _mapping(line, f"{path}, line {number}")


def _mapping(line: bytes, place: str) -> dict[str, Any] | RecordError:
    try:
        record = json.loads(line)
        if isinstance(record, dict):
            return record
        why = "not a mapping"
    except (ValueError, RecursionError) as error:
        why = str(error)
    return RecordError(f"{place}: {why}", cure="delete the line; the others are good")
