"""What of an application takes time proportional to its tasks, done before it is submitted, in any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from yarn_accel.core.dags.model import Dag, DagEdge, DagTask, DoneTask, SubmittedDag
from yarn_accel.core.tasks.applications import AppDefinition, TaskDefinition
from yarn_accel.core.tasks.durations import DurationKind
from yarn_accel.core.tasks.records import ServedApp, ServedTask, TaskState
from yarn_accel.core.tasks.service.records import TasksListed, listed_tasks
from yarn_accel.core.tasks.values import ResourceId, TaskId

_UNKNOWN_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class PreparedApp:
    """An application that was checked, to be taken once.

    Attributes:
        app: its number and the time of its submission are not set yet.
        tasks: by name.
        listed: its tasks as the journal has them.
        dag: what a policy plans of it; None: it is no DAG.
    """

    app: ServedApp
    tasks: dict[TaskId, ServedTask]
    listed: tuple[TasksListed, ...] = ()
    dag: SubmittedDag | None = None


def prepare_app(definition: AppDefinition) -> PreparedApp:
    """Prepare an application of which `check_definition` finds nothing wrong."""
    made = served_app(definition)
    listed, dag = tuple(listed_tasks(definition)), submitted_dag(definition)
    return PreparedApp(made.app, made.tasks, listed, dag)


def served_app(definition: AppDefinition) -> PreparedApp:
    """The same without the journal's records."""
    app = ServedApp(definition)
    app.tasks = [
        ServedTask(each, app, partition, n_missing=len(each.predecessors))
        for partition, each in enumerate(definition.tasks)
    ]
    tasks = {task.id: task for task in app.tasks}
    n_ready = 0
    for task in app.tasks:
        for before in task.definition.predecessors:
            record = tasks[before]
            if record.successors is None:
                record.successors = []
            record.successors.append(task)
        if not task.n_missing:
            task.state = TaskState.READY
            n_ready += 1
    app.counts[TaskState.READY] = n_ready
    app.counts[TaskState.WAITING] = len(tasks) - n_ready
    return PreparedApp(app, tasks)


def submitted_dag(definition: AppDefinition) -> SubmittedDag | None:
    """A new DAG, in time proportional to its tasks and edges; None: the application is none."""
    terms = definition.dag
    if terms is None:
        return None
    tasks, edges, kinds = [], [], []
    for each in definition.tasks:
        tasks.append(DagTask(each.own_name, each.runtime_s or _UNKNOWN_S))
        edges += _edges(each)
        kinds.append(DurationKind(definition.spec.name, each.kind, bool(each.runtime_s)))
    dag = Dag(definition.spec.app, tuple(tasks), tuple(edges))
    return SubmittedDag(dag, terms, tuple(kinds))


def _edges(task: TaskDefinition) -> list[DagEdge]:
    n_bytes = task.predecessor_bytes or (0.0,) * len(task.predecessors)
    return [
        DagEdge(before.partition("/")[2], task.own_name, each)
        for before, each in zip(task.predecessors, n_bytes, strict=True)
    ]


def taken_up_dag(app: ServedApp, event_time: Callable[[float], float]) -> SubmittedDag | None:
    """The DAG of an application of an earlier master; notes where and when ran what is done of it.

    Args:
        event_time: the time of events at a Unix time.
    """
    dag = submitted_dag(app.definition)
    if dag is None:
        return None
    ended = {each.name: each for each in app.history.tasks}
    for task in app.tasks:
        if task.state is TaskState.DONE:
            row = ended[task.definition.own_name]
            times = event_time(row.started_at), event_time(row.ended_at)
            task.done = DoneTask(ResourceId(row.node), *times)
    return replace(dag, arrival_s=event_time(app.begun_at))
