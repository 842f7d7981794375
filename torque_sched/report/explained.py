"""The facts that `explain` shows: of a node; of a job the usage and share of its user, and its place."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from torque_sched.decide.context import Load
from torque_sched.decide.order import FairShareOrder
from torque_sched.decide.settings import ORDERS
from torque_sched.decide.throttling import QosOrder, Throttle, qos_of
from torque_sched.learn.samples import reading_of
from torque_sched.learn.usage import ACCOUNT, GROUP, USER, Account, pending_runs
from torque_sched.model.cluster import GpuDevice, Job, Node
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, format_states
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
    yield "state", format_states(node.states) + (f", power {node.power_saving}" if node.power_saving else "")
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
    yield "slots", f"{node.slots_used} of {node.slots} used"
    if node.properties:
        yield "properties", ", ".join(node.properties)


def _load(picture: Picture, node: Node) -> Iterator[tuple[str, str]]:
    reading = reading_of(node)
    if reading is None:
        yield "load", "it has never reported"
        return
    source = "the sampler" if reading.is_sampled else "mom (load average of a minute)"
    age_s = picture.snapshot.now_s - reading.measured.sample_s
    yield "load", f"{_load_words(reading.measured.load, node)}, by {source} {ago(age_s)}"
    if age_s > picture.settings.nodes.stale_after_s:
        yield (
            "",
            f"too old to be trusted: {percent(picture.settings.nodes.stale_uncertainty)} are added to it",
        )
    corrected = picture.context.measured.get(node.name)
    if corrected is not None and corrected.load != reading.measured.load:
        yield "without jobs that ended since", _load_words(corrected.load, node)
    for each in picture.context.placed:
        if each.node == node.name:
            yield "not in it yet", f"{each.job}, expected {_load_words(each.load, node)}"


def _load_words(load: Load, node: Node) -> str:
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
        slot.index: job.id
        for job in snapshot.running
        for slot in job.allocated_gpus
        if slot.node == node.name
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


_HOUR_S = 3600.0


def share_lines(picture: Picture, job: Job) -> Iterator[str]:
    """Usage of the job's user, group and account, its limits and its place in the order, a sentence each."""
    used = picture.history.used
    snapshot = picture.snapshot
    accounts = used.accounts(snapshot.now_s, pending_runs(snapshot, picture.context.pending))
    for kind, name in ((USER, job.user), (GROUP, job.group), (ACCOUNT, job.account)):
        if name:
            everybody = sum(each.weighed(used.gpu_weight) for (k, _), each in accounts.items() if k == kind)
            own = accounts.get((kind, name), Account())
            yield (
                f"usage of {kind} {name}: {_account_words(own, used.gpu_weight)}, "
                f"{percent(own.weighed(used.gpu_weight) / everybody if everybody else 0.0)} of all {kind}s'; "
                f"half is forgotten in {span(used.half_life_s)}"
            )
    qos = qos_of(job, picture.settings.throttling)
    if qos:
        yield f"QoS: {qos}"
    pending = {start.job for start in picture.context.pending}
    running = [*snapshot.running, *(each for each in snapshot.queued if each.id in pending)]
    yield from Throttle(picture.settings.throttling, snapshot.now_s, running).described(job)
    if job.state is JobState.QUEUED and not job.is_array_parent:
        yield from _order(picture, job)
        rule = picture.settings.backfill.ahead
        if rule is not None and rule.keeps_promises and not rule.renews:
            yield f"reservations: {_OUTRANK[rule.outrank]} (outrank: {rule.outrank})"


_OUTRANK = {
    "never": "a reservation once made stays",
    "priority": "a job of higher priority that comes first takes over those of lower priority",
}


def _account_words(account: Account, gpu_weight: float) -> str:
    text = f"{account.proc_s / _HOUR_S:.1f} processor hours"
    if account.gpu_s:
        hours = account.weighed(gpu_weight) / _HOUR_S
        text += f" and {account.gpu_s / _HOUR_S:.1f} GPU hours, each counted as {gpu_weight:g}: {hours:.1f}"
    return text


def _order(picture: Picture, job: Job) -> Iterator[str]:
    order, words = picture.settings.order, ""
    if isinstance(order, QosOrder):
        priority = order.priority_of(job)
        before = sum(order.priority_of(each) > priority for each in _waiting(picture, job))
        words = f"; {before} are of a QoS of higher priority and come first"
        order = order.order
    name = next((name for name, kind in ORDERS.items() if kind is type(order)), type(order).__name__)
    place, n_jobs = place_in_order(picture, job)
    if not isinstance(order, FairShareOrder):
        yield f"order: {place} of {n_jobs} waiting jobs, by {name}, to which usage makes no difference{words}"
        return
    ranks = order.ranks(_waiting(picture, job), picture.context)
    own = ranks[order.holders_of(job)]
    before = sum(each.rank < own.rank for each in ranks.values())
    names = {USER: job.user, GROUP: job.group, ACCOUNT: job.account}
    parts = [f"{kind} {names[kind] or '(none)'}: {percent(part)}" for kind, part in own.parts.items()]
    kinds = " and ".join(f"{kind}s" for kind in own.parts)
    yield (
        f"share of {', '.join(parts)} of the cluster; of {len(ranks)} {kinds} "
        f"who wait {before} had less for their shares and come first"
    )
    yield f"order: {place} of {n_jobs} waiting jobs, by {name}{words}"


def place_in_order(picture: Picture, job: Job) -> tuple[int, int]:
    """Which of the waiting jobs it is, as if each started at its turn, and how many there are."""
    waiting = _waiting(picture, job)
    turns = picture.settings.order.turns(waiting, picture.snapshot, picture.context)
    for place, each in enumerate(turns, 1):
        if each.id == job.id:
            return place, len(waiting)
        turns.started(each)
    return len(waiting), len(waiting)


def _waiting(picture: Picture, job: Job) -> tuple[Job, ...]:
    waiting = picture.snapshot.queued
    return waiting if job.id in picture.snapshot.job_by_id else (*waiting, job)
