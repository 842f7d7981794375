"""Jobs by the letter of their state, nodes and snapshots for tests of what is learned."""

from __future__ import annotations

from typing import Any

from tests.fixtures import torque_builders as builders
from torque_sched.model import cluster as model
from torque_sched.model.request import Chunk
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState

NOW_S = 1_795_195_600.0


def job(
    number: int, state: str = "Q", *, ppn: int = 2, gpus: int = 0, node: str = "n1", runtime_s: float = 100.0,
    cores: float = 1.0, mem_bytes: int = 1 << 30, exit_status: int = 0, start_s: float | None = None,
    **more: Any,
) -> model.Job:  # fmt: skip
    """Of ada's, submitted and started so many seconds after `NOW_S` as its number says."""
    came_s = NOW_S + number
    values: dict[str, Any] = {"name": "relax", "user": "ada", "group": "", "walltime_s": 3600.0}
    values |= {"qtime_s": None, "ctime_s": came_s, "etime_s": came_s, "state": JobState(state)}
    if state in "RCSE":
        host, begin_s = model.NodeName(node), came_s if start_s is None else start_s
        values |= {"start_s": begin_s, "allocated_slots": (model.HostSlots(host, 0, ppn - 1),)}
        values["allocated_gpus"] = tuple(model.GpuSlot(host, index) for index in range(gpus))
        if state == "C":
            used = model.UsedResources(cores * runtime_s, runtime_s, mem_bytes)
            values |= {"comp_s": begin_s + runtime_s, "exit_status": exit_status, "used": used}
    return builders.job(number, chunks=(Chunk(1, ppn, gpus),), **values | more)


def node(name: str = "n1", *, gpus: tuple[float, ...] = (), ncpus: int = 8, **changes: Any) -> model.Node:
    """One that has just reported; of each GPU how busy it is."""
    busy = (model.GpuDevice(i, utilization=each, memory_used_bytes=1 << 30) for i, each in enumerate(gpus))
    status = {"rectime_s": NOW_S, "availmem_bytes": 60 << 30, "devices": tuple(busy) or None, **changes}
    return builders.node(name, ncpus, gpus=len(gpus), **status)


def snapshot(*jobs: model.Job, nodes: tuple[model.Node, ...] = (), now_s: float = NOW_S) -> Snapshot:
    return Snapshot(now_s, model.Server(), (), nodes or (node(),), jobs)
