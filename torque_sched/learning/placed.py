"""Loads the nodes' samples do not show yet, and loads they still show though the job is gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import Job, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.learning.predictions import LearnedPredictions
from torque_sched.learning.samples import Reading
from torque_sched.policies.context import PendingStart
from torque_sched.policies.load import Load, Measured, PlacedLoad


def placed_of(
    snapshot: Snapshot,
    readings: Mapping[NodeName, Reading],
    predictions: LearnedPredictions,
    pending: tuple[PendingStart, ...],
    lag_s: float,
) -> tuple[PlacedLoad, ...]:
    """Predicted loads of jobs that started too lately for their nodes' samples to contain them.

    They follow from the snapshot, so a scheduler started anew knows them too.
    """
    placed: list[PlacedLoad] = []
    for job in snapshot.running:
        if job.start_s is None:
            continue
        for share in _shares(job):
            reading = readings.get(share.node)
            if reading is None or not reading.contains(job, lag_s):
                placed.append(PlacedLoad(job.id, share.node, _load_on(job, share, predictions), job.start_s))
    for start in pending:
        waiting = snapshot.job_by_id.get(start.job)
        if waiting is not None and waiting.state is JobState.QUEUED:
            placed += [
                PlacedLoad(waiting.id, share.node, _load_on(waiting, share, predictions), start.asked_s)
                for share in start.allocation
            ]
    return tuple(placed)


def without_ended(
    snapshot: Snapshot, readings: Mapping[NodeName, Reading], predictions: LearnedPredictions, lag_s: float
) -> dict[NodeName, Measured]:
    """What nodes measured, less the load of jobs that ended since; nodes that need neither are not here.

    Mom reports a job's end at once where `$node_check_interval` has ``jobend``. Elsewhere the event that the
    server sends (2) comes first, and the node's sample is from before the end.
    """
    measured = {name: reading.measured for name, reading in readings.items() if reading.is_sampled}
    for job in snapshot.jobs:
        if job.state is not JobState.COMPLETED or job.comp_s is None or job.start_s is None:
            continue
        for share in _shares(job):
            reading = readings.get(share.node)
            if reading is None or reading.measured.sample_s >= job.comp_s or not reading.contains(job, lag_s):
                continue
            had = reading.jobs.get(job.id)
            load = (
                Load(had.cpu_cores, had.mem_bytes, had.gpus, had.gpu_mem_bytes)
                if had is not None
                else _load_on(job, share, predictions)
            )
            before = measured.get(share.node, reading.measured)
            measured[share.node] = Measured(_less(before.load, load), before.sample_s)
    return measured


def _less(load: Load, gone: Load) -> Load:
    return Load(
        max(0.0, load.cpu_cores - gone.cpu_cores),
        max(0.0, load.mem_bytes - gone.mem_bytes),
        max(0.0, load.gpus - gone.gpus),
        max(0.0, load.gpu_mem_bytes - gone.gpu_mem_bytes),
    )


def _shares(job: Job) -> Iterator[NodeShare]:
    gpus = job.gpus_by_node()
    for node, slots in job.slots_by_node().items():
        yield NodeShare(node, slots, gpus.get(node, 0))


def _load_on(job: Job, share: NodeShare, predictions: LearnedPredictions) -> Load:
    """A job's part on one node; without any history it uses what it asked for."""
    request = job.request
    expected = predictions.expect(job)
    n_procs, n_gpus = max(1, request.n_procs), request.n_gpus
    if expected is None:
        return Load(float(share.ppn), float(request.mem_bytes or 0) * share.ppn / n_procs, float(share.gpus))
    return expected.load.scaled(share.ppn / n_procs, share.gpus / n_gpus if n_gpus else 0.0)
