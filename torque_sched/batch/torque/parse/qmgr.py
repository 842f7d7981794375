"""The command list of ``qmgr -c 'print server'`` (queues and server) and ``print node``: records again."""

from __future__ import annotations

import re

from torque_sched.batch.torque.parse.records import Parsed, Record, decoded, read_record
from torque_sched.errors import DocumentError, RecordError

_CREATE = re.compile(r"create (queue|node) (\S+)\s*")
_SET = re.compile(r"set (queue|node|server)(?: ([^\s=]+))?? ([A-Za-z_][\w.]{0,199}) (=|\+=) ?(.*)", re.ASCII)
_OF_RESOURCES = ("create resource ", "set resource ")
"""Definitions that OpenPBS prints first."""
_KINDS = {"queue": "Queue", "node": "Node", "server": "Server"}


def parse_qmgr(data: bytes | str, command: str = "qmgr") -> Parsed[Record]:
    """Records of queues, nodes and the server from qmgr's own commands.

    Comments are skipped, and so are OpenPBS's definitions of resources.

    A line that is no such command is one problem, and so is an attribute that is set a second time: a line of
    some value that looks like a command. The server's record has an empty name, because
    ``print server`` does not name it.

    Raises:
        DocumentError: the output is empty or has no command at all.
    """
    text = decoded(data, command)
    records: dict[tuple[str, str], Record] = {}
    problems: list[RecordError] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith(("#", *_OF_RESOURCES)):
            continue
        trouble = _read(records, line.rstrip("\r"))
        if trouble:
            words = f"{command}: line {number} {trouble}: {line.strip()[:60]!r}"
            problems.append(
                RecordError(words, cure="the other lines are used; this reads 'print', not 'list'")
            )
    if not records:
        raise DocumentError(f"{command} printed no commands", cure="is this the output of 'print server'?")
    read = (read_record(each.kind, each.name, each.attributes) for each in records.values())
    return Parsed(tuple(read), tuple(problems))


def _read(records: dict[tuple[str, str], Record], line: str) -> str:
    """Take one command; what is wrong with it, or nothing."""
    created, found = _CREATE.fullmatch(line), _SET.fullmatch(line)
    if created is not None:
        _record(records, created.group(1), created.group(2))
        return ""
    if found is None or not (found.group(2) or found.group(1) == "server"):
        return "is no create or set command"
    kind, name, attribute, operator, value = found.groups()
    attributes = _record(records, kind, name or "").attributes
    if attribute not in attributes:
        attributes[attribute] = value
    elif operator == "+=":
        attributes[attribute] += "," + value
    else:
        return "sets an attribute a second time"
    return ""


def _record(records: dict[tuple[str, str], Record], kind: str, name: str) -> Record:
    return records.setdefault((kind, name), Record(_KINDS[kind], name, {}))
