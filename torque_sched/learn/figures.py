"""The figures that are learned of each job, and how they travel between nodes.

The amount a job uses is its own; only the share it makes differs between nodes (self-learning paper, 3.2).
So: a job with c busy cores takes min(1, c / cores) of any node whatever its clock, and its run time scales
with the clock, because its total CPU time is constant; memory does not change. CPU and GPU are learned per
processor or GPU asked for, so that the same program with twice the processors is not a surprise; memory and
times are learned as logarithms, because being wrong by a factor is what counts.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from torque_sched.decide.rules import Rates
from torque_sched.model.cluster import Job, Node

_LEAST_BYTES = 1024.0
_LEAST_S = 1.0
_DELETED = 256
"""An exit status from here on is 256 + signal: somebody ended it, so its run time says nothing."""
_RAN = frozenset({-10, -11, -12})
"""Negative ones that end a job that ran: memory, walltime, CPU time. The others never started it."""


class Figure(enum.Enum):
    """One thing that is predicted."""

    CPU = "cpu"
    """Busy share of the processors asked for; more than 1 where it uses more."""
    MEMORY = "memory"
    """log10 of bytes of the whole job."""
    GPU = "gpu"
    """Busy share of the GPUs asked for."""
    GPU_MEMORY = "gpu_memory"
    """log10 of bytes on each GPU."""
    RUNTIME = "runtime"
    """log10 of seconds on a node of rate 1."""

    def amount(self, value: float, n_procs: int, n_gpus: int) -> float:
        """The learned value as the whole job's amount: cores, bytes, GPUs, bytes, seconds."""
        if self is Figure.CPU:
            return value * n_procs
        if self is Figure.GPU:
            return value * n_gpus
        bounded = math.pow(10.0, min(value, 18.0))
        return bounded * n_gpus if self is Figure.GPU_MEMORY else bounded


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a job that ended used; None: unknown. ``rate`` is that of the slowest core it ran on."""

    runtime_s: float | None = None
    cpu_cores: float | None = None
    mem_bytes: float | None = None
    gpus: float | None = None
    gpu_mem_bytes: float | None = None
    rate: float = 1.0


def amounts_of(job: Job, sampled: Amounts | None = None, rate: float = 1.0) -> Amounts | None:
    """What a completed job used, by the server's figures and by samples; None when it never ran.

    A job that ended before its node looked at it once shows zeros: these are no measurement.
    """
    if job.start_s is None and not job.used.walltime_s:
        return None  # deleted while it waited
    status = job.exit_status
    if status is not None and status < 0 and status not in _RAN:
        return None
    used = job.used
    from_times = job.comp_s - job.start_s if job.comp_s is not None and job.start_s is not None else None
    runtime = next(
        (s for s in (used.walltime_s, job.total_runtime_s, from_times) if s is not None and s > 0), None
    )
    seen = sampled or Amounts()
    cores = seen.cpu_cores
    if used.cput_s is not None and runtime and (used.cput_s > 0 or used.mem_bytes):
        cores = used.cput_s / runtime
    mem = max(float(used.mem_bytes or 0), seen.mem_bytes or 0.0) or None
    return Amounts(runtime, cores, mem, seen.gpus, seen.gpu_mem_bytes, rate)


def figures_of(used: Amounts, n_procs: int, n_gpus: int, exit_status: int | None) -> dict[Figure, float]:
    """The values to learn from; what is unknown, or says nothing about the next run, is left out."""
    figures: dict[Figure, float] = {}
    if used.cpu_cores is not None and n_procs:
        figures[Figure.CPU] = used.cpu_cores / n_procs
    if used.mem_bytes:
        figures[Figure.MEMORY] = math.log10(max(_LEAST_BYTES, used.mem_bytes))
    if used.gpus is not None and n_gpus:
        figures[Figure.GPU] = used.gpus / n_gpus
    if used.gpu_mem_bytes and n_gpus:
        figures[Figure.GPU_MEMORY] = math.log10(max(_LEAST_BYTES, used.gpu_mem_bytes / n_gpus))
    if used.runtime_s and (exit_status is None or exit_status < _DELETED):
        figures[Figure.RUNTIME] = math.log10(max(_LEAST_S, used.runtime_s * used.rate))
    return {figure: value for figure, value in figures.items() if math.isfinite(value)}


def share(amount: float, capacity: float) -> float:
    """The part of a node's capacity an amount takes, at most 1; 0 where there is no capacity.

    >>> share(3.0, 4), share(3.0, 2)
    (0.75, 1.0)
    """
    return min(1.0, amount / capacity) if capacity > 0 else 0.0


def cpu_rate(node: Node, rates: Mapping[str, Rates]) -> float:
    """The rate of a node's cores, by its name or else by its first property that has one."""
    for name in (node.name, *node.properties):
        if name in rates:
            return rates[name].cpu
    return 1.0
