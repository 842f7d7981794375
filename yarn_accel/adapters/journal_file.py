"""The journal of a service in a folder of HDFS or of this machine: one file that grows, or is replaced.

Each file's name has the number of the attempt that wrote it, and counts up: ``journal-00000002-00000005``.
The newest one holds everything. Who opens the journal takes that file from its writer first, which is what
keeps an attempt that was believed dead from writing on: HDFS lets it no more.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import time
from collections.abc import Callable

from yarn_accel.adapters.hdfs import Appender, Store
from yarn_accel.errors import StorageError

__all__ = ["StoredJournal"]

_NAME = re.compile(r"journal-(\d{8})-(\d{8})")
_SEAL_PAUSE_S = 0.2
_MAX_BYTES = 1 << 30


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
        """Take the journal over and return its content; empty when there is none yet.

        Raises:
            StorageError: a later attempt has it, or the file could not be taken from its writer in time.
        """
        names = self._names()
        if not names:
            return b""
        newest = max(names)
        if newest[0] > self._attempt:
            raise StorageError(f"{self._folder}: attempt {newest[0]} writes the journal now")
        uri = self._uri(*newest)
        for _ in range(max(1, round(limit_s / _SEAL_PAUSE_S))):
            if self._store.seal(uri):
                return self._store.read_bytes(uri, _MAX_BYTES)
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
            StorageError: the old ones are there.
        """
        self.close()
        before = self._names()
        if any(attempt > self._attempt for attempt, _ in before):
            raise StorageError(f"{self._folder}: a later attempt writes the journal now")
        self._generation = 1 + max(
            (number for attempt, number in before if attempt == self._attempt), default=0
        )
        uri = self._uri(self._attempt, self._generation)
        self._appender = self._open.enter_context(self._store.growing(uri, lines))
        for attempt, number in before:
            self._store.delete(self._uri(attempt, number))

    def close(self) -> None:
        """Leave it to the next one."""
        self._appender = None
        with contextlib.suppress(StorageError):
            self._open.close()

    def _names(self) -> list[tuple[int, int]]:
        """Attempt and number of each file."""
        if not self._store.exists(self._folder):
            return []
        found = (_NAME.fullmatch(posixpath.basename(uri)) for uri in self._store.list(self._folder))
        return [(int(match[1]), int(match[2])) for match in found if match is not None]

    def _uri(self, attempt: int, number: int) -> str:
        return f"{self._folder}/journal-{attempt:08d}-{number:08d}"
