"""What is run: the cluster, the paper's applications scaled down, for the service and in the simulator.

Times of the paper are divided by `SLOWNESS`: so KNN on a GPU, the shortest task, takes one second. A node's
link stands for the disk. It gives `LINK_MB_S` of the paper's megabytes per second, so that two GPUs starve
each other as the paper's four do on a disk of 128 that loses to seeks; splits are scaled to match. Numbers of
tasks are those of parameter set S2 times `SHARE_OF_TASKS`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.papers.hdas_paper.paper import MIXES, SETS
from yarn_accel.core.tasks.policies.registry import make
from yarn_accel.core.tasks.use_over_time import use_over_time
from yarn_accel.sim.simulator import simulate
from yarn_accel.sim.world import World, world_of
from yarn_accel.worker.line_split import PIECE_BYTES
from yarn_accel.worker.read_phase import INTERVAL_S

POLICIES = ("fifo", "model", "hdas", "hdas+")
N_STORAGE, N_COMPUTE = 2, 4
CORES, GPUS = 3, 2
#: A time of the paper, divided by this, is ours.
SLOWNESS = 15.7
LINK = "84mbit"
#: What a link gives, in the paper's megabytes.
LINK_MB_S = 80.0
_LINK_BYTES_PER_S = 10e6
#: A split of the paper, divided by this, is ours.
SPLIT_DIVISOR = SLOWNESS * LINK_MB_S * 1e6 / _LINK_BYTES_PER_S
SHARE_OF_TASKS = 0.08
APP_INTERVAL_S = 1.0
#: A split that fits into the pipe to its command is read at once in either form.
_PIPE_BYTES = 1024 * 1024
_MAPPER = Path(__file__).with_name("mapper.py")
_TASK_MEMORY_MIB = 64
_MB = 1e6
#: Of a picture over time.
_N_POINTS = 200


@dataclass(frozen=True)
class ScaledApp:
    """One application in our seconds and bytes: (read_s, compute_s) of each form."""

    name: str
    n_tasks: int
    split_bytes: int
    cpu: tuple[float, float]
    gpu: tuple[float, float]

    @property
    def as_world(self) -> dict[str, Any]:
        """As WORLD.yaml has it."""
        forms = {
            form: {"read_s": read_s, "compute_s": compute_s}
            for form, (read_s, compute_s) in (("cpu", self.cpu), ("gpu", self.gpu))
        }
        return {"name": self.name, "tasks": self.n_tasks, "split_mb": self.split_bytes / _MB, **forms}


@dataclass(frozen=True)
class Overheads:
    """What is measured of one task alone, and given to the simulator.

    Attributes:
        task_s: of a slot between two tasks: the end is reported, the next one ordered and started, its
            output committed.
        attempt_s: the part of it from an attempt's start to its end; the rest is the service's.
        link_bytes_per_s: what one reader gets of an idle link.
    """

    task_s: float
    attempt_s: float
    link_bytes_per_s: float


def mix_apps(letter: str, share: float = SHARE_OF_TASKS) -> list[ScaledApp]:
    """The applications of a mix of the paper."""
    found = []
    for name in MIXES[letter]:
        app = SETS["S2"].apps[name]
        split_bytes = round(app.split_mb * _MB / SPLIT_DIVISOR)
        read_s = max(app.gpu_read_s, app.split_mb / LINK_MB_S) / SLOWNESS
        cpu_s = app.cpu_s / SLOWNESS
        cpu = (cpu_s, 0.0) if split_bytes > _PIPE_BYTES else (read_s, cpu_s - read_s)
        n_tasks = max(1, round(app.tasks * share))
        found.append(ScaledApp(name, n_tasks, split_bytes, cpu, (read_s, app.gpu_compute_s / SLOWNESS)))
    return found


def app_document(app: ScaledApp, input_uri: str, output_uri: str) -> dict[str, Any]:
    """APP.yaml of an application; its figures are declared."""
    forms = json.dumps({"cpu": app.cpu, "gpu": app.gpu})
    # Neither the site's packages nor the user's: what a short program imports is half of its start.
    command = [sys.executable, "-I", "-S", str(_MAPPER), forms, str(app.split_bytes)]
    figures = {
        form: {"read_s": read_s, "compute_s": compute_s}
        for form, (read_s, compute_s) in (("cpu", app.cpu), ("gpu", app.gpu))
    }
    return {
        "name": app.name,
        "input": input_uri,
        "output": output_uri,
        "split_bytes": max(app.split_bytes, 1),
        "memory_mib": _TASK_MEMORY_MIB,
        "cpu": {"command": command},
        "gpu": {"command": command},
        "figures": {"split_bytes": app.split_bytes, **figures},
    }


def world(
    apps: Sequence[ScaledApp], policy: str, overheads: Overheads, starts_s: Mapping[str, float]
) -> World:
    """The same cluster and applications for the simulator.

    Args:
        starts_s: application -> when it was submitted.
    """
    return world_of(
        {
            "disks": {"link": {"bandwidth_mb_s": overheads.link_bytes_per_s / _MB}},
            "nodes": [{"name": "w", "count": N_COMPUTE, "cores": CORES, "gpus": GPUS, "disk": "link"}],
            "apps": [{**app.as_world, "start_s": starts_s[app.name]} for app in apps],
            "policy": policy,
            "settings": {"learns": False},
            "options": {
                "overhead_s": overheads.task_s,
                "samples": "given",
                "sample_interval_s": INTERVAL_S,
                "read_piece_mb": PIECE_BYTES / _MB,
            },
        },
        f"the world of {policy}",
    )


@dataclass(frozen=True)
class SimulatedRun:
    """One run, in the terms of `runs.LiveRun`."""

    makespan_s: float
    mean_delay: float
    gpu_computing: float
    link_used: float
    use: Sequence[tuple[float, float, float]] = field(default=())


def simulated_run(
    apps: Sequence[ScaledApp], policy: str, overheads: Overheads, starts_s: Mapping[str, float]
) -> SimulatedRun:
    """Simulate a mix under a policy with perfect knowledge of its tasks' times.

    Args:
        starts_s: application -> when it was submitted live.
    """
    described = world(apps, policy, overheads, starts_s)
    nodes = [spec.node for spec, _ in described.resources()]
    outcome = simulate(described, make(policy, described.settings), nodes)
    used = [rows for node in nodes if (rows := outcome.use[node])]
    tables = [use_over_time(rows, outcome.makespan_s, _N_POINTS) for rows in used]
    use = [
        (
            number * outcome.makespan_s / _N_POINTS,
            sum(table.gpus_computing[number] for table in tables),
            sum(table.io_bytes_per_s[number] or 0.0 for table in tables),
        )
        for number in range(_N_POINTS)
    ]
    return SimulatedRun(
        outcome.makespan_s,
        outcome.mean_delay,
        statistics.fmean(gpus for _, gpus, _ in use) / (N_COMPUTE * GPUS),
        statistics.fmean(io for _, _, io in use) / (N_COMPUTE * overheads.link_bytes_per_s),
        use,
    )
