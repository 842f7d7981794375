"""The loop on a node: look, subtract, write the file, sleep."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from torque_sched.sampler.form import JobSample, NodeSample, format_sample
from torque_sched.sampler.gpus import GpuReader, GpuUse
from torque_sched.sampler.proc import JobTimes, NodeCounters, ProcReader, cpu_ticks_used

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Look:
    """Counters at one moment, ``up_s`` seconds after boot."""

    up_s: float
    node: NodeCounters
    jobs: Mapping[str, JobTimes]


class Sampler:
    """Turns counters into averages over the time since the last look."""

    def __init__(self, proc: ProcReader, gpus: GpuReader, clock: Callable[[], float] = time.time) -> None:
        self._proc = proc
        self._gpus = gpus
        self._clock = clock
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._last: _Look | None = None

    @property
    def up_s(self) -> float:
        """When the last look was, in seconds since boot."""
        return self._last.up_s if self._last is not None else 0.0

    def sample(self) -> NodeSample | None:
        """The averages since the call before; None on the first one.

        Raises:
            OSError: ``/proc`` is not mounted.
        """
        look = _Look(self._proc.uptime_s(), self._proc.node(), self._proc.jobs())
        uses = self._gpus.read()
        last, self._last = self._last, look
        if last is None:
            return None
        ticks = max(1, look.node.total_ticks - last.node.total_ticks)
        busy = max(0, look.node.busy_ticks - last.node.busy_ticks) / ticks * look.node.n_cpus
        jobs = tuple(self._job(name, last, look, uses) for name in look.jobs)
        memory = float(look.node.mem_used_bytes)
        return NodeSample(self._clock(), busy, memory, tuple(use.gpu for use in uses), jobs)

    def _job(self, name: str, last: _Look, look: _Look, uses: tuple[GpuUse, ...]) -> JobSample:
        now = look.jobs[name]
        ticks = cpu_ticks_used(last.jobs.get(name, JobTimes()), now, last.up_s * self._hertz)
        cores = ticks / self._hertz / max(1e-3, look.up_s - last.up_s)
        pids = {pid for pid, _ in now.processes}
        # A GPU has one job, so all its work is that job's.
        mine = [use for use in uses if pids & use.processes.keys()]
        gpu_mem = sum(use.processes[pid] for use in mine for pid in pids & use.processes.keys())
        if not gpu_mem:  # Some drivers do not say it by process.
            gpu_mem = int(sum(use.gpu.mem_bytes for use in mine))
        return JobSample(name, cores, float(now.rss_bytes), sum(use.gpu.busy for use in mine), float(gpu_mem))


def file_text(sample: NodeSample, up_s: float) -> str:
    """What the file holds: when it was written, then the sample."""
    return f"ts.up:{int(up_s)}\n{format_sample(sample)}"


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader sees the old or the new one, never a part.

    Raises:
        OSError: the folder is missing or not writable.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="ascii")
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def serve(sampler: Sampler, path: Path, interval_s: float, stop: Event) -> None:
    """Write a sample every interval until it is to stop; the file goes with the sampler.

    A sample that cannot be taken or written is logged once per reason and tried again.
    """
    trouble = ""
    while not stop.is_set():
        try:
            sample = sampler.sample()
            if sample is not None:
                write_atomically(path, file_text(sample, sampler.up_s))
            trouble = ""
        except (OSError, ValueError, IndexError) as error:
            if str(error) != trouble:
                logger.error("no sample: %s", error)
                trouble = str(error)
            sample = None
        # The first look only begins an interval; a short one gives a first figure soon.
        stop.wait(interval_s if sample is not None or trouble else min(1.0, interval_s))
    path.unlink(missing_ok=True)
