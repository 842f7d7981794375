"""OpenPBS (PBS Pro): ``pbsnodes -a -F json``, ``qstat -f -t -F json`` and qrun's argument list.

NEVER RUN AGAINST A REAL ONE. Written from documentation and public samples; the rest of this package
has been built from outputs of real Torque servers, this module has not. Use it to look, not to start.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from datetime import timezone, tzinfo
from typing import Any

from torque_sched.batch.torque.parse.jobs import job_from_record, job_number
from torque_sched.batch.torque.parse.records import Parsed, Record, convert, decoded, read_record
from torque_sched.errors import DocumentError, ModelError, RecordError
from torque_sched.model.cluster import HostSlots, Job, JobId, JobSlots, Node, NodeName, NodeStatus
from torque_sched.model.decisions import NodeShare
from torque_sched.model.request import AccessPolicy, Chunk, Request
from torque_sched.model.states import NodeState
from torque_sched.model.units import count, size_bytes

_NODE_STATES = {
    "down": NodeState.DOWN,
    "stale": NodeState.DOWN,
    "offline": NodeState.OFFLINE,
    "busy": NodeState.BUSY,
    "job-busy": NodeState.JOB_EXCLUSIVE,
    "job-exclusive": NodeState.JOB_EXCLUSIVE,
    "resv-exclusive": NodeState.RESERVE,
    "state-unknown": NodeState.UNKNOWN,
}
_FREE = frozenset({"", "free"})
_EXEC_HOST = re.compile(r"([^/+*()]+)/([0-9]{1,9})(?:\*([0-9]{1,7}))?")


def _document(data: bytes | str, member: str, command: str) -> list[tuple[str, Mapping[str, Any]]]:
    text = decoded(data, command)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{command}: no complete JSON", cure="ask again with -F json") from error
    if not isinstance(document, dict):
        raise DocumentError(f"{command}: JSON without an object", cure="ask again with -F json")
    members = document.get(member, {})
    if not isinstance(members, dict):
        raise DocumentError(f"{command}: {member!r} is no object", cure="ask again with -F json")
    return [(str(name), value if isinstance(value, dict) else {}) for name, value in members.items()]


def _flat(value: Mapping[str, Any]) -> dict[str, str]:
    """Attributes with dotted names, as Torque's records have them."""
    attributes: dict[str, str] = {}
    for name, member in value.items():
        if isinstance(member, dict):
            attributes |= {f"{name}.{key}": _text(inner) for key, inner in member.items()}
        else:
            attributes[name] = _text(member)
    return attributes


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return "" if value is None else str(value)


def parse_openpbs_nodes(data: bytes | str, command: str = "pbsnodes") -> Parsed[Node]:
    """Nodes of ``pbsnodes -a -F json``; ``ncpus`` is taken for the slots.

    Raises:
        DocumentError: the output is unusable as a whole.
    """
    members = _document(data, "nodes", command)
    records = tuple(read_record("Node", name, _flat(value)) for name, value in members)
    return convert(Parsed(records), _node)


def _node(record: Record) -> Node:
    given = record.attributes
    memory = given.get("resources_available.mem", "")
    words = (word.strip() for word in given.get("state", "state-unknown").split(","))
    return Node(
        name=NodeName(record.name),
        slots=count(given.get("resources_available.ncpus", "0")),
        states=frozenset(
            _NODE_STATES.get(word, NodeState.OTHER) for word in words if word not in {"", "free"}
        ),
        gpus=count(given.get("resources_available.ngpus", "0")),
        jobs=_node_jobs(given.get("jobs", "")),
        ntype=given.get("ntype", ""),
        note=given.get("comment", ""),
        status=NodeStatus(physmem_bytes=size_bytes(memory)) if memory else None,
        extra={name: text for name, text in given.items() if name not in {"state", "jobs", "ntype"}},
    )


def _node_jobs(text: str) -> tuple[JobSlots, ...]:
    """``12.server/0, 12.server/1``: one entry for each processor."""
    parts = []
    for entry in text.split(","):
        job, slash, slot = entry.strip().partition("/")
        if job:
            at = count(slot) if slash else 0
            parts.append(JobSlots(JobId(job), at, at))
    return tuple(parts)


def parse_openpbs_jobs(data: bytes | str, command: str = "qstat", zone: tzinfo = timezone.utc) -> Parsed[Job]:
    """Jobs of ``qstat -f -t -F json``.

    Raises:
        DocumentError: the output is unusable as a whole.
    """
    members = _document(data, "Jobs", command)
    records = tuple(read_record("Job", name, _flat(value)) for name, value in members)
    return convert(Parsed(records), lambda record: _job(record, zone))


def _job(record: Record, zone: tzinfo) -> Job:
    given = dict(record.attributes)
    exec_host = given.pop("exec_host", "")
    given["start_time"] = given.pop("stime", given.get("start_time", "")) or ""
    given["exit_status"] = given.pop("Exit_status", "")
    given = {name: text for name, text in given.items() if text != ""}
    job_number(record.name)
    job = job_from_record(Record("Job", record.name, given), zone)
    request = job.request
    select = given.get("Resource_List.select")
    if select is not None:
        try:
            request = _with_select(request, select, given.get("Resource_List.place", "free"))
        except (ModelError, RecordError) as error:
            request = dataclasses.replace(request, trouble=error.message)
    return dataclasses.replace(job, request=request, allocated_slots=_exec_host(exec_host))


def _with_select(request: Request, select: str, place: str) -> Request:
    words = place.split(":")
    chunks = parse_select(select)
    access = AccessPolicy.SINGLE_JOB if {"excl", "exclhost"} & set(words) else request.access
    if "scatter" in words:
        return dataclasses.replace(request, chunks=chunks, tasks=(), access=access)
    return dataclasses.replace(request, chunks=(), tasks=chunks, access=access)


def parse_select(text: str) -> tuple[Chunk, ...]:
    """The chunks of a ``select`` text; ``ncpus`` becomes its slots, other resources are ignored.

    >>> parse_select("2:ncpus=4:mem=8gb:ngpus=1")[0].slots
    4

    Raises:
        RecordError: the text does not follow the grammar.
        ModelError: a number in it is impossible.
    """
    chunks = []
    for part in text.split("+"):
        first, *words = part.strip().split(":")
        if not first.isascii() or not first.isdigit():
            first, words = "1", [first, *words]
        pairs = dict(word.partition("=")[::2] for word in words if word)
        if len(first) > 9 or any("=" not in word for word in words if word):
            raise RecordError(f"select={text[:80]}: {part[:40]!r} is not understood")
        chunks.append(
            Chunk(
                count=int(first),
                slots=max(1, count(pairs.get("ncpus", "1"))),
                gpus=count(pairs.get("ngpus", "0")),
                mem_bytes=size_bytes(pairs["mem"]) if "mem" in pairs else 0,
            )
        )
    return tuple(chunks)


def _exec_host(text: str) -> tuple[HostSlots, ...]:
    """``node/0*4+node2/1``: task number and processors, so the slots' numbers mean nothing."""
    parts = []
    for element in text.split("+") if text else ():
        found = _EXEC_HOST.fullmatch(element.strip())
        if found is None:
            raise RecordError(f"exec_host: {element[:60]!r} is not of the form HOST/TASK*NCPUS")
        host, first, n_cpus = found.groups()
        parts.append(HostSlots(NodeName(host), int(first), int(first) + max(1, int(n_cpus or 1)) - 1))
    return tuple(parts)


def qrun_arguments(job: str, allocation: Iterable[NodeShare], mem_bytes: int = 0) -> list[str]:
    """The argument list that would start ``job`` on OpenPBS; ``mem_bytes`` is for each node.

    >>> qrun_arguments("12.s", [NodeShare(NodeName("n1"), 2, 1)])
    ['qrun', '-H', '(n1:ncpus=2:ngpus=1)', '12.s']
    """
    chunks = []
    for share in allocation:
        words = [f"{share.node}:ncpus={share.slots}"]
        words += [f"ngpus={share.gpus}"] if share.gpus else []
        words += [f"mem={mem_bytes}b"] if mem_bytes else []
        chunks.append("(" + ":".join(words) + ")")
    return ["qrun", "-H", "+".join(chunks), job]
