"""What a decision needs beside the snapshot: all that happened since, or that only the daemon knows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torque_sched.core.decisions import NodeShare, Promise
from torque_sched.core.model import Job, JobId, NodeName
from torque_sched.core.request import Request
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.policies.fair_share import DEFAULT_GPU_WEIGHT
from torque_sched.policies.load import NO_LOAD, Load, Measured, PlacedLoad


@dataclass(frozen=True, slots=True)
class PendingStart:
    """A start asked for that no snapshot has confirmed yet; its nodes count as taken."""

    job: JobId
    allocation: tuple[NodeShare, ...]
    asked_s: float


def starting(snapshot: Snapshot, pending: Iterable[PendingStart] = ()) -> tuple[PendingStart, ...]:
    """Starts that somebody else asked for while we looked: jobs that wait by ``qstat`` but are on nodes.

    Which GPUs they have nobody says before ``qstat`` does: as many as go with their slots.

    Args:
        snapshot: its nodes are no older than its jobs (`adapters.pbs`).
        pending: starts that are known; they are left out.
    """
    known = {start.job for start in pending}
    slots: dict[JobId, dict[NodeName, int]] = {}
    for node in snapshot.nodes:
        for part in node.jobs:
            job = snapshot.job_by_id.get(part.job)
            if job is not None and job.state is JobState.QUEUED and job.id not in known:
                on_nodes = slots.setdefault(job.id, {})
                on_nodes[node.name] = on_nodes.get(node.name, 0) + part.n_slots
    return tuple(
        PendingStart(job, _with_gpus(snapshot.job_by_id[job].request, on_nodes), snapshot.now_s)
        for job, on_nodes in slots.items()
    )


def _with_gpus(request: Request, slots: Mapping[NodeName, int]) -> tuple[NodeShare, ...]:
    n_gpus, n_procs = request.n_gpus, max(1, request.n_procs)
    return tuple(
        NodeShare(name, n_slots, math.ceil(n_gpus * min(1.0, n_slots / n_procs)))
        for name, n_slots in slots.items()
    )


@dataclass(frozen=True, slots=True)
class Pause:
    """Not to be tried again before ``until_s``; ``why`` is shown to the job's owner."""

    until_s: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class BackOff:
    """What failed lately: whole jobs, whole nodes, and jobs on certain nodes."""

    jobs: Mapping[JobId, Pause] = field(default_factory=dict)
    nodes: Mapping[NodeName, Pause] = field(default_factory=dict)
    pairs: Mapping[JobId, Mapping[NodeName, Pause]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a whole job (all its nodes) is expected to use on average."""

    load: Load = NO_LOAD
    runtime_s: float | None = None
    mem_upper_bytes: float | None = None
    """Memory it will hardly exceed; None: nothing is known. Only `memory_admission` looks at it."""
    evidence: str = ""


class Predictions(Protocol):
    """What learned history says of a job."""

    def expect(self, job: Job) -> Prediction | None:
        """The prediction for a queued job, None without any history; equal calls give equal answers."""
        ...


@dataclass(frozen=True, slots=True)
class KnownPredictions:
    """Predictions looked up beforehand; with nothing in it: no history at all."""

    by_job: Mapping[JobId, Prediction] = field(default_factory=dict)

    def expect(self, job: Job) -> Prediction | None:
        """As `Predictions.expect`."""
        return self.by_job.get(job.id)


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open span of time, such as dedicated time."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes kept from ``start_s`` to ``end_s`` for some users; for nobody: maintenance."""

    name: str
    nodes: frozenset[NodeName]
    start_s: float
    end_s: float
    users: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Context:
    """Everything beside snapshot and settings that `decide` may look at.

    Attributes:
        pending: starts asked for and not confirmed; those the snapshot shows running are ignored.
        back_off: what is not to be tried for a while.
        measured: loads from the shipped sampler; nodes missing here are taken from the mom's own report.
        placed: predicted loads of jobs started lately; dropped once the node's sample contains them.
        predictions: what history says of a job.
        usage: fair-share usage by user in processor seconds, already decayed to now.
        gpu_weight: so many processor seconds a GPU second counts in it.
        reservations: nodes kept for somebody, also maintenance.
        dedicated: dedicated time, past and future.
        last_node: where the last job went; `round_robin` goes on after it.
        kept: jobs for which the cycle before kept nodes.
        gpu_work_s: when a job with GPUs last waited or ran; None: never, as far as anybody knows.
        promises: what the cycle before promised to waiting jobs.
        freed: whether anything may have become free since those promises were made; if surely not, they
            cannot become sooner, and nobody tries.
    """

    pending: tuple[PendingStart, ...] = ()
    back_off: BackOff = field(default_factory=BackOff)
    measured: Mapping[NodeName, Measured] = field(default_factory=dict)
    placed: tuple[PlacedLoad, ...] = ()
    predictions: Predictions = field(default_factory=KnownPredictions)
    usage: Mapping[str, float] = field(default_factory=dict)
    gpu_weight: float = DEFAULT_GPU_WEIGHT
    reservations: tuple[Reservation, ...] = ()
    dedicated: tuple[Window, ...] = ()
    last_node: NodeName | None = None
    kept: frozenset[JobId] = frozenset()
    gpu_work_s: float | None = None
    promises: Mapping[JobId, Promise] = field(default_factory=dict)
    freed: bool = True
