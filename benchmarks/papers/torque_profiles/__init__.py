"""What real jobs use: H.264 encodes and image convolutions, run here and measured by the shipped sampler.

These are the two applications of the self-learning paper. ``python -m benchmarks torque_profiles`` measures
and prints; ``python -m benchmarks.papers.torque_profiles`` writes ``profiles.json`` beside this file, which
the balance benchmark reads with `profiles`. What needs a GPU is synthetic and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.papers.torque_profiles.workloads import WORKLOADS, Run, Workload
from benchmarks.result import Report, not_measured, observed

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
