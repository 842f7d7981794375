"""How even the cluster is loaded at one moment, and which GPUs are held without being used."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from torque_sched.core.model import Node, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.learning.figures import share
from torque_sched.learning.rows import BalanceRow
from torque_sched.learning.samples import Reading

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
        gpus_reserved=sum(len(job.exec_gpus) for job in snapshot.running),
        gpus_unused=len(unused_gpus(snapshot)),
        gpu_jobs_waiting=sum(1 for job in queued if job.request.n_gpus),
        wait_mean_s=statistics.fmean(waits) if waits else 0.0,
    )


def _cores(node: Node) -> int:
    return (node.status.ncpus if node.status is not None else None) or node.np


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
        for slot in job.exec_gpus
        if (slot.node, slot.index) in idle
    )
