"""The records of a task service's journal: what was decided, and which ends count.

A service changes its state by records alone, live and when it reads its journal, so both come to the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from yarn_accel.core.tasks.applications import AppDefinition
from yarn_accel.core.tasks.service.definition_values import app_values, task_row
from yarn_accel.core.tasks.service.journal import JournalRecord
from yarn_accel.errors import StorageError

#: Tasks in one record.
_N_TASKS = 1000


@dataclass(frozen=True, slots=True)
class ServiceBegun:
    """The first record: when the service first started, and how many applications it had taken by then."""

    started_ms: int
    n_apps: int = 0


@dataclass(frozen=True, slots=True)
class AppBegun:
    """An application was taken; it counts once all of its tasks were listed.

    `at` is Unix time; `core_s`: how long the cores of all workers together had been there by then.
    """

    number: int
    definition: dict[str, Any]
    n_tasks: int
    at: float = 0.0
    core_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TasksListed:
    """Some of an application's tasks, as `task_row` has them."""

    app: str
    rows: list[Any]


@dataclass(frozen=True, slots=True)
class WorkerKnown:
    """A worker reported for the first time."""

    worker: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class WorkerForgotten:
    """A worker is gone; what it held was settled before."""

    worker: str


@dataclass(frozen=True, slots=True)
class AttemptAssigned:
    """An attempt belongs to a worker: to start now (`position` -1), or at a position of its queue.

    `predicted_s`: what the policy expects it to take there.
    """

    task: str
    number: int
    worker: str
    form: str
    position: int
    reason: str
    predicted_s: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptDropped:
    """An attempt is to leave its worker: `why` is a `Drop`."""

    task: str
    number: int
    why: str


@dataclass(frozen=True, slots=True)
class AttemptKept:
    """An attempt that was to be taken back had started, and goes on."""

    task: str
    number: int


@dataclass(frozen=True, slots=True)
class AttemptSettled:
    """How an attempt ended: `end` is an `EndReason`; `is_crash`: its worker ended by itself while it ran.

    `ran` is of one that is done: node, started_at, ended_at, overhead_s, compute_s, alone_s of `EndedTask`;
    `lost_s` of one that was ended for another task: how long it had run; `result`: of its function.
    """

    task: str
    number: int
    end: str
    error: str = ""
    is_crash: bool = False
    ran: list[Any] | None = None
    lost_s: float = 0.0
    result: str = ""


@dataclass(frozen=True, slots=True)
class ResultsKept:
    """What functions returned where a journal was shortened: rows of own name of the task, and JSON."""

    app: str
    rows: list[Any]


@dataclass(frozen=True, slots=True)
class PauseSet:
    """From now on nothing of a DAG starts, or it goes on."""

    app: str
    is_paused: bool


@dataclass(frozen=True, slots=True)
class InterruptsCounted:
    """Attempts of a DAG that were ended for others, and their seconds, where a journal was shortened."""

    app: str
    n: int
    lost_s: float


@dataclass(frozen=True, slots=True)
class DagMeasured:
    """The end of a DAG's last task follows: what is known of the DAG, as in `EndedDag`.

    It comes first, so that a later master knows it wherever the journal ends.
    """

    app: str
    own_makespan_s: float | None
    n_moved: int
    core_s: float


@dataclass(frozen=True, slots=True)
class AppOver:
    """An application ends before all of its tasks did: it was cancelled, or it failed with an error."""

    app: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class AppClosed:
    """Nothing is left to do for an application.

    `error`: its output could not be committed; `dag`: an `EndedDag`.
    """

    app: str
    error: str = ""
    at: float = 0.0
    dag: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class TasksRestored:
    """Tasks that are not as they were submitted, where a journal was shortened.

    Rows of partition, state, attempts, failures, crashes, error.
    """

    app: str
    rows: list[Any]


@dataclass(frozen=True, slots=True)
class AppRemembered:
    """An application that had ended where a journal was shortened; see `EndedApp`."""

    app: str
    number: int
    counts: list[Any]
    is_cancelled: bool
    error: str
    name: str = ""
    demands: list[Any] = field(default_factory=list)
    begun_at: float = 0.0
    ended_at: float = 0.0
    dag: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """Tasks that were done where a journal was shortened: rows of `EndedTask`."""

    app: str
    rows: list[Any]


ServiceRecord = (
    ServiceBegun
    | AppBegun
    | TasksListed
    | WorkerKnown
    | WorkerForgotten
    | AttemptAssigned
    | AttemptDropped
    | AttemptKept
    | AttemptSettled
    | PauseSet
    | ResultsKept
    | InterruptsCounted
    | DagMeasured
    | AppOver
    | AppClosed
    | TasksRestored
    | AppRemembered
    | TasksEnded
)
_KINDS: dict[str, type[ServiceRecord]] = {
    "service": ServiceBegun,
    "app": AppBegun,
    "tasks": TasksListed,
    "worker": WorkerKnown,
    "forgotten": WorkerForgotten,
    "assigned": AttemptAssigned,
    "dropped": AttemptDropped,
    "kept": AttemptKept,
    "settled": AttemptSettled,
    "pause": PauseSet,
    "results": ResultsKept,
    "interrupts": InterruptsCounted,
    "measured": DagMeasured,
    "over": AppOver,
    "closed": AppClosed,
    "restored": TasksRestored,
    "remembered": AppRemembered,
    "history": TasksEnded,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {kind: tuple(each.name for each in dataclasses.fields(kind)) for kind in _NAMES}


def encode_record(record: ServiceRecord) -> JournalRecord:
    """A record as a journal keeps it."""
    kind = type(record)
    return {"r": _NAMES[kind], **{name: getattr(record, name) for name in _FIELDS[kind]}}


def decode_record(record: JournalRecord) -> ServiceRecord:
    """A record from a journal.

    Raises:
        StorageError: it is of no kind that is known here.
    """
    values = dict(record)
    kind = _KINDS.get(str(values.pop("r", "")))
    if kind is None or not values.keys() <= set(_FIELDS[kind]):
        raise StorageError(
            f"journal: a record of a kind that is not known here: {str(record)[:100]}",
            cure="let the version that wrote it finish its applications",
        )
    return kind(**values)


def app_records(
    definition: AppDefinition, number: int, at: float, core_s: float = 0.0
) -> Iterator[ServiceRecord]:
    """The records that an application becomes that was submitted at this Unix time."""
    yield AppBegun(number, app_values(definition), definition.spec.n_tasks, at, core_s)
    yield from listed_tasks(definition)


def listed_tasks(definition: AppDefinition) -> Iterator[TasksListed]:
    """The records of an application's tasks."""
    n_prefix = len(definition.spec.app) + 1
    for start in range(0, len(definition.tasks), _N_TASKS):
        tasks = definition.tasks[start : start + _N_TASKS]
        yield TasksListed(definition.spec.app, [task_row(each, n_prefix) for each in tasks])
