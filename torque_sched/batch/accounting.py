"""The server's accounting files, read on from where the last cycle stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

from torque_sched.batch.openpbs.parse.jobs import job_of_accounting
from torque_sched.batch.torque.parse.accounting import (
    AccountingRecord,
    job_from_accounting,
    parse_accounting,
)
from torque_sched.errors import DocumentError, ModelError, RecordError
from torque_sched.model.cluster import Job

_DAY = re.compile(r"[0-9]{8}")
_PART_BYTES = 512 << 10
"""Read in one cycle at most: a month of history is taken in over several cycles, not in one long one."""


@dataclass(frozen=True, slots=True)
class AccountingPart:
    """Jobs that ended, up to where the files are read now, and the records that could not be read."""

    jobs: tuple[Job, ...]
    position: tuple[str, int] | None
    problems: tuple[RecordError, ...] = ()


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
    problems: list[RecordError] = []
    left_bytes = _PART_BYTES
    reached = position
    for name in names:
        if name < max(at, oldest if position is None else ""):
            continue
        begin = offset if name == at else 0
        data, is_all = _lines(folder / name, begin, left_bytes)
        jobs += _jobs(data, f"accounting file {name} from byte {begin} on", zone, problems)
        reached = (name, begin + len(data))
        left_bytes -= len(data)
        if not is_all:
            break
    return AccountingPart(tuple(jobs), reached, tuple(problems))


def job_of_record(record: AccountingRecord) -> Job:
    """The job of an S or E record, as Torque or OpenPBS writes it.

    Raises:
        RecordError: the record is of another type, or a time or what it holds is garbled.
    """
    if record.type not in {"S", "E"} or "Resource_List.select" not in record.attributes:
        return job_from_accounting(record)
    try:
        return job_of_accounting(record.job, record.attributes, is_over=record.type == "E")
    except ModelError as error:
        raise RecordError(f"job {record.job[:60]}: {error.message}", cure=error.cure) from error


def _lines(path: Path, begin: int, left_bytes: int) -> tuple[bytes, bool]:
    """Whole lines from an offset on, and whether they are all there are."""
    with path.open("rb") as opened:
        opened.seek(begin)
        data = opened.read(left_bytes)
    whole = data.rfind(b"\n") + 1
    if whole or len(data) < _PART_BYTES:
        return data[:whole], len(data) < left_bytes
    # A line longer than what is read at once is no accounting line: pass over it.
    return data, False


def _jobs(data: bytes, place: str, zone: tzinfo, problems: list[RecordError]) -> Iterator[Job]:
    """Jobs of the E records; a record that cannot be read is left out and named in ``problems``."""
    try:
        parsed = parse_accounting(data, place, zone)
    except DocumentError as error:
        problems.append(RecordError(error.message, cure=error.cure))
        return
    problems += parsed.problems
    for record in parsed.items:
        if record.type == "E":
            try:
                yield job_of_record(record)
            except RecordError as error:
                cure = error.cure or "the other records are used; look at this one in the file"
                problems.append(RecordError(f"{place}: {error.message}", cure=cure))
