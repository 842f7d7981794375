"""All that is known of one node, in lines."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from torque_sched.core.model import GpuDevice, Node
from torque_sched.core.snapshot import Snapshot
from torque_sched.learning.samples import reading_of
from torque_sched.parse.pbsnodes import format_states
from torque_sched.policies.load import Load
from torque_sched.report.picture import Picture
from torque_sched.report.words import ago, percent, size, span


def node_facts(picture: Picture, node: Node) -> Iterator[tuple[str, Text]]:
    """Names and values, in the order people ask."""
    for name, value in (
        *_state(picture, node),
        *_load(picture, node),
        *_gpus(picture, node),
        *_jobs(picture, node),
    ):
        yield name, Text(value)


def _state(picture: Picture, node: Node) -> Iterator[tuple[str, str]]:
    snapshot = picture.snapshot
    yield "state", format_states(node.states) + (f", power {node.power_state}" if node.power_state else "")
    if node.note:
        yield "note", node.note
    if node.status is not None and node.status.message:
        yield "health check", node.status.message
    pause = picture.context.back_off.nodes.get(node.name)
    if pause is not None and pause.until_s > snapshot.now_s:
        yield "left alone", f"for {span(pause.until_s - snapshot.now_s)}: {pause.why}"
    for kept in picture.context.reservations:
        if node.name in kept.nodes and kept.end_s > snapshot.now_s:
            yield "reserved", f"{kept.name}, for {', '.join(sorted(kept.users)) or 'nobody'}"
    yield "slots", f"{node.slots_used} of {node.np} used"
    if node.properties:
        yield "properties", ", ".join(node.properties)


def _load(picture: Picture, node: Node) -> Iterator[tuple[str, str]]:
    reading = reading_of(node)
    if reading is None:
        yield "load", "it has never reported"
        return
    source = "the sampler" if reading.is_sampled else "mom (load average of a minute)"
    age_s = picture.snapshot.now_s - reading.measured.sample_s
    yield "load", f"{_words(reading.measured.load, node)}, by {source} {ago(age_s)}"
    if age_s > picture.settings.nodes.stale_after_s:
        yield (
            "",
            f"too old to be trusted: {percent(picture.settings.nodes.stale_uncertainty)} are added to it",
        )
    corrected = picture.context.measured.get(node.name)
    if corrected is not None and corrected.load != reading.measured.load:
        yield "without jobs that ended since", _words(corrected.load, node)
    for each in picture.context.placed:
        if each.node == node.name:
            yield "not in it yet", f"{each.job}, expected {_words(each.load, node)}"


def _words(load: Load, node: Node) -> str:
    words = f"{load.cpu_cores:.2f} cores, {size(load.mem_bytes)} of {size(node.mem_bytes)}"
    return words + (f", {load.gpus:.2f} GPUs, {size(load.gpu_mem_bytes)} of theirs" if node.gpus else "")


def _gpus(picture: Picture, node: Node) -> Iterator[tuple[str, str]]:
    holders = _holders(picture.snapshot, node)
    for device in node.gpu_report.devices if node.gpu_report is not None else ():
        yield f"GPU {device.index}", _device(device, holders.get(device.index, ""), picture)
    if node.gpus and node.gpu_report is None:
        yield "GPUs", f"{len(holders)} of {node.gpus} held; this mom does not report on them"


def _holders(snapshot: Snapshot, node: Node) -> dict[int, str]:
    return {
        slot.index: job.id for job in snapshot.running for slot in job.exec_gpus if slot.node == node.name
    }


def _device(device: GpuDevice, holder: str, picture: Picture) -> str:
    words = [f"held by {holder}" if holder else "free", f"{percent(device.utilization)} busy"]
    words.append(f"{size(device.memory_used_bytes)} in use")
    rules = picture.settings.gpus
    is_used = (device.utilization or 0) > rules.dirty_utilization or (
        (device.memory_used_bytes or 0) > rules.dirty_mem_bytes
    )
    if not holder and is_used:
        words.append("in use though no job has it")
    if (
        device.double_bit_ecc_errors
        or (device.temperature_c or 0) >= rules.hot_c
        or device.mode == "Prohibited"
    ):
        words.append(
            f"sick: mode {device.mode}, {device.temperature_c} C, {device.double_bit_ecc_errors} ECC errors"
        )
    return ", ".join(words)


def _jobs(picture: Picture, node: Node) -> Iterator[tuple[str, str]]:
    reading = reading_of(node)
    for part in node.jobs:
        job = picture.snapshot.job_by_id.get(part.job)
        words = [f"{part.n_slots} slots"]
        if job is not None:
            words += [job.user, job.name] if picture.viewer.may_see(job) else []
            if job.walltime_s is not None and job.start_s is not None:
                words.append(f"ends within {span(job.start_s + job.walltime_s - picture.snapshot.now_s)}")
        sample = reading.jobs.get(part.job) if reading is not None else None
        if sample is not None:
            words.append(
                f"uses {sample.cpu_cores:.2f} cores, {size(sample.mem_bytes)}, {sample.gpus:.2f} GPUs"
            )
        yield f"job {part.job}", ", ".join(words)
