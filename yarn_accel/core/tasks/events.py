"""What a task service says to a policy: facts, each with the time at which it held.

Events change what a policy knows; only `Decide` makes it decide. A service applies all that happened, then
one `Decide`: so a burst costs one decision pass. Events of one moment may come in any order, apart from what
one fact needs before it: an application before its tasks, a task's readiness before its start, its start
before its end.

A policy never raises because of an id: an event about an application, a task or a resource that it does not
know is of a world that moved on; it is ignored, and counted. Task ids are unique among all applications.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from yarn_accel.core.dags.model import SubmittedDag
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, ResourceId, ResourceSpec, TaskId
from yarn_accel.errors import ConfigError


class EndReason(Enum):
    """Why a task is no longer where it was."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    TAKEN_BACK = "taken-back"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class ResourceJoined:
    """A worker is ready. One that is known is replaced: nothing of it runs."""

    spec: ResourceSpec
    now_s: float


@dataclass(frozen=True, slots=True)
class ResourceLeft:
    """A worker is gone; the service said before how each task there ended, and says what runs again."""

    resource: ResourceId
    now_s: float


@dataclass(frozen=True, slots=True)
class ServerGpusChanged:
    """From now on a worker's tasks may use so many GPUs of a pipeline server; what runs there goes on."""

    resource: ResourceId
    server_gpus: int
    now_s: float


@dataclass(frozen=True, slots=True)
class AppSubmitted:
    """An application exists from now on; its tasks follow as `TasksReady`. `dag`: what a DAG is made of."""

    spec: AppSpec
    now_s: float
    dag: SubmittedDag | None = None


@dataclass(frozen=True, slots=True)
class TasksReady:
    """These tasks may run: their predecessors ended, or another attempt is allowed.

    Within an application they are served in the order of these events and of their tuples. A task that waits
    or runs already is left where it is; one that was taken back waits again without this event, which comes
    all the same. `TaskStarted` may follow for a place that the policy did not choose: an earlier service did,
    or the task had failed where the policy wanted it.
    """

    app: AppId
    tasks: tuple[TaskId, ...]
    now_s: float


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A worker began a task: one that it was ordered to start, or the next of its queue.

    One that was not ordered is adopted: so a service that was restarted says what runs, after `TasksReady`.
    """

    task: TaskId
    resource: ResourceId
    form: Form
    now_s: float


@dataclass(frozen=True, slots=True)
class TaskMeasurement:
    """What an attempt really took.

    Attributes:
        read_bytes: read from the input; the split's size where all of it was.
        read_s: seconds of the read phase; for a form that reads all along, of the whole task.
        compute_s: seconds after the read phase.
        alone: nobody else read on that node while it did.
    """

    read_bytes: float
    read_s: float
    compute_s: float
    alone: bool

    def __post_init__(self) -> None:
        for name in ("read_bytes", "read_s", "compute_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"measured {name}: expected a number from 0, found {value!r}")


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """An attempt is over, or a queued task was taken back.

    `measured` and `ran_s`, seconds from start to end by its worker's clock, only for `EndReason.DONE`.
    """

    task: TaskId
    resource: ResourceId
    reason: EndReason
    now_s: float
    measured: TaskMeasurement | None = None
    ran_s: float | None = None


@dataclass(frozen=True, slots=True)
class IoSampled:
    """A node measured its I/O: the heartbeat of HDAS section 2.1.2.

    Attributes:
        io_bytes_per_s: TotalIO, of everybody on the node, other tenants too.
        readers: #IOtask.
        sampled_s: when. What was ordered after this event came, or began after `sampled_s`, is accounted for
            by its figures until the next sample; so is what has ended since.
    """

    resource: ResourceId
    io_bytes_per_s: float
    readers: int
    sampled_s: float
    now_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.io_bytes_per_s < math.inf or self.readers < 0:
            raise ConfigError(f"I/O of {self.resource}: expected numbers from 0, found {self}")


@dataclass(frozen=True, slots=True)
class AppCancelled:
    """An application's owner wants no more of it: what waits is forgotten, what runs is to end."""

    app: AppId
    now_s: float


@dataclass(frozen=True, slots=True)
class AppPaused:
    """The owner of a DAG wants nothing of it to start from now on, or wants it to go on."""

    app: AppId
    is_paused: bool
    now_s: float


@dataclass(frozen=True, slots=True)
class AppFinished:
    """Nothing of an application is left, and nothing of it comes: forget it. It may be unknown already."""

    app: AppId
    now_s: float


@dataclass(frozen=True, slots=True)
class TaskWithdrawn:
    """A task that waits will not run here; one that is placed or unknown is left as it is."""

    task: TaskId
    now_s: float


@dataclass(frozen=True, slots=True)
class AppCounted:
    """What the whole cluster knows of an application, for a policy that decides for a part of it.

    Attributes:
        n_alloc: #Alloc, tasks dispatched so far everywhere in either form.
        n_gpu: those of them on GPUs.
        start_s: its start, in the time of these events.
    """

    app: AppId
    n_alloc: int
    n_gpu: int
    start_s: float
    now_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.n_gpu <= self.n_alloc or not math.isfinite(self.start_s):
            raise ConfigError(f"counts of {self.app}: expected 0 <= n_gpu <= n_alloc, found {self}")


@dataclass(frozen=True, slots=True)
class FiguresShared:
    """What is believed of applications of these names changed by what others measured."""

    names: frozenset[str]
    now_s: float


@dataclass(frozen=True, slots=True)
class Decide:
    """All that happened by now was applied; also sent at a steady pace, as time alone may matter."""

    now_s: float


TaskEvent = (
    ResourceJoined
    | ResourceLeft
    | ServerGpusChanged
    | AppSubmitted
    | TasksReady
    | TaskStarted
    | TaskEnded
    | IoSampled
    | AppCancelled
    | AppPaused
    | AppFinished
    | TaskWithdrawn
    | AppCounted
    | FiguresShared
    | Decide
)
