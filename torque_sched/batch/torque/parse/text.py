"""The text of ``qstat -f`` (jobs, ``-Q`` queues, ``-B`` server) and ``pbsnodes -a``, folded or not.

``qstat`` breaks long values by a newline and a TAB, also inside of words and numbers; ``-1`` does not.
Slurm's wrappers indent by a TAB instead of blanks. Values may hold newlines of their own (``qsub -V``
with shell functions), so a line that is no attribute belongs to the value before it.

A value with a blank line and a whole record behind it looks like that record, for the server escapes nothing
here. The scheduler therefore reads jobs by XML or by the protocol alone, where no value can do so.
"""

from __future__ import annotations

import re

from torque_sched.batch.torque.parse.records import Parsed, Record, decoded, listed_once, read_record
from torque_sched.errors import DocumentError, RecordError

_TITLES = {"Job": "Job Id:", "Queue": "Queue:", "Server": "Server:"}
_ATTRIBUTE = re.compile(r"[ \t]+([A-Za-z_][\w.\-]{0,199}) = ?(.*)", re.ASCII | re.DOTALL)
_DECISIVE = frozenset({"euser", "egroup", "exec_host", "exec_gpus"})
"""What a job is charged for and to whom; these lines come after texts of the user, others before."""
_NODE_NAME = re.compile(r"[A-Za-z0-9_][^\s=]{0,254}[ \t]*")


def read_text(data: bytes | str, kind: str, command: str, *, may_be_cut: bool = False) -> Parsed[Record]:
    """Records of one kind (``Job``, ``Node``, ``Queue``, ``Server``) from a text output.

    Nothing at all is an empty list: ``qstat -f`` prints nothing when there is no job.

    Args:
        data: the output.
        kind: of its records.
        command: its name for messages.
        may_be_cut: of an output that is cut off, read the records before the last one.

    Raises:
        DocumentError: the output does not end with the blank line Torque ends it with, is too large,
            or has no such record.
    """
    text = decoded(data, command).replace("\r\n", "\n")
    if not text.strip():
        return Parsed(())
    is_cut = not text.endswith("\n\n")
    if is_cut and not may_be_cut:
        raise DocumentError(f"{command}: the output is cut off", cure="ask again; nothing of it is used")
    lines = text.split("\n")
    starts = [at for at, line in enumerate(lines) if _starts_record(lines, at, line, kind)]
    if not starts:
        raise DocumentError(
            f"{command} printed no {kind.lower()} but {text.strip()[:60]!r}",
            cure="run it by hand; is this the output of another command?",
        )
    problems: list[RecordError] = []
    if any(line.strip() for line in lines[: starts[0]]):
        problems.append(_damaged(kind, lines[0], "is text before the first record", command))
    spans = list(zip(starts, [*starts[1:], len(lines)], strict=True))
    if is_cut:
        half = lines[spans.pop()[0]].strip()[:60]
        cure = "the records before it are used; if it is whole, add an empty line behind it"
        problems.append(RecordError(f"{command}: the output is cut off in {half!r}", cure=cure))
    records: list[Record] = []
    for start, end in spans:
        try:
            records.append(_record(lines[start:end], kind, command))
        except RecordError as error:
            problems.append(error)
    return listed_once(records, problems, command)


def _starts_record(lines: list[str], at: int, line: str, kind: str) -> bool:
    """Whether a record starts here: a title after a blank line; for nodes a bare name before an attribute.

    A line of a value may look like a title, as a variable of a job has lines of its own.
    """
    if not line or line[0] in " \t":
        return False
    after_blank = at == 0 or not lines[at - 1].strip()
    if kind != "Node":
        return after_blank and line.startswith(_TITLES[kind])
    # Text that was passed on may lack blank lines: a node without one would be lost in the node before.
    return after_blank or _ATTRIBUTE.fullmatch(lines[at + 1] if at + 1 < len(lines) else "") is not None


def _damaged(kind: str, text: str, trouble: str, command: str) -> RecordError:
    return RecordError(
        f"{command}: {kind.lower()} record {trouble}, near {text.strip()[:60]!r}",
        cure="the other records are used; if it stays, attach the output to a bug report",
    )


def _record(lines: list[str], kind: str, command: str) -> Record:
    title = lines[0]
    name = title.strip() if kind == "Node" else title[len(_TITLES[kind]) :].strip()
    if not name:
        raise _damaged(kind, title, "has no name", command)
    if kind == "Node" and not _NODE_NAME.fullmatch(title):
        raise _damaged(kind, title, "has a name that no node has", command)
    is_tab_indented = len(lines) > 1 and lines[1].startswith("\t")
    attributes: dict[str, str] = {}
    current = ""
    for line in lines[1:]:
        found = None
        if line and (is_tab_indented or line[0] == " "):
            found = _ATTRIBUTE.fullmatch(line)
        # An attribute is printed once: a second is a line of some value that looks like one.
        if found is not None and found.group(1) in attributes and found.group(1) in _DECISIVE:
            raise _damaged(kind, title, f"has two lines {found.group(1)}", command)
        if found is not None and found.group(1) not in attributes:
            current, attributes[found.group(1)] = found.groups()
        elif line and not current:
            raise _damaged(kind, title, "does not begin with an attribute", command)
        elif line:
            attributes[current] += line[1:] if line[0] == "\t" else "\n" + line
    if not attributes:
        raise _damaged(kind, title, "has no attributes", command)
    return read_record(kind, name, attributes)
