"""Nodes from ``pbsnodes -x`` (XML of 6.x and of 4.x) and from the text of ``pbsnodes -a``."""

from __future__ import annotations

import re

from torque_sched.batch.torque.parse.gpus import parse_gpu_status
from torque_sched.batch.torque.parse.records import Parsed, Record, convert, decoded, figure, keyed
from torque_sched.batch.torque.parse.slots import parse_node_jobs
from torque_sched.batch.torque.parse.status_objects import build_from_reply, is_reply
from torque_sched.batch.torque.parse.text import read_text
from torque_sched.batch.torque.parse.xml import build_from_xml
from torque_sched.errors import RecordError, UnitError
from torque_sched.model.cluster import JobId, Node, NodeName, NodeStatus
from torque_sched.model.states import NodeState
from torque_sched.model.units import count, size_bytes

_STATES = {state.value: state for state in NodeState}
_FREE_WORDS = frozenset({"", "free"})
_KNOWN = frozenset(
    {"state", "power_state", "np", "properties", "ntype", "jobs", "status", "note", "gpus", "gpu_status"}
)
_STATUS_KEYS = frozenset(
    {
        "opsys", "uname", "sessions", "nsessions", "nusers", "idletime", "totmem", "availmem", "physmem",
        "ncpus", "loadave", "message", "gres", "netload", "size", "state", "varattr", "cpuclock", "macaddr",
        "version", "rectime", "jobs", "arch", "max_load", "ideal_load", "quota", "jobdata", "numa",
    }
)  # fmt: skip
_FREE_TEXTS = frozenset({"message", "varattr"})
"""What scripts of the site print: the health check and ``$varattr``."""
_STATUS_KEY = re.compile(r"[A-Za-z_][\w.]{0,60}", re.ASCII)


def parse_pbsnodes(data: bytes | str, command: str = "pbsnodes", *, may_be_cut: bool = False) -> Parsed[Node]:
    """Nodes of a ``pbsnodes`` output, XML or text, or of a whole reply of pbs_server.

    Args:
        data: the output, or the reply.
        command: its name for messages.
        may_be_cut: of an output that is cut off, read the nodes before the cut. Not for a live server: its
            other nodes are unknown then.

    Raises:
        DocumentError: the output is unusable as a whole.
    """
    if is_reply(data):
        return build_from_reply(data, "Node", node_from_record)
    text = decoded(data, command)
    if text.lstrip()[:1] == "<":
        return build_from_xml(text, "Node", command, node_from_record, may_be_cut=may_be_cut)
    return convert(read_text(text, "Node", command, may_be_cut=may_be_cut), node_from_record)


def node_from_record(record: Record) -> Node:
    """The node a record describes.

    Raises:
        RecordError: a slot count, a GPU count or the list of jobs is missing or garbled; a node whose
            free slots are unknown must not be used. Everything the mom reports may be missing.
    """
    attributes = record.attributes
    if "np" not in attributes:
        raise RecordError(f"{record.place}: no np", cure="is this the output of pbsnodes -x or -a?")
    status = attributes.get("status", "")
    gpu_status, power = attributes.get("gpu_status", ""), attributes.get("power_state", "")
    try:
        return Node(
            name=NodeName(record.name),
            slots=_count_within(attributes["np"]),
            states=_states(attributes.get("state", NodeState.UNKNOWN.value)),
            properties=_words(attributes.get("properties", "")),
            gpus=_count_within(attributes.get("gpus", "0")),
            jobs=parse_node_jobs(attributes["jobs"]) if attributes.get("jobs", "").strip() else (),
            power_saving="" if power == "Running" else power,
            ntype=attributes.get("ntype", "cluster"),
            note=attributes.get("note", ""),
            status=parse_status(status) if status else None,
            gpu_report=parse_gpu_status(gpu_status) if gpu_status else None,
            extra={name: text for name, text in attributes.items() if name not in _KNOWN},
        )
    except (RecordError, UnitError) as error:
        raise RecordError(f"{record.place}: {error.message}", cure=error.cure) from error


def _count_within(text: str) -> int:
    number = count(text)
    if not 0 <= number <= 1_000_000:
        raise UnitError(f"{text[:40]} is no possible number of slots or GPUs")
    return number


def _words(text: str) -> tuple[str, ...]:
    # Slurm's wrapper separates properties by blanks.
    return tuple(word for word in re.split(r"[,\s]+", text) if word)


def _states(text: str) -> frozenset[NodeState]:
    words = (word.strip() for word in text.split(","))
    return frozenset(_STATES.get(word, NodeState.OTHER) for word in words if word not in _FREE_WORDS)


def parse_status(text: str) -> NodeStatus:
    """What the mom reported. A value that is missing or garbled becomes None; nothing here is required."""
    values = keyed(text, ",", _FREE_TEXTS, _begins)
    return NodeStatus(
        rectime_s=figure(values, "rectime", float),
        ncpus=figure(values, "ncpus", count),
        loadave=figure(values, "loadave", float),
        physmem_bytes=figure(values, "physmem", size_bytes),
        totmem_bytes=figure(values, "totmem", size_bytes),
        availmem_bytes=figure(values, "availmem", size_bytes),
        idletime_s=figure(values, "idletime", float),
        netload_bytes=figure(values, "netload", count),
        nusers=figure(values, "nusers", count),
        nsessions=figure(values, "nsessions", count),
        jobs=tuple(JobId(job) for job in values.get("jobs", "").split()),
        varattr=_map(values.get("varattr", ""), ";"),
        gres=_map(values.get("gres", ""), "+"),
        message=values.get("message", "").strip(),
        state=values.get("state", ""),
        version=values.get("version", ""),
        values=values,
    )


def _begins(key: str, last: str) -> bool:
    return key in _STATUS_KEYS or (last not in _FREE_TEXTS and _STATUS_KEY.fullmatch(key) is not None)


def _map(text: str, separator: str) -> dict[str, str]:
    pairs = (part.partition(":") for part in text.split(separator))
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
