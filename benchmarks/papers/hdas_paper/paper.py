"""The paper's cluster, applications and mixes, and what it states of them.

He, Cui, Feng: HDAS, dynamic affinity scheduling in Hadoop+ on heterogeneous clusters (High Technology
Letters 26(4), 2016, in Chinese). Its table of applications is lost. The two parameter sets were fitted to 35
of its statements; its own are only the shares of reading, the splits of KNN, NB and BP, BP's 23.6 s, and the
cluster.

``python -m benchmarks.papers.hdas_paper.paper`` writes an example of WORLD.yaml for each mix; a test holds
the files to what it writes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.policies import registry
from yarn_accel.core.tasks.use_over_time import use_over_time
from yarn_accel.sim.simulator import simulate
from yarn_accel.sim.world import world_of

# ---- Runs mixes in processes and condenses each run to the figures that the paper talks about.

POLICIES = ("hadoop", "fifo", "model", "hdas", "hdas+")
_N_POINTS = 200


@dataclass(frozen=True)
class Job:
    """One simulation: how it is called, and its world."""

    key: tuple[str, ...]
    world: Mapping[str, Any]
    watched: str = ""


@dataclass(frozen=True)
class Run:
    """What is kept of a run.

    Attributes:
        forms: application -> form -> (tasks, mean delay).
        gpu_computing: share of the GPUs' time on the watched node in which they compute.
        io_used: what the watched node's disk gave of its bandwidth.
        use: (seconds, GPUs that compute, MB/s) over time on the watched node.
    """

    makespan_s: float
    mean_delay: float
    n_tasks: int
    cpu_s: float
    forms: Mapping[str, Mapping[str, tuple[int, float]]]
    gpu_computing: float = 0.0
    io_used: float = 0.0
    use: Sequence[tuple[float, float, float]] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Fit for a report's series."""
        return asdict(self)

    def delay(self, app: str, form: str) -> float:
        """Mean delay of an application's tasks of one form; 1 where it has none."""
        return self.forms[app][form][1]

    def share(self, app: str, form: str) -> float:
        """Which share of an application's tasks ran in this form."""
        return self.forms[app][form][0] / sum(n for n, _ in self.forms[app].values())


def run_world(job: Job) -> Run:
    """Simulate one world with perfect knowledge of its tasks' times."""
    world = world_of(job.world, " ".join(job.key))
    settings = {"learns": False, **world.settings}
    started_s = time.process_time()
    outcome = simulate(world, registry.make(world.policy, settings), [job.watched] if job.watched else ())
    cpu_s = time.process_time() - started_s
    run = Run(outcome.makespan_s, outcome.mean_delay, len(outcome.tasks), cpu_s, _forms(outcome))
    if not job.watched:
        return run
    [spec] = [spec for spec, _ in world.resources() if spec.node == job.watched]
    steps = use_over_time(outcome.use[job.watched], outcome.makespan_s, _N_POINTS)
    points = [
        (round(number * steps.step_s, 1), round(gpus, 3), round((io or 0.0) / 1e6, 2))
        for number, (gpus, io) in enumerate(zip(steps.gpus_computing, steps.io_bytes_per_s, strict=True))
    ]
    gpu_computing = sum(gpus for _, gpus, _ in points) / len(points) / max(spec.gpus, 1)
    io_used = sum(io for _, _, io in points) / len(points) / (spec.bandwidth_bytes_per_s / 1e6)
    kept = {**run.__dict__, "gpu_computing": gpu_computing, "io_used": io_used, "use": points}
    return Run(**kept)


def _forms(outcome: RunOutcome) -> dict[str, dict[str, tuple[int, float]]]:
    delays: dict[str, dict[str, list[float]]] = {app: {"cpu": [], "gpu": []} for app in outcome.apps}
    for task in outcome.tasks:
        delays[task.app][task.form.value].append(task.delay)
    return {
        app: {form: (len(each), sum(each) / len(each) if each else 1.0) for form, each in forms.items()}
        for app, forms in delays.items()
    }


def run_all(jobs: Iterable[Job]) -> Iterator[tuple[Job, Run]]:
    """Run all, on as many processes as there are cores; longest first, results as they come."""
    waiting = sorted(jobs, key=lambda job: sum(app["tasks"] for app in job.world["apps"]), reverse=True)
    n_processes = min(len(os.sched_getaffinity(0)), len(waiting))
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(n_processes, mp_context=context) as pool:
        started = {pool.submit(run_world, job): job for job in waiting}
        for done in as_completed(started):
            yield started[done], done.result()


FOLDER = Path(__file__).parent / "worlds"
APPS = ("KNN", "Kmeans", "RS", "NB", "BP")
#: Letter -> applications, in lexicographic order: A to J pairs, K to T triples, U to Y quadruples.
MIXES: Mapping[str, tuple[str, ...]] = {
    chr(ord("A") + number): mix
    for number, mix in enumerate(mix for size in (2, 3, 4) for mix in combinations(APPS, size))
}
#: The mixes for which the paper expects no difference between model and hdas; "18 others" are the rest.
EXCEPTIONS = ("A", "B", "C", "D", "F", "I", "L")


@dataclass(frozen=True)
class Application:
    """One application's map tasks: split in MB, seconds of the GPU form's phases and of the CPU form."""

    tasks: int
    split_mb: float
    gpu_read_s: float
    gpu_compute_s: float
    cpu_s: float

    def as_world(self, name: str) -> dict[str, Any]:
        """The application as WORLD.yaml has it; a CPU task reads all along."""
        return {
            "name": name,
            "tasks": self.tasks,
            "split_mb": self.split_mb,
            "cpu": {"read_s": self.cpu_s},
            "gpu": {"read_s": self.gpu_read_s, "compute_s": self.gpu_compute_s},
        }


@dataclass(frozen=True)
class ParameterSet:
    """One fit: how capacity falls with the readers, and the applications."""

    gamma: float
    apps: Mapping[str, Application]


SETS: Mapping[str, ParameterSet] = {
    "S1": ParameterSet(
        0.085,
        {
            "KNN": Application(489, 1024.0, 11.38, 2.36, 118.5),
            "Kmeans": Application(460, 978.0, 9.02, 28.55, 199.1),
            "RS": Application(873, 2.4, 0.02, 33.41, 2312.0),
            "NB": Application(347, 1024.0, 12.56, 10.74, 300.5),
            "BP": Application(1497, 4.0, 0.04, 23.60, 967.6),
        },
    ),
    "S2": ParameterSet(
        0.112,
        {
            "KNN": Application(473, 1024.0, 12.99, 2.70, 101.2),
            "Kmeans": Application(491, 1018.0, 11.56, 36.60, 257.3),
            "RS": Application(868, 29.4, 0.33, 39.87, 2616.7),
            "NB": Application(318, 1024.0, 12.65, 10.82, 381.9),
            "BP": Application(1488, 4.0, 0.04, 23.60, 940.9),
        },
    ),
}


def mix_world(mix: tuple[str, ...], parameters: ParameterSet, policy: str, **changes: Any) -> dict[str, Any]:
    """A mix on the paper's cluster as WORLD.yaml has it: 6 nodes with 6 cores, 4 GPUs and 128 MB/s each."""
    return {
        "disks": {"sata": {"bandwidth_mb_s": 128.0, "gamma": parameters.gamma}},
        "nodes": [{"name": "node", "count": 6, "cores": 6, "gpus": 4, "disk": "sata"}],
        "apps": [parameters.apps[name].as_world(name) for name in mix],
        "policy": policy,
        **changes,
    }


def example_worlds() -> Mapping[str, str]:
    """File name -> text, by the parameter set S2."""
    return {f"{letter}.yaml": _text(letter, mix) for letter, mix in MIXES.items()}


def _text(letter: str, mix: tuple[str, ...]) -> str:
    world = mix_world(mix, SETS["S2"], "hdas", settings={"learns": False})
    head = f"# Mix {letter} of the HDAS paper: {', '.join(mix)} on 6 nodes; parameter set S2, fitted.\n"
    return head + yaml.safe_dump(world, sort_keys=False, default_flow_style=None, width=110)


def main() -> None:
    """Write all."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in example_worlds().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
