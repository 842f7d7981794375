"""What a simulation of DAGs tells its policy: plain values, each with the time at which it held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from yarn_accel.core.dags.model import Dag, DagId, DoneTask, Machine, PriorityClass
from yarn_accel.core.tasks.events import EndReason
from yarn_accel.core.tasks.values import Form, ResourceId, TaskId


@dataclass(frozen=True, slots=True)
class DagSubmitted:
    """A DAG arrived. Its tasks are called as `task_id_of` says.

    Attributes:
        now_s: its arrival; may be long ago.
        done: by their numbers, the tasks that an earlier master saw end, parents too.
        is_paused: nothing of it starts.
    """

    dag_id: DagId
    dag: Dag
    priority_class: PriorityClass
    now_s: float
    done: Mapping[int, DoneTask] = field(default_factory=dict)
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class MachineJoined:
    """A machine is there from now on, idle."""

    machine: Machine
    now_s: float


@dataclass(frozen=True, slots=True)
class ResourceLeft:
    """A machine is gone: its queue and its unfinished task go back to the pool."""

    resource: ResourceId
    now_s: float


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A task runs from now on."""

    task: TaskId
    resource: ResourceId
    form: Form
    now_s: float


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task is done, or has to run again."""

    task: TaskId
    resource: ResourceId
    reason: EndReason
    now_s: float


@dataclass(frozen=True, slots=True)
class Decide:
    """All that happened by now was applied."""

    now_s: float


DagEvent = DagSubmitted | MachineJoined | ResourceLeft | TaskStarted | TaskEnded | Decide
