"""What a policy for DAGs is informed of, beside the events of `yarn_accel.core.tasks.events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from yarn_accel.core.dags.model import Dag, DagId, DoneTask, Machine, PriorityClass
from yarn_accel.core.tasks.events import Decide, ResourceLeft, TaskEnded, TaskStarted


@dataclass(frozen=True, slots=True)
class DagSubmitted:
    """A DAG arrived. Its tasks are called as `task_id_of` says.

    Attributes:
        now_s: its arrival; may be long ago.
        done: by their numbers, the tasks that an earlier master saw end, parents too.
        is_paused: as by `DagPaused`.
    """

    dag_id: DagId
    dag: Dag
    priority_class: PriorityClass
    now_s: float
    done: Mapping[int, DoneTask] = field(default_factory=dict)
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class DagCancelled:
    """A DAG is no more; what runs of it ends soon."""

    dag_id: DagId
    now_s: float


@dataclass(frozen=True, slots=True)
class DagPaused:
    """From now on nothing of a DAG starts, or it goes on; what runs is left alone."""

    dag_id: DagId
    is_paused: bool
    now_s: float


@dataclass(frozen=True, slots=True)
class MachineJoined:
    """A machine is there from now on, idle."""

    machine: Machine
    now_s: float


DagEvent = (
    DagSubmitted | DagCancelled | DagPaused | MachineJoined | ResourceLeft | TaskStarted | TaskEnded | Decide
)
"""`ResourceLeft` returns the machine's queue and its unfinished task to the pool."""
