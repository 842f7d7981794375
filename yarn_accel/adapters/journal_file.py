"""The journal of a service in a folder of HDFS or of this machine: one file that grows, or is replaced.

Each file's name has the number of the attempt that wrote it, and counts up: ``journal-00000002-00000005``.
The newest one holds everything. Who opens the journal takes that file from its writer first, which is what
keeps an attempt that was believed dead from writing on: HDFS lets it no more. Before that it claims the
journal by an empty file, ``journal-ATTEMPT-00000000``. A writer that finds a later claim when it has replaced
its file has replaced nothing.

There is a journal before there is an attempt, see `begin_journal`, and what an attempt writes is never empty.
So a later one that finds nothing says so, and does not begin anew.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import time
from collections.abc import Callable

from yarn_accel.errors import StorageError
from yarn_accel.storage import Appender, Store

_NAME = re.compile(r"journal-(\d{8})-(\d{8})")
_SEAL_PAUSE_S = 0.2
_MAX_BYTES = 1 << 30
#: The number of the file by which an attempt claims the journal.
_CLAIM = 0


class StoredJournal:
    """Appends and replaces lines; one thread at a time.

    Args:
        store: where `folder_uri` is.
        folder_uri: the service's own folder.
        attempt: number of this writer; later ones have larger numbers.
        sleep: waits between two tries to take a file from its former writer.
    """

    def __init__(
        self, store: Store, folder_uri: str, attempt: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = store
        self._folder = folder_uri.rstrip("/")
        self._attempt = attempt
        self._sleep = sleep
        self._generation = 0
        self._open = contextlib.ExitStack()
        self._appender: Appender | None = None

    def read(self, limit_s: float = 120.0) -> bytes:
        """Take the journal over and return its content; empty when no attempt has written one yet.

        Raises:
            StorageError: a later attempt has it, its former writer did not give it free, or it is gone.
        """
        self._store.write_atomic(self._uri(self._attempt, _CLAIM), lambda: [b""])
        newest = self._newest()
        if newest is None:
            return b""
        uri = self._uri(*newest)
        for _ in range(max(1, round(limit_s / _SEAL_PAUSE_S))):
            if self._store.seal(uri):
                content = self._store.read_bytes(uri, _MAX_BYTES)
                if not content and newest[0] > 0:
                    raise _gone(f"{uri}: empty, though attempt {newest[0]} wrote it")
                return content
            self._sleep(_SEAL_PAUSE_S)
        raise StorageError(
            f"{uri}: its former writer still has it after {limit_s:g} s",
            cure="HDFS gives it free when the DataNodes of its last block answer; try again",
            transient=True,
        )

    def append(self, lines: bytes) -> None:
        """Add lines at the end; returns when HDFS has them on its disks.

        Raises:
            StorageError: nobody knows which of them are there: `replace` is next.
        """
        if self._appender is None:
            raise StorageError(f"{self._folder}: the journal is not open; replace its lines first")
        try:
            self._appender.append(lines)
        except (OSError, RuntimeError) as error:
            self.close()
            uri = self._uri(self._attempt, self._generation)
            raise StorageError(f"{uri}: {error}", transient=True) from error

    def replace(self, lines: bytes) -> None:
        """Put these lines in the place of all; after a crash either the old or the new ones are there.

        Raises:
            StorageError: the old ones are there, or a later attempt has the journal.
        """
        self.close()
        before = self._names()
        self._check_latest(before)
        self._generation = 1 + max(
            (number for attempt, number in before if attempt == self._attempt), default=0
        )
        uri = self._uri(self._attempt, self._generation)
        self._appender = self._open.enter_context(self._store.growing(uri, lines))
        try:
            # A later one may have claimed the journal meanwhile, and read the old lines.
            self._check_latest(self._names())
        except StorageError:
            self.close()
            raise
        for attempt, number in before:
            self._store.delete(self._uri(attempt, number))

    def close(self) -> None:
        """Leave it to the next one."""
        self._appender = None
        with contextlib.suppress(StorageError):
            self._open.close()

    def _newest(self) -> tuple[int, int] | None:
        names = self._names()
        self._check_latest(names)
        written = [name for name in names if name[1] != _CLAIM]
        if not written and self._attempt > 1:
            raise _gone(f"{self._folder}: no journal, though attempt {self._attempt} is not the first")
        return max(written, default=None)

    def _check_latest(self, names: list[tuple[int, int]]) -> None:
        latest = max(attempt for attempt, _ in [*names, (0, 0)])
        if latest > self._attempt:
            raise StorageError(f"{self._folder}: attempt {latest}, a later attempt, has the journal now")

    def _names(self) -> list[tuple[int, int]]:
        """Attempt and number of each file."""
        if not self._store.exists(self._folder):
            return []
        found = (_NAME.fullmatch(posixpath.basename(uri)) for uri in self._store.list(self._folder))
        return [(int(match[1]), int(match[2])) for match in found if match is not None]

    def _uri(self, attempt: int, number: int) -> str:
        return _uri(self._folder, attempt, number)


def begin_journal(store: Store, folder_uri: str) -> None:
    """Have an empty journal before the first attempt: whoever finds none later knows that it was lost."""
    store.write_atomic(_uri(folder_uri.rstrip("/"), 0, 1), lambda: [b""])


def _uri(folder_uri: str, attempt: int, number: int) -> str:
    return f"{folder_uri}/journal-{attempt:08d}-{number:08d}"


def _gone(what: str) -> StorageError:
    return StorageError(what, cure="restore the folder; without it, start the service anew and submit again")
