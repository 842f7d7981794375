"""A site to simulate: its nodes, queues and limits, the jobs that come, and the nodes that fail.

The jobs are those of a log in the Standard Workload Format (`site_of_log`), or of a server's own accounting
(`simulate.site_files`). Times are seconds since the epoch, as everywhere in `model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torque_sched.errors import ConfigError
from torque_sched.model.cluster import Job, JobId, Node, NodeName, NodeStatus, Queue, QueueName, Server
from torque_sched.model.request import Chunk, Request
from torque_sched.model.states import JobState
from torque_sched.simulate.swf import SwfTrace
from torque_sched.simulate.workload import TraceJob, Workload

_NO_ZERO_S = 1_000_000_000.0
"""When a log begins that does not say: a job submitted at 0 would be one without a time of submission."""
_STEPS = 1024
"""Parts of a second to which a log's fractions are rounded: sums with seconds since the epoch stay exact."""
_MOST_S = 1e12
"""Times above have no fractions worth keeping."""
_MOST_NODES = 1_000_000
_REPORTED_S = 1.0
"""When each mom reported: the same for all, so that none is older than another, and not 0, which is never."""


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job with what is true of it and no scheduler knows before.

    Attributes:
        job: as the server shows it while it waits.
        number: in the log, for the results.
        run_s: how long it runs on its nodes; its walltime ends it sooner.
        cput_s: CPU seconds it uses in that time, of all processors; None: unknown.
        mem_bytes: most memory it uses, of all nodes; None: unknown.
        exit_status: with which it ends.
        runs_on: nothing ends it at its walltime.
    """

    job: Job
    number: int
    run_s: float
    cput_s: float | None = None
    mem_bytes: int | None = None
    exit_status: int = 0
    runs_on: bool = False

    @property
    def submit_s(self) -> float:
        """When the server first shows it as waiting."""
        return self.job.queued_s

    @property
    def length_s(self) -> float:
        """From its start to its end: mom ends a job that is past its walltime."""
        walltime_s = self.job.walltime_s
        return self.run_s if self.runs_on or walltime_s is None else min(self.run_s, walltime_s)


@dataclass(frozen=True, slots=True)
class Outage:
    """A node that is down from ``start_s`` to ``end_s``; the jobs on it are lost and wait again."""

    node: NodeName
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Site:
    """All that a simulation begins with.

    Attributes:
        name: of the log, for the results.
        nodes: free and up, in the server's order.
        jobs: in order of arrival.
        workload: the same jobs as plain numbers, for figures and pictures; ``jobs[i]`` is its job ``i``.
        zero_s: its times count from here.
        notes: what was assumed, a sentence each.
        problems: records that were left out, each named once.
    """

    name: str
    server: Server
    queues: tuple[Queue, ...]
    nodes: tuple[Node, ...]
    jobs: tuple[SimulatedJob, ...]
    workload: Workload
    zero_s: float = 0.0
    outages: tuple[Outage, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def equal_nodes(n_slots: int, slots_per_node: int, mem_bytes: int | None = None) -> tuple[Node, ...]:
    """Nodes that together have so many slots; the last one has what is left.

    Raises:
        ConfigError: they are more than a simulation takes.

    >>> [node.slots for node in equal_nodes(10, 4)]
    [4, 4, 2]
    """
    if n_slots > _MOST_NODES * slots_per_node:
        raise ConfigError(
            f"{n_slots:,} processors on nodes of {slots_per_node} are more than {_MOST_NODES:,} nodes",
            cure="give --procs, --slots-per-node, or --counts",
        )
    sizes = [slots_per_node] * (n_slots // slots_per_node)
    if n_slots % slots_per_node:
        sizes.append(n_slots % slots_per_node)
    width = len(str(len(sizes)))
    return tuple(
        with_status(Node(NodeName(f"n{i:0{width}}"), slots), mem_bytes) for i, slots in enumerate(sizes, 1)
    )


def with_status(node: Node, mem_bytes: int | None = None) -> Node:
    """The node as it is when it is idle and up, with a report of its mom.

    Args:
        node: its slots, GPUs and properties; what ran on it is forgotten.
        mem_bytes: its memory; None: what its mom reported, else unlimited.
    """
    was = node.status
    physmem = mem_bytes or (was.physmem_bytes if was is not None else None)
    totmem = mem_bytes or (was.totmem_bytes if was is not None else None) or physmem
    status = NodeStatus(
        rectime_s=_REPORTED_S, ncpus=(was.ncpus if was is not None else None) or node.slots or None,
        loadave=0.0, physmem_bytes=physmem, totmem_bytes=totmem, availmem_bytes=totmem,
        gres=was.gres if was is not None else {},
    )  # fmt: skip
    return replace(
        node, states=frozenset(), power_saving="", jobs=(), status=status, gpu_report=None, note="", extra={}
    )


def site_of_log(name: str, trace: SwfTrace, workload: Workload, nodes: Sequence[Node]) -> Site:
    """The site of a log: each job asks for its processors, on nodes of its own where nodes have one slot.

    Times with fractions are rounded to 1/1024 s.

    Raises:
        ConfigError: the nodes have fewer slots than the widest job needs.
    """
    n_slots = sum(node.slots for node in nodes)
    widest = max((job.procs for job in workload.jobs), default=0)
    if widest > n_slots:
        raise ConfigError(
            f"a job of {widest} processors, and the nodes have {n_slots}", cure=f"give --procs {n_slots}"
        )
    zero_s = _zero_s(trace.header)
    of_log = {(job.number, job.submit_s): job for job in trace.jobs}
    used = [of_log[job.number, job.submit_s] for job in workload.jobs]
    workload = replace(workload, jobs=tuple(map(_in_steps, workload.jobs)))
    are_single = all(node.slots == 1 for node in nodes)
    jobs = []
    for place, (each, line) in enumerate(zip(workload.jobs, used, strict=True)):
        cput_s = line.cpu_s * each.procs if line.cpu_s > 0 else None
        mem_bytes = int(line.memory_kb * 1024 * each.procs) if line.memory_kb > 0 else None
        job = _job_of_log(place, each, zero_s, are_single)
        runs_on = each.run_s > each.limit_s
        jobs.append(SimulatedJob(job, each.number, each.run_s, cput_s, mem_bytes, runs_on=runs_on))
    names = dict.fromkeys(job.job.queue for job in jobs)
    queues = tuple(Queue(name=queue) for queue in names)
    whole = replace(workload, procs=n_slots)
    return Site(name, Server(name="log"), queues, tuple(nodes), tuple(jobs), whole, zero_s)


def _zero_s(header: Mapping[str, str]) -> float:
    text = header.get("UnixStartTime", "").split(";")[0].strip()
    return float(text) if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 40 else _NO_ZERO_S


def _in_steps(job: TraceJob) -> TraceJob:
    """The job with whole steps of time, at least one to run."""
    times = job.submit_s, job.run_s, job.limit_s
    if all(isinstance(each, int) for each in times) or max(times) > _MOST_S:
        return job
    submit_s, run_s, limit_s = (
        max(least, round(each * _STEPS)) / _STEPS for least, each in zip((0, 1, 1), times, strict=True)
    )
    return job._replace(submit_s=submit_s, run_s=run_s, limit_s=limit_s)


def _job_of_log(place: int, job: TraceJob, zero_s: float, are_single: bool) -> Job:
    limit_s = float(job.limit_s)
    request = (
        Request(chunks=(Chunk(job.procs),), walltime_s=limit_s)
        if are_single
        else Request(procs=job.procs, walltime_s=limit_s)
    )
    at_s = zero_s + job.submit_s
    return Job(
        JobId(f"{place + 1}.log"), JobState.QUEUED, QueueName(_name("q", job.queue)), request,
        name=_name("program", job.executable), owner=f"{_name('u', job.user)}@log",
        user=_name("u", job.user), group=_name("g", job.group), sequence=place + 1,
        ctime_s=at_s, qtime_s=at_s, etime_s=at_s,
    )  # fmt: skip


def _name(kind: str, number: int) -> str:
    return f"{kind}{number}" if number >= 0 else f"{kind}-unknown"
