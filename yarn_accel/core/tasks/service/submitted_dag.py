"""Makes of an application that is a DAG what a policy plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from yarn_accel.core.dags.model import Dag, DagEdge, DagTask, DoneTask, SubmittedDag
from yarn_accel.core.tasks.applications import AppDefinition, TaskDefinition
from yarn_accel.core.tasks.durations import DurationKind
from yarn_accel.core.tasks.service.state import ServedApp, TaskState
from yarn_accel.core.tasks.values import ResourceId

_UNKNOWN_S = 1.0


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
    """The DAG of an application of an earlier master, with what is done of it.

    Args:
        event_time: the time of events at a Unix time.
    """
    dag = submitted_dag(app.definition)
    if dag is None:
        return None
    ended = {each.name: each for each in app.history.tasks}
    done = {}
    for number, task in enumerate(app.tasks):
        if task.state is TaskState.DONE:
            row = ended[task.definition.own_name]
            times = event_time(row.started_at), event_time(row.ended_at)
            done[number] = DoneTask(ResourceId(row.node), *times)
    return replace(
        dag,
        terms=replace(dag.terms, is_paused=app.is_paused),
        arrival_s=event_time(app.begun_at),
        done=done,
    )
