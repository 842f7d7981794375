"""The journal of a task service: append-only lines, each a record in JSON with its checksum before it.

::

    5f0c2a91 {"r":"ended","t":"knn/000007","n":1,...}\\n

A record counts once its line break is on the disk. So a line without one, at the end, was torn by a crash:
nothing in it had taken effect, and it is left out. Any other line that does not match its checksum is
damage, which the reader refuses to guess about.

The journal does not grow without bound: a service asks its writer to `replace` all lines by those that make
up its state, which takes one rename.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.errors import StorageError

#: A record as the service reads and writes it.
JournalRecord = Mapping[str, Any]
_N_DIGITS = 8


@dataclass(frozen=True, slots=True)
class DecodedJournal:
    """What a journal says.

    Attributes:
        records: in the order in which they were written.
        n_bytes: length of what is whole; a writer that appends goes on from there.
        torn_bytes: length of the torn last line; 0: there is none.
    """

    records: tuple[JournalRecord, ...]
    n_bytes: int
    torn_bytes: int


def encode_records(records: Iterable[JournalRecord]) -> bytes:
    """Records as the lines of a journal.

    >>> encode_records([{"a": 1}])
    b'561bacaf {"a":1}\\n'
    """
    return b"".join(_line(record) for record in records)


def decode_journal(content: bytes, place: str) -> DecodedJournal:
    """The records of a journal.

    Args:
        place: where it was read from, for messages.

    Raises:
        StorageError: a line that is whole does not match its checksum; names place and line.
    """
    *lines, torn = content.split(b"\n")
    records = tuple(_record(line, place, number) for number, line in enumerate(lines, 1))
    return DecodedJournal(records, len(content) - len(torn), len(torn))


def _line(record: JournalRecord) -> bytes:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8")
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _record(line: bytes, place: str, number: int) -> JournalRecord:
    checksum, text = line[:_N_DIGITS], line[_N_DIGITS + 1 :]
    if line[_N_DIGITS : _N_DIGITS + 1] == b" " and checksum == b"%08x" % zlib.crc32(text):
        record = json.loads(text)
        if isinstance(record, dict):
            return record
    raise StorageError(
        f"{place}, line {number}: damaged: it does not match its checksum",
        cure="restore the file; without it, move it away and submit what had not ended again",
    )
