"""The jobs that are measured, and how one run of them is watched by the sampler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from torque_sched.sampler.daemon import Sampler
from torque_sched.sampler.gpus import GpuReader
from torque_sched.sampler.proc import ProcReader

_INTERVAL_S = 0.5


@dataclass(frozen=True)
class Run:
    """One run: how long, cores on average, memory at most.

    Other programs on the machine are taken out: the time for which the thread that was held up most stood in
    the kernel's queue for a processor (``schedstat``) does not count.
    """

    runtime_s: float
    cpu_cores: float
    mem_bytes: float


@dataclass(frozen=True)
class Workload:
    """A program that runs as a job would.

    Attributes:
        name: of the job type.
        ppn: processors it is to ask for.
        how: for the profile file.
        argv: the program, by the scale of the work.
        needs: why it cannot run here; empty: it can.
    """

    name: str
    ppn: int
    how: str
    argv: Callable[[float], list[str]]
    needs: Callable[[], str]

    def missing(self) -> str:
        """Why it cannot run here; empty: it can."""
        return self.needs()

    def run(self, scale: float) -> Run:
        """Run it once and watch it.

        Raises:
            RuntimeError: it failed, or ended before it could be sampled.
        """
        return watched(self.argv(scale))


def watched(argv: list[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run a program as a job and sample it until it ends.

    Raises:
        RuntimeError: it failed, or ended before it could be sampled.
    """
    job = f"{os.getpid()}.profile"
    proc = ProcReader()
    sampler = Sampler(proc, GpuReader(None))
    held_up_s: dict[str, float] = {}
    sampler.sample()
    began_s = time.monotonic()
    env = {**os.environ, **(environment or {}), "PBS_JOBID": job}
    program = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    weighted = memory = sampled_s = 0.0
    last_s = began_s
    while program.poll() is None:
        time.sleep(_INTERVAL_S)
        sample, now_s = sampler.sample(), time.monotonic()
        mine = next((each for each in sample.jobs if each.job == job), None) if sample is not None else None
        if mine is not None:
            weighted += mine.cpu_cores * (now_s - last_s)
            sampled_s += now_s - last_s
            memory = max(memory, mine.mem_bytes)
            held_up_s.update(_held_up_s(pid for pid, name in proc.job_of_pid.items() if name == job))
        last_s = now_s
    wall_s = time.monotonic() - began_s
    _, errors = program.communicate()
    if program.returncode:
        raise RuntimeError(f"{argv[0]} ended with {program.returncode}: {errors[-500:]}")
    if sampled_s < 2 * _INTERVAL_S:
        raise RuntimeError(f"{argv[0]} ended after {wall_s:.1f} s, too soon to be sampled")
    idle_s = max(0.1 * wall_s, wall_s - max(held_up_s.values(), default=0.0))
    return Run(idle_s, weighted / sampled_s * wall_s / idle_s, memory)


def _held_up_s(pids: Iterable[int]) -> Iterator[tuple[str, float]]:
    """For how long each thread has waited for a processor; nothing where the kernel does not say."""
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError, ValueError, IndexError):
                yield str(path), int(path.read_text(encoding="ascii").split()[1]) / 1e9


def _convolve(side: int, kernel: int, images: int, workers: int) -> Callable[[float], list[str]]:
    def argv(scale: float) -> list[str]:
        n = max(2, round(images * scale))
        program = "benchmarks.papers.torque_profiles.convolve"
        return [sys.executable, "-m", program, *map(str, (side, kernel, n, workers))]

    return argv


def _needs_scipy() -> str:
    return "" if find_spec("scipy") is not None else "scipy is not installed"


def _encode(size: str, threads: int, seconds: float) -> Callable[[float], list[str]]:
    def argv(scale: float) -> list[str]:
        source = f"testsrc2=size={size}:rate=30:duration={seconds * scale:.1f}"
        return [
            "ffmpeg", "-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", source, "-c:v", "libx264",
            "-preset", "medium", "-threads", str(threads), "-f", "null", "-",
        ]  # fmt: skip

    return argv


def _needs_ffmpeg() -> str:
    if shutil.which("ffmpeg") is None:
        return "ffmpeg is not installed (Debian: apt install ffmpeg)"
    encoders = subprocess.run(
        ["ffmpeg", "-hide_banner", "-encoders"], capture_output=True, text=True, check=False
    )
    return "" if "libx264" in encoders.stdout else "this ffmpeg has no libx264"


WORKLOADS = (
    Workload(
        "convolve", 1, "64 images of 2048 x 2048, each with a 9 x 9 kernel, one process",
        _convolve(2048, 9, 64, 1), _needs_scipy,
    ),
    Workload(
        "convolve-large", 2, "20 images of 4096 x 4096, each with a 7 x 7 kernel, two processes",
        _convolve(4096, 7, 20, 2), _needs_scipy,
    ),
    Workload(
        "h264", 1, "libx264 medium, 1280 x 720, 30 frames a second, one thread",
        _encode("1280x720", 1, 60.0), _needs_ffmpeg,
    ),
    Workload(
        "h264-large", 2, "libx264 medium, 1920 x 1080, 30 frames a second, two threads",
        _encode("1920x1080", 2, 40.0), _needs_ffmpeg,
    ),
)  # fmt: skip
