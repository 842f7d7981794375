"""Jobs, nodes and snapshots for tests of what is learned."""

from __future__ import annotations

from typing import Any

from torque_sched.core.model import (
    GpuDevice,
    GpuReport,
    GpuSlot,
    HostSlots,
    Job,
    JobId,
    Node,
    NodeName,
    NodeStatus,
    QueueName,
    Server,
    UsedResources,
)
from torque_sched.core.request import Chunk, Request
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState

NOW_S = 1_795_195_600.0


def job(
    number: int,
    state: str = "Q",
    *,
    name: str = "relax",
    user: str = "ada",
    ppn: int = 2,
    gpus: int = 0,
    node: str = "n1",
    start_s: float | None = None,
    runtime_s: float = 100.0,
    cores: float = 1.0,
    mem_bytes: int = 1 << 30,
    exit_status: int = 0,
    walltime_s: float | None = 3600.0,
    **more: Any,
) -> Job:
    began = state in {"R", "C", "S", "E"}
    begin_s = (NOW_S + number if start_s is None else start_s) if began else None
    is_done = state == "C"
    return Job(
        id=JobId(f"{number}.head"),
        state=JobState(state),
        queue=QueueName("batch"),
        request=Request(chunks=(Chunk(1, ppn, gpus),), walltime_s=walltime_s),
        name=name,
        user=user,
        sequence=number,
        ctime_s=NOW_S + number,
        etime_s=NOW_S + number,
        start_s=begin_s,
        comp_s=begin_s + runtime_s if is_done and begin_s is not None else None,
        exit_status=exit_status if is_done else None,
        exec_host=(HostSlots(NodeName(node), 0, ppn - 1),) if began else (),
        exec_gpus=tuple(GpuSlot(NodeName(node), index) for index in range(gpus)) if began else (),
        used=UsedResources(cores * runtime_s, runtime_s, mem_bytes) if is_done else UsedResources(),
        **more,
    )


def node(
    name: str = "n1",
    *,
    rectime_s: float | None = NOW_S,
    loadave: float = 0.0,
    varattr: dict[str, str] | None = None,
    gpus: tuple[float, ...] = (),
    ncpus: int = 8,
    properties: tuple[str, ...] = (),
) -> Node:
    status = NodeStatus(
        rectime_s=rectime_s, ncpus=ncpus, loadave=loadave, physmem_bytes=64 << 30, totmem_bytes=64 << 30,
        availmem_bytes=60 << 30, varattr=varattr or {},
    )  # fmt: skip
    report = GpuReport(
        tuple(GpuDevice(i, utilization=busy, memory_used_bytes=1 << 30) for i, busy in enumerate(gpus))
    )
    return Node(
        NodeName(name), ncpus, properties=properties, gpus=len(gpus), status=status,
        gpu_report=report if gpus else None,
    )  # fmt: skip


def snapshot(*jobs: Job, nodes: tuple[Node, ...] = (), now_s: float = NOW_S) -> Snapshot:
    return Snapshot(now_s, Server(), (), nodes or (node(),), jobs)
