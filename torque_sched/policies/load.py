"""How busy a node is, and what a job adds to it, in amounts: cores, bytes and GPUs, not shares.

A job's amounts are its own; only the share they make differs between nodes (self-learning paper, 3.2). So
loads are added as amounts and divided by a node's capacity last.
"""

from __future__ import annotations

from dataclasses import dataclass

from torque_sched.core.model import JobId, Node, NodeName


@dataclass(frozen=True, slots=True)
class Load:
    """What is in use, or will be: busy cores, bytes, busy GPUs, bytes of GPU memory."""

    cpu_cores: float = 0.0
    mem_bytes: float = 0.0
    gpus: float = 0.0
    """Two GPUs at half use each count 1."""
    gpu_mem_bytes: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(
            self.cpu_cores + other.cpu_cores,
            self.mem_bytes + other.mem_bytes,
            self.gpus + other.gpus,
            self.gpu_mem_bytes + other.gpu_mem_bytes,
        )

    def scaled(self, share: float, gpu_share: float | None = None) -> Load:
        """This part of it; `gpu_share` is the part of the GPUs where that differs."""
        of_gpus = share if gpu_share is None else gpu_share
        return Load(
            self.cpu_cores * share, self.mem_bytes * share, self.gpus * of_gpus, self.gpu_mem_bytes * of_gpus
        )


NO_LOAD = Load()


@dataclass(frozen=True, slots=True)
class Measured:
    """The load of a node as sampled at ``sample_s`` (seconds since the epoch)."""

    load: Load
    sample_s: float


@dataclass(frozen=True, slots=True)
class PlacedLoad:
    """The predicted load of a job just started on a node.

    It counts until the node's own sample contains it, or the job is gone.
    """

    job: JobId
    node: NodeName
    load: Load
    placed_s: float


def measured_by_mom(node: Node) -> Measured | None:
    """What the mom itself tells: load average, memory, GPU report; None before its first report."""
    status = node.status
    if status is None or status.rectime_s is None:
        return None
    used = 0.0
    if status.availmem_bytes is not None:
        total = status.totmem_bytes or status.physmem_bytes or 0
        used = float(max(0, total - status.availmem_bytes))
    gpus = gpu_mem = 0.0
    if node.gpu_report is not None:
        for device in node.gpu_report.devices:
            gpus += device.utilization or 0.0
            gpu_mem += device.memory_used_bytes or 0
    return Measured(Load(status.loadave or 0.0, used, gpus, gpu_mem), status.rectime_s)
