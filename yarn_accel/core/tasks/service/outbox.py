"""Holds commands back until the records behind them are on the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from yarn_accel.core.tasks.service.commands import ReplaceJournal, ServiceCommand, WriteJournal
from yarn_accel.core.tasks.service.journal import JournalRecord
from yarn_accel.core.tasks.service.records import ServiceRecord, encode_record


class Outbox:
    """Records on their way to the journal, and commands that wait for them, all in order."""

    def __init__(self) -> None:
        self.n_records = 0
        """In the journal by now; a replaced journal begins anew."""
        self._batch: list[JournalRecord] = []
        self._pending: list[ServiceCommand] = []
        self._is_urgent = False
        self._waiting: deque[tuple[int, ServiceCommand]] = deque()
        self._sequence = 0
        self._written = 0

    @property
    def n_waiting(self) -> int:
        """Commands that wait for the journal."""
        return len(self._waiting)

    def log(self, record: ServiceRecord) -> None:
        """Write a record; commands that are put from now on wait for it."""
        self._batch.append(encode_record(record))

    def put(self, command: ServiceCommand, *, can_wait: bool = False) -> None:
        """Give a command out once all that was logged so far, and in this event, is written.

        Args:
            can_wait: nothing starts by it, and nobody waits for it.
        """
        self._pending.append(command)
        self._is_urgent |= not can_wait

    def written(self, sequence: int) -> None:
        """All records up to this number are on the disk."""
        self._written = max(self._written, min(sequence, self._sequence))

    def flush(self, replacement: Iterable[ServiceRecord] | None = None) -> list[ServiceCommand]:
        """The commands that may be carried out now.

        Args:
            replacement: records to replace the journal by; they include what was logged.
        """
        out: list[ServiceCommand] = []
        if replacement is not None:
            records = tuple(encode_record(record) for record in replacement)
            self._sequence += 1
            self.n_records = len(records)
            out.append(ReplaceJournal(self._sequence, records))
        elif self._batch:
            self._sequence += 1
            self.n_records += len(self._batch)
            out.append(WriteJournal(self._sequence, tuple(self._batch), can_wait=not self._is_urgent))
        self._batch.clear()
        self._is_urgent = False
        self._waiting.extend((self._sequence, command) for command in self._pending)
        self._pending.clear()
        while self._waiting and self._waiting[0][0] <= self._written:
            out.append(self._waiting.popleft()[1])
        return out
