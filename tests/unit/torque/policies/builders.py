"""Small clusters in one line: jobs, nodes and what a decision about them says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torque_sched.core.decisions import Decision, Hold, Reserve, Start
from torque_sched.core.model import (
    GpuDevice,
    GpuReport,
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
    Server,
    job_number,
)
from torque_sched.core.reasons import Reason
from torque_sched.core.request import Request
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState, NodeState
from torque_sched.parse.request import parse_nodes_spec
from torque_sched.policies.context import Context, KnownPredictions, Prediction
from torque_sched.policies.decide import decide
from torque_sched.policies.load import Load
from torque_sched.policies.settings import Settings

NOW_S = 1_000_000.0
GIB = 1024**3


def job(number: int | str, spec: str = "1", *, queue: str = "batch", **changes: Any) -> Job:
    """A queued job; request fields and job fields alike as keywords."""
    name = f"{number}.head" if isinstance(number, int) else number
    wanted = {key: changes.pop(key) for key in list(changes) if key in Request.__dataclass_fields__}
    if "procs" not in wanted and "tasks" not in wanted:
        wanted["chunks"] = parse_nodes_spec(spec)
    sequence, index = job_number(name)
    values: dict[str, Any] = {
        "user": "ann",
        "group": "staff",
        "qtime_s": NOW_S - 60,
        "state": JobState.QUEUED,
        **changes,
    }
    return Job(
        JobId(name),
        queue=QueueName(queue),
        request=Request(**wanted),
        sequence=sequence,
        array_index=index,
        **values,
    )


def running(number: int, where: str, spec: str = "1", *, since_s: float = 600.0, **changes: Any) -> Job:
    """A running job; ``where`` is like ``n1/0-3+n2/0``, with GPUs as ``n1-gpu/0``."""
    hosts, gpus = [], []
    for part in where.split("+"):
        name, _, slots = part.partition("/")
        first, _, last = slots.partition("-")
        if name.endswith("-gpu"):
            gpus.append(GpuSlot(NodeName(name[:-4]), int(first)))
        else:
            hosts.append(HostSlots(NodeName(name), int(first), int(last or first)))
    changes = {"state": JobState.RUNNING, "start_s": NOW_S - since_s, **changes}
    return job(number, spec, exec_host=tuple(hosts), exec_gpus=tuple(gpus), **changes)


def gpu_devices(n: int, **changes: Any) -> tuple[GpuDevice, ...]:
    """Idle GPUs; ``used={0: {...}}`` changes single ones."""
    used: Mapping[int, Mapping[str, Any]] = changes.pop("used", {})
    plain = {"state": "Unallocated", "mode": "Default", "utilization": 0.0, "memory_total_bytes": 16 * GIB}
    return tuple(GpuDevice(i, **{**plain, "memory_used_bytes": 0, **used.get(i, {})}) for i in range(n))


def node(name: str, np: int = 4, *, gpus: int = 0, mem: int = 64 * GIB, **changes: Any) -> Node:
    """A free node that reported ten seconds ago; status fields as keywords too."""
    status = {"rectime_s": NOW_S - 10, "ncpus": np, "loadave": 0.0, "physmem_bytes": mem}
    status |= {"totmem_bytes": mem, "availmem_bytes": mem}
    reported = set(NodeStatus.__dataclass_fields__) - {"state"}
    status |= {key: changes.pop(key) for key in list(changes) if key in reported}
    devices = changes.pop("devices", None)
    words = changes.pop("state", "")
    states = frozenset(NodeState(word) for word in words.split(",") if word)
    report = GpuReport(devices) if devices is not None else None
    return Node(
        NodeName(name), np, states, gpus=gpus, status=NodeStatus(**status), gpu_report=report, **changes
    )


def queue(name: str = "batch", **changes: Any) -> Queue:
    return Queue(name=QueueName(name), **changes)


@dataclass(frozen=True)
class Answers:
    """Decisions by the number of the job."""

    decisions: tuple[Decision, ...]

    def __getitem__(self, number: int | str) -> Decision:
        name = f"{number}.head" if isinstance(number, int) else number
        return next(decision for decision in self.decisions if decision.job == name)

    def hosts(self, number: int | str) -> str:
        """Where it starts."""
        decision = self[number]
        assert isinstance(decision, Start), decision
        return decision.hosts

    def reason(self, number: int | str) -> Reason:
        """Why it waits."""
        decision = self[number]
        assert isinstance(decision, Hold), decision
        return decision.reason

    def reserved(self, number: int) -> Reserve:
        decision = self[number]
        assert isinstance(decision, Reserve), decision
        return decision

    @property
    def started(self) -> list[int]:
        return [int(d.job.partition(".")[0]) for d in self.decisions if isinstance(d, Start)]


def snapshot(
    nodes: Iterable[Node], jobs: Iterable[Job], *, queues: Iterable[Queue] = (), server: Server | None = None
) -> Snapshot:
    """A snapshot whose nodes list the running jobs' slots, as pbsnodes would."""
    jobs = tuple(jobs)
    listed: dict[str, list[JobSlots]] = {}
    for one in jobs:
        if one.state in {JobState.RUNNING, JobState.EXITING}:
            for part in one.exec_host:
                listed.setdefault(part.node, []).append(JobSlots(one.id, part.first, part.last))
    filled = tuple(replace(n, jobs=(*n.jobs, *listed.get(n.name, ()))) for n in nodes)
    return Snapshot(NOW_S, server or Server(name="head"), tuple(queues) or (queue(),), filled, jobs)


def answers(
    nodes: Iterable[Node],
    jobs: Iterable[Job],
    settings: Settings | None = None,
    context: Context | None = None,
    **changes: Any,
) -> Answers:
    """Decide about a small cluster; every queued job must get exactly one answer."""
    shot = snapshot(nodes, jobs, **changes)
    decisions = decide(shot, settings or Settings(), context or Context())
    assert sorted(decision.job for decision in decisions) == sorted(one.id for one in shot.queued)
    return Answers(decisions)


def predicting(**loads: Load) -> Context:
    """A context with predictions: ``j7=Load(...)`` for job 7."""
    known = {JobId(f"{name[1:]}.head"): Prediction(load) for name, load in loads.items()}
    return Context(predictions=KnownPredictions(known))
