"""The simulated server: which job waits, which runs where, and the frozen snapshots of it.

Whatever did not change since the snapshot before is the same object again: nodes, jobs, and all of the nodes'
tuple. So a snapshot costs what changed and two tuples. Moms report at once: a node's load average and free
memory are those of the jobs on it now.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torque_sched.errors import TorqueSchedError
from torque_sched.model.cluster import (
    GpuSlot,
    HostSlots,
    Job,
    JobId,
    JobSlots,
    Node,
    NodeName,
    UsedResources,
)
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, NodeState, StartProgress
from torque_sched.simulate.site import SimulatedJob, Site

_DOWN = frozenset({NodeState.DOWN})
_UP: frozenset[NodeState] = frozenset()


@dataclass(slots=True)
class _OnNode:
    """What is free on a node, and what each of its jobs has there."""

    index: int
    slots: list[int]
    gpus: list[int]
    parts: dict[JobId, tuple[JobSlots, ...]] = field(default_factory=dict)
    cores: dict[JobId, float] = field(default_factory=dict)
    mem_bytes: dict[JobId, float] = field(default_factory=dict)


class SimulatedCluster:
    """Applies what happens, and shows itself as the server would."""

    def __init__(self, site: Site) -> None:
        self._server, self._queues = replace(site.server, scheduling=True), site.queues
        self._nodes = list(site.nodes)
        self._shown: tuple[Node, ...] | None = None
        self._on = {
            node.name: _OnNode(index, list(range(node.slots)), list(range(node.gpus)))
            for index, node in enumerate(site.nodes)
        }
        self._truth: dict[JobId, SimulatedJob] = {}
        self.waiting: dict[JobId, Job] = {}
        self.running: dict[JobId, Job] = {}

    def snapshot(self, now_s: float) -> Snapshot:
        """The cluster at this moment."""
        if self._shown is None:
            self._shown = tuple(self._nodes)
        jobs = (*self.running.values(), *self.waiting.values())
        return Snapshot(now_s, self._server, self._queues, self._shown, jobs)

    # -- what happens

    def submit(self, job: SimulatedJob) -> None:
        """The job waits from now on."""
        self._truth[job.job.id] = job
        self.waiting[job.job.id] = job.job

    def start(self, job_id: JobId, allocation: Iterable[NodeShare], now_s: float) -> Job:
        """The job runs from now on, on the lowest free slots and GPUs of these nodes.

        Raises:
            TorqueSchedError: it does not wait, or the nodes do not have so much.
        """
        waiting = self.waiting.get(job_id)
        if waiting is None:
            raise TorqueSchedError(f"the policy starts job {job_id} at {now_s}, which does not wait")
        truth = self._truth[job_id]
        shares = tuple(allocation)
        n_slots = sum(share.slots for share in shares)
        if n_slots < waiting.request.n_procs:
            raise TorqueSchedError(
                f"the policy gives job {job_id} {n_slots} of {waiting.request.n_procs} processors"
            )
        cores = 1.0 if truth.cput_s is None else truth.cput_s / truth.run_s / n_slots
        hosts: list[HostSlots] = []
        devices: list[GpuSlot] = []
        for share in shares:
            slots, gpus = self._take(job_id, share)
            hosts += [HostSlots(share.node, first, last) for first, last in slots]
            devices += [GpuSlot(share.node, index) for index in gpus]
            entry = self._on[share.node]
            parts = tuple(JobSlots(job_id, first, last) for first, last in slots)
            entry.parts[job_id] = (*entry.parts.get(job_id, ()), *parts)
            entry.cores[job_id] = entry.cores.get(job_id, 0.0) + cores * share.slots
            if truth.mem_bytes is not None:
                part = truth.mem_bytes * share.slots / n_slots
                entry.mem_bytes[job_id] = entry.mem_bytes.get(job_id, 0.0) + part
        for name in dict.fromkeys(share.node for share in shares):
            self._show(name)
        del self.waiting[job_id]
        job = self.running[job_id] = replace(
            waiting, state=JobState.RUNNING, progress=StartProgress.BEGUN, start_s=now_s,
            start_count=waiting.start_count + 1, allocated_slots=tuple(hosts), allocated_gpus=tuple(devices),
        )  # fmt: skip
        return job

    def end(self, job_id: JobId, now_s: float) -> Job:
        """The job is over and frees its nodes; returns it as it ended."""
        truth, job = self._truth.pop(job_id), self._leave(job_id)
        ran_s = now_s - (job.start_s or 0.0)
        share = ran_s / truth.run_s if truth.run_s else 1.0
        used = UsedResources(
            cput_s=None if truth.cput_s is None else truth.cput_s * share, walltime_s=ran_s,
            mem_bytes=truth.mem_bytes,
        )  # fmt: skip
        return replace(
            job, state=JobState.COMPLETED, comp_s=now_s, exit_status=truth.exit_status, used=used,
            total_runtime_s=ran_s,
        )  # fmt: skip

    def fail(self, name: NodeName) -> tuple[JobId, ...]:
        """The node is down; its jobs wait again, and are returned."""
        entry = self._on[name]
        lost = tuple(entry.parts)
        for job_id in lost:
            self._leave(job_id)
            truth = self._truth[job_id]
            self.waiting[job_id] = truth.job
        node = self._nodes[entry.index]
        self._put(entry.index, replace(node, states=_DOWN))
        return lost

    def repair(self, name: NodeName) -> None:
        """The node is up again."""
        index = self._on[name].index
        self._put(index, replace(self._nodes[index], states=_UP))

    # -- slots and GPUs

    def _take(self, job_id: JobId, share: NodeShare) -> tuple[list[tuple[int, int]], list[int]]:
        entry = self._on.get(share.node)
        if entry is None or len(entry.slots) < share.slots or len(entry.gpus) < share.gpus:
            free = "no such node" if entry is None else f"{len(entry.slots)} slots, {len(entry.gpus)} GPUs"
            raise TorqueSchedError(
                f"job {job_id} is given slots={share.slots} gpus={share.gpus} of {share.node}, free: {free}"
            )
        slots, entry.slots = entry.slots[: share.slots], entry.slots[share.slots :]
        gpus, entry.gpus = entry.gpus[: share.gpus], entry.gpus[share.gpus :]
        return _ranges(slots), gpus

    def _leave(self, job_id: JobId) -> Job:
        job = self.running.pop(job_id)
        for part in job.allocated_slots:
            slots = self._on[part.node].slots
            for index in range(part.first, part.last + 1):
                insort(slots, index)
        for device in job.allocated_gpus:
            insort(self._on[device.node].gpus, device.index)
        for name in dict.fromkeys(part.node for part in job.allocated_slots):
            entry = self._on[name]
            del entry.parts[job_id], entry.cores[job_id]
            entry.mem_bytes.pop(job_id, None)
            self._show(name)
        return job

    def _show(self, name: NodeName) -> None:
        """The node as its jobs make it."""
        entry = self._on[name]
        node = self._nodes[entry.index]
        jobs = tuple(part for parts in entry.parts.values() for part in parts)
        status = node.status
        if status is not None:
            availmem = status.totmem_bytes
            if availmem is not None and entry.mem_bytes:
                availmem = max(0, availmem - int(sum(entry.mem_bytes.values())))
            loadave = sum(entry.cores.values())
            status = replace(status, loadave=loadave, availmem_bytes=availmem)
        self._put(entry.index, replace(node, jobs=jobs, status=status))

    def _put(self, index: int, node: Node) -> None:
        self._nodes[index] = node
        self._shown = None


def _ranges(slots: list[int]) -> list[tuple[int, int]]:
    """Rising numbers as ranges, both ends included.

    >>> _ranges([0, 1, 4])
    [(0, 1), (4, 4)]
    """
    found: list[tuple[int, int]] = []
    for slot in slots:
        if found and found[-1][1] == slot - 1:
            found[-1] = found[-1][0], slot
        else:
            found.append((slot, slot))
    return found
