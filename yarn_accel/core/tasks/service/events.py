"""What happens to a task service: plain values; `now_s` is the caller's monotonic clock in seconds.

Reports may come twice, late or not at all. `ServiceTick` is when the service decides: the caller applies all
that happened, then one tick; and one tick in every second in which nothing happens.
"""

from __future__ import annotations

from dataclasses import dataclass

from yarn_accel.core.tasks.applications import AppDefinition
from yarn_accel.core.tasks.server_gpus import ServingServers
from yarn_accel.core.tasks.service.journal import JournalRecord
from yarn_accel.core.tasks.service.prepared import PreparedApp
from yarn_accel.core.tasks.values import AppId, ResourceId
from yarn_accel.core.tasks.worker_messages import WorkerReport


@dataclass(frozen=True, slots=True)
class Recovered:
    """The first event of each master: what its journal says; nothing of a new one.

    Attributes:
        at: Unix time in seconds at `now_s`.
    """

    records: tuple[JournalRecord, ...]
    now_s: float
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class SubmitRequested:
    """Somebody wants an application to run; `AppAccepted` or `AppRefused` answers. May be repeated.

    Attributes:
        prepared: of this definition, which `TaskService.check_submission` has just found to be new; None: it
            is checked and prepared here, which takes long for many tasks.
    """

    definition: AppDefinition
    now_s: float
    prepared: PreparedApp | None = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants no more of an application."""

    app: AppId
    now_s: float


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Somebody wants nothing of a DAG to start, or wants it to go on."""

    app: AppId
    is_paused: bool
    now_s: float


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker sent a report."""

    report: WorkerReport
    now_s: float


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker's container ended.

    Attributes:
        by_itself: neither YARN (preemption, a lost node) nor we ended it: what ran there may be why.
    """

    worker: ResourceId
    by_itself: bool
    reason: str
    now_s: float


@dataclass(frozen=True, slots=True)
class WorkersAtRisk:
    """YARN is about to end the containers of these workers, unless as much is given back otherwise."""

    workers: tuple[ResourceId, ...]
    now_s: float


@dataclass(frozen=True, slots=True)
class ServersServe:
    """These pipeline servers serve from now on."""

    servers: ServingServers
    now_s: float


@dataclass(frozen=True, slots=True)
class JournalWritten:
    """All records up to this number survive a crash."""

    sequence: int
    now_s: float


@dataclass(frozen=True, slots=True)
class JournalFailed:
    """Nobody knows which of the last records are there: all is written anew."""

    now_s: float


@dataclass(frozen=True, slots=True)
class OutputSettled:
    """`CommitOutput` or `RemoveUnfinished` was carried out, or could not be."""

    app: AppId
    error: str
    now_s: float


@dataclass(frozen=True, slots=True)
class ServiceTick:
    """All that happened was applied: decide."""

    now_s: float


ServiceEvent = (
    Recovered
    | SubmitRequested
    | CancelRequested
    | PauseRequested
    | WorkerReported
    | WorkerGone
    | WorkersAtRisk
    | JournalFailed
    | JournalWritten
    | OutputSettled
    | ServersServe
    | ServiceTick
)
