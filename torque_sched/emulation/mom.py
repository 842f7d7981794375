"""What the moms report: load, memory, sessions, GPUs, as of their last report.

A mom reports every ``report_s`` seconds at its own phase, so the server always shows the past. The load
average follows the running jobs' declared load with the time constant of a one-minute average.
"""

from __future__ import annotations

import math
import time
import zlib
from dataclasses import dataclass

from torque_sched.emulation.model import EmulatedJob, EmulatedNode, size_kb, walltime_text
from torque_sched.emulation.world import World


@dataclass(frozen=True, slots=True)
class Report:
    """One report of one mom."""

    at_s: int
    load: float
    busy: bool
    jobs: tuple[str, ...]
    used_kb: int
    gpu_load: tuple[tuple[float, float], ...]
    """(percent, MB) per GPU index."""


@dataclass(slots=True)
class _Trace:
    """Load average of a node since its jobs last changed."""

    since_s: float
    load: float
    last: Report


def report(world: World, node: EmulatedNode) -> Report:
    """The newest report the server has."""
    trace = _trace(world, node)
    due_s = _report_s(world, node)
    return trace.last if due_s < trace.since_s or due_s <= trace.last.at_s else _take(world, node, due_s)


def before_change(world: World, name: str) -> None:
    """Call before the jobs of a node change: what was reported until now is kept."""
    node = world.nodes[name]
    last = report(world, node)
    load = _load_at(world, node, world.now_s)
    world.reported[name] = (world.now_s, _Trace(world.now_s, load, last))


def report_now(world: World, name: str) -> None:
    """The mom speaks at once, out of its turn ($node_check_interval with jobend)."""
    node = world.nodes[name]
    before_change(world, name)
    trace = _trace(world, node)
    trace.last = _take(world, node, int(world.now_s))


def _trace(world: World, node: EmulatedNode) -> _Trace:
    held = world.reported.get(node.name)
    if held is not None:
        trace = held[1]
        assert isinstance(trace, _Trace)
        return trace
    # The first look at this node in this life of the server: its load is in balance with its jobs.
    trace = _Trace(world.now_s, _target(world, node), Report(0, 0.0, False, (), 0, ()))
    world.reported[node.name] = (world.now_s, trace)
    trace.last = _take(world, node, min(int(world.now_s), _report_s(world, node)))
    return trace


def _report_s(world: World, node: EmulatedNode) -> int:
    period = world.settings.report_s
    until = world.now_s if node.mom == "up" else min(world.now_s, node.mom_changed_s)
    phase = zlib.crc32(node.name.encode()) % max(1, int(period))
    return int(math.floor((until - phase) / period) * period + phase)


def _standing(world: World, node: EmulatedNode) -> list[EmulatedJob]:
    return [world.jobs[name] for name in world.jobs_on(node.name)]


def _slots_of(job: EmulatedJob, node: EmulatedNode) -> int:
    return sum(len(indices) for name, indices in job.slots if name == node.name)


def _target(world: World, node: EmulatedNode) -> float:
    if node.fixed_load is not None:
        return node.fixed_load
    jobs = _standing(world, node)
    return node.base_load + sum(job.profile.get("cpu", 1.0) * _slots_of(job, node) for job in jobs)


def _load_at(world: World, node: EmulatedNode, at_s: float) -> float:
    if node.fixed_load is not None:
        return node.fixed_load
    trace = _trace(world, node)
    target = _target(world, node)
    return target + (trace.load - target) * math.exp(
        -max(0.0, at_s - trace.since_s) / world.settings.load_tau_s
    )


def _take(world: World, node: EmulatedNode, at_s: int) -> Report:
    jobs = _standing(world, node)
    load = _load_at(world, node, at_s)
    used_kb = sum(_memory_kb(job) // max(1, len(job.slots)) for job in jobs)
    busy = node.max_load is not None and load >= node.max_load
    gpus = []
    for index, holder in enumerate(world.gpu_slots[node.name]):
        job = world.jobs.get(holder or "")
        percent = job.profile.get("gpu", 0.0) if job else 0.0
        mem_mb = job.profile.get("gpu_mem_mb", 0.0) if job else 0.0
        percent += node.gpu_stray.get(str(index), 0.0)
        gpus.append((min(100.0, percent), min(float(node.gpu_mem_mb), mem_mb)))
    return Report(at_s, load, busy, tuple(job.id for job in jobs), used_kb, tuple(gpus))


def _memory_kb(job: EmulatedJob) -> int:
    if "mem_kb" in job.profile:
        return int(job.profile["mem_kb"])
    return size_kb(job.resources["mem"]) if "mem" in job.resources else 8192


def refresh_used(world: World, job: EmulatedJob) -> None:
    """Write resources_used as a mom would report it now."""
    elapsed_s = world.now_s - job.start_s
    slots = sum(len(indices) for _, indices in job.slots)
    mem_kb = _memory_kb(job)
    job.used = {
        "cput": walltime_text(elapsed_s * job.profile.get("cpu", 1.0) * slots),
        "energy_used": "0",
        "mem": f"{mem_kb}kb",
        "vmem": f"{mem_kb + 3584}kb",
        "walltime": walltime_text(elapsed_s),
    }


def status(world: World, node: EmulatedNode, last: Report) -> str:
    """The ``status`` attribute; 4.2.10 lists it the other way round and shorter."""
    sessions = [world.jobs[name].attributes.get("session_id", "") for name in last.jobs if name in world.jobs]
    sessions = [each for each in sessions if each]
    users = {world.jobs[name].user for name in last.jobs if name in world.jobs}
    total_kb = node.physmem_kb + node.swap_kb
    free_kb = max(0, node.physmem_kb - 1048576 - last.used_kb) + node.swap_kb
    state = "busy" if last.busy else "free"
    old = world.settings.is_old
    seed = zlib.crc32(node.name.encode())
    mac = ":".join(f"{byte:02x}" for byte in (0x02, *seed.to_bytes(4, "big"), 0x01))
    pairs = [
        "opsys=linux",
        f"uname=Linux {node.name} 5.14.0-emulated #1 SMP PREEMPT_DYNAMIC @0 x86_64",
        *([f"sessions={' '.join(sessions)}"] if sessions else []),
        f"nsessions={len(sessions)}",
        f"nusers={len(users)}",
        f"idletime={max(0, last.at_s % 1000000)}",
        f"totmem={total_kb}kb",
        f"availmem={free_kb}kb",
        f"physmem={node.physmem_kb}kb",
        f"ncpus={node.ncpus or node.np}",
        f"loadave={last.load:.2f}",
        *([f"message={node.message} "] if node.message else []),
        f"gres={node.gres}",
        f"netload={last.at_s % 100000000}",
        f"state={state}",
    ]
    varattr = f"varattr={node.varattr or ('' if old else ' ')}"
    jobs = f"jobs={' '.join(last.jobs)}"
    if old:
        return ",".join(reversed([*pairs, jobs, varattr, f"rectime={last.at_s}"]))
    tail = ["cpuclock=Fixed", f"macaddr={mac}", "version=6.1.3.h5-emulated", f"rectime={last.at_s}", jobs]
    return ",".join([*pairs, varattr, *tail])


def gpu_status(world: World, node: EmulatedNode, last: Report) -> str:
    """The ``gpu_status`` attribute of a mom with NVML: highest index first, gpu_display at the end."""
    records = []
    for index in reversed(range(node.gpus)):
        percent, mem_mb = last.gpu_load[index] if index < len(last.gpu_load) else (0.0, 0.0)
        mode, state = _gpu_state(world, node, index)
        place = f"0000:{0x3B + 16 * index:02X}:00.0"
        fields = [
            f"gpu[{index}]=gpu_id={place}",
            "gpu_pci_device_id=548409566",
            f"gpu_pci_location_id={place}",
            f"gpu_product_name={node.gpu_product}",
            f"gpu_memory_total={node.gpu_mem_mb} MB",
            f"gpu_memory_used={int(mem_mb) or 3} MB",
            f"gpu_mode={mode}",
            f"gpu_state={state}",
            f"gpu_utilization={int(percent)}%",
            f"gpu_memory_utilization={int(100 * mem_mb / node.gpu_mem_mb)}%",
            "gpu_ecc_mode=Enabled",
            "gpu_single_bit_ecc_errors=0",
            "gpu_double_bit_ecc_errors=0",
            f"gpu_temperature={31 + int(percent * 0.4)} C",
            *(["gpu_display=Disabled"] if index == 0 else []),
        ]
        records.append(";".join(fields))
    stamp = time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(last.at_s))
    return ",".join([*records, "gpu_display=Disabled", "driver_ver=535.104.05", f"timestamp={stamp}"])


def _gpu_state(world: World, node: EmulatedNode, index: int) -> tuple[str, str]:
    holder = world.jobs.get(world.gpu_slots[node.name][index] or "")
    if holder is None:
        return "Default", "Unallocated"
    shared = holder.attributes.get("gpu_flags") in {"0", "1000"}
    return ("Default", "Shared") if shared else ("Exclusive_Process", "Exclusive")
