"""What of an application takes time proportional to its tasks, done before it is submitted, in any thread."""

from __future__ import annotations

from dataclasses import dataclass

from yarn_accel.core.dags.model import SubmittedDag
from yarn_accel.core.tasks.applications import AppDefinition
from yarn_accel.core.tasks.service.records import TasksListed, listed_tasks
from yarn_accel.core.tasks.service.state import ServedApp, ServedTask, TaskState
from yarn_accel.core.tasks.service.submitted_dag import submitted_dag
from yarn_accel.core.tasks.values import TaskId


@dataclass(frozen=True, slots=True, eq=False)
class PreparedApp:
    """An application that was checked, to be taken once.

    Attributes:
        app: its number and the time of its submission are not set yet.
        tasks: by name.
        ready: those without predecessors.
        listed: its tasks as the journal has them.
        dag: what a policy plans of it; None: it is no DAG.
    """

    app: ServedApp
    tasks: dict[TaskId, ServedTask]
    ready: list[TaskId]
    listed: tuple[TasksListed, ...] = ()
    dag: SubmittedDag | None = None


def prepare_app(definition: AppDefinition) -> PreparedApp:
    """Prepare an application of which `check_definition` finds nothing wrong."""
    made = served_app(definition)
    listed, dag = tuple(listed_tasks(definition)), submitted_dag(definition)
    return PreparedApp(made.app, made.tasks, made.ready, listed, dag)


def served_app(definition: AppDefinition) -> PreparedApp:
    """The same without the journal's records."""
    app = ServedApp(definition, 0)
    app.tasks = [
        ServedTask(each, app, partition, n_missing=len(each.predecessors))
        for partition, each in enumerate(definition.tasks)
    ]
    tasks = {task.id: task for task in app.tasks}
    ready = []
    for task in app.tasks:
        for before in task.definition.predecessors:
            record = tasks[before]
            if record.successors is None:
                record.successors = []
            record.successors.append(task)
        if not task.n_missing:
            task.state = TaskState.READY
            ready.append(task.id)
    app.counts[TaskState.READY] = len(ready)
    app.counts[TaskState.WAITING] = len(tasks) - len(ready)
    return PreparedApp(app, tasks, ready)
