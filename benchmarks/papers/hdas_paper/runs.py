"""Runs mixes in processes and condenses each run to the figures that the paper talks about."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from typing import Any

from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.policies import registry
from yarn_accel.core.tasks.use_over_time import use_over_time
from yarn_accel.sim.simulator import simulate
from yarn_accel.sim.world import world_of

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
