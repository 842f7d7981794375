"""Ends attempts and applications: whatever ends, all that follows from it is here."""

from __future__ import annotations

from typing import Any

from yarn_accel.core.tasks.events import (
    AppCancelled,
    AppFinished,
    EndReason,
    TaskEnded,
    TaskMeasurement,
    TasksReady,
    TaskStarted,
)
from yarn_accel.core.tasks.service.commands import AppEnded, AttemptEnded, CommitOutput, RemoveUnfinished
from yarn_accel.core.tasks.service.history import EndedDag
from yarn_accel.core.tasks.service.parts import ServiceParts
from yarn_accel.core.tasks.service.records import (
    AppClosed,
    AppOver,
    AttemptDropped,
    AttemptKept,
    AttemptSettled,
    DagMeasured,
)
from yarn_accel.core.tasks.service.state import Assignment, Drop, ServedApp, TaskState
from yarn_accel.core.tasks.worker_messages import Counter

_MAX_ERROR = 500


class Attempts:
    """What becomes of attempts, their tasks and their applications."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts

    def started(self, assignment: Assignment, started_s: float) -> None:
        """A worker began an attempt."""
        if assignment.started_s is not None:
            return
        assignment.started_s = started_s
        if assignment.drop is Drop.TAKE_BACK:
            self._parts.commit(AttemptKept(assignment.task.id, assignment.number))
        elif assignment.drop is None:
            assignment.worker.start(assignment)
        assignment.task.move(TaskState.RUNNING)
        if assignment.is_known or assignment.drop is None:
            self.tell_started(assignment)

    def tell_started(self, assignment: Assignment) -> None:
        """The policy hears of a start, also of one that an earlier master ordered."""
        policy, task, now_s = self._parts.policy, assignment.task, self._parts.now_s
        if not assignment.is_known:
            assignment.is_known = True
            policy.apply(TasksReady(task.app.id, (task.id,), now_s))
        policy.apply(TaskStarted(task.id, assignment.worker.id, assignment.form, now_s))

    def drop(self, assignment: Assignment, why: Drop) -> None:
        """An attempt is to leave its worker; one that is to be taken back may be ended all the same."""
        if assignment.drop is not None and (assignment.drop, why) != (Drop.TAKE_BACK, Drop.END):
            return
        parts = self._parts
        parts.commit(AttemptDropped(assignment.task.id, assignment.number, why.value))
        self._leave(assignment)

    def _leave(self, assignment: Assignment) -> None:
        """An attempt was dropped: nothing has to leave a worker that never heard of it."""
        if assignment.listed_in is None:
            self.settle(assignment, _end_of_dropped(assignment))
        else:
            self._parts.dirty[assignment.worker.id] = assignment.worker

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
        parts, task, worker = self._parts, assignment.task, assignment.worker
        app, error = task.app, error[:_MAX_ERROR]
        if assignment.is_known:
            took_s = None if ran_s is None else ran_s[1] - ran_s[0]
            parts.policy.apply(TaskEnded(task.id, worker.id, end, parts.now_s, measured, took_s))
        if end is EndReason.DONE and app.n_open == 1 and not app.is_over:
            self._measure(app)
        ran = None if ran_s is None else self._ran(assignment, ran_s, measured)
        lost_s = self._lost_s(assignment, end)
        parts.commit(
            AttemptSettled(task.id, assignment.number, end.value, error, is_crash, ran, lost_s, result)
        )
        parts.dirty[worker.id] = worker
        if worker.is_idle:
            worker.busy_s = parts.now_s
        self._report_end(assignment, end, error, counters)
        if task.state is TaskState.FAILED and not app.is_over:
            self.end_app(app, _failure(app, assignment))
        else:
            self.finish(app)

    def _report_end(
        self, assignment: Assignment, end: EndReason, error: str, counters: tuple[Counter, ...]
    ) -> None:
        parts, worker = self._parts, assignment.worker
        parts.outbox.put(
            AttemptEnded(
                assignment.task.app.id,
                assignment.task.id,
                assignment.attempt,
                worker.id,
                worker.spec.node if worker.spec is not None else "",
                assignment.form,
                assignment.reason,
                end,
                error,
                assignment.started_s,
                parts.now_s,
                counters,
            )
        )

    def _ran(
        self, assignment: Assignment, ran_s: tuple[float, float], measured: TaskMeasurement | None
    ) -> list[Any]:
        """What reports keep of a task that is done."""
        parts, spec = self._parts, assignment.worker.spec
        overhead_s = compute_s = None
        if measured is not None:
            overhead_s = round(max(0.0, ran_s[1] - ran_s[0] - measured.read_s - measured.compute_s), 6)
            compute_s = round(measured.compute_s, 6)
        app, kind = assignment.task.app.definition.spec, spec.accelerator if spec is not None else ""
        return [
            spec.node if spec is not None else "",
            *(parts.unix_time(each) for each in ran_s),
            overhead_s,
            compute_s,
            parts.figures.alone_s(app, assignment.form, kind),
        ]

    def _measure(self, app: ServedApp) -> None:
        """The last task ends: note what is known of a DAG, before that end is."""
        parts = self._parts
        if app.definition.dag is not None:
            facts, own_s = parts.facts(app.id), parts.own_makespan_s(app.id)
            own_s = None if own_s is None else round(own_s, 6)
            n_moved = 0 if facts is None else facts.n_moved
            parts.commit(DagMeasured(app.id, own_s, n_moved, parts.there.at(parts.now_s)))

    def _lost_s(self, assignment: Assignment, end: EndReason) -> float:
        """How long an attempt had run that was ended for another task."""
        is_ended = end is EndReason.CANCELLED and assignment.drop is Drop.END
        if not is_ended or assignment.started_s is None:
            return 0.0
        return round(max(0.0, self._parts.now_s - assignment.started_s), 3)

    def end_app(self, app: ServedApp, error: str) -> None:
        """An application ends before all of its tasks did; without an error it was cancelled."""
        if app.is_over or app.id in self._parts.ending:
            return
        parts = self._parts
        parts.policy.apply(AppCancelled(app.id, parts.now_s))
        parts.commit(AppOver(app.id, error))
        for task in app.tasks:
            if task.assignment is not None:
                self._leave(task.assignment)
        self.finish(app)

    def finish(self, app: ServedApp) -> None:
        """Settle the output of an application whose tasks have all ended, then close it."""
        parts = self._parts
        if app.n_open or app.id in parts.ending or app.id not in parts.state.apps:
            return
        if app.definition.output:
            self._settle_output(app, 1)
        else:
            self._close(app, "")

    def output_settled(self, app: ServedApp, error: str) -> None:
        """The output was committed or removed, or that was tried in vain."""
        parts = self._parts
        n_tries, _ = parts.ending.get(app.id, (0, 0.0))
        if not n_tries:
            return  # an answer to what an earlier master ordered; this one has not come so far
        if not error or n_tries >= parts.settings.max_commits:
            self._close(app, error and f"{app.definition.output}: {error}")
        else:
            parts.ending[app.id] = (n_tries, parts.now_s + parts.settings.commit_retry_s)

    def retry_outputs(self) -> None:
        """Try again to settle outputs, where it is time."""
        parts = self._parts
        for name, (n_tries, when_s) in list(parts.ending.items()):
            if when_s <= parts.now_s:
                self._settle_output(parts.state.apps[name], n_tries + 1)

    def _settle_output(self, app: ServedApp, n_tries: int) -> None:
        command = RemoveUnfinished if app.is_over else CommitOutput
        self._parts.ending[app.id] = (n_tries, float("inf"))
        self._parts.outbox.put(command(app.id, app.definition.output))

    def _close(self, app: ServedApp, error: str) -> None:
        parts = self._parts
        parts.ending.pop(app.id, None)
        at, dag = parts.unix_time(parts.now_s), self._ended_dag(app)
        parts.commit(AppClosed(app.id, "" if app.is_over else error, at, dag))
        parts.policy.apply(AppFinished(app.id, parts.now_s))
        ended = parts.state.ended[app.id]
        parts.outbox.put(AppEnded(app.id, ended.is_cancelled, ended.error))

    def _ended_dag(self, app: ServedApp) -> list[Any] | None:
        terms, facts = app.definition.dag, self._parts.facts(app.id)
        if terms is None:
            return None
        own_s, n_moved = app.own_makespan_s, app.n_moved
        if facts is not None:
            own_s, n_moved = own_s or round(facts.own_makespan_s, 6), max(n_moved, facts.n_moved)
        lost_s, name = round(app.lost_s, 3), terms.priority_class.word
        there = app.core_s_before, app.core_s_after
        return [*EndedDag(name, own_s, n_moved, app.n_interrupted, lost_s, *there)]


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
