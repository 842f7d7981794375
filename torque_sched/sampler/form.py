"""One sample of a node as text: the lines of the file that mom's ``$varattr`` script prints.

Torque joins the lines by ``;`` and puts them into a comma separated status, so no value holds a comma, a
semicolon or a blank. Amounts are the node's own: busy cores, bytes, busy GPUs (two at half use count 1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_BYTES = 4000
"""Longest sample; it has the busiest of the jobs.

Torque 6.1's mom (``reqvarattr``) copies what all its varattr scripts print into a buffer of 9 KiB and only
then looks whether it was long enough, so a longer text overwrites its memory.
"""

_AT, _CPU, _MEM, _GPU, _JOB = "ts.at", "ts.cpu", "ts.mem", "ts.gpu", "ts.job."
_JOB_ID = re.compile(r"[0-9][A-Za-z0-9._\[\]-]{0,255}")
_LARGEST = 1e18


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU by the number the driver gives it (Torque's own numbering, not NVML's PCI order)."""

    index: int
    busy: float
    mem_bytes: float


@dataclass(frozen=True, slots=True)
class JobSample:
    """What one job uses of this node."""

    job: str
    cpu_cores: float
    mem_bytes: float
    gpus: float = 0.0
    gpu_mem_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeSample:
    """A node over the last interval; ``at_s`` is the node's own clock, seconds since the epoch."""

    at_s: float
    cpu_cores: float
    mem_bytes: float
    gpus: tuple[GpuSample, ...] = ()
    jobs: tuple[JobSample, ...] = ()


def format_sample(sample: NodeSample) -> str:
    """The lines of a sample.

    >>> print(format_sample(NodeSample(1700000000.0, 1.5, 2048.0, (GpuSample(0, 0.25, 512.0),))), end="")
    ts.at:1700000000
    ts.cpu:1.50
    ts.mem:2048
    ts.gpu0:0.25/512
    """
    lines = [f"{_AT}:{sample.at_s:.0f}", f"{_CPU}:{sample.cpu_cores:.2f}", f"{_MEM}:{sample.mem_bytes:.0f}"]
    lines += [f"{_GPU}{gpu.index}:{gpu.busy:.2f}/{gpu.mem_bytes:.0f}" for gpu in sample.gpus]
    left_bytes = MAX_BYTES - sum(len(line) + 1 for line in lines)
    for job in sorted(sample.jobs, key=lambda job: (-job.gpus, -job.cpu_cores, job.job)):
        if _JOB_ID.fullmatch(job.job):
            figures = f"{job.cpu_cores:.2f}/{job.mem_bytes:.0f}/{job.gpus:.2f}/{job.gpu_mem_bytes:.0f}"
            line = f"{_JOB}{job.job}:{figures}"
            left_bytes -= len(line) + 1
            if left_bytes < 0:
                break
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def sample_from_varattr(values: Mapping[str, str]) -> NodeSample | None:
    """The sample in a node's ``varattr``; None without one (other scripts' keys, damaged figures).

    A damaged GPU or job is left out; without time, CPU or memory there is no sample.
    """
    at, cpu, mem = (_figures(values.get(key, ""), 1) for key in (_AT, _CPU, _MEM))
    if at is None or cpu is None or mem is None:
        return None
    gpus: list[GpuSample] = []
    jobs: list[JobSample] = []
    for key, text in values.items():
        if key.startswith(_JOB) and _JOB_ID.fullmatch(key[len(_JOB) :]):
            figures = _figures(text, 4)
            if figures is not None:
                jobs.append(JobSample(key[len(_JOB) :], *figures))
        elif key.startswith(_GPU) and key[len(_GPU) :].isdecimal() and len(key) < len(_GPU) + 5:
            figures = _figures(text, 2)
            if figures is not None:
                gpus.append(GpuSample(int(key[len(_GPU) :]), min(1.0, figures[0]), figures[1]))
    return NodeSample(at[0], cpu[0], mem[0], tuple(sorted(gpus, key=lambda gpu: gpu.index)), tuple(jobs))


def _figures(text: str, n: int) -> tuple[float, ...] | None:
    """``n`` numbers that are finite and not negative; None when the text is anything else."""
    parts = text.split("/")
    if len(parts) != n:
        return None
    try:
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        return None
    return numbers if all(math.isfinite(each) and 0 <= each < _LARGEST for each in numbers) else None
