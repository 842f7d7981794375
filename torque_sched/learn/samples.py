"""Loads of nodes: as reported, with starts and ends that no report shows yet, and how even they are.

`reading_of` takes the sampler's figures of a node and its jobs, else the node's own. `placed_of` adds jobs
that started since, `without_ended` takes away jobs that ended since. `balance_of` makes the row of a moment.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torque_sched.decide.context import Load, Measured, PendingStart, PlacedLoad, measured_by_node
from torque_sched.learn.figures import Amounts, share
from torque_sched.learn.predictions import LearnedPredictions
from torque_sched.learn.rows import BalanceRow, Use
from torque_sched.model.cluster import Job, Node, NodeName
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState
from torque_sched.sampler.form import JobSample, NodeSample, sample_from_varattr

_OLD_S = 120.0
"""A sample so much older than the report it came in was left by a sampler that is gone."""
_SETTLED_S = 10.0
"""A sample taken sooner after a job's start than this covers time before the job."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One node's newest figures."""

    measured: Measured
    jobs: Mapping[str, JobSample]
    is_sampled: bool
    """By the shipped sampler; else these are the node's own one-minute load average and memory."""

    def contains(self, job: Job, lag_s: float) -> bool:
        """Whether the job's load is in these figures.

        A load average takes ``lag_s`` to show a job; the sampler names those it has seen.
        """
        if job.start_s is None:
            return False
        wait_s = min(lag_s, _SETTLED_S) if job.id in self.jobs else lag_s
        return job.start_s + wait_s <= self.measured.sample_s


def reading_of(node: Node) -> Reading | None:
    """The newest figures of a node; None before its first report.

    A node of OpenPBS reports nothing itself: there the sampler's own time counts.
    """
    by_node = measured_by_node(node)
    sample = sample_from_varattr(node.status.varattr) if node.status and node.status.varattr else None
    if by_node is None:
        if sample is None:
            return None
        by_node = Measured(Load(), sample.at_s)
    if sample is None or by_node.sample_s - sample.at_s > _OLD_S:
        return Reading(by_node, {}, False)
    gpus, gpu_mem = by_node.load.gpus, by_node.load.gpu_mem_bytes
    if sample.gpus:
        gpus, gpu_mem = sum(gpu.busy for gpu in sample.gpus), sum(gpu.mem_bytes for gpu in sample.gpus)
    # A node whose clock is ahead cannot have measured after the server heard of it.
    at_s = min(sample.at_s, by_node.sample_s)
    load = Load(sample.cpu_cores, sample.mem_bytes, gpus, gpu_mem)
    return Reading(Measured(load, at_s), _by_job(sample), True)


def _by_job(sample: NodeSample) -> dict[str, JobSample]:
    return {job.job: job for job in sample.jobs}


def job_use(job: Job, node: Node, reading: Reading, before: Use) -> Use | None:
    """What a job's samples on a node are with this reading; None when it says nothing new of the job."""
    at_s = reading.measured.sample_s
    if at_s <= before.last_s or (job.start_s is not None and at_s < job.start_s + _SETTLED_S):
        return None
    sampled = reading.jobs.get(job.id)
    gpus = _gpus_by_node(job, node)
    if sampled is None and gpus is None:
        return None
    if sampled is None:
        assert gpus is not None
        return add_use(before, at_s, JobSample(job.id, 0.0, 0.0, *gpus), cpu=False, gpu=True)
    if not sampled.gpus and not sampled.gpu_mem_bytes and gpus is not None:
        sampled = JobSample(job.id, sampled.cpu_cores, sampled.mem_bytes, *gpus)
    return add_use(before, at_s, sampled, cpu=True, gpu=bool(job.allocated_gpus))


def _gpus_by_node(job: Job, node: Node) -> tuple[float, float] | None:
    """Busy GPUs and their memory, from the node's report and the GPUs this job holds here."""
    if node.gpu_report is None or not job.allocated_gpus:
        return None
    held = {slot.index for slot in job.allocated_gpus if slot.node == node.name}
    devices = [device for device in node.gpu_report.devices if device.index in held]
    if not devices or any(device.utilization is None for device in devices):
        return None
    return sum(device.utilization or 0.0 for device in devices), float(
        sum(device.memory_used_bytes or 0 for device in devices)
    )


def add_use(before: Use, at_s: float, sample: JobSample, *, cpu: bool, gpu: bool) -> Use:
    """The samples so far with one more."""
    return Use(
        before.n + 1, at_s, before.cpu_cores + sample.cpu_cores, max(before.mem_bytes, sample.mem_bytes),
        before.gpus + sample.gpus, max(before.gpu_mem_bytes, sample.gpu_mem_bytes), before.knows_cpu or cpu,
        before.knows_gpu or gpu,
    )  # fmt: skip


def amounts_from(uses: Mapping[NodeName, Use], nodes: Iterable[NodeName]) -> Amounts | None:
    """Mean amounts of a whole job; None unless each of its nodes was sampled, for a part is too little."""
    parts = [uses.get(node) for node in nodes]
    known = [part for part in parts if part is not None and part.n]
    if not known or len(known) < len(parts):
        return None
    knows_cpu = all(part.knows_cpu for part in known)
    # Nodes of a job may well hold no GPU of it.
    knows_gpu = any(part.knows_gpu for part in known)
    return Amounts(
        cpu_cores=sum(part.cpu_cores / part.n for part in known) if knows_cpu else None,
        mem_bytes=sum(part.mem_bytes for part in known) or None if knows_cpu else None,
        gpus=sum(part.gpus / part.n for part in known) if knows_gpu else None,
        gpu_mem_bytes=sum(part.gpu_mem_bytes for part in known) or None if knows_gpu else None,
    )


_IDLE = 0.01


def balance_of(snapshot: Snapshot, readings: Mapping[NodeName, Reading]) -> BalanceRow | None:
    """The row of a snapshot; None when no node that is up reports."""
    up = [(node, reading) for node in snapshot.nodes if node.is_up and (reading := readings.get(node.name))]
    if not up:
        return None
    cpu = [share(reading.measured.load.cpu_cores, _cores(node)) for node, reading in up]
    mem = [share(reading.measured.load.mem_bytes, node.mem_bytes) for node, reading in up]
    queued = snapshot.queued
    waits = [max(0.0, snapshot.now_s - job.queued_s) for job in queued if job.queued_s]
    return BalanceRow(
        at_s=snapshot.now_s,
        n_nodes=len(up),
        n_running=len(snapshot.running),
        n_queued=len(queued),
        cpu_mean=statistics.fmean(cpu),
        cpu_stdev=statistics.pstdev(cpu),
        cpu_range=max(cpu) - min(cpu),
        mem_mean=statistics.fmean(mem),
        mem_stdev=statistics.pstdev(mem),
        gpus=sum(node.gpus for node in snapshot.nodes),
        gpus_reserved=sum(len(job.allocated_gpus) for job in snapshot.running),
        gpus_unused=len(unused_gpus(snapshot)),
        gpu_jobs_waiting=sum(1 for job in queued if job.request.n_gpus),
        wait_mean_s=statistics.fmean(waits) if waits else 0.0,
    )


def _cores(node: Node) -> int:
    return (node.status.ncpus if node.status is not None else None) or node.slots


def unused_gpus(snapshot: Snapshot) -> tuple[tuple[str, NodeName, int], ...]:
    """GPUs a job holds and does not use now, as (job, node, index); silent ones are not here."""
    idle = {
        (node.name, device.index)
        for node in snapshot.nodes
        if node.gpu_report is not None
        for device in node.gpu_report.devices
        if device.utilization is not None and device.utilization < _IDLE
    }
    return tuple(
        (job.id, slot.node, slot.index)
        for job in snapshot.running
        for slot in job.allocated_gpus
        if (slot.node, slot.index) in idle
    )


def placed_of(
    snapshot: Snapshot,
    readings: Mapping[NodeName, Reading],
    predictions: LearnedPredictions,
    pending: tuple[PendingStart, ...],
    lag_s: float,
) -> tuple[PlacedLoad, ...]:
    """Predicted loads of jobs that started too lately for their nodes' samples to contain them.

    They follow from the snapshot, so a scheduler started anew knows them too.
    """
    placed: list[PlacedLoad] = []
    for job in snapshot.running:
        if job.start_s is None:
            continue
        for part in _shares(job):
            reading = readings.get(part.node)
            if reading is None or not reading.contains(job, lag_s):
                placed.append(PlacedLoad(job.id, part.node, _load_on(job, part, predictions), job.start_s))
    for start in pending:
        waiting = snapshot.job_by_id.get(start.job)
        if waiting is not None and waiting.state is JobState.QUEUED:
            placed += [
                PlacedLoad(waiting.id, part.node, _load_on(waiting, part, predictions), start.asked_s)
                for part in start.allocation
            ]
    return tuple(placed)


def without_ended(
    snapshot: Snapshot, readings: Mapping[NodeName, Reading], predictions: LearnedPredictions, lag_s: float
) -> dict[NodeName, Measured]:
    """What nodes measured, less the load of jobs that ended since; nodes that need neither are not here.

    Nodes report a job's end at once where `$node_check_interval` has ``jobend``. Elsewhere the server's event
    (2) comes first, and the node's sample is from before the end.
    """
    measured = {name: reading.measured for name, reading in readings.items() if reading.is_sampled}
    for job in snapshot.jobs:
        if job.state is not JobState.COMPLETED or job.comp_s is None or job.start_s is None:
            continue
        for part in _shares(job):
            reading = readings.get(part.node)
            if reading is None or reading.measured.sample_s >= job.comp_s or not reading.contains(job, lag_s):
                continue
            had = reading.jobs.get(job.id)
            load = (
                Load(had.cpu_cores, had.mem_bytes, had.gpus, had.gpu_mem_bytes)
                if had is not None
                else _load_on(job, part, predictions)
            )
            before = measured.get(part.node, reading.measured)
            measured[part.node] = Measured(_less(before.load, load), before.sample_s)
    return measured


def _less(load: Load, gone: Load) -> Load:
    return Load(
        max(0.0, load.cpu_cores - gone.cpu_cores),
        max(0.0, load.mem_bytes - gone.mem_bytes),
        max(0.0, load.gpus - gone.gpus),
        max(0.0, load.gpu_mem_bytes - gone.gpu_mem_bytes),
    )


def _shares(job: Job) -> Iterator[NodeShare]:
    gpus = job.gpus_by_node()
    for node, slots in job.slots_by_node().items():
        yield NodeShare(node, slots, gpus.get(node, 0))


def _load_on(job: Job, part: NodeShare, predictions: LearnedPredictions) -> Load:
    """A job's part on one node; without any history it uses what it asked for."""
    request = job.request
    expected = predictions.expect(job)
    n_procs, n_gpus = max(1, request.n_procs), request.n_gpus
    if expected is None:
        return Load(float(part.slots), float(request.mem_bytes or 0) * part.slots / n_procs, float(part.gpus))
    return expected.load.scaled(part.slots / n_procs, part.gpus / n_gpus if n_gpus else 0.0)
