"""Files that attempts take, once per worker: each attempt gets hard links.

They are what applications ship, and what tasks leave for others: a task on the worker that made its input
fetches nothing.

A file is known by its URI, length and time of change, so one that was replaced is fetched again. A command
that writes into its file would change it for all: the copy is read-only, and one that was changed all the
same is fetched again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from yarn_accel.errors import StorageError
from yarn_accel.storage import Stamp, Store

_PIECE_BYTES = 1024 * 1024
_MODE = 0o500
#: Of all sizes together; the limit of their bytes does not hold back many small ones.
_MAX_COPIES = 20_000
_N_LOCKS = 256


class _Copy(NamedTuple):
    """A file of the cache as it was when it was written."""

    n_bytes: int
    modified_ns: int


class FileCache:
    """One per worker; safe between threads.

    Args:
        folder: its own; what an earlier worker left there is deleted.
        max_bytes: of all files that no link needs; those linked last stay.
    """

    def __init__(self, store: Store, folder: Path, max_bytes: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._store = store
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        #: Each for the files whose name begins with its number.
        self._fetching = tuple(threading.Lock() for _ in range(_N_LOCKS))
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        self._n_bytes = 0
        #: So many files were fetched.
        self.n_fetched = 0

    def link(self, uri: str, target: Path, took: Callable[[int], None] | None = None) -> None:
        """Make `target` a link to the file.

        Args:
            took: called with the bytes of each piece that is fetched; what it raises ends that.

        Raises:
            StorageError: it cannot be read.
        """
        name = _name(uri, self._store.stamp(uri))
        # Attempts that begin together wait for one fetch.
        with self._fetching_of(name):
            if not self._is_whole(name):
                self._fetch(uri, name, took)
            os.link(self._folder / name, target)
        self._keep_limit()

    def add(self, uri: str, source: Path) -> None:
        """Keep a file as the copy of what was written from it; fine where that cannot be."""
        with contextlib.suppress(StorageError, OSError):
            stamp = self._store.stamp(uri)
            found = source.lstat()
            is_file = stat.S_ISREG(found.st_mode)
            if not is_file or found.st_size != stamp.n_bytes or found.st_size > self._max_bytes:
                return
            name = _name(uri, stamp)
            with self._fetching_of(name):
                if not self._is_whole(name):
                    (self._folder / name).unlink(missing_ok=True)
                    os.link(source, self._folder / name, follow_symlinks=False)
                    self._note(name)
            self._keep_limit()

    def _fetching_of(self, name: str) -> threading.Lock:
        return self._fetching[int(name[:2], 16)]

    def _is_whole(self, name: str) -> bool:
        with self._lock:
            known = self._copies.get(name)
            if known is not None:
                self._copies.move_to_end(name)
        try:
            found = (self._folder / name).stat()
        except FileNotFoundError:
            return False
        return known == _Copy(found.st_size, found.st_mtime_ns)

    def _fetch(self, uri: str, name: str, took: Callable[[int], None] | None) -> None:
        path = self._folder / name
        # A new file, as links to the old one may be in use.
        path.unlink(missing_ok=True)
        with path.open("xb") as file, self._store.stream(uri) as source:
            while piece := source.read(_PIECE_BYTES):
                file.write(piece)
                if took is not None:
                    took(len(piece))
        self._note(name)
        with self._lock:
            self.n_fetched += 1

    def _note(self, name: str) -> None:
        """The copy is whole."""
        path = self._folder / name
        path.chmod(_MODE)
        found = path.stat()
        with self._lock:
            old = self._copies.pop(name, None)
            self._copies[name] = _Copy(found.st_size, found.st_mtime_ns)
            self._n_bytes += found.st_size - (old.n_bytes if old is not None else 0)

    def _keep_limit(self) -> None:
        with self._lock:
            while len(self._copies) > 1 and (
                self._n_bytes > self._max_bytes or len(self._copies) > _MAX_COPIES
            ):
                name = next(iter(self._copies))
                fetching = self._fetching_of(name)
                if not fetching.acquire(blocking=False):
                    return  # the next link tries again
                self._n_bytes -= self._copies.pop(name).n_bytes
                (self._folder / name).unlink(missing_ok=True)
                fetching.release()


def _name(uri: str, stamp: Stamp) -> str:
    return hashlib.sha256(f"{uri}\n{stamp}".encode()).hexdigest()
