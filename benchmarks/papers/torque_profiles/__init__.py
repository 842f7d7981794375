"""What real jobs use: H.264 encodes and image convolutions, run here and measured by the shipped sampler.

These are the two applications of the self-learning paper. ``python -m benchmarks torque_profiles`` measures
and prints; ``python -m benchmarks.papers.torque_profiles`` writes ``profiles.json`` beside this file, which
the balance benchmark reads with `profiles`. What needs a GPU is synthetic and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.result import Report, not_measured, observed
from torque_sched.sampler.daemon import Sampler
from torque_sched.sampler.gpus import GpuReader
from torque_sched.sampler.proc import ProcReader

# ---- The jobs that are measured, and how one run of them is watched by the sampler.

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

__all__ = ["Profile", "measure_all", "profiles", "run", "write"]

_FILE = Path(__file__).with_name("profiles.json")
_RUNS = 3
_MEASURED, _SYNTHETIC = "measured", "synthetic"


@dataclass(frozen=True)
class Profile:
    """One type of job.

    Attributes:
        name: of the type.
        origin: ``measured``, or ``synthetic`` where nothing was run.
        how: the command, or why these figures.
        ppn: processors to ask for.
        gpus: GPUs to ask for.
        runtime_s: on an otherwise idle core of the machine named in the file.
        cpu_cores: busy cores, on average.
        mem_bytes: resident memory, at most.
        gpus_busy: busy GPUs, on average.
        gpu_mem_bytes: memory on GPUs.
        n: runs; the shortest counts, as the least disturbed one.
    """

    name: str
    origin: str
    how: str
    ppn: int
    gpus: int
    runtime_s: float
    cpu_cores: float
    mem_bytes: float
    gpus_busy: float = 0.0
    gpu_mem_bytes: float = 0.0
    n: int = 0


#: A convolution on a GPU; all of it is assumed.
_ON_GPU = Profile(
    "convolve-gpu", _SYNTHETIC, "no GPU here: half a core feeds a GPU that is 70 % busy", 1, 1, 20.0, 0.5,
    600e6, 0.7, 800e6,
)  # fmt: skip


def profiles() -> tuple[Profile, ...]:
    """The committed profiles."""
    found = json.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(Profile(**values) for values in found["profiles"])


def measure_all(
    say: Callable[[str], None], *, n_runs: int = _RUNS, scale: float = 1.0
) -> tuple[list[Profile], dict[str, str]]:
    """Run every workload that can run here.

    Args:
        say: told what is going on.
        n_runs: of each.
        scale: of the work; 1 takes about 20 s each.

    Returns:
        The profiles, and why the others were not measured, by name.
    """
    measured: list[Profile] = []
    missing: dict[str, str] = {}
    for workload in WORKLOADS:
        why = workload.missing()
        if why:
            missing[workload.name] = why
            continue
        runs: list[Run] = []
        for number in range(n_runs):
            say(f"{workload.name}: run {number + 1} of {n_runs}")
            runs.append(workload.run(scale))
        measured.append(_profile(workload, runs))
    return measured, missing


def _profile(workload: Workload, runs: list[Run]) -> Profile:
    best = min(runs, key=lambda each: each.runtime_s)
    runtime_s, cores = round(best.runtime_s, 2), round(best.cpu_cores, 3)
    return Profile(
        workload.name, _MEASURED, workload.how, workload.ppn, 0, runtime_s, cores,
        float(round(best.mem_bytes)), n=len(runs),
    )  # fmt: skip


def write(machine: dict[str, object], measured: list[Profile], missing: dict[str, str]) -> Path:
    """Write the profile file; what was not measured is named with the reason."""
    document = {
        "how": "python -m benchmarks.papers.torque_profiles: each workload runs as a job (PBS_JOBID in its "
        "environment) and is sampled by torque_sched.sampler every half second; time in which it waited "
        "for a processor that other programs had is taken out; of several runs the shortest counts",
        "machine": machine,
        "not_measured": missing,
        "profiles": [asdict(each) for each in (*measured, _ON_GPU)],
    }
    _FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return _FILE


def run(quick: bool, say: Callable[[str], None], report: Report) -> None:
    """As `benchmarks.result.Benchmark`."""
    measured, missing = measure_all(say, n_runs=1 if quick else _RUNS, scale=0.2 if quick else 1.0)
    for each in measured:
        report.add(
            (
                observed(f"{each.name}: busy cores", each.cpu_cores, "cores", note=each.how),
                observed(f"{each.name}: memory", each.mem_bytes / 2**20, "MiB"),
                observed(f"{each.name}: run time", each.runtime_s, "s", note=f"shortest of {each.n}"),
            )
        )
    report.add(not_measured(name, why) for name, why in missing.items())
