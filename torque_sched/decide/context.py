"""The input of a decision beside the snapshot: what happened since, or what only the daemon knows.

A `Load` is in amounts: cores, bytes and GPUs, not shares. A job's amounts are its own; only the share they
make differs between nodes (self-learning paper, 3.2). So loads are added as amounts and divided by a node's
capacity last. `Lengths` says how long jobs are planned to run, by their walltimes and by these predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torque_sched.decide.fair_share import DEFAULT_GPU_WEIGHT
from torque_sched.model.cluster import Job, JobId, Node, NodeName
from torque_sched.model.decisions import Decision, GuaranteedStart, NodeShare, Reserve, Start
from torque_sched.model.lengths import CORRECTIONS_S
from torque_sched.model.request import Request
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.model.states import JobState


@dataclass(frozen=True, slots=True)
class Load:
    """What is in use, or will be: busy cores, bytes, busy GPUs, bytes of GPU memory."""

    cpu_cores: float = 0.0
    mem_bytes: float = 0.0
    gpus: float = 0.0
    """Two GPUs at half use each count 1."""
    gpu_mem_bytes: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(
            self.cpu_cores + other.cpu_cores,
            self.mem_bytes + other.mem_bytes,
            self.gpus + other.gpus,
            self.gpu_mem_bytes + other.gpu_mem_bytes,
        )

    def scaled(self, share: float, gpu_share: float | None = None) -> Load:
        """This part of it; `gpu_share` is the part of the GPUs where that differs."""
        of_gpus = share if gpu_share is None else gpu_share
        return Load(
            self.cpu_cores * share, self.mem_bytes * share, self.gpus * of_gpus, self.gpu_mem_bytes * of_gpus
        )


NO_LOAD = Load()


@dataclass(frozen=True, slots=True)
class Measured:
    """The load of a node as sampled at ``sample_s`` (seconds since the epoch)."""

    load: Load
    sample_s: float


@dataclass(frozen=True, slots=True)
class PlacedLoad:
    """The predicted load of a job just started on a node.

    It counts until the node's own sample contains it, or the job is gone.
    """

    job: JobId
    node: NodeName
    load: Load
    placed_s: float


def measured_by_node(node: Node) -> Measured | None:
    """The node's own report: load average, memory, GPU report; None before its first report."""
    status = node.status
    if status is None or status.rectime_s is None:
        return None
    used = 0.0
    if status.availmem_bytes is not None:
        total = status.totmem_bytes or status.physmem_bytes or 0
        used = float(max(0, total - status.availmem_bytes))
    gpus = gpu_mem = 0.0
    if node.gpu_report is not None:
        for device in node.gpu_report.devices:
            gpus += device.utilization or 0.0
            gpu_mem += device.memory_used_bytes or 0
    return Measured(Load(status.loadave or 0.0, used, gpus, gpu_mem), status.rectime_s)


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
        snapshot: its nodes are no older than its jobs (`batch.system`).
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
class Context:
    """Everything beside snapshot and settings that `decide` may look at.

    Attributes:
        pending: starts asked for and not confirmed; those the snapshot shows running are ignored.
        back_off: what is not to be tried for a while.
        measured: loads from the shipped sampler; nodes missing here are taken from their own report.
        placed: predicted loads of jobs started lately; dropped once the node's sample contains them.
        predictions: what history says of a job.
        usage: fair-share usage by user in processor seconds, already decayed to now.
        group_usage: the same by group.
        account_usage: the same by account.
        gpu_weight: so many processor seconds a GPU second counts in it.
        reservations: nodes kept for somebody, also maintenance.
        dedicated: dedicated time, past and future.
        last_node: where the last job went; `round_robin` goes on after it.
        kept: jobs for which the cycle before kept nodes.
        gpu_work_s: when a job with GPUs last waited or ran; None: never, as far as anybody knows.
        promises: what the cycle before promised to waiting jobs.
    """

    pending: tuple[PendingStart, ...] = ()
    back_off: BackOff = field(default_factory=BackOff)
    measured: Mapping[NodeName, Measured] = field(default_factory=dict)
    placed: tuple[PlacedLoad, ...] = ()
    predictions: Predictions = field(default_factory=KnownPredictions)
    usage: Mapping[str, float] = field(default_factory=dict)
    group_usage: Mapping[str, float] = field(default_factory=dict)
    account_usage: Mapping[str, float] = field(default_factory=dict)
    gpu_weight: float = DEFAULT_GPU_WEIGHT
    reservations: tuple[Reservation, ...] = ()
    dedicated: tuple[Window, ...] = ()
    last_node: NodeName | None = None
    kept: frozenset[JobId] = frozenset()
    gpu_work_s: float | None = None
    promises: Mapping[JobId, GuaranteedStart] = field(default_factory=dict)


@dataclass(slots=True)
class Remembered:
    """What the cycles before leave for the next one's `Context`, beside what is learned and promised.

    Attributes:
        last_node: as `Context.last_node`; `kept` and `gpu_work_s` likewise.
    """

    last_node: NodeName | None = None
    kept: frozenset[JobId] = frozenset()
    gpu_work_s: float | None = None

    def see(self, snapshot: Snapshot) -> None:
        """A cycle begins."""
        if snapshot.has_gpu_work:
            self.gpu_work_s = snapshot.now_s

    def decided(self, decisions: Iterable[Decision]) -> None:
        """Decisions were made, before any is carried out."""
        reserved = (each for each in decisions if isinstance(each, Reserve))
        self.kept = frozenset(each.job for each in reserved if each.promise is None)

    def started(self, start: Start) -> None:
        """A start was accepted."""
        self.last_node = start.allocation[-1].node


_COARSE_S = 2.0

OVERRUN_S = 60.0
"""A job past its walltime is about to be ended by its node."""


class Lengths:
    """Walltimes, or what history says; infinite where neither is known.

    Args:
        predictions: of this cycle; None: walltimes are planned with.
        default_s: for jobs without walltime; 0: unknown.
        slack_s: a job may be ended so much after its limit.
    """

    def __init__(
        self, now_s: float, predictions: Predictions | None, default_s: float, slack_s: float
    ) -> None:
        self._now_s, self._predictions = now_s, predictions
        self._default_s, self._slack_s = default_s, slack_s

    def limit_s(self, job: Job) -> float:
        """Its walltime."""
        return job.walltime_s if job.walltime_s is not None else self._default_s or math.inf

    def length_s(self, job: Job) -> float:
        """How long a waiting job is planned to run."""
        return min(self._predicted(job), self.limit_s(job))

    def _predicted(self, job: Job) -> float:
        expected = self._predictions.expect(job) if self._predictions is not None else None
        if expected is None or not expected.runtime_s:
            return math.inf
        return max(1.0, expected.runtime_s)

    def end_s(self, job: Job) -> float:
        """When a running (or starting) job will be gone; a prediction it outran is raised step by step."""
        if job.state is JobState.SUSPENDED:
            return math.inf
        limit_s = self.limit_s(job)
        start_s = self._now_s if job.start_s is None else job.start_s
        if job.walltime_remaining_s is not None and job.walltime_s is not None:
            reported_s = self._now_s + job.walltime_remaining_s - job.walltime_s
            # The server counts whole seconds: an end must not move with every look at it.
            if job.start_s is None or abs(reported_s - start_s) > max(_COARSE_S, self._slack_s):
                start_s = reported_s
        length_s = min(self._predicted(job), limit_s)
        ran_s = self._now_s - start_s
        for more_s in CORRECTIONS_S:
            if length_s + self._slack_s > ran_s or length_s >= limit_s:
                break
            length_s = min(length_s + more_s, limit_s)
        end_s = start_s + length_s + self._slack_s
        # Only a job past its limit is given time from now on: if each were, a start would recede for ever.
        return end_s if end_s > self._now_s else self._now_s + OVERRUN_S

    def is_steady(self, job: Job) -> bool:
        """Whether a running job's end is the same until it comes, whenever one looks."""
        if self._predictions is not None or job.start_s is None or job.walltime_remaining_s is not None:
            return False
        return job.start_s + self.limit_s(job) + self._slack_s > self._now_s

    def overran(self, job: Job) -> bool:
        """Whether a running job should have been gone by now."""
        start_s = self._now_s if job.start_s is None else job.start_s
        return start_s + self.length_s(job) + self._slack_s <= self._now_s
