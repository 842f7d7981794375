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
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from yarn_accel.errors import StorageError
from yarn_accel.storage import Stamp, Store

_PIECE_BYTES = 1024 * 1024
_MODE = 0o500
#: Of all sizes together; the limit of their bytes does not hold back many small ones.
_MAX_COPIES = 20_000
_N_LOCKS = 4096
#: A file that was announced and is not added in that time is fetched.
_ADDED_S = 5.0
#: The first task that takes an added file so soon does not ask the storage for its stamp once more.
_FRESH_S, _MAX_ADDED = 1.0, 1000
#: Files that are fetched at once for attempts that wait.
_N_PREFETCHING = 2


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
        #: URIs of files that are about to be added.
        self._announced: dict[str, threading.Event] = {}
        #: Stamps of files that were added, the last ones, each for one link, and until when.
        self._added: dict[str, tuple[Stamp, float]] = {}
        #: URIs of files that were announced, the last ones.
        self._made: dict[str, None] = {}
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
        if (announced := self._announced.get(uri)) is not None:
            announced.wait(_ADDED_S)
        stamp, until_s = self._added.pop(uri, (None, 0.0))
        if stamp is None or time.monotonic() > until_s:
            stamp = self._store.stamp(uri)
        name = _name(uri, stamp)
        # Attempts that begin together wait for one fetch.
        with self._fetching_of(name):
            if not self._is_whole(name):
                self._fetch(uri, name, took)
            os.link(self._folder / name, target)
        self._keep_limit()

    def announce(self, uri: str) -> None:
        """A file is written, and `add` follows: who links it meanwhile waits for that."""
        self._announced[uri] = threading.Event()
        with self._lock:
            self._made[uri] = None
            if len(self._made) > _MAX_COPIES:
                del self._made[next(iter(self._made))]

    def fetch(self, uri: str, most_bytes: int, took: Callable[[int], None]) -> int:
        """Have a file here for links that are to come; returns its bytes, and 0 where there is nothing to do.

        That is so where it is too large, and where a task has made it here.

        Args:
            most_bytes: a larger file is left where it is.
            took: as for `link`.

        Raises:
            StorageError: it cannot be read.
        """
        if uri in self._made:
            return 0  # to ask the storage for its stamp twice is all that would be done
        stamp = self._store.stamp(uri)
        if stamp.n_bytes > most_bytes:
            return 0
        name = _name(uri, stamp)
        with self._fetching_of(name):
            if not self._is_whole(name):
                self._fetch(uri, name, took)
        self._keep_limit()
        return stamp.n_bytes

    def add(self, uri: str, source: Path) -> None:
        """Keep a file as the copy of what was written from it; fine where that cannot be."""
        try:
            self._add(uri, source)
        finally:
            if (announced := self._announced.pop(uri, None)) is not None:
                announced.set()

    def _add(self, uri: str, source: Path) -> None:
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
            with self._lock:
                self._added[uri] = stamp, time.monotonic() + _FRESH_S
                if len(self._added) > _MAX_ADDED:
                    del self._added[next(iter(self._added))]
            self._keep_limit()

    def _fetching_of(self, name: str) -> threading.Lock:
        return self._fetching[int(name[:3], 16)]

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


class _NotWanted(Exception):
    """Nobody waits for a file any more."""


class InputPrefetch:
    """Fetches what attempts take that wait here, so that they begin with their files.

    Args:
        most_bytes: of all files that are fetched for attempts that wait.
    """

    def __init__(self, files: FileCache, most_bytes: int) -> None:
        self._files = files
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._waiting: tuple[str, ...] = ()
        self._wanted: frozenset[str] = frozenset()
        #: What was begun, and the bytes of what has come.
        self._begun: dict[str, int] = {}
        self._n_threads = 0

    def want(self, waiting: Iterable[str], running: Iterable[str]) -> None:
        """These URIs are taken by attempts that wait, the next first, and by those that run.

        What is fetched goes on while one of either takes it; what nobody takes any more ends.
        """
        with self._lock:
            self._waiting = tuple(dict.fromkeys(waiting))
            self._wanted = frozenset((*self._waiting, *running))
            self._begun = {uri: n_bytes for uri, n_bytes in self._begun.items() if uri in self._wanted}
            n_new = min(
                _N_PREFETCHING - self._n_threads, sum(uri not in self._begun for uri in self._waiting)
            )
            self._n_threads += max(0, n_new)
        for _ in range(n_new):
            threading.Thread(target=self._work, daemon=True, name="prefetch").start()

    def _work(self) -> None:
        while (uri := self._next()) is not None:
            n_bytes = 0
            # What cannot be read is the concern of the attempt that takes it.
            with contextlib.suppress(StorageError, OSError, _NotWanted):
                n_bytes = self._files.fetch(uri, self._n_bytes_left(), partial(self._check, uri))
            with self._lock:
                if uri in self._begun:
                    self._begun[uri] = n_bytes

    def _next(self) -> str | None:
        with self._lock:
            uri = next((each for each in self._waiting if each not in self._begun), None)
            if uri is None:
                self._n_threads -= 1
            else:
                self._begun[uri] = 0
            return uri

    def _n_bytes_left(self) -> int:
        with self._lock:
            return self._most_bytes - sum(self._begun[uri] for uri in self._waiting if uri in self._begun)

    def _check(self, uri: str, n_bytes: int) -> None:
        if uri not in self._wanted:
            raise _NotWanted


def _name(uri: str, stamp: Stamp) -> str:
    return hashlib.sha256(f"{uri}\n{stamp}".encode()).hexdigest()
