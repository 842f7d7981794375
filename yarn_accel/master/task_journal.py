"""Writes a task service's journal in a thread: all that waits at once, and again what failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from yarn_accel.adapters.journal_file import StoredJournal
from yarn_accel.core.tasks.service.commands import ReplaceJournal, WriteJournal
from yarn_accel.core.tasks.service.journal import DecodedJournal, decode_journal, encode_records
from yarn_accel.errors import StorageError

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


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
        self._wake = asyncio.Event()
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
        self._wake.set()

    async def work(self) -> None:
        """Write, until it is cancelled.

        Raises:
            AttemptGoneError: a later master has the journal.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
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
