"""Checks that the state of a task service agrees with itself; for tests."""

from __future__ import annotations

from collections import Counter

from yarn_accel.core.tasks.service.parts import ServiceParts
from yarn_accel.core.tasks.service.state import Drop, ServedApp, ServedTask, TaskState, TaskWorker

_ASSIGNED = (TaskState.QUEUED, TaskState.RUNNING)


def check(parts: ServiceParts) -> None:
    """Check every invariant.

    Raises:
        AssertionError: naming what is broken.
    """
    state = parts.state
    tasks = [task for app in state.apps.values() for task in app.tasks]
    assert state.tasks == {task.id: task for task in tasks}, "tasks and their index differ"
    assert not state.ready, f"not announced: {state.ready}"
    for app in state.apps.values():
        _check_app(parts, app)
    for worker in state.workers.values():
        _check_worker(worker)
    held = {id(each) for worker in state.workers.values() for each in worker.held()}
    assigned = {id(task.assignment) for task in tasks if task.assignment is not None}
    assert held == assigned, "what workers have and what tasks are assigned to differ"
    assert parts.ending.keys() <= state.apps.keys(), "an application that is gone is to end"
    assert parts.seen.keys() == state.workers.keys(), "nobody watches over a worker"


def _check_app(parts: ServiceParts, app: ServedApp) -> None:
    counts = Counter(task.state for task in app.tasks)
    assert {state: n for state, n in app.counts.items() if n} == counts, f"{app.id}: {app.counts}, {counts}"
    assert sum(app.counts.values()) == app.definition.spec.n_tasks, f"{app.id}: its counts do not add up"
    assert len(app.history.tasks) == app.counts[TaskState.DONE], f"{app.id}: not all that is done is kept"
    assert app.n_open or app.id in parts.ending, f"{app.id}: all tasks ended, and nobody closes it"
    assert not app.counts[TaskState.FAILED] or app.is_over, f"{app.id}: a task failed, and it goes on"
    for task in app.tasks:
        _check_task(task)


def _check_task(task: ServedTask) -> None:
    assert (task.assignment is not None) == (task.state in _ASSIGNED), f"{task.id}: {task.state}"
    if task.app.is_over:
        assert task.state not in (TaskState.WAITING, TaskState.READY), f"{task.id}: waits for nothing"
    elif task.state is TaskState.WAITING:
        assert task.n_missing, f"{task.id}: waits for nothing"
    assert task.n_failures < task.app.definition.max_attempts or task.state is TaskState.FAILED, task.id
    if task.state is not TaskState.WAITING and not task.app.is_over:
        assert not task.n_missing, f"{task.id}: went on before its predecessors"


def _check_worker(worker: TaskWorker) -> None:
    for attempt, each in worker.starts.items():
        assert (each.attempt, each.is_start, each.drop) == (attempt, True, None), attempt
    for each in worker.queue:
        assert (each.is_start, each.drop) == (False, None), each.attempt
        assert each.started_s is None, f"{each.attempt}: runs, and is in the queue"
    for attempt, each in worker.dropped.items():
        assert each.attempt == attempt, attempt
        assert each.drop is not None, attempt
        assert each.listed_in is not None, f"{attempt}: has to leave where it never was"
        assert (each.drop is Drop.OVER) == each.task.app.is_over, attempt
    assert all(each.worker is worker for each in worker.held()), worker.id
