"""A task table that is changed by the records of its journal, live and when the journal is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from yarn_accel.core.tasks.attempt_orders import attempt_id
from yarn_accel.core.tasks.events import EndReason
from yarn_accel.core.tasks.history import AppHistory, EndedDag, EndedTask
from yarn_accel.core.tasks.records import (
    Assignment,
    Drop,
    EndedApp,
    ServedApp,
    ServedTask,
    TaskState,
    TaskWorker,
)
from yarn_accel.core.tasks.server_gpus import ServingServers
from yarn_accel.core.tasks.service.definition_values import definition_of
from yarn_accel.core.tasks.service.prepared import PreparedApp, served_app
from yarn_accel.core.tasks.service.records import (
    AppBegun,
    AppClosed,
    AppOver,
    AppRemembered,
    AttemptAssigned,
    AttemptDropped,
    AttemptKept,
    AttemptSettled,
    DagMeasured,
    InterruptsCounted,
    PauseSet,
    ResultsKept,
    ServiceBegun,
    ServiceRecord,
    TasksEnded,
    TasksListed,
    TasksRestored,
    WorkerForgotten,
    WorkerKnown,
    app_records,
)
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import AppId, Form, ResourceId, TaskId

#: Rows of tasks in one record of a shortened journal.
_N_ROWS = 2000


class JournaledTable(TaskTable):
    """The table of a service, and what each record changes of it.

    Attributes:
        now_s: of the event that is applied; records have no time of their own.
        ended: applications that ended, the last ones.
        is_replaying: records come from a journal, so orders of an earlier master may have had what they name.
        seen: when each worker reported last, the longest silent first.
        order_due: workers that are to have something else than their last order says.
        settling: applications whose tasks have all ended: tries to settle the output, and when to try again.
        servers: the pipeline servers that serve.
        are_servers_due: these, or the workers, are not those of `share_server_gpus` any more.
    """

    def __init__(self, max_crashes: int, n_ended: int, n_ended_tasks: int) -> None:
        super().__init__()
        self._max_crashes = max_crashes
        self._n_ended = n_ended
        self._n_ended_tasks = n_ended_tasks
        self.now_s = 0.0
        self.started_ms = 0
        self.n_apps = 0
        self.ended: dict[AppId, EndedApp] = {}
        self.is_replaying = False
        self.seen: dict[ResourceId, float] = {}
        self.order_due: dict[ResourceId, TaskWorker] = {}
        self.settling: dict[AppId, tuple[int, float]] = {}
        self.servers = ServingServers()
        self.are_servers_due = False
        self._listing: tuple[AppBegun, list[Any]] | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            ServiceBegun: self._service_begun,
            AppBegun: self._app_begun,
            TasksListed: self._tasks_listed,
            TasksRestored: self._tasks_restored,
            WorkerKnown: self._worker_known,
            WorkerForgotten: self._worker_forgotten,
            AttemptAssigned: self._assigned,
            AttemptDropped: self._dropped,
            AttemptKept: self._kept,
            AttemptSettled: self._settled,
            PauseSet: self._pause_set,
            ResultsKept: self._results_kept,
            InterruptsCounted: self._interrupts_counted,
            DagMeasured: self._dag_measured,
            AppOver: self._over,
            AppClosed: self._closed,
            AppRemembered: self._remembered,
            TasksEnded: self._tasks_ended,
        }

    def apply(self, record: ServiceRecord) -> None:
        """Change the table as a record says."""
        self._handlers[type(record)](record)

    def add_app(self, prepared: PreparedApp, number: int, at: float, core_s: float) -> None:
        """Take an application; what `AppBegun` and all its `TasksListed` do together."""
        app = prepared.app
        app.number, app.begun_at, app.core_s_before = number, at, core_s
        app.is_paused = app.definition.dag is not None and app.definition.dag.is_paused
        self.apps[app.id] = app
        self.n_apps = max(self.n_apps, number)
        self.tasks.update(prepared.tasks)

    def see(self, worker: ResourceId, when_s: float) -> None:
        """A worker reported, or counts as if it had."""
        self.seen.pop(worker, None)
        self.seen[worker] = when_s

    @property
    def core_s(self) -> float:
        """Core-seconds of all workers by the last record that says so."""
        known = [each.core_s_before for each in self.apps.values()]
        known += [each.core_s_after or 0.0 for each in self.apps.values()]
        known += [each.dag.core_s_after or 0.0 for each in self.ended.values() if each.dag is not None]
        return max(known, default=0.0)

    @property
    def n_records(self) -> int:
        """About how many rows `records` yields."""
        n_ended_tasks = sum(len(each.history.tasks) for each in self.ended.values())
        return len(self.tasks) + 2 * len(self.workers) + len(self.ended) + n_ended_tasks

    def records(self) -> Iterator[ServiceRecord]:
        """Records that make a new table equal to this one."""
        yield ServiceBegun(self.started_ms, self.n_apps)
        for ended in self.ended.values():
            yield _remembered_record(ended)
            yield from _history_records(ended.app, ended.history)
        for worker in self.workers.values():
            yield WorkerKnown(worker.id, worker.incarnation)
        for app in self.apps.values():
            yield from app_records(app.definition, app.number, app.begun_at, app.core_s_before)
            rows = [_row(task) for task in app.tasks if task.state.is_final or task.n_attempts]
            for start in range(0, len(rows), _N_ROWS):
                yield TasksRestored(app.id, rows[start : start + _N_ROWS])
            yield from _history_records(app.id, app.history)
            yield from _dag_records(app)
        for worker in self.workers.values():
            yield from _assigned_records(worker)
        for app in self.apps.values():
            if app.is_over:
                yield AppOver(app.id, app.error)

    # ---- applications

    def _service_begun(self, record: ServiceBegun) -> None:
        self.started_ms = record.started_ms
        self.n_apps = record.n_apps

    def _app_begun(self, record: AppBegun) -> None:
        self._listing = record, []

    def _tasks_listed(self, record: TasksListed) -> None:
        if self._listing is None:
            return
        begun, rows = self._listing
        rows += record.rows
        if len(rows) == begun.n_tasks:
            self._listing = None
            definition = definition_of(begun.definition, rows, begun.n_tasks)
            self.add_app(served_app(definition), begun.number, begun.at, begun.core_s)

    def _tasks_restored(self, record: TasksRestored) -> None:
        app = self.apps[AppId(record.app)]
        for partition, state, n_attempts, n_failures, n_crashes, error in record.rows:
            task = app.tasks[partition]
            task.n_attempts, task.n_failures, task.n_crashes = n_attempts, n_failures, n_crashes
            task.error = error
            if TaskState(state).is_final:
                task.move(TaskState(state))
                if task.state is TaskState.DONE:
                    self.release_successors(task, self.now_s)

    def _over(self, record: AppOver) -> None:
        self.end_app(self.apps[AppId(record.app)], record.error)

    def _results_kept(self, record: ResultsKept) -> None:
        app = self.apps.get(AppId(record.app)) or self.ended[AppId(record.app)]
        for task, result in record.rows:
            app.history.keep_result(task, result)

    def _pause_set(self, record: PauseSet) -> None:
        self.set_paused(self.apps[AppId(record.app)], record.is_paused, self.now_s)

    def _interrupts_counted(self, record: InterruptsCounted) -> None:
        app = self.apps[AppId(record.app)]
        app.n_interrupted, app.lost_s = record.n, record.lost_s

    def _dag_measured(self, record: DagMeasured) -> None:
        app = self.apps[AppId(record.app)]
        app.own_makespan_s, app.n_moved, app.core_s_after = (
            record.own_makespan_s,
            record.n_moved,
            record.core_s,
        )

    def _closed(self, record: AppClosed) -> None:
        app = self.apps[AppId(record.app)]
        self.settling.pop(app.id, None)
        self.remove_app(app)
        spec = app.spec
        self._keep(
            EndedApp(
                app.id,
                app.number,
                tuple((state.value, n) for state, n in app.counts.items()),
                app.is_over and not app.error,
                app.error or record.error,
                spec.name,
                tuple((form.value, need.cores, need.gpus) for form, need in spec.demands.items()),
                app.begun_at,
                record.at,
                app.history,
                None if record.dag is None else EndedDag(*record.dag),
            )
        )

    def _remembered(self, record: AppRemembered) -> None:
        self._keep(
            EndedApp(
                AppId(record.app),
                record.number,
                tuple((str(state), int(n)) for state, n in record.counts),
                record.is_cancelled,
                record.error,
                record.name,
                tuple((str(form), int(cores), int(gpus)) for form, cores, gpus in record.demands),
                record.begun_at,
                record.ended_at,
                AppHistory(),
                None if record.dag is None else EndedDag(*record.dag),
            )
        )

    def _keep(self, ended: EndedApp) -> None:
        self.ended[ended.app] = ended
        if len(self.ended) > self._n_ended:
            del self.ended[next(iter(self.ended))]
        self._forget_tasks()

    def _tasks_ended(self, record: TasksEnded) -> None:
        app = self.apps.get(AppId(record.app)) or self.ended[AppId(record.app)]
        for row in record.rows:
            app.history.add(EndedTask(*row))

    def _forget_tasks(self) -> None:
        """Drop what the applications did that ended longest ago, where it is too much."""
        n_left = sum(len(each.history.tasks) for each in self.ended.values())
        for ended in list(self.ended.values())[:-1]:
            if n_left <= self._n_ended_tasks:
                return
            if ended.history.tasks:
                n_left -= len(ended.history.tasks)
                self.ended[ended.app] = replace(ended, history=AppHistory())

    # ---- workers and attempts

    def _worker_known(self, record: WorkerKnown) -> None:
        self.add_worker(ResourceId(record.worker), record.incarnation)

    def _worker_forgotten(self, record: WorkerForgotten) -> None:
        worker = self.workers[ResourceId(record.worker)]
        self.forget_worker(worker)
        self.order_due.pop(worker.id, None)
        self.seen.pop(worker.id, None)
        self.are_servers_due = True

    def _assigned(self, record: AttemptAssigned) -> None:
        task, worker = self.tasks[TaskId(record.task)], self.workers[ResourceId(record.worker)]
        name = attempt_id(self.started_ms, task.app.number, task.partition, record.number)
        assignment = task.assignment  # a place that is reserved for it, if any
        if assignment is None:
            form = Form(record.form)
            demand = task.app.spec.demands[form]
            assignment = Assignment(task, record.number, name, worker, form, demand, True, "")
        assignment.number, assignment.attempt, assignment.reason = record.number, name, record.reason
        assignment.is_start = record.position < 0
        assignment.listed_in = 0 if self.is_replaying else None
        assignment.predicted_s = record.predicted_s
        self.assign(assignment, record.position, self.now_s, is_counted=not self.is_replaying)
        self.order_due[worker.id] = worker

    def _dropped(self, record: AttemptDropped) -> None:
        assignment = self._assignment(record.task, record.number)
        assignment.worker.drop(assignment, Drop(record.why))
        self.order_due[assignment.worker.id] = assignment.worker

    def _kept(self, record: AttemptKept) -> None:
        assignment = self._assignment(record.task, record.number)
        assignment.worker.keep(assignment)

    def _settled(self, record: AttemptSettled) -> None:
        assignment = self._assignment(record.task, record.number)
        task, end, worker = assignment.task, EndReason(record.end), assignment.worker
        if assignment.drop is Drop.END and end is EndReason.CANCELLED:
            task.app.lost_s += record.lost_s
        if end is EndReason.DONE:
            task.app.history.add(_ended_task(assignment, record))
            if record.result:
                task.app.history.keep_result(task.definition.own_name, record.result)
        if end is EndReason.FAILED:
            task.n_failures += 1
            task.avoid = (task.avoid or set()) | {worker.id}
        task.n_crashes += record.is_crash
        has_failed = (end is EndReason.FAILED or record.is_crash) and self._has_failed(task)
        self.settle(assignment, end, self.now_s, record.error, has_failed)
        self.order_due[worker.id] = worker
        if worker.is_idle:
            worker.busy_s = self.now_s

    def _has_failed(self, task: ServedTask) -> bool:
        is_exhausted = task.n_failures >= task.app.definition.max_attempts
        return is_exhausted or task.n_crashes >= self._max_crashes

    def _assignment(self, name: str, number: int) -> Assignment:
        assignment = self.tasks[TaskId(name)].assignment
        assert assignment is not None, f"{name}: is nowhere"
        assert assignment.number == number, f"{name}: {assignment.attempt} is under way, not {number}"
        return assignment


def _ended_task(assignment: Assignment, record: AttemptSettled) -> EndedTask:
    task = assignment.task
    node, started_at, ended_at, overhead_s, compute_s, alone_s = record.ran or ("", 0.0, 0.0, *(None,) * 3)
    return EndedTask(
        task.id[len(task.app.id) + 1 :],
        node,
        assignment.form.value,
        started_at,
        ended_at,
        overhead_s,
        compute_s,
        alone_s,
        assignment.predicted_s,
        assignment.reason,
    )


def _remembered_record(ended: EndedApp) -> AppRemembered:
    return AppRemembered(
        ended.app,
        ended.number,
        [list(each) for each in ended.counts],
        ended.is_cancelled,
        ended.error,
        ended.name,
        [list(each) for each in ended.demands],
        ended.begun_at,
        ended.ended_at,
        None if ended.dag is None else list(ended.dag),
    )


def _dag_records(app: ServedApp) -> Iterator[ServiceRecord]:
    terms = app.definition.dag
    if terms is not None and app.is_paused is not terms.is_paused:
        yield PauseSet(app.id, app.is_paused)
    if app.n_interrupted:
        yield InterruptsCounted(app.id, app.n_interrupted, app.lost_s)
    if app.core_s_after is not None:
        yield DagMeasured(app.id, app.own_makespan_s, app.n_moved, app.core_s_after)


def _history_records(app: AppId, history: AppHistory) -> Iterator[ServiceRecord]:
    for start in range(0, len(history.tasks), _N_ROWS):
        yield TasksEnded(app, [list(each) for each in history.tasks[start : start + _N_ROWS]])
    for task, result in history.results.items():
        yield ResultsKept(app, [[task, result]])


def _row(task: ServedTask) -> list[Any]:
    # The attempt that is under way follows as a record of its own.
    n_attempts = task.n_attempts if task.assignment is None else task.assignment.number
    return [task.partition, task.state.value, n_attempts, task.n_failures, task.n_crashes, task.error]


def _assigned_records(worker: TaskWorker) -> Iterator[ServiceRecord]:
    position = 0
    for each in worker.held():
        is_queued = not each.is_start
        at = position if is_queued and each.drop is None else -1
        position += is_queued and each.drop is None
        yield AttemptAssigned(
            each.task.id, each.number, worker.id, each.form.value, at, each.reason, each.predicted_s
        )
        if each.drop is not None and not each.task.app.is_over:
            yield AttemptDropped(each.task.id, each.number, each.drop.value)
