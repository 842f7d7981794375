"""Carries out what a policy decides, and refuses what the world no longer allows.

A task that was to start and cannot is said to be lost, and offered again later: so a policy that wants the
same again does not block the place. A task that was to start where it failed before starts on another worker
that is free, where there is one, and the policy hears so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from yarn_accel.core.tasks.commands import EndTask, EnqueueTask, StartTask, TakeBackTask, TaskCommand
from yarn_accel.core.tasks.events import EndReason, TaskEnded, TasksReady, TaskStarted
from yarn_accel.core.tasks.service.attempts import Attempts
from yarn_accel.core.tasks.service.orders import MAX_STARTS
from yarn_accel.core.tasks.service.parts import ServiceParts
from yarn_accel.core.tasks.service.records import AttemptAssigned
from yarn_accel.core.tasks.service.state import Drop, ServedTask, TaskState, TaskWorker
from yarn_accel.core.tasks.values import Form, FormDemand

_MAX_REASON = 200
_TO_START = -1
_Place = StartTask | EnqueueTask


class Enacting:
    """Turns a policy's commands into what workers are to have."""

    def __init__(self, parts: ServiceParts, attempts: Attempts) -> None:
        self._parts = parts
        self._attempts = attempts
        self._to_go_elsewhere: list[tuple[ServedTask, _Place]] = []
        self.n_refused = 0
        """Commands that could not be carried out."""

    def enact(self, commands: Iterable[TaskCommand]) -> None:
        """Carry commands out, in this order, or refuse them."""
        state = self._parts.state
        for command in commands:
            task = state.tasks.get(command.task)
            worker = state.workers.get(command.resource)
            if task is None:
                self.n_refused += 1  # its application ended meanwhile
            elif isinstance(command, StartTask | EnqueueTask):
                self._place(task, worker, command)
            else:
                self._remove(task, worker, command)
        # Last, as all others have their places by then.
        elsewhere, self._to_go_elsewhere = self._to_go_elsewhere, []
        for task, command in elsewhere:
            self._go_elsewhere(task, command)

    def _place(self, task: ServedTask, worker: TaskWorker | None, command: _Place) -> None:
        if task.state is not TaskState.READY:
            self.n_refused += 1
        elif worker is None or not self._fits(task, worker, command):
            self._refuse(task, command)
        elif task.avoid and worker.id in task.avoid and next(self._others(task, command.form), None):
            self._to_go_elsewhere.append((task, command))
        else:
            self._assign(task, worker, command)

    def _assign(self, task: ServedTask, worker: TaskWorker, command: _Place) -> None:
        position = _TO_START
        if isinstance(command, EnqueueTask):
            position = min(max(command.position, 0), len(worker.queue))
        reason = command.reason[:_MAX_REASON]
        predicted_s = command.predicted_s if isinstance(command, StartTask) else None
        number, form = task.n_attempts, command.form.value
        self._parts.commit(
            AttemptAssigned(task.id, number, worker.id, form, position, reason, _rounded(predicted_s))
        )
        self._parts.dirty[worker.id] = worker

    def _go_elsewhere(self, task: ServedTask, command: _Place) -> None:
        """Start a task on a free worker on which it has not failed; if none is free, wait a little."""
        policy, now_s = self._parts.policy, self._parts.now_s
        other = next(
            (each for each in self._others(task, command.form) if self._is_free(each, task, command)), None
        )
        if other is not None:
            self.n_refused += 1
            policy.apply(TaskEnded(task.id, command.resource, EndReason.LOST, now_s))
            policy.apply(TasksReady(task.app.id, (task.id,), now_s))
            reason = f"failed on {command.resource} before; {command.reason}"
            self._assign(task, other, StartTask(task.id, other.id, command.form, reason))
            policy.apply(TaskStarted(task.id, other.id, command.form, now_s))
        elif task.n_elsewhere < self._parts.settings.n_elsewhere:
            task.n_elsewhere += 1
            self._refuse(task, command)
        else:
            self._assign(task, self._parts.state.workers[command.resource], command)

    def _others(self, task: ServedTask, form: Form) -> Iterator[TaskWorker]:
        """Workers that could have the task and on which it has not failed."""
        need = task.app.definition.spec.demands[form]
        for each in self._parts.state.workers.values():
            if each.id not in (task.avoid or ()) and each.is_usable and _is_large_enough(each, need):
                yield each

    def _is_free(self, worker: TaskWorker, task: ServedTask, command: _Place) -> bool:
        """Whether a worker could start a task at once."""
        spec, need = worker.spec, task.app.definition.spec.demands[command.form]
        used = [each.task.app.definition.spec.demands[each.form] for each in worker.starts.values()]
        n_gpus = sum(each.gpus for each in used if each.is_served is need.is_served)
        whole = replace(
            need,
            cores=need.cores + sum(each.cores for each in used),
            gpus=need.gpus + n_gpus if need.gpus else 0,
            memory_bytes=need.memory_bytes + sum(each.memory_bytes for each in used),
        )
        return spec is not None and not worker.queue and spec.fits(whole)

    def _fits(self, task: ServedTask, worker: TaskWorker, command: _Place) -> bool:
        need = task.app.definition.spec.demands.get(command.form)
        is_full = isinstance(command, StartTask) and len(worker.starts) >= MAX_STARTS
        return need is not None and worker.is_usable and not is_full and _is_large_enough(worker, need)

    def _refuse(self, task: ServedTask, command: _Place) -> None:
        parts = self._parts
        self.n_refused += 1
        parts.policy.apply(TaskEnded(task.id, command.resource, EndReason.LOST, parts.now_s))
        parts.announce_later(task, parts.now_s + parts.settings.elsewhere_s)

    def _remove(self, task: ServedTask, worker: TaskWorker | None, command: TakeBackTask | EndTask) -> None:
        assignment = task.assignment
        if assignment is None or assignment.worker is not worker:
            self.n_refused += 1
        elif isinstance(command, EndTask):
            self._attempts.drop(assignment, Drop.END)
        elif assignment.started_s is None:
            self._attempts.drop(assignment, Drop.TAKE_BACK)
        else:
            self.n_refused += 1  # it started, which the policy knows by now


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _is_large_enough(worker: TaskWorker, need: FormDemand) -> bool:
    return worker.spec is not None and worker.spec.fits(need)
