"""Accounting files: one line for each event of a job, ``MM/DD/YYYY HH:MM:SS;TYPE;JOB;key=value key=value``.

Times in the attributes are epoch seconds; the stamp at the beginning is the server's local time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timezone, tzinfo

from torque_sched.core.model import Job
from torque_sched.errors import RecordError, UnitError
from torque_sched.parse.jobs import job_from_record
from torque_sched.parse.records import Parsed, Record, decoded
from torque_sched.parse.times import format_stamp, stamp_s

__all__ = ["AccountingRecord", "format_accounting", "job_from_accounting", "parse_accounting"]

_KEYS = (
    "user", "group", "account", "jobname", "queue", "ctime", "qtime", "etime", "start_count", "start",
    "owner", "exec_host", "session", "total_execution_slots", "unique_node_count", "end", "Exit_status",
    "requestor", "alt_id", "x", "login_node", "exec_gpus", "resvname", "resvjobname",
)  # fmt: skip
_PAIR = re.compile(
    r"(?:^|(?<=\s))(" + "|".join(_KEYS) + r"|Resource_List\.[\w.]+|resources_used\.[\w.]+"
    r"|Resource_Request_[0-9.]+|req_information\.[\w.]+|task_usage\.[\w.]+)=",
    re.ASCII,
)
_ATTRIBUTES = {
    "user": "euser", "group": "egroup", "account": "Account_Name", "jobname": "Job_Name", "queue": "queue",
    "ctime": "ctime", "qtime": "qtime", "etime": "etime", "start_count": "start_count", "start": "start_time",
    "owner": "Job_Owner", "exec_host": "exec_host", "end": "comp_time", "Exit_status": "exit_status",
    "exec_gpus": "exec_gpus",
}  # fmt: skip
_WITH_BLANKS = frozenset({"jobname", "account", "x"})


@dataclass(frozen=True, slots=True)
class AccountingRecord:
    """One line; ``type`` is Q, S, E, D, R, A or another letter of the server's."""

    at_s: float
    type: str
    job: str
    attributes: Mapping[str, str]
    rest: str = ""
    """Text that is no ``key=value`` pair, before the first pair."""


def parse_accounting(
    data: bytes | str, command: str = "accounting", zone: tzinfo = timezone.utc
) -> Parsed[AccountingRecord]:
    """Records of a file or a part of it; an empty file has none.

    A last line without its newline is still being written and counts as a problem: read it again.

    Raises:
        DocumentError: the data is larger than the bound.
    """
    text = decoded(data, command)
    lines = text.split("\n")
    unfinished = lines.pop()
    records: list[AccountingRecord] = []
    problems: list[RecordError] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(_record(line.rstrip("\r"), zone))
        except (RecordError, UnitError) as error:
            cure = error.cure or "the other lines are used; look at this one in the file"
            problems.append(RecordError(f"{command}: line {number}: {error.message}", cure=cure))
    if unfinished.strip():
        problems.append(
            RecordError(
                f"{command}: line {len(lines) + 1} has no end",
                cure="it is still being written; read it again",
            )
        )
    return Parsed(tuple(records), tuple(problems))


def _record(line: str, zone: tzinfo) -> AccountingRecord:
    stamp, *fields = line.split(";", 3)
    if len(fields) != 3 or not 1 <= len(fields[0]) <= 2 or not fields[1]:
        raise RecordError(f"{line[:60]!r} is not of the form TIME;TYPE;JOB;ATTRIBUTES")
    kind, job, text = fields
    pieces = _PAIR.split(text)
    values = (value.strip() for value in pieces[2::2])
    return AccountingRecord(
        stamp_s(stamp, zone), kind, job, dict(zip(pieces[1::2], values, strict=True)), pieces[0].strip()
    )


def job_from_accounting(record: AccountingRecord) -> Job:
    """The finished (E) or started (S) job of a record, in the same form ``qstat`` would give it.

    Raises:
        RecordError: the record is of another type, or a time or the slots are garbled.
    """
    if record.type not in {"S", "E"}:
        raise RecordError(
            f"job {record.job[:60]}: a record of type {record.type} describes no job", cure="use S and E only"
        )
    given = record.attributes
    attributes = {
        # Only names and requests may hold blanks; elsewhere a blank begins an attribute unknown here.
        _ATTRIBUTES.get(name, name): value if name in _WITH_BLANKS else value.partition(" ")[0]
        for name, value in given.items()
    }
    request = next((value for name, value in given.items() if name.startswith("Resource_Request")), "")
    if request:
        attributes["L_Request"] = request
    attributes.setdefault("queue", "")
    attributes["job_state"] = "C" if record.type == "E" else "R"
    return job_from_record(Record("Job", record.job, attributes))


def format_accounting(record: AccountingRecord, zone: tzinfo = timezone.utc) -> str:
    """The line of a record, newline included."""
    pairs = " ".join(f"{name}={value}" for name, value in record.attributes.items())
    text = f"{record.rest} {pairs}" if record.rest and pairs else record.rest or pairs
    return f"{format_stamp(record.at_s, zone)};{record.type};{record.job};{text}\n"
