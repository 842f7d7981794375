"""What a task service wants done: plain values, to be carried out in this order.

All but `WriteJournal`, `ReplaceJournal` and `WorkersWanted` were held back until the records behind them had
been written.
"""

from __future__ import annotations

from dataclasses import dataclass

from yarn_accel.core.tasks.attempt_orders import AttemptId
from yarn_accel.core.tasks.events import EndReason
from yarn_accel.core.tasks.service.journal import JournalRecord
from yarn_accel.core.tasks.values import AppId, Form, ResourceId, TaskId
from yarn_accel.core.tasks.worker_messages import Counter, WorkerOrder


@dataclass(frozen=True, slots=True)
class WriteJournal:
    """Append these records; `JournalWritten` with this number answers.

    Attributes:
        can_wait: nobody waits for what follows, so they may be written a little later, with the next ones.
    """

    sequence: int
    records: tuple[JournalRecord, ...]
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class ReplaceJournal:
    """These records say all that the journal said; `JournalWritten` with this number answers."""

    sequence: int
    records: tuple[JournalRecord, ...]


@dataclass(frozen=True, slots=True)
class SendOrder:
    """The answer to all reports of a worker from now on."""

    worker: ResourceId
    order: WorkerOrder


@dataclass(frozen=True, slots=True)
class AppAccepted:
    """An application was taken, now or before."""

    app: AppId


@dataclass(frozen=True, slots=True)
class AppRefused:
    """An application was not taken."""

    app: AppId
    error: str


@dataclass(frozen=True, slots=True)
class CommitOutput:
    """All tasks are done: mark the output folder as complete, and remove what attempts left there."""

    app: AppId
    folder: str


@dataclass(frozen=True, slots=True)
class RemoveUnfinished:
    """An application failed or was cancelled: remove what attempts left in its output folder."""

    app: AppId
    folder: str


@dataclass(frozen=True, slots=True)
class AppEnded:
    """Nothing is left to do for an application; `error` is empty if all of its tasks are done."""

    app: AppId
    is_cancelled: bool
    error: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """What became of an attempt, for reports; `started_s` None: it never ran."""

    app: AppId
    task: TaskId
    attempt: AttemptId
    worker: ResourceId
    node: str
    form: Form
    reason: str
    end: EndReason
    error: str
    started_s: float | None
    ended_s: float
    counters: tuple[Counter, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkersWanted:
    """How many workers of each size there should be, by its name."""

    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """A worker has nothing to do and gets nothing more: end its container."""

    worker: ResourceId


ServiceCommand = (
    WriteJournal
    | ReplaceJournal
    | SendOrder
    | AppAccepted
    | AppRefused
    | CommitOutput
    | RemoveUnfinished
    | AppEnded
    | AttemptEnded
    | WorkersWanted
    | ReleaseWorker
)
