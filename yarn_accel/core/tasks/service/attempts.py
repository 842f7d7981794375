"""Gives attempts to workers as the policy orders, and ends attempts and applications.

Each change of the table is a record, and what follows from it leaves only when the journal has it: `commit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from yarn_accel.core.tasks.attempt_orders import AttemptId
from yarn_accel.core.tasks.commands import EndTask, EnqueueTask, StartTask, TakeBackTask
from yarn_accel.core.tasks.events import EndReason, TaskMeasurement
from yarn_accel.core.tasks.history import EndedDag
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.records import Assignment, Drop, ServedApp, ServedTask, TaskState, TaskWorker
from yarn_accel.core.tasks.service.commands import AppEnded, AttemptEnded, CommitOutput, RemoveUnfinished
from yarn_accel.core.tasks.service.journaled_table import JournaledTable
from yarn_accel.core.tasks.service.orders import MAX_STARTS
from yarn_accel.core.tasks.service.outbox import Outbox
from yarn_accel.core.tasks.service.records import (
    AppClosed,
    AppOver,
    AttemptAssigned,
    AttemptDropped,
    AttemptKept,
    AttemptSettled,
    DagMeasured,
    ServiceRecord,
)
from yarn_accel.core.tasks.service.settings import ServiceSettings
from yarn_accel.core.tasks.service.use_samples import CoreSeconds
from yarn_accel.core.tasks.table import TO_START
from yarn_accel.core.tasks.values import FormDemand
from yarn_accel.core.tasks.worker_messages import Counter

_MAX_ERROR = 500
_MAX_REASON = 200
_Place = StartTask | EnqueueTask


class Attempts:
    """What becomes of attempts, their tasks and their applications.

    Attributes:
        table: the world.
        outbox: records on their way to the journal, and what waits for them.
        figures: what is believed of applications, which the policy learns.
        there: how long the cores of workers were there.
        n_refused: orders that could not be carried out.
    """

    def __init__(self, settings: ServiceSettings, policy: TaskPolicy, figures: FigureStore) -> None:
        self.settings = settings
        self.policy = policy
        self.figures = figures
        self.table = JournaledTable(settings.max_crashes, settings.n_ended, settings.n_ended_tasks)
        self.outbox = Outbox()
        self.there = CoreSeconds()
        self.n_refused = 0
        self._unix_offset_s = 0.0

    @property
    def now_s(self) -> float:
        """The time of the event that is applied."""
        return self.table.now_s

    def set_unix_time(self, at: float) -> None:
        """So much is the Unix time now."""
        self._unix_offset_s = at - self.now_s

    def unix_time(self, when_s: float) -> float:
        """The Unix time then, in seconds, to the millisecond."""
        return round(self._unix_offset_s + when_s, 3)

    def event_time(self, at: float) -> float:
        """The time of events at this Unix time, in seconds."""
        return at - self._unix_offset_s

    def commit(self, record: ServiceRecord) -> None:
        """Change the table, and note it in the journal."""
        self.table.apply(record)
        self.outbox.log(record)

    # ---- what the policy orders

    def decide(self) -> None:
        """Carry out what the policy orders, one order after the other.

        A task that was to start where it failed before starts on another worker that is free, where there is
        one, or waits a little for one; that is seen to last, as all others have their places by then. So is
        what was taken back from a worker that never heard of it: it is ready again for the next pass.
        """
        elsewhere: list[tuple[ServedTask, _Place]] = []
        dropped: list[Assignment] = []
        for order in self.policy.plan(self.table, self.figures, self.now_s):
            task = self.table.tasks.get(order.task)
            worker = self.table.workers.get(order.resource)
            if task is None:
                self.n_refused += 1  # its application ended meanwhile
            elif isinstance(order, StartTask | EnqueueTask):
                if self._place(task, worker, order):
                    elsewhere.append((task, order))
            elif (assignment := self._remove(task, worker, order)) is not None:
                dropped.append(assignment)
        for assignment in dropped:
            self._leave(assignment)
        for task, placing in elsewhere:
            self._go_elsewhere(task, placing)

    def _place(self, task: ServedTask, worker: TaskWorker | None, order: _Place) -> bool:
        """Give a task its place; True: the place is reserved for it, as it should rather go elsewhere."""
        if task.state is not TaskState.READY:
            self.n_refused += 1
        elif worker is None or not self._fits(task, worker, order):
            self.n_refused += 1
            self.table.hold_back(task, self.now_s + self.settings.elsewhere_s)
        elif task.avoid and worker.id in task.avoid and next(self._others(task, order), None):
            form, demand = order.form, task.app.spec.demands[order.form]
            name = AttemptId("")
            reserved = Assignment(task, -1, name, worker, form, demand, True, "")
            self.table.reserve(reserved, _position(order), self.now_s)
            return True
        else:
            self._assign(task, worker, order)
        return False

    def _assign(self, task: ServedTask, worker: TaskWorker, order: _Place) -> None:
        predicted_s = order.predicted_s if isinstance(order, StartTask) else None
        predicted_s = None if predicted_s is None else round(predicted_s, 6)
        number, form, reason = task.n_attempts, order.form.value, order.reason[:_MAX_REASON]
        self.commit(AttemptAssigned(task.id, number, worker.id, form, _position(order), reason, predicted_s))

    def _go_elsewhere(self, task: ServedTask, order: _Place) -> None:
        """Start a task on a free worker on which it has not failed; if none is free, wait a little."""
        now_s, reserved = self.now_s, task.assignment
        assert reserved is not None
        other = next((each for each in self._others(task, order) if _is_free(each, task, order)), None)
        if other is not None:
            self.n_refused += 1
            self.table.release(reserved, now_s)
            reason = f"failed on {order.resource} before; {order.reason}"
            self._assign(task, other, StartTask(task.id, other.id, order.form, reason))
            assert task.assignment is not None
            self.table.expect_unordered(task.assignment, now_s)
        elif task.n_elsewhere < self.settings.n_elsewhere:
            task.n_elsewhere += 1
            self.n_refused += 1
            self.table.release(reserved, now_s)
            self.table.hold_back(task, now_s + self.settings.elsewhere_s)
        else:
            self._assign(task, reserved.worker, order)

    def _others(self, task: ServedTask, order: _Place) -> Iterator[TaskWorker]:
        """Workers that could have the task and on which it has not failed."""
        need = task.app.spec.demands[order.form]
        for each in self.table.workers.values():
            if each.id not in (task.avoid or ()) and each.is_usable and each.could_fit(need):
                yield each

    def _fits(self, task: ServedTask, worker: TaskWorker, order: _Place) -> bool:
        need = task.app.spec.demands.get(order.form)
        is_full = isinstance(order, StartTask) and len(worker.starts) >= MAX_STARTS
        return need is not None and worker.is_usable and not is_full and worker.could_fit(need)

    def _remove(
        self, task: ServedTask, worker: TaskWorker | None, order: TakeBackTask | EndTask
    ) -> Assignment | None:
        """Have an attempt leave its worker; returns one that has yet to."""
        assignment = task.assignment
        if assignment is None or assignment.worker is not worker or assignment.number < 0:
            self.n_refused += 1  # nothing of it is there, or no more than a reserved place
        elif isinstance(order, EndTask):
            return assignment if self._drop(assignment, Drop.END) else None
        elif assignment.started_s is None:
            return assignment if self._drop(assignment, Drop.TAKE_BACK) else None
        else:
            self.n_refused += 1  # it started, which the policy knows by now
        return None

    def drop(self, assignment: Assignment, why: Drop) -> None:
        """An attempt is to leave its worker; one that is to be taken back may be ended all the same."""
        if self._drop(assignment, why):
            self._leave(assignment)

    def _drop(self, assignment: Assignment, why: Drop) -> bool:
        if assignment.drop is not None and (assignment.drop, why) != (Drop.TAKE_BACK, Drop.END):
            return False
        self.commit(AttemptDropped(assignment.task.id, assignment.number, why.value))
        return True

    def _leave(self, assignment: Assignment) -> None:
        """An attempt was dropped: nothing has to leave a worker that never heard of it."""
        if assignment.task.assignment is assignment and assignment.listed_in is None:
            self.settle(assignment, _end_of_dropped(assignment))

    # ---- what becomes of attempts

    def started(self, assignment: Assignment, started_s: float) -> None:
        """A worker began an attempt."""
        if assignment.started_s is not None:
            return
        if assignment.drop is Drop.TAKE_BACK:
            self.commit(AttemptKept(assignment.task.id, assignment.number))
        self.table.begin(assignment, started_s, self.now_s)

    def lose(self, assignment: Assignment, error: str, is_crash: bool = False) -> None:
        """An attempt is where it was no more, and nothing says how it ended."""
        if assignment.drop is not None:
            self.settle(assignment, _end_of_dropped(assignment))
        else:
            self.settle(assignment, EndReason.LOST, error, is_crash=is_crash)

    def settle(
        self,
        assignment: Assignment,
        end: EndReason,
        error: str = "",
        *,
        is_crash: bool = False,
        measured: TaskMeasurement | None = None,
        counters: tuple[Counter, ...] = (),
        ran_s: tuple[float, float] | None = None,
        result: str = "",
    ) -> None:
        """An attempt ended so; `ran_s`: from when to when one ran that is done; `result`: its function's."""
        task = assignment.task
        app, error = task.app, error[:_MAX_ERROR]
        took_s = None if ran_s is None else ran_s[1] - ran_s[0]
        if assignment.is_counted and measured is not None and took_s is not None:
            self.policy.learn(self.table, self.figures, assignment, measured, took_s)
        if end is EndReason.DONE and app.n_open == 1 and not app.is_over:
            self._measure(app)
        ran = None if ran_s is None else self._ran(assignment, ran_s, measured)
        lost_s = self._lost_s(assignment, end)
        self.commit(
            AttemptSettled(task.id, assignment.number, end.value, error, is_crash, ran, lost_s, result)
        )
        self._report_end(assignment, end, error, counters)
        if task.state is TaskState.FAILED and not app.is_over:
            self.end_app(app, _failure(app, assignment))
        else:
            self.finish(app)

    def _report_end(
        self, assignment: Assignment, end: EndReason, error: str, counters: tuple[Counter, ...]
    ) -> None:
        self.outbox.put(
            AttemptEnded(
                assignment.app.id,
                assignment.task.id,
                assignment.attempt,
                assignment.worker.id,
                assignment.worker.spec.node,
                assignment.form,
                assignment.reason,
                end,
                error,
                assignment.started_s,
                self.now_s,
                counters,
            ),
            can_wait=True,
        )

    def _ran(
        self, assignment: Assignment, ran_s: tuple[float, float], measured: TaskMeasurement | None
    ) -> list[Any]:
        """What reports keep of a task that is done."""
        spec = assignment.worker.spec
        overhead_s = compute_s = None
        if measured is not None:
            overhead_s = round(max(0.0, ran_s[1] - ran_s[0] - measured.read_s - measured.compute_s), 6)
            compute_s = round(measured.compute_s, 6)
        alone_s = self.figures.alone_s(assignment.app.spec, assignment.form, spec.accelerator)
        return [spec.node, *(self.unix_time(each) for each in ran_s), overhead_s, compute_s, alone_s]

    def _measure(self, app: ServedApp) -> None:
        """The last task ends: note what is known of a DAG, before that end is."""
        if app.definition.dag is not None:
            own_s = self.policy.own_makespan_s(app.id)
            own_s = None if own_s is None else round(own_s, 6)
            self.commit(DagMeasured(app.id, own_s, app.n_moved, self.there.at(self.now_s)))

    def _lost_s(self, assignment: Assignment, end: EndReason) -> float:
        """How long an attempt had run that was ended for another task."""
        is_ended = end is EndReason.CANCELLED and assignment.drop is Drop.END
        if not is_ended or assignment.started_s is None:
            return 0.0
        return round(max(0.0, self.now_s - assignment.started_s), 3)

    # ---- applications

    def end_app(self, app: ServedApp, error: str) -> None:
        """An application ends before all of its tasks did; without an error it was cancelled."""
        if app.is_over or app.id in self.table.settling:
            return
        self.commit(AppOver(app.id, error))
        for task in app.tasks:
            if task.assignment is not None:
                self.table.order_due[task.assignment.worker.id] = task.assignment.worker
                self._leave(task.assignment)
        self.finish(app)

    def finish(self, app: ServedApp) -> None:
        """Settle the output of an application whose tasks have all ended, then close it."""
        if app.n_open or app.id in self.table.settling or app.id not in self.table.apps:
            return
        if app.definition.output:
            self._settle_output(app, 1)
        else:
            self._close(app, "")

    def output_settled(self, app: ServedApp, error: str) -> None:
        """The output was committed or removed, or that was tried in vain."""
        settling, settings = self.table.settling, self.settings
        n_tries, _ = settling.get(app.id, (0, 0.0))
        if not n_tries:
            return  # an answer to what an earlier master ordered; this one has not come so far
        if not error or n_tries >= settings.max_commits:
            self._close(app, error and f"{app.definition.output}: {error}")
        else:
            settling[app.id] = (n_tries, self.now_s + settings.commit_retry_s)

    def retry_outputs(self) -> None:
        """Try again to settle outputs, where it is time."""
        for name, (n_tries, when_s) in list(self.table.settling.items()):
            if when_s <= self.now_s:
                self._settle_output(self.table.apps[name], n_tries + 1)

    def _settle_output(self, app: ServedApp, n_tries: int) -> None:
        command = RemoveUnfinished if app.is_over else CommitOutput
        self.table.settling[app.id] = (n_tries, float("inf"))
        self.outbox.put(command(app.id, app.definition.output))

    def _close(self, app: ServedApp, error: str) -> None:
        at, dag = self.unix_time(self.now_s), self._ended_dag(app)
        self.commit(AppClosed(app.id, "" if app.is_over else error, at, dag))
        ended = self.table.ended[app.id]
        self.outbox.put(AppEnded(app.id, ended.is_cancelled, ended.error))

    def _ended_dag(self, app: ServedApp) -> list[Any] | None:
        terms, facts = app.definition.dag, self.policy.facts(app.id)
        if terms is None:
            return None
        own_s, n_moved = app.own_makespan_s, app.n_moved
        if facts is not None:
            own_s, n_moved = own_s or round(facts.own_makespan_s, 6), max(n_moved, facts.n_moved)
        lost_s, name = round(app.lost_s, 3), terms.priority_class.word
        there = app.core_s_before, app.core_s_after
        return [*EndedDag(name, own_s, n_moved, app.n_interrupted, lost_s, *there)]


def _position(order: _Place) -> int:
    return max(order.position, 0) if isinstance(order, EnqueueTask) else TO_START


def _is_free(worker: TaskWorker, task: ServedTask, order: _Place) -> bool:
    """Whether a worker could start a task at once."""
    need = task.app.spec.demands[order.form]
    used: list[FormDemand] = [each.demand for each in worker.starts.values()]
    n_gpus = sum(each.gpus for each in used if each.is_served is need.is_served)
    whole = replace(
        need,
        cores=need.cores + sum(each.cores for each in used),
        gpus=need.gpus + n_gpus if need.gpus else 0,
        memory_bytes=need.memory_bytes + sum(each.memory_bytes for each in used),
    )
    return not worker.queue and worker.could_fit(whole)


def _end_of_dropped(assignment: Assignment) -> EndReason:
    """How a dropped attempt ended that did not end by itself."""
    is_taken_back = assignment.started_s is None and assignment.drop is Drop.TAKE_BACK
    return EndReason.TAKEN_BACK if is_taken_back else EndReason.CANCELLED


def _failure(app: ServedApp, assignment: Assignment) -> str:
    task = assignment.task
    what = f"failed {task.n_failures} times" if task.n_failures else f"ended {task.n_crashes} workers"
    limit = app.definition.max_attempts if task.n_failures else task.n_crashes
    last = f"; the last time on {assignment.worker.id}: {task.error}" if task.error else ""
    return f"{task.id}: {what}, of {limit} that are allowed{last}"
