"""The server's accounting files, read on from where the last cycle stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

from torque_sched.core.model import Job
from torque_sched.errors import DocumentError, RecordError
from torque_sched.parse.accounting import job_from_accounting, parse_accounting

_DAY = re.compile(r"[0-9]{8}")
_PART_BYTES = 512 << 10
"""Read in one cycle at most: a month of history is taken in over several cycles, not in one long one."""


@dataclass(frozen=True, slots=True)
class AccountingPart:
    """Jobs that ended, and up to where the files are read now."""

    jobs: tuple[Job, ...]
    position: tuple[str, int] | None


def read_on(
    folder: Path, position: tuple[str, int] | None, *, zone: tzinfo, oldest: str = ""
) -> AccountingPart:
    """The next E records.

    Args:
        folder: ``$PBS_HOME/server_priv/accounting``.
        position: where the part before ended; None: begin.
        zone: the server's time zone.
        oldest: files named ``YYYYMMDD`` before this one are not begun with.

    Raises:
        OSError: the folder or a file cannot be read (it is root's).
    """
    names = sorted(path.name for path in folder.iterdir() if _DAY.fullmatch(path.name))
    at, offset = position if position is not None else ("", 0)
    jobs: list[Job] = []
    room = _PART_BYTES
    reached = position
    for name in names:
        if name < max(at, oldest if position is None else ""):
            continue
        begin = offset if name == at else 0
        data, is_all = _lines(folder / name, begin, room)
        jobs += _jobs(data, zone)
        reached = (name, begin + len(data))
        room -= len(data)
        if not is_all:
            break
    return AccountingPart(tuple(jobs), reached)


def _lines(path: Path, begin: int, room: int) -> tuple[bytes, bool]:
    """Whole lines from an offset on, and whether they are all there are."""
    with path.open("rb") as opened:
        opened.seek(begin)
        data = opened.read(room)
    whole = data.rfind(b"\n") + 1
    if whole or len(data) < _PART_BYTES:
        return data[:whole], len(data) < room
    # A line longer than what is read at once is no accounting line: pass over it.
    return data, False


def _jobs(data: bytes, zone: tzinfo) -> Iterator[Job]:
    try:
        records = parse_accounting(data, zone=zone).items
    except DocumentError:
        return
    for record in records:
        if record.type == "E":
            try:
                yield job_from_accounting(record)
            except RecordError:
                continue
