"""Vnodes, queues, the server and resources of an OpenPBS, and the nodes made of its vnodes.

A node of the model is a host. What its vnodes have is added up, as a chunk may lie on several vnodes of a
host, but never on two hosts. Of vnodes that take no jobs only what is in use there counts. Which vnodes a
started job gets is found at the order (`openpbs.placing`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torque_sched.batch.openpbs.parse.select import (
    Kinds,
    amount_of,
    is_amount,
    property_of,
)
from torque_sched.batch.openpbs.parse.text import Block, read_blocks
from torque_sched.batch.torque.parse.qstat import one_server, queue_from_record, server_from_record
from torque_sched.batch.torque.parse.records import Parsed, Record, as_record_error, listed_once
from torque_sched.errors import RecordError, TorqueSchedError
from torque_sched.model.cluster import (
    GpuSlot,
    HostSlots,
    Job,
    JobId,
    JobSlots,
    Node,
    NodeName,
    NodeStatus,
    Queue,
    QueueName,
    RunLimit,
    Server,
    SiteResource,
)
from torque_sched.model.parts import NodePart, Sharing
from torque_sched.model.states import JobState, NodeState
from torque_sched.model.units import count

_AVAILABLE, _ASSIGNED = "resources_available.", "resources_assigned."
_STATES = {
    "down": NodeState.DOWN, "stale": NodeState.DOWN, "unresolvable": NodeState.DOWN,
    "offline": NodeState.OFFLINE, "offline_by_mom": NodeState.OFFLINE, "maintenance": NodeState.OFFLINE,
    "busy": NodeState.BUSY, "job-exclusive": NodeState.JOB_EXCLUSIVE, "resv-exclusive": NodeState.RESERVE,
    "state-unknown": NodeState.UNKNOWN,
}  # fmt: skip
_FREE = frozenset({"", "free", "job-busy", "job-sharing"})
"""``job-busy``: all processors are assigned, which the amounts say."""
_CLOSED = frozenset(
    {NodeState.DOWN, NodeState.OFFLINE, NodeState.UNKNOWN, NodeState.RESERVE, NodeState.OTHER}
)
_NOT_COUNTED = frozenset({"arch", "host", "vnode", "aoe", "eoe", "Qlist", "software"})
_NO_PROPERTIES = frozenset({"torque_sched_sample"})
"""What a hook of ours shows there (`openpbs.loads`)."""
_SHARINGS = {each.value: each for each in Sharing}
_OWN_COUNTS = frozenset({"ncpus", "mem", "ngpus"})
_NOBODY = JobId("nobody")
_SET_RESOURCE = re.compile(r"set resource (\S+) (type|flag) = (\S+)")
_LIMIT = re.compile(r"([ougp]):([^=\s\]]+)\s*=\s*([^\s,\]]+)")
_LIMIT_KINDS = {"u": "user", "g": "group", "p": "project", "o": ""}
_LIMITS = re.compile(r"max_run(?:_res\.([\w.\-]+))?", re.ASCII)
_OLD_LIMITS = {"max_user_res.": "user", "max_group_res.": "group"}
_DEFAULT_PARTITION = "pbs-default"


@dataclass(frozen=True, slots=True)
class Vnode:
    """One vnode as the server shows it.

    Attributes:
        available, assigned: consumable amounts by resource.
        properties: ``name=value`` of all other resources.
        jobs: processors in use, by job.
        reservations: ids of those that keep it.
        only_for: as `Node` has it.
        kept: amounts for reservations that run now.
    """

    name: str
    host: str
    states: frozenset[NodeState]
    available: Mapping[str, int]
    assigned: Mapping[str, int]
    properties: tuple[str, ...] = ()
    jobs: Mapping[str, int] = field(default_factory=dict)
    sharing: Sharing = Sharing.DEFAULT_SHARED
    n_cpus: int | None = None
    comment: str = ""
    partition: str = ""
    queue: str = ""
    reservations: tuple[str, ...] = ()
    only_for: str = ""
    kept: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether a job may be ordered here, amounts permitting."""
        return not (self.states & _CLOSED) and not self.queue

    def free(self, name: str) -> int:
        """What is left of a resource."""
        return self.available.get(name, 0) - self.assigned.get(name, 0) - self.kept.get(name, 0)

    @property
    def is_taken_alone(self) -> bool:
        """Whether a job has it alone."""
        is_busy = bool(self.jobs) or self.assigned.get("ncpus", 0) > 0
        is_forced = self.sharing in {Sharing.FORCE_EXCL, Sharing.FORCE_EXCLHOST}
        return NodeState.JOB_EXCLUSIVE in self.states or (is_forced and is_busy)

    def as_part(self) -> NodePart:
        """It as a part of its host."""
        return NodePart(
            self.name, dict(self.available), {name: self.free(name) for name in self.available},
            frozenset(self.properties), self.sharing, tuple(self.jobs), self.is_taken_alone,
        )  # fmt: skip


def parse_definitions(text: str) -> Kinds | None:
    """Which resources the site counts, by ``qmgr -c 'print server'``; None: it says nothing of resources."""
    types: dict[str, dict[str, str]] = {}
    for name, what, value in _SET_RESOURCE.findall(text):
        types.setdefault(name, {})[what] = value
    if not types:
        return None
    counted = {
        name for name, each in types.items()
        if each.get("type") in {"long", "size", "float"} and {"n", "f"} & set(each.get("flag", ""))
    }  # fmt: skip
    booleans = {name for name, each in types.items() if each.get("type") == "boolean"}
    return Kinds(frozenset(counted - _OWN_COUNTS), frozenset(booleans))


def kinds_of(blocks: Sequence[Block], defined: Kinds | None) -> Kinds:
    """The kinds of resources that vnodes have: by their definitions, else by what the values look like."""
    values: dict[str, set[str]] = {}
    assigned: set[str] = set()
    for block in blocks:
        try:
            for name, text in block.pairs():
                if name.startswith(_AVAILABLE):
                    values.setdefault(name.removeprefix(_AVAILABLE), set()).add(text)
                elif name.startswith(_ASSIGNED):
                    assigned.add(name.removeprefix(_ASSIGNED))
        except RecordError:
            continue
    if defined is not None:
        return Kinds(defined.counted | (assigned - _OWN_COUNTS), defined.booleans)
    counted = {
        name for name, texts in values.items()
        if name not in _NOT_COUNTED and all(is_amount(text) for text in texts)
    }  # fmt: skip
    booleans = {name for name, texts in values.items() if texts <= {"True", "False"}}
    return Kinds(frozenset((counted | assigned) - _OWN_COUNTS), frozenset(booleans))


def parse_vnodes(blocks: Sequence[Block], kinds: Kinds) -> Parsed[Vnode]:
    """The vnodes of ``pbsnodes -av``."""
    vnodes: list[Vnode] = []
    problems: list[RecordError] = []
    for block in blocks:
        try:
            vnodes.append(_vnode(block, kinds))
        except TorqueSchedError as error:
            problems.append(as_record_error(error, block.place))
    return listed_once(vnodes, problems, "pbsnodes")


def _vnode(block: Block, kinds: Kinds) -> Vnode:
    given = block.attributes()
    if "state" not in given:
        raise RecordError(f"{block.place}: no state")
    words = (word.strip() for word in given["state"].split(","))
    counted = kinds.counted | _OWN_COUNTS
    amounts: dict[str, dict[str, int]] = {_AVAILABLE: {}, _ASSIGNED: {}}
    properties: list[str] = []
    for name, text in given.items():
        for family, into in amounts.items():
            resource = name.removeprefix(family)
            if resource == name:
                continue
            if resource in counted:
                # Of a half nothing is there for a job that asks for one.
                into[resource] = amount_of(text, rounds_up=family == _ASSIGNED)
            elif family == _AVAILABLE and resource not in _NO_PROPERTIES:
                values = [text] if resource in kinds.booleans else text.split(",")
                properties += [property_of(resource, value.strip(), kinds) for value in values]
    set_there = {each.partition("=")[0] for each in properties}
    properties += [f"{name}=False" for name in sorted(kinds.booleans - set_there)]
    host = given.get(f"{_AVAILABLE}host", "") or given.get("Mom", block.name).partition(".")[0]
    reservations = tuple(each.strip() for each in given.get("resv", "").split(",") if each.strip())
    return Vnode(
        name=block.name, host=host,
        states=frozenset(
            _STATES.get(word.lower(), NodeState.OTHER) for word in words if word.lower() not in _FREE
        ),
        available=amounts[_AVAILABLE], assigned=amounts[_ASSIGNED], properties=tuple(properties),
        jobs=_jobs_of(given.get("jobs", "")),
        sharing=_SHARINGS.get(given.get("sharing", ""), Sharing.DEFAULT_SHARED),
        n_cpus=count(given["pcpus"]) if "pcpus" in given else None, comment=given.get("comment", ""),
        partition=given.get("partition", ""), queue=given.get("queue", ""), reservations=reservations,
    )  # fmt: skip


def _jobs_of(text: str) -> dict[str, int]:
    """``12.head/0, 12.head/1``: one entry for each processor in use."""
    jobs: dict[str, int] = {}
    for entry in text.split(","):
        job = entry.strip().partition("/")[0]
        if job:
            jobs[job] = jobs.get(job, 0) + 1
    return jobs


# -- hosts


def by_host(vnodes: Iterable[Vnode]) -> dict[str, list[Vnode]]:
    """Vnodes by the node of the model that they are of.

    The node has the name of its only vnode, or of the one that is called like the host.
    """
    hosts: dict[str, list[Vnode]] = {}
    for vnode in vnodes:
        hosts.setdefault(vnode.host, []).append(vnode)
    named: dict[str, list[Vnode]] = {}
    for host, members in hosts.items():
        named[members[0].name if len(members) == 1 else host] = members
    return named


def node_of(name: str, vnodes: Sequence[Vnode]) -> Node:
    """A host by its vnodes. One that is down as a whole is as large as ever: its jobs wait for it."""
    usable = [each for each in vnodes if each.is_open] or [each for each in vnodes if not each.queue]
    counted = {vnode.name for vnode in usable}
    slots, jobs = 0, dict[str, int]()
    for vnode in vnodes:
        has, used = vnode.available.get("ncpus", 0), vnode.assigned.get("ncpus", 0)
        here = dict(vnode.jobs)
        rest = used - sum(here.values())
        if vnode.is_taken_alone and vnode.is_open:
            rest = max(rest, has - sum(here.values()))
        if rest > 0:
            # Nobody knows whose it is, or the job has the vnode alone.
            owner = next(reversed(here), _NOBODY)
            here[owner] = here.get(owner, 0) + rest
        slots += has if vnode.name in counted else sum(here.values())
        for job, n in here.items():
            jobs[job] = jobs.get(job, 0) + n
    has_memory = [vnode for vnode in usable if "mem" in vnode.available]
    closed: Sequence[Vnode] = usable or vnodes
    alone = all(vnode.is_taken_alone for vnode in usable if vnode.available.get("ncpus", 0))
    states = frozenset(state for vnode in closed for state in vnode.states) - {NodeState.JOB_EXCLUSIVE}
    names = {resource for vnode in usable for resource in vnode.available} - _OWN_COUNTS
    notes = (vnode.comment for vnode in vnodes if vnode.comment)
    return Node(
        name=NodeName(name), slots=slots,
        states=states | {NodeState.JOB_EXCLUSIVE} if usable and alone else states,
        properties=tuple(dict.fromkeys(word for vnode in (usable or vnodes) for word in vnode.properties)),
        gpus=sum((v.available if v.name in counted else v.assigned).get("ngpus", 0) for v in vnodes),
        jobs=tuple(JobSlots(JobId(job), 0, n - 1) for job, n in jobs.items()),
        sharing=_sharing_of(usable),
        only_for=vnodes[0].only_for,
        parts=tuple(vnode.as_part() for vnode in usable) if len(vnodes) > 1 else (),
        # What of a reservation's memory its jobs hold the server does not say.
        mem_assigned_bytes=(
            None if vnodes[0].only_for else sum(vnode.assigned.get("mem", 0) for vnode in usable)
        ),
        others={
            resource: SiteResource(
                sum(vnode.available.get(resource, 0) for vnode in usable),
                sum(vnode.assigned.get(resource, 0) for vnode in usable),
            )
            for resource in sorted(names)
        },
        ntype="PBS", note=next(notes, ""),
        status=NodeStatus(
            ncpus=next((vnode.n_cpus for vnode in vnodes if vnode.n_cpus), None),
            physmem_bytes=sum(v.available["mem"] for v in has_memory) if has_memory else None,
        ),
    )  # fmt: skip


def _sharing_of(vnodes: Sequence[Vnode]) -> Sharing:
    """How a host is shared: that of its only vnode; of several, only what is said of the whole host."""
    found = {vnode.sharing for vnode in vnodes}
    if len(found) == len(vnodes) == 1:
        return found.pop()
    of_hosts = (Sharing.FORCE_EXCLHOST, Sharing.DEFAULT_EXCLHOST)
    return next((each for each in of_hosts if each in found), Sharing.DEFAULT_SHARED)


def idle_nodes(data: bytes | str, command: str) -> Parsed[Node]:
    """The hosts of ``pbsnodes -av`` as they are when all are up and nothing runs there.

    Raises:
        DocumentError: the output is unusable as a whole.
    """
    blocks = read_blocks(data, "Vnode", command)
    read = parse_vnodes(blocks, kinds_of(blocks, None))
    idle = [replace(each, states=frozenset(), assigned={}, jobs={}) for each in read.items]
    nodes = (node_of(name, members) for name, members in by_host(idle).items())
    # What a started job will hold is then counted by what it asked for.
    return Parsed(tuple(replace(node, mem_assigned_bytes=None) for node in nodes), read.problems)


def settled(
    jobs: Iterable[Job],
    hosts: Mapping[str, Sequence[Vnode]],
    memo: dict[JobId, tuple[Job, Job]],
    reserved: Mapping[tuple[QueueName, str], str],
) -> tuple[Job, ...]:
    """The jobs with what they hold by hosts, with GPUs numbered, and array members with their array's limit.

    Args:
        jobs: as read.
        hosts: of `by_host`.
        memo: what was read and what was made of it in the look before, so that what did not change is the
            same object; it is replaced by this look's.
        reserved: by queue and vnode, the node that a reservation of this queue has there.
    """
    jobs = tuple(jobs)
    host_of = {vnode.name: host for host, members in hosts.items() for vnode in members}
    limits = {job.sequence: job.array_slot_limit for job in jobs if job.is_array_parent}

    def node_name(job: Job, vnode: str) -> NodeName:
        return NodeName(reserved.get((job.queue, vnode)) or host_of.get(vnode, vnode))

    next_gpu: dict[NodeName, int] = {}
    now: dict[JobId, tuple[Job, Job]] = {}
    for job in jobs:
        slots: dict[NodeName, int] = {}
        for part in job.allocated_slots:
            name = node_name(job, part.node)
            slots[name] = slots.get(name, 0) + part.n_slots
        gpus: list[GpuSlot] = []
        # A suspended job gave its GPUs back.
        for slot in job.allocated_gpus if job.state is not JobState.SUSPENDED else ():
            name = node_name(job, slot.node)
            gpus.append(GpuSlot(name, next_gpu.get(name, 0)))
            if not job.state.is_final:
                next_gpu[name] = next_gpu.get(name, 0) + 1
        limit = job.array_slot_limit if job.is_array_parent else limits.get(job.sequence)
        changed = replace(
            job, allocated_slots=tuple(HostSlots(name, 0, n - 1) for name, n in slots.items()),
            allocated_gpus=tuple(gpus), array_slot_limit=limit if job.array is not None else None,
        )  # fmt: skip
        before = memo.get(job.id)
        if before is not None and before[0] is job and before[1] == changed:
            changed = before[1]
        now[job.id] = (job, changed)
    memo.clear()
    memo.update(now)
    return tuple(made for _, made in now.values())


# -- queues, server


def parse_queues(data: bytes | str, partition: str = "") -> Parsed[Queue]:
    """The queues of ``qstat -Q -f -w``; those of another scheduler's partition count as not started.

    Raises:
        DocumentError: the output is unusable as a whole.
    """
    queues: list[Queue] = []
    problems: list[RecordError] = []
    for block in read_blocks(data, "Queue", "qstat -Q"):
        try:
            queue = queue_from_record(Record("Queue", block.name, block.attributes()))
            limits = run_limits(block.place, block.pairs())
            owned = is_ours(queue.extra.get("partition", ""), partition)
            queues.append(replace(queue, run_limits=limits, is_started=queue.is_started and owned))
        except TorqueSchedError as error:
            problems.append(as_record_error(error, block.place))
    return listed_once(queues, problems, "qstat -Q")


def parse_server(data: bytes | str) -> Server:
    """The server of ``qstat -B -f -w``.

    Raises:
        DocumentError: the output is unusable, or its one record is damaged.
    """
    servers: list[Server] = []
    problems: list[RecordError] = []
    for block in read_blocks(data, "Server", "qstat -B"):
        try:
            server = server_from_record(Record("Server", block.name, block.attributes()))
            # Arrays' limits are the scheduler's to keep.
            servers.append(
                replace(
                    server, run_limits=run_limits(block.place, block.pairs()), holds_beyond_array_limits=False
                )
            )
        except TorqueSchedError as error:
            problems.append(as_record_error(error, block.place))
    return one_server(Parsed(tuple(servers), tuple(problems)), "qstat -B")


def is_ours(partition: str, ours: str) -> bool:
    """Whether a queue or vnode of a partition is for this scheduler."""
    return partition in {ours, _DEFAULT_PARTITION} if not ours else partition == ours


def run_limits(place: str, pairs: Iterable[tuple[str, str]]) -> tuple[RunLimit, ...]:
    """``max_run`` and ``max_run_res``, an entry or several in a value, and what they were called before.

    Args:
        place: for errors.
        pairs: attributes of a queue or a server; ``max_run`` may be there several times.

    Raises:
        RecordError: an entry is garbled; a queue with an unknown limit must not be used.
    """
    limits: list[RunLimit] = []
    for name, text in pairs:
        old = next((kind for prefix, kind in _OLD_LIMITS.items() if name.startswith(prefix)), None)
        if old is not None:
            limits.append(RunLimit(old, "", amount_of(text), name.partition(".")[2]))
        found = _LIMITS.fullmatch(name)
        if found is None:
            continue
        entries = _LIMIT.findall(text)
        if not entries:
            raise RecordError(f"{place}: {name}={text[:60]!r} is not understood", cure="look at it with qmgr")
        for letter, holder, most in entries:
            who = "" if holder in {"PBS_GENERIC", "PBS_ALL"} else holder
            limits.append(RunLimit(_LIMIT_KINDS[letter], who, amount_of(most), found.group(1) or ""))
    return tuple(limits)
