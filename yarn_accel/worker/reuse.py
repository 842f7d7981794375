"""Keeps threads and folders for the next attempts: to make them takes longer than a short task."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

#: Idle threads, and empty folders, that are kept.
_MAX_KEPT = 64
#: Files that are removed one by one; a folder with more of them is removed as a whole.
_MAX_FILES = 16
_TEMPORARY = "tmp"


class AttemptThreads:
    """Threads that run attempts: an idle one takes the next attempt. Nobody waits for their end."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []

    def run(self, work: Callable[[], None]) -> None:
        """Have a thread do it."""
        try:
            given = self._idle.pop()
        except IndexError:
            given = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(given,), daemon=True, name="attempt").start()
        given.put(work)

    def _work(self, given: queue.SimpleQueue[Callable[[], None]]) -> None:
        while True:
            given.get()()
            if len(self._idle) >= _MAX_KEPT:
                return
            self._idle.append(given)


class AttemptFolders:
    """The working folders of attempts, each with an empty folder ``tmp``; safe between threads.

    One that is empty but for a few files is renamed for the next attempt.

    Args:
        folder: they are in it, each by the name of its attempt.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._empty: list[Path] = []
        #: Permissions and owner of a new folder.
        self._new: tuple[int, int] | None = None

    def of(self, name: str) -> Path:
        """Where the folder of an attempt is, or will be."""
        return self._folder / name

    def make(self, found: Path) -> None:
        """Have an empty folder there.

        Raises:
            OSError: there is one, or it cannot be made.
        """
        while self._empty:
            try:
                self._empty.pop().rename(found)
            except (IndexError, OSError):  # another attempt took the last one, or somebody removed it
                continue
            return
        found.mkdir()
        (found / _TEMPORARY).mkdir()
        self._new = self._new or _permissions(found)

    def give_back(self, found: Path) -> None:
        """Remove all that an attempt left, and the folder as well where it is not as it was made."""
        if len(self._empty) < _MAX_KEPT and self._is_emptied(found):
            self._empty.append(found)
        else:
            shutil.rmtree(found, ignore_errors=True)

    def _is_emptied(self, found: Path) -> bool:
        """Remove the files of a folder; whether it is as a new one then."""
        temporary = f"{found}/{_TEMPORARY}"
        try:
            if not _permissions(found) == _permissions(temporary) == self._new:
                return False
            names = os.listdir(found)  # noqa: PTH208 -- it is asked for each attempt
            names.remove(_TEMPORARY)
            if len(names) > _MAX_FILES or os.listdir(temporary):  # noqa: PTH208
                return False
            for name in names:
                os.unlink(f"{found}/{name}")  # noqa: PTH108 -- a folder is an error
        except OSError:
            return False
        return True


def _permissions(folder: str | Path) -> tuple[int, int]:
    """Kind and permissions of what is there, and its owner; a link is not followed."""
    found = os.lstat(folder)
    return found.st_mode, found.st_uid
