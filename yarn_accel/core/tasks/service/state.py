"""What a task service knows of applications, tasks, attempts and workers.

::

    WAITING ──▶ READY ──▶ QUEUED ──▶ RUNNING ──▶ DONE, FAILED, CANCELLED
    for predecessors ▲    at a worker   │
                     └──────────────────┘  taken back, lost, ended for others, or failed and may try again

A task has one assignment at most: that attempt's end counts, and no other one's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from yarn_accel.core.tasks.applications import AppDefinition, TaskDefinition
from yarn_accel.core.tasks.attempt_orders import AttemptId
from yarn_accel.core.tasks.service.history import AppHistory, EndedDag
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, ResourceId, ResourceSpec, TaskId


class TaskState(Enum):
    """Where a task is."""

    WAITING = "waiting"
    READY = "ready"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Nothing follows."""
        return self in _FINAL


_FINAL = frozenset((TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED))


class Drop(Enum):
    """Why an attempt is to leave its worker."""

    TAKE_BACK = "take-back"
    END = "end"
    OVER = "over"
    """Its application was cancelled, or has failed."""


@dataclass(slots=True, eq=False)
class ServedApp:
    """An application that has not ended.

    Attributes:
        number: of the applications of this service, from 1; a part of its attempts' names.
        begun_at: Unix time of its submission, in seconds.
        counts: of its tasks by state; their sum is the number of its tasks.
        history: its tasks that are done.
        is_over: it was cancelled or has failed; `error` says why it failed.
        is_paused: nothing of it starts, which only DAGs know.
        n_interrupted: its attempts that were ended for other tasks.
        lost_s: so long these had run.
        core_s_before, core_s_after, own_makespan_s, n_moved: as of `EndedDag`; the last three are known when
            the last task of a DAG ends.
    """

    definition: AppDefinition
    number: int
    begun_at: float = 0.0
    tasks: list[ServedTask] = field(default_factory=list)
    history: AppHistory = field(default_factory=AppHistory)
    counts: dict[TaskState, int] = field(default_factory=lambda: dict.fromkeys(TaskState, 0))
    is_over: bool = False
    error: str = ""
    is_paused: bool = False
    n_interrupted: int = 0
    lost_s: float = 0.0
    core_s_before: float = 0.0
    core_s_after: float | None = None
    own_makespan_s: float | None = None
    n_moved: int = 0

    @property
    def id(self) -> AppId:
        """Its name."""
        return self.definition.spec.app

    @property
    def n_open(self) -> int:
        """Tasks that have not ended."""
        return len(self.tasks) - sum(self.counts[state] for state in _FINAL)


@dataclass(slots=True, eq=False)
class ServedTask:
    """One task.

    Attributes:
        partition: its number within its application, from 0.
        n_missing: predecessors that are not done.
        n_attempts: so many were assigned; the number of the next one.
        avoid: workers on which it failed.
        n_elsewhere: so often it was not started where it had failed.
    """

    definition: TaskDefinition
    app: ServedApp
    partition: int
    state: TaskState = TaskState.WAITING
    n_missing: int = 0
    successors: list[ServedTask] | None = None
    n_attempts: int = 0
    n_failures: int = 0
    n_crashes: int = 0
    assignment: Assignment | None = None
    avoid: set[ResourceId] | None = None
    n_elsewhere: int = 0
    error: str = ""

    @property
    def id(self) -> TaskId:
        """Its name."""
        return self.definition.task

    def move(self, state: TaskState) -> None:
        """Change its state."""
        counts = self.app.counts
        counts[self.state] -= 1
        counts[state] += 1
        self.state = state


@dataclass(slots=True, eq=False)
class Assignment:
    """An attempt that a worker has, is to have, or is to leave.

    Attributes:
        is_start: to start now, not to wait in the worker's queue.
        drop: why it is to leave; None: it is not.
        listed_in: the number of this master's first order that had it; 0: an earlier master's may have;
            None: no order had it, so the worker knows nothing of it.
        dropped_in: the number of this master's first order that had it no more.
        started_s: when the worker began it; None: it has not.
        is_known: the policy knows of it; False: an earlier master assigned it.
        predicted_s: what the policy expected it to take there.
    """

    task: ServedTask
    number: int
    attempt: AttemptId
    worker: TaskWorker
    form: Form
    is_start: bool
    reason: str
    drop: Drop | None = None
    listed_in: int | None = None
    dropped_in: int | None = None
    started_s: float | None = None
    is_known: bool = True
    predicted_s: float | None = None

    @property
    def demand(self) -> FormDemand:
        """What it occupies while it runs."""
        return self.task.app.definition.spec.demands[self.form]


@dataclass(slots=True, eq=False)
class TaskWorker:
    """A worker, and what it has.

    Attributes:
        spec: None until it reported to this master.
        report_sequence: of its newest report.
        starts: what runs or is to start now, in this order.
        queue: what starts after these, in this order.
        dropped: what is to leave it and has not yet.
        is_leaving: it gets nothing more.
        busy_s: when it last had anything.
        bytes_per_s: of its node, as it last said; None: not measured.
    """

    id: ResourceId
    incarnation: str
    spec: ResourceSpec | None = None
    report_sequence: int = -1
    busy_s: float = 0.0
    is_leaving: bool = False
    problem: str = ""
    bytes_per_s: float | None = None
    starts: dict[AttemptId, Assignment] = field(default_factory=dict)
    queue: list[Assignment] = field(default_factory=list)
    dropped: dict[AttemptId, Assignment] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """It has nothing."""
        return not (self.starts or self.queue or self.dropped)

    @property
    def is_usable(self) -> bool:
        """It may be given something."""
        return self.spec is not None and not self.is_leaving

    def held(self) -> Iterator[Assignment]:
        """All that it has or is to leave it."""
        yield from self.starts.values()
        yield from self.queue
        yield from self.dropped.values()

    def used(self) -> FormDemand:
        """What its attempts that run occupy together of its own: not the GPUs of pipeline servers."""
        demands = [each.demand for each in self.held() if each.started_s is not None]
        return FormDemand(
            sum(each.cores for each in demands),
            sum(each.gpus for each in demands if not each.is_served),
            sum(each.memory_bytes for each in demands),
        )

    def add(self, assignment: Assignment, position: int) -> None:
        """Add an attempt to what it is to have; a position below 0: to start now."""
        if position < 0:
            self.starts[assignment.attempt] = assignment
        else:
            self.queue.insert(position, assignment)

    def start(self, assignment: Assignment) -> None:
        """An attempt of its queue runs, or is to."""
        if not assignment.is_start:
            self.queue.remove(assignment)
            assignment.is_start = True
            self.starts[assignment.attempt] = assignment

    def discard(self, assignment: Assignment) -> None:
        """Remove an attempt from where it is."""
        if assignment.drop is not None:
            del self.dropped[assignment.attempt]
        elif assignment.is_start:
            del self.starts[assignment.attempt]
        else:
            self.queue.remove(assignment)

    def keep(self, assignment: Assignment) -> None:
        """An attempt that was to be taken back runs already, and goes on."""
        del self.dropped[assignment.attempt]
        assignment.drop, assignment.dropped_in, assignment.is_start = None, None, True
        self.starts[assignment.attempt] = assignment

    def drop(self, assignment: Assignment, why: Drop) -> None:
        """An attempt is to leave."""
        if assignment.drop is None:
            self.discard(assignment)
            self.dropped[assignment.attempt] = assignment
        assignment.drop = why


@dataclass(frozen=True, slots=True)
class EndedApp:
    """What is remembered of an application that ended.

    Attributes:
        demands: form, cores and GPUs of its tasks.
        begun_at: Unix time of its submission, in seconds.
        ended_at: the same of its end.
        history: its tasks that were done; of the applications that ended longest ago they are dropped.
    """

    app: AppId
    number: int
    counts: tuple[tuple[str, int], ...]
    is_cancelled: bool
    error: str
    name: str
    demands: tuple[tuple[str, int, int], ...]
    begun_at: float
    ended_at: float
    history: AppHistory
    dag: EndedDag | None = None
