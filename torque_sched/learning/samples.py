"""What nodes say about themselves and their jobs: the sampler's figures, else mom's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torque_sched.core.model import Job, Node, NodeName
from torque_sched.learning.figures import Amounts
from torque_sched.learning.rows import Use
from torque_sched.policies.load import Load, Measured, measured_by_mom
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
    """By the shipped sampler; else these are mom's one-minute load average and memory."""

    def contains(self, job: Job, lag_s: float) -> bool:
        """Whether the job's load is in these figures.

        A load average takes ``lag_s`` to show a job; the sampler names those it has seen.
        """
        if job.start_s is None:
            return False
        wait_s = min(lag_s, _SETTLED_S) if job.id in self.jobs else lag_s
        return job.start_s + wait_s <= self.measured.sample_s


def reading_of(node: Node) -> Reading | None:
    """The newest figures of a node; None before its first report."""
    by_mom = measured_by_mom(node)
    if by_mom is None or node.status is None:
        return None
    sample = sample_from_varattr(node.status.varattr) if node.status.varattr else None
    if sample is None or by_mom.sample_s - sample.at_s > _OLD_S:
        return Reading(by_mom, {}, False)
    gpus, gpu_mem = by_mom.load.gpus, by_mom.load.gpu_mem_bytes
    if sample.gpus:
        gpus, gpu_mem = sum(gpu.busy for gpu in sample.gpus), sum(gpu.mem_bytes for gpu in sample.gpus)
    # A node whose clock is ahead cannot have measured after the server heard of it.
    at_s = min(sample.at_s, by_mom.sample_s)
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
    gpus = _gpus_by_mom(job, node)
    if sampled is None and gpus is None:
        return None
    if sampled is None:
        assert gpus is not None
        return add_use(before, at_s, JobSample(job.id, 0.0, 0.0, *gpus), cpu=False, gpu=True)
    if not sampled.gpus and not sampled.gpu_mem_bytes and gpus is not None:
        sampled = JobSample(job.id, sampled.cpu_cores, sampled.mem_bytes, *gpus)
    return add_use(before, at_s, sampled, cpu=True, gpu=bool(job.exec_gpus))


def _gpus_by_mom(job: Job, node: Node) -> tuple[float, float] | None:
    """Busy GPUs and their memory, from mom's report and the GPUs this job holds here."""
    if node.gpu_report is None or not job.exec_gpus:
        return None
    held = {slot.index for slot in job.exec_gpus if slot.node == node.name}
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
