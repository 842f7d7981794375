"""The task service without its network and its disk: `TaskService.apply(event) -> commands`.

::

    submit, cancel ──▶ service ──▶ records ──▶ ServiceState   applications, tasks, attempts, workers
    workers' reports ▶ Reports ─▶ Attempts          │
    tick ──▶ TaskPolicy ──▶ Enacting               Outbox ──▶ journal, then orders to workers and the rest
                                 Pool ──▶ how many workers there should be

Every change of the state is a record, and what follows from a record leaves only when the journal has it. So
a later master that reads the journal knows at least what workers and owners know. What workers report is
compared with what they should have, so a report that is lost, repeated or late costs time only.

The cost of an event is proportional to what it changes. All tasks of an application are visited when it is
submitted and when it ends early, all tasks of all when a journal is read or shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from yarn_accel.core.tasks.applications import AppDefinition, check_definition
from yarn_accel.core.tasks.commands import TaskPolicy
from yarn_accel.core.tasks.events import AppPaused, AppSubmitted, Decide
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.service.attempts import Attempts
from yarn_accel.core.tasks.service.commands import AppAccepted, AppRefused, SendOrder, ServiceCommand
from yarn_accel.core.tasks.service.definition_values import app_values
from yarn_accel.core.tasks.service.enacting import Enacting
from yarn_accel.core.tasks.service.events import (
    CancelRequested,
    JournalFailed,
    JournalWritten,
    OutputSettled,
    PauseRequested,
    Recovered,
    ServersServe,
    ServiceEvent,
    ServiceTick,
    SubmitRequested,
    WorkerGone,
    WorkerReported,
    WorkersAtRisk,
)
from yarn_accel.core.tasks.service.invariants import check
from yarn_accel.core.tasks.service.orders import next_order
from yarn_accel.core.tasks.service.parts import ServiceParts
from yarn_accel.core.tasks.service.pool import Pool
from yarn_accel.core.tasks.service.prepared import prepare_app
from yarn_accel.core.tasks.service.records import AppBegun, PauseSet, ServiceBegun, decode_record
from yarn_accel.core.tasks.service.reports import Reports
from yarn_accel.core.tasks.service.runnable import check_runnable
from yarn_accel.core.tasks.service.settings import ServiceSettings
from yarn_accel.core.tasks.service.state import ServedApp, TaskState
from yarn_accel.core.tasks.service.submission import check_orders
from yarn_accel.core.tasks.service.submitted_dag import taken_up_dag
from yarn_accel.core.tasks.service.views import app_outcome, explain_app, explain_task, snapshot
from yarn_accel.core.tasks.values import AppId, TaskId
from yarn_accel.errors import ConfigError

#: What a policy takes back from a place that never heard of it is its own again at once, so it decides again.
_N_ROUNDS = 2
#: A journal is made shorter when it has so many times the records that the state needs.
_COMPACT_FACTOR = 4


class TaskService:
    """All state of a task service; one caller at a time; the first event is `Recovered`.

    Args:
        figures: what the policy learns, to be shown.
    """

    def __init__(
        self, settings: ServiceSettings, policy: TaskPolicy, figures: FigureStore | None = None
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._figures = figures if figures is not None else FigureStore()
        self._parts = parts = ServiceParts(settings, policy, self._figures)
        self._attempts = Attempts(parts)
        self._reports = Reports(parts, self._attempts)
        self._enacting = Enacting(parts, self._attempts)
        self._pool = Pool(parts)
        self._must_compact = False
        #: Of all orders of this master: a worker that was lost and comes back takes no older number.
        self._order_sequence = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            Recovered: self._recovered,
            SubmitRequested: self._submit,
            CancelRequested: self._cancel,
            PauseRequested: self._pause,
            WorkerReported: self._reports.reported,
            WorkerGone: self._gone,
            WorkersAtRisk: self._pool.give_back,
            JournalWritten: self._written,
            JournalFailed: self._journal_failed,
            OutputSettled: self._output_settled,
            ServersServe: self._servers_serve,
            ServiceTick: self._tick,
        }

    def apply(self, event: ServiceEvent) -> list[ServiceCommand]:
        """Take note of what happened and say what to do now, in this order."""
        parts = self._parts
        parts.now_s = max(parts.now_s, event.now_s)
        self._handlers[type(event)](event)
        parts.announce_ready()
        self._send_orders()
        n_records = parts.outbox.n_records
        if n_records > max(self._settings.compact_records, _COMPACT_FACTOR * parts.state.n_records):
            self._must_compact = True
        replacement = parts.state.records() if self._must_compact else None
        self._must_compact = False
        return parts.outbox.flush(replacement)

    def snapshot(self) -> dict[str, Any]:
        """Applications, workers and counts as JSON values; proportional to the number of both."""
        return snapshot(self._parts, self._figures)

    def outcome(self, app: AppId, first: int = 0) -> dict[str, Any] | None:
        """What became of an application's tasks as JSON values, see `app_outcome`; None: it is not known."""
        return app_outcome(self._parts, app, first)

    def use(self, n_steps: int, max_workers: int, nodes: Collection[str] | None = None) -> dict[str, Any]:
        """What workers did over time as JSON values, see `UseSamples.document`."""
        return self._parts.use.document(n_steps, max_workers, nodes)

    def workers(self) -> dict[str, str]:
        """The workers that are to stay, and their nodes; empty for those that have not reported yet."""
        return {
            name: worker.spec.node if worker.spec is not None else ""
            for name, worker in self._parts.state.workers.items()
            if not worker.is_leaving
        }

    @property
    def wants_servers(self) -> bool:
        """Whether an application has tasks for the GPUs of pipeline servers."""
        apps = self._parts.state.apps.values()
        return any(need.is_served for app in apps for need in app.definition.spec.demands.values())

    def is_dag(self, app: AppId) -> bool | None:
        """Whether an application that has not ended is a DAG; None: there is none of this name."""
        found = self._parts.state.apps.get(app)
        return None if found is None else found.definition.dag is not None

    def result(self, task: TaskId) -> str | None:
        """What a task's function returned, as JSON; None: it has not ended, or nothing is kept of it."""
        name, _, own = task.partition("/")
        app = self._parts.state.apps.get(AppId(name)) or self._parts.state.ended.get(AppId(name))
        return None if app is None else app.history.results.get(own)

    def explain(self, name: str) -> str:
        """Where a task is, and why there; of an application, what is believed of it beside what happened."""
        if "/" in name:
            return explain_task(self._parts, TaskId(name))
        return explain_app(self._parts, self._figures, AppId(name))

    def validate(self) -> None:
        """Check that the state agrees with itself; visits all tasks; for tests.

        Raises:
            AssertionError: it does not.
        """
        check(self._parts)
        self._policy.validate()

    # ---- events

    def _recovered(self, event: Recovered) -> None:
        parts = self._parts
        parts.set_unix_time(event.now_s, event.at)
        state = parts.state
        state.is_replaying = True
        for record in event.records:
            state.apply(decode_record(record))
        state.is_replaying = False
        parts.there.resume(state.core_s, event.now_s)
        state.ready.clear()
        if not state.started_ms:
            state.apply(ServiceBegun(self._settings.started_ms))
        # The last line may be torn, and appending to that would damage it.
        self._must_compact = True
        for app in list(state.apps.values()):
            self._take_up(app)
        for worker in state.workers:
            parts.see(worker, event.now_s + self._settings.recovery_s - self._settings.silence_s)

    def _take_up(self, app: ServedApp) -> None:
        """Go on with an application of an earlier master."""
        parts = self._parts
        if not app.is_over:
            dag = taken_up_dag(app, parts.event_time)
            parts.policy.apply(AppSubmitted(app.definition.spec, parts.now_s, dag))
            ready = [task.id for task in app.tasks if task.state is TaskState.READY]
            if ready:
                parts.state.ready[app.id] = ready
            failed = next((task for task in app.tasks if task.state is TaskState.FAILED), None)
            if failed is not None:  # that was the last record, and what follows from it was not written
                parts.state.ready.pop(app.id, None)
                self._attempts.end_app(app, f"{failed.id}: failed {failed.n_failures} times; {failed.error}")
        self._attempts.finish(app)

    def _submit(self, event: SubmitRequested) -> None:
        parts, definition = self._parts, event.definition
        app = definition.spec.app
        known = parts.state.apps.get(app)
        if known is not None and known.definition == definition:
            parts.outbox.put(AppAccepted(app))
            return
        try:
            self._check_limits(definition)
            if event.prepared is None:
                check_definition(definition)
            check_orders(definition)
        except ConfigError as error:
            parts.outbox.put(AppRefused(app, str(error)))
            return
        number = parts.state.n_apps + 1
        at = parts.unix_time(parts.now_s)
        prepared = event.prepared or prepare_app(definition)
        core_s = parts.there.at(parts.now_s)
        parts.outbox.log(AppBegun(number, app_values(definition), definition.spec.n_tasks, at, core_s))
        for record in prepared.listed:
            parts.outbox.log(record)
        # The records would make a copy of all tasks.
        parts.state.add_app(prepared, number, at, core_s)
        dag = prepared.dag and replace(prepared.dag, arrival_s=parts.now_s)
        parts.policy.apply(AppSubmitted(definition.spec, parts.now_s, dag))
        parts.outbox.put(AppAccepted(app))

    def _check_limits(self, definition: AppDefinition) -> None:
        state, settings, app = self._parts.state, self._settings, definition.spec.app
        servers = self._parts.servers
        if app in state.apps or app in state.ended:
            raise ConfigError(f"{app}: there is an application of this name", cure="give it another name")
        if len(state.apps) >= settings.max_apps:
            raise ConfigError(
                f"{app}: {len(state.apps)} applications run already, which is the limit",
                cure="submit it when one of them has ended",
            )
        if len(state.tasks) + len(definition.tasks) > settings.max_open_tasks:
            raise ConfigError(
                f"{app}: with its {len(definition.tasks)} tasks there would be more than "
                f"{settings.max_open_tasks}, which is the limit",
                cure="submit it when another application has ended",
            )
        check_runnable(definition, settings, servers.most_gpus)

    def _cancel(self, event: CancelRequested) -> None:
        app = self._parts.state.apps.get(event.app)
        if app is not None:
            self._attempts.end_app(app, "")

    def _pause(self, event: PauseRequested) -> None:
        parts = self._parts
        app = parts.state.apps.get(event.app)
        if app is not None and app.definition.dag is not None and app.is_paused is not event.is_paused:
            parts.commit(PauseSet(app.id, event.is_paused))
            parts.policy.apply(AppPaused(app.id, event.is_paused, parts.now_s))

    def _gone(self, event: WorkerGone) -> None:
        worker = self._parts.state.workers.get(event.worker)
        if worker is not None:
            self._reports.lost(worker, event.reason, event.by_itself)

    def _written(self, event: JournalWritten) -> None:
        self._parts.outbox.written(event.sequence)

    def _journal_failed(self, event: JournalFailed) -> None:
        self._must_compact = True

    def _servers_serve(self, event: ServersServe) -> None:
        self._parts.servers = event.servers
        self._parts.is_sharing_due = True

    def _output_settled(self, event: OutputSettled) -> None:
        app = self._parts.state.apps.get(event.app)
        if app is not None:
            self._attempts.output_settled(app, event.error)

    def _tick(self, event: ServiceTick) -> None:
        parts = self._parts
        self._reports.end_silent()
        parts.announce_due()
        self._attempts.retry_outputs()
        if parts.is_sharing_due:
            parts.share_server_gpus()
        for _ in range(_N_ROUNDS):
            parts.announce_ready()
            self._enacting.enact(parts.policy.apply(Decide(parts.now_s)))
            if not parts.state.ready:
                break
        parts.note_slowdowns()
        self._pool.adjust()

    def _send_orders(self) -> None:
        parts = self._parts
        for name, worker in list(parts.dirty.items()):
            if worker.spec is not None:
                del parts.dirty[name]
                self._order_sequence += 1
                order = next_order(worker, self._order_sequence, self._settings)
                parts.outbox.put(SendOrder(name, order))
