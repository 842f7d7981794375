"""The files of a task service: its journal, and the figures learned of a user's applications.

`TaskJournal` writes the journal in a thread: all records that wait at once, and again after a failure.
Records for which nobody waits are written a little later, with others that come meanwhile.

`FigureFile` keeps learned figures over masters and services. Services of one user share the file. Each
writes its own measurements, and the figures that the file has of other names. If the file is lost or damaged,
the first tasks are measured again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable

from yarn_accel.adapters.journal_file import StoredJournal
from yarn_accel.adapters.signed_http import decode_json
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.service.commands import ReplaceJournal, WriteJournal
from yarn_accel.core.tasks.service.journal import DecodedJournal, decode_journal, encode_records
from yarn_accel.errors import AccelError, ConfigError, RemoteProtocolError, StorageError
from yarn_accel.storage import Store

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
#: Records that can wait are written after so long; each write costs the storage as much as a small file.
_GATHER_S = 0.025
_FIGURES_INTERVAL_S = 10.0
_MAX_FIGURES_BYTES = 4 * 1024 * 1024
_CLOSE_S = 5.0


class TaskJournal:
    """One writer; used from one event loop.

    Args:
        stored: where lines go.
        written: gets the number of the last command whose records are safe.
        failed: what was appended may be lost: the next command has to be a `ReplaceJournal`.
    """

    def __init__(
        self, stored: StoredJournal, written: Callable[[int], None], failed: Callable[[], None]
    ) -> None:
        self._stored = stored
        self._written = written
        self._failed = failed
        self._waiting: list[WriteJournal | ReplaceJournal] = []
        self._wake, self._is_urgent = asyncio.Event(), asyncio.Event()
        #: Why the last write failed; empty: it did not.
        self.problem = ""

    async def read(self) -> DecodedJournal:
        """Take the journal from an earlier master, and read it, however long the storage is away.

        Raises:
            StorageError: it cannot be read at all, or is damaged.
        """
        while True:
            try:
                content = await asyncio.to_thread(self._stored.read)
            except StorageError as error:
                if not error.transient:
                    raise
                logger.warning("the journal is not read yet: %s", error)
                self.problem = str(error)
                await asyncio.sleep(_RETRY_S)
                continue
            self.problem = ""
            return decode_journal(content, "the journal of the task service")

    def put(self, command: WriteJournal | ReplaceJournal) -> None:
        """Write these records after those that wait."""
        if isinstance(command, ReplaceJournal):
            self._waiting.clear()
        self._waiting.append(command)
        if isinstance(command, ReplaceJournal) or not command.can_wait:
            self._is_urgent.set()
        self._wake.set()

    async def work(self) -> None:
        """Write, until it is cancelled.

        Raises:
            AttemptGoneError: a later master has the journal.
        """
        while True:
            await self._wake.wait()
            if not self._is_urgent.is_set():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._is_urgent.wait(), _GATHER_S)
            self._wake.clear()
            self._is_urgent.clear()
            batch, self._waiting = self._waiting, []
            if batch and not await self._write(batch):
                await asyncio.sleep(_RETRY_S)
                self._failed()

    async def _write(self, batch: list[WriteJournal | ReplaceJournal]) -> bool:
        try:
            await asyncio.to_thread(self._store, batch)
        except StorageError as error:
            logger.warning("nothing new takes effect, the journal is not written: %s", error)
            self.problem = str(error)
            return False
        self.problem = ""
        self._written(batch[-1].sequence)
        return True

    def _store(self, batch: list[WriteJournal | ReplaceJournal]) -> None:
        lines = b"".join(encode_records(command.records) for command in batch)
        is_new = isinstance(batch[0], ReplaceJournal)
        (self._stored.replace if is_new else self._stored.append)(lines)

    async def close(self) -> None:
        """Leave the journal to the next master."""
        await asyncio.to_thread(self._stored.close)


class FigureFile:
    """One file; used from one event loop.

    Args:
        uri: of the file; empty: nothing is kept.
        figures: the policy's.
        interval_s: between two writes.
    """

    def __init__(
        self, store: Store, uri: str, figures: FigureStore, interval_s: float = _FIGURES_INTERVAL_S
    ) -> None:
        self._store = store
        self._uri = uri
        self._figures = figures
        self._interval_s = interval_s
        self._n_written = 0
        self._problem = ""
        self._is_damaged = False

    async def read(self) -> None:
        """Use the file's figures for names that were not measured here; never raises."""
        if self._uri:
            await self._take_over()

    async def work(self) -> None:
        """Write what was learned from time to time, until it is cancelled."""
        while self._uri:
            await asyncio.sleep(self._interval_s)
            await self.write()

    async def close(self) -> None:
        """Write new figures, if the storage takes them within `_CLOSE_S`."""
        try:
            await asyncio.wait_for(self.write(), _CLOSE_S)
        except asyncio.TimeoutError:
            logger.warning("%s: not written in time", self._uri)

    async def write(self) -> None:
        """Write what was learned, if there is anything new; never raises."""
        n_observed = self._figures.n_observed
        # Figures that others wrote meanwhile stay; if they cannot be read, the file is not written.
        if not self._uri or n_observed == self._n_written or not await self._take_over():
            return
        document = json.dumps(self._figures.to_document(), separators=(",", ":")).encode()
        try:
            await asyncio.to_thread(self._store.write_atomic, self._uri, lambda: [document])
        except AccelError as error:
            self._note(str(error))
            return
        self._n_written, self._is_damaged = n_observed, False
        self._note("")

    async def _take_over(self) -> bool:
        """Take the file's figures over; whether that succeeded, or the file is damaged and does not count."""
        try:
            content = await asyncio.to_thread(self._content)
            if content is not None:
                self._figures.take_over(decode_json(content, self._uri))
        except StorageError as error:
            self._note(str(error))
            return False
        except (ConfigError, RemoteProtocolError) as error:
            if not self._is_damaged:
                self._is_damaged = True
                logger.warning("%s: damaged, begun anew: %s", self._uri, error)
        return True

    def _content(self) -> bytes | None:
        """The file; None: there is none."""
        try:
            n_bytes = self._store.size(self._uri)
            if n_bytes > _MAX_FIGURES_BYTES:
                raise ConfigError(f"{n_bytes} bytes, at most {_MAX_FIGURES_BYTES} are read")
            return self._store.read_bytes(self._uri, _MAX_FIGURES_BYTES)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _note(self, problem: str) -> None:
        """Log a problem once."""
        if problem and problem != self._problem:
            logger.warning("what is learned of applications is not kept: %s", problem)
        self._problem = problem
