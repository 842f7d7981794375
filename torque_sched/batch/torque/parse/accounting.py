"""Accounting files: one line for each event of a job, ``MM/DD/YYYY HH:MM:SS;TYPE;JOB;key=value key=value``.

Times in the attributes are epoch seconds; the stamp at the beginning is the server's local time.

The server writes account, job name and resources as their user wrote them, whatever is in them: blanks,
``user=root``, a newline. The order of the keys (src/server/accounting.c) tells what is whose::

    user= group= [account=TEXT] jobname=TEXT | queue= ctime= .. exec_host= | Resource_List.R=TEXT | session= .

``user`` and ``group`` come first, what comes from ``session=`` on comes last, and ``total_execution_slots``
tells which of several parts from ``queue=`` to ``exec_host=`` is the server's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timezone, tzinfo

from torque_sched.batch.torque.parse.jobs import job_from_record
from torque_sched.batch.torque.parse.records import Parsed, Record, decoded
from torque_sched.batch.torque.parse.slots import parse_exec_host
from torque_sched.batch.torque.parse.times import stamp_s
from torque_sched.errors import RecordError, UnitError
from torque_sched.model.cluster import Job
from torque_sched.model.texts import one_line

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
_NAMES = re.compile(r"user=(\S*) group=(\S*)(?: account=(.*))? jobname=(.*)", re.DOTALL)
_RUN = re.compile(
    r"(?<= )queue=\S+ ctime=[0-9]+ qtime=[0-9]+ etime=[0-9]+(?: start_count=[0-9]+)? start=[0-9]+"
    r" owner=\S+(?: exec_host=(\S+))?(?=\s|$)"
)
_END = re.compile(
    r" session=-?[0-9]+(?: alt_id=\S+)?(?: total_execution_slots=([0-9]+) unique_node_count=[0-9]+)?"
    r" end=[0-9]+ Exit_status=-?[0-9]+"
)
_CUT = re.compile(r"user=(\S*) group=\S* (?:account|jobname)=")
_BEGIN = re.compile(r"[0-9/]{10} [0-9:.]{8,15};[A-Za-z]{1,2};[^;]+;")
_TIMES = {"S": "start", "E": "end"}
_ZONES_S = 900.0
"""Time zones differ by multiples of it."""
_LATE_S = 5.0
_MOST_JOINED = 100
"""Lines that a cut record is looked for in."""
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
    until = 0
    for number, line in enumerate(lines, 1):
        if number <= until or not line.strip():
            continue
        line, until = _whole(lines, number)
        n_records = sum(_BEGIN.match(each) is not None for each in lines[number:until])
        if n_records:
            what = f"a text of the user has newlines and {n_records} lines like records, which are not used"
            problems.append(RecordError(f"{command}: line {number}: {what}", cure=_ASK_USER))
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


_ASK_USER = "ask the job's user why; the job itself is read"


def _whole(lines: list[str], number: int) -> tuple[str, int]:
    """The record that begins in line ``number``, and the number of its last line.

    A newline in a text of the user cuts the record in two, and lines of that text may look like records. The
    record goes on to where it is complete, and to the last line near by that holds the server's half of it.
    A record that is not cut but damaged ends with its line: those after it are records in themselves. Behind
    one of these, the server's half is where the time is that of the cut record's stamp, and nowhere else: a
    later line whose own stamp is destroyed takes nobody along.
    """
    line = lines[number - 1]
    fields = line.split(";", 3)
    user = _CUT.match(fields[3]) if len(fields) == 4 and fields[1] in {"S", "E"} else None
    if user is None or _is_complete(fields[1], fields[3]):
        return line, number
    following = lines[number : number + _MOST_JOINED]
    kind, last, was_complete, is_behind_records = fields[1], 0, False, False
    for n, each in enumerate(following, 1):
        is_complete = was_complete or _is_complete(kind, "\n".join([fields[3], *following[:n]]))
        is_itself = is_complete and _is_itself(each)
        is_first = is_complete and not was_complete and not is_itself
        was_complete = is_complete
        if is_behind_records and not _BEGIN.match(each) and not _is_of(fields[0], kind, each):
            continue
        if is_first or (is_complete and _is_second_half(fields, each, user.group(1))):
            last = n
        is_behind_records = is_behind_records or is_itself
    return "\n".join([line, *following[:last]]), number + last


def _is_itself(line: str) -> bool:
    """Whether a line is a record whose time is that of its stamp."""
    stamp, *fields = line.split(";", 3)
    if len(fields) != 3 or fields[0] not in _TIMES or not _is_complete(fields[0], fields[2]):
        return False
    return _is_of(stamp, fields[0], fields[2])


def _is_of(stamp: str, kind: str, text: str) -> bool:
    """Whether the last time of a record is that of a stamp, in some time zone."""
    stamped = re.findall(rf" {_TIMES[kind]}=([0-9]{{1,12}})(?=\s|$)", text)
    try:
        late_s = (stamp_s(stamp) - float(stamped[-1])) % _ZONES_S
    except (UnitError, IndexError):
        return False
    return min(late_s, _ZONES_S - late_s) <= _LATE_S


def _is_second_half(cut: list[str], line: str, user: str) -> bool:
    """Whether the server's half of a cut record of ``user`` is in this line.

    Args:
        cut: the fields of the line that the record begins with.
        line: one behind it.
        user: of the cut record.
    """
    stamp, kind = cut[0], cut[1]
    if not _BEGIN.match(line):
        return (_END if kind == "E" else _RUN).search(" " + line) is not None
    forged = _BEGIN.sub("", line)
    # A record of another version, or a damaged one, may look like a half; it has the time of its own stamp.
    own = line.partition(";")[0]
    if not _is_of(stamp, kind, forged) and _is_of(own, kind, forged):
        return False
    if _END.search(forged) and not _RUN.search(" " + forged):
        return True
    return f" owner={user}@" in forged and not forged.startswith(f"user={user} ")


def _is_complete(kind: str, text: str) -> bool:
    return _RUN.search(" " + text) is not None and (kind == "S" or _END.search(text) is not None)


def _record(line: str, zone: tzinfo) -> AccountingRecord:
    stamp, *fields = line.split(";", 3)
    if len(fields) != 3 or not 1 <= len(fields[0]) <= 2 or not fields[1]:
        raise RecordError(f"{line[:60]!r} is not of the form TIME;TYPE;JOB;ATTRIBUTES")
    kind, job, text = fields
    end = max(_END.finditer(text if kind == "E" else ""), key=re.Match.start, default=None)
    body, tail = (text, "") if end is None else (text[: end.start()], text[end.start() :])
    ended = _pairs(tail, lambda key: True)[1]
    names, run = _names_and_run(body, 0 if end is None else int(end.group(1) or 0))
    if run is None:
        rest, given = _pairs(body, lambda key: key not in ended)
    else:
        rest, given = "", names | _pairs(run.group(), lambda key: True)[1]
        given |= _pairs(body[run.end() :], _is_of_resources)[1]
    attributes = {key: one_line(value) for key, value in (given | ended).items()}
    return AccountingRecord(stamp_s(stamp, zone), kind, one_line(job), attributes, one_line(rest))


def _is_of_resources(key: str) -> bool:
    return key.startswith("Res") or key in {"x", "login_node"}


def _names_and_run(body: str, n_slots: int) -> tuple[dict[str, str], re.Match[str] | None]:
    """User, group, account and job name; and the server's part from ``queue=`` to ``exec_host=``, if any.

    A user may have written more such parts. ``n_slots`` tells which one is true. Without it the one with most
    slots counts, as nobody makes his use of the cluster look larger.
    """
    found: list[tuple[bool, int, dict[str, str], re.Match[str]]] = []
    for run in _RUN.finditer(body):
        names = _NAMES.fullmatch(body[: run.start()].rstrip())
        if names is not None:
            slots = _n_slots(run.group(1) or "")
            values = zip(("user", "group", "account", "jobname"), names.groups(), strict=True)
            given = {key: value.strip() for key, value in values if value is not None}
            found.append((slots == n_slots, slots, given, run))
    if not found:
        return {}, None
    return max(found, key=lambda each: each[:2])[2:]


def _n_slots(exec_host: str) -> int:
    try:
        return sum(part.last - part.first + 1 for part in parse_exec_host(exec_host))
    except RecordError:
        return 0


def _pairs(text: str, may_be: Callable[[str], bool]) -> tuple[str, dict[str, str]]:
    """The text before the first pair, and the first pair of each key; others are of the value around."""
    pairs: dict[str, str] = {}
    key, begin, before = "", 0, ""
    for found in _PAIR.finditer(text):
        if found.group(1) in pairs or found.group(1) == key or not may_be(found.group(1)):
            continue
        if key:
            pairs[key] = text[begin : found.start()].strip()
        else:
            before = text[: found.start()].strip()
        key, begin = found.group(1), found.end()
    if not key:
        return text.strip(), {}
    pairs[key] = text[begin:].strip()
    return before, pairs


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
