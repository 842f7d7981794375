"""The task service without its network and its disk: `TaskService.apply(event) -> commands`.

::

    submit, cancel ─────────────▶┐
    workers' reports ─▶ Reports ─▶ Attempts ─ records ─▶ JournaledTable   applications, tasks, workers
    tick ─▶ TaskPolicy ─ orders ─▶┘             │              │
               ▲                              Outbox ──▶ journal, then orders to workers and the rest
               └──────────── reads ───────────────────────────┘
                                 Pool ──▶ how many workers there should be

There is one state, the table. A service changes it by records, and what follows from a record leaves only
when the journal has it. So a later master that reads the journal knows at least what workers and owners know.
What workers report is compared with what they should have, so a report that is lost, repeated or late costs
time only. The policy reads the table, and each of its orders is in the table before it gives the next.

The cost of an event is proportional to what it changes. All tasks of an application are visited when it is
submitted and when it ends early, all tasks of all when a journal is read or shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from yarn_accel.core.dags.slowdown_series import LiveSlowdowns
from yarn_accel.core.tasks.applications import AppDefinition, check_definition
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.records import Drop, ServedApp, TaskState
from yarn_accel.core.tasks.server_gpus import share_server_gpus
from yarn_accel.core.tasks.service.attempts import Attempts
from yarn_accel.core.tasks.service.commands import AppAccepted, AppRefused, SendOrder, ServiceCommand
from yarn_accel.core.tasks.service.definition_values import app_values
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
from yarn_accel.core.tasks.service.orders import has_news, next_order
from yarn_accel.core.tasks.service.pool import Pool
from yarn_accel.core.tasks.service.prepared import prepare_app, taken_up_dag
from yarn_accel.core.tasks.service.records import AppBegun, PauseSet, ServiceBegun, decode_record
from yarn_accel.core.tasks.service.reports import Reports
from yarn_accel.core.tasks.service.runnable import check_runnable
from yarn_accel.core.tasks.service.settings import ServiceSettings
from yarn_accel.core.tasks.service.submission import check_orders
from yarn_accel.core.tasks.service.use_samples import UseSamples
from yarn_accel.core.tasks.service.views import app_outcome, explain_app, explain_task, snapshot
from yarn_accel.core.tasks.values import AppId, TaskId
from yarn_accel.errors import ConfigError

#: What a policy takes back from a place that never heard of it is its own again at once, so it decides again.
_N_ROUNDS = 2
#: GPUs of a pipeline server that cannot be divided among its workers go to the next of them after so long.
_SERVER_TURN_S = 10.0
#: A journal is made shorter when it has so many times the records that the state needs.
_COMPACT_FACTOR = 4


class TaskService:
    """All state of a task service; one caller at a time; the first event is `Recovered`.

    Args:
        figures: what the policy learns, to be shown.

    Attributes:
        table: the world as the service knows it, and as its orders are to make it.
        attempts: what becomes of attempts.
        use_samples: what workers did over time.
        slowdowns: SD of DAGs over time.
    """

    def __init__(
        self, settings: ServiceSettings, policy: TaskPolicy, figures: FigureStore | None = None
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.figures = figures if figures is not None else FigureStore()
        self.use_samples = UseSamples()
        self.slowdowns = LiveSlowdowns()
        self.attempts = Attempts(settings, policy, self.figures)
        self.table = self.attempts.table
        self._outbox = self.attempts.outbox
        self._reports = Reports(self.attempts, self.use_samples)
        self._pool = Pool(settings, self.table, self._outbox)
        self._must_compact = False
        self._server_turn = 0
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
        table, outbox = self.table, self._outbox
        table.now_s = max(table.now_s, event.now_s)
        self._handlers[type(event)](event)
        table.announce(table.now_s)
        self._send_orders()
        if outbox.n_records > max(self.settings.compact_records, _COMPACT_FACTOR * table.n_records):
            self._must_compact = True
        replacement = table.records() if self._must_compact else None
        self._must_compact = False
        return outbox.flush(replacement)

    def snapshot(self) -> dict[str, Any]:
        """Applications, workers and counts as JSON values; proportional to the number of both."""
        return snapshot(self.attempts)

    def outcome(self, app: AppId, first: int = 0) -> dict[str, Any] | None:
        """What became of an application's tasks as JSON values, see `app_outcome`; None: it is not known."""
        return app_outcome(self.attempts, self.slowdowns, app, first)

    def use(self, n_steps: int, max_workers: int, nodes: Collection[str] | None = None) -> dict[str, Any]:
        """What workers did over time as JSON values, see `UseSamples.document`."""
        return self.use_samples.document(n_steps, max_workers, nodes)

    def workers(self) -> dict[str, str]:
        """The workers that are to stay, and their nodes; empty for those that have not reported yet."""
        workers = self.table.workers.items()
        return {name: worker.spec.node for name, worker in workers if not worker.is_leaving}

    @property
    def wants_servers(self) -> bool:
        """Whether an application has tasks for the GPUs of pipeline servers."""
        apps = self.table.apps.values()
        return any(need.is_served for app in apps for need in app.spec.demands.values())

    def is_dag(self, app: AppId) -> bool | None:
        """Whether an application that has not ended is a DAG; None: there is none of this name."""
        found = self.table.apps.get(app)
        return None if found is None else found.definition.dag is not None

    def result(self, task: TaskId) -> str | None:
        """What a task's function returned, as JSON; None: it has not ended, or nothing is kept of it."""
        name, _, own = task.partition("/")
        app = self.table.apps.get(AppId(name)) or self.table.ended.get(AppId(name))
        return None if app is None else app.history.results.get(own)

    def explain(self, name: str) -> str:
        """Where a task is, and why there; of an application, what is believed of it beside what happened."""
        if "/" in name:
            return explain_task(self.attempts, TaskId(name))
        return explain_app(self.attempts, AppId(name))

    def validate(self) -> None:
        """Check that the state agrees with itself; visits all tasks; for tests.

        Raises:
            AssertionError: it does not.
        """
        table = self.table
        table.validate()
        assert not table.has_entering, "what became ready was not announced"
        assert table.settling.keys() <= table.apps.keys(), "an application that is gone is to end"
        assert table.seen.keys() == table.workers.keys(), "nobody watches over a worker"
        for app in table.apps.values():
            _check_app(app, app.id in table.settling)
        self.policy.validate()

    # ---- events

    def _recovered(self, event: Recovered) -> None:
        table, settings = self.table, self.settings
        self.attempts.set_unix_time(event.at)
        table.is_replaying = True
        for record in event.records:
            table.apply(decode_record(record))
        table.is_replaying = False
        table.forget_entering()
        self.policy.follow(table)
        self.attempts.there.resume(table.core_s, event.now_s)
        if not table.started_ms:
            table.apply(ServiceBegun(settings.started_ms))
        # The last line may be torn, and appending to that would damage it.
        self._must_compact = True
        for app in list(table.apps.values()):
            self._take_up(app)
        for worker in table.workers:
            table.see(worker, event.now_s + settings.recovery_s - settings.silence_s)

    def _take_up(self, app: ServedApp) -> None:
        """Go on with an application of an earlier master."""
        table = self.table
        if not app.is_over:
            table.open_app(app, table.now_s, taken_up_dag(app, self.attempts.event_time))
            table.offer_all_ready(app)
            failed = next((task for task in app.tasks if task.state is TaskState.FAILED), None)
            if failed is not None:  # that was the last record, and what follows from it was not written
                error = f"{failed.id}: failed {failed.n_failures} times; {failed.error}"
                self.attempts.end_app(app, error)
        self.attempts.finish(app)

    def _submit(self, event: SubmitRequested) -> None:
        table, outbox, definition = self.table, self._outbox, event.definition
        app = definition.spec.app
        try:
            is_new = event.prepared is not None or self.check_submission(definition, is_checked=False)
        except ConfigError as error:
            outbox.put(AppRefused(app, str(error)))
            return
        if not is_new:
            outbox.put(AppAccepted(app))
            return
        number, now_s = table.n_apps + 1, table.now_s
        at, core_s = self.attempts.unix_time(now_s), self.attempts.there.at(now_s)
        prepared = event.prepared or prepare_app(definition)
        outbox.log(AppBegun(number, app_values(definition), definition.spec.n_tasks, at, core_s))
        for record in prepared.listed:
            outbox.log(record)
        # The records would make a copy of all tasks.
        table.add_app(prepared, number, at, core_s)
        table.open_app(prepared.app, now_s, prepared.dag and replace(prepared.dag, arrival_s=now_s))
        table.offer_all_ready(prepared.app)
        outbox.put(AppAccepted(app))

    def check_submission(self, definition: AppDefinition, *, is_checked: bool = True) -> bool:
        """Whether an application is new here; False: it runs already, and is submitted once more.

        Args:
            is_checked: `check_definition` has found nothing wrong with it.

        Raises:
            ConfigError: it is refused, and why.
        """
        known = self.table.apps.get(definition.spec.app)
        if known is not None and known.definition == definition:
            return False
        self._check_limits(definition)
        if not is_checked:
            check_definition(definition)
        check_orders(definition)
        return True

    def _check_limits(self, definition: AppDefinition) -> None:
        table, settings, app = self.table, self.settings, definition.spec.app
        if app in table.apps or app in table.ended:
            raise ConfigError(f"{app}: there is an application of this name", cure="give it another name")
        if len(table.apps) >= settings.max_apps:
            raise ConfigError(
                f"{app}: {len(table.apps)} applications run already, which is the limit",
                cure="submit it when one of them has ended",
            )
        if len(table.tasks) + len(definition.tasks) > settings.max_open_tasks:
            raise ConfigError(
                f"{app}: with its {len(definition.tasks)} tasks there would be more than "
                f"{settings.max_open_tasks}, which is the limit",
                cure="submit it when another application has ended",
            )
        check_runnable(definition, settings, table.servers.most_gpus)

    def _cancel(self, event: CancelRequested) -> None:
        app = self.table.apps.get(event.app)
        if app is not None:
            self.attempts.end_app(app, "")

    def _pause(self, event: PauseRequested) -> None:
        app = self.table.apps.get(event.app)
        if app is not None and app.definition.dag is not None and app.is_paused is not event.is_paused:
            self.attempts.commit(PauseSet(app.id, event.is_paused))

    def _gone(self, event: WorkerGone) -> None:
        worker = self.table.workers.get(event.worker)
        if worker is not None:
            self._reports.lost(worker, event.reason, event.by_itself)

    def _written(self, event: JournalWritten) -> None:
        self._outbox.written(event.sequence)

    def _journal_failed(self, event: JournalFailed) -> None:
        self._must_compact = True

    def _servers_serve(self, event: ServersServe) -> None:
        self.table.servers = event.servers
        self.table.are_servers_due = True

    def _output_settled(self, event: OutputSettled) -> None:
        app = self.table.apps.get(event.app)
        if app is not None:
            self.attempts.output_settled(app, event.error)

    def _tick(self, event: ServiceTick) -> None:
        table = self.table
        self._reports.end_silent()
        table.offer_held_back(table.now_s)
        self.attempts.retry_outputs()
        turn = int(table.now_s // _SERVER_TURN_S) if self.wants_servers else self._server_turn
        if table.are_servers_due or turn != self._server_turn:
            self._share_server_gpus(turn)
        for _ in range(_N_ROUNDS):
            table.announce(table.now_s)
            self.attempts.decide()
            if not table.has_entering:
                break
        self._note_slowdowns()
        self._pool.adjust()

    def _share_server_gpus(self, turn: int) -> None:
        """Let workers use the GPUs of pipeline servers that they are to have, where that changed.

        What tasks of the turn before still use is handed over when they end.
        """
        table = self.table
        self._server_turn = turn
        workers = {str(name): worker for name, worker in table.workers.items() if worker.is_usable}
        nodes = {name: worker.spec.node for name, worker in workers.items()}
        used = {name: worker.spec.server_gpus - worker.free_server_gpus for name, worker in workers.items()}
        wanted = share_server_gpus(table.servers, nodes, turn)
        shares = share_server_gpus(table.servers, nodes, turn, used)
        table.are_servers_due = shares != wanted
        for name, n_gpus in shares.items():
            if workers[name].spec.server_gpus != n_gpus:
                table.set_server_gpus(workers[name], n_gpus)

    def _note_slowdowns(self) -> None:
        """Note the SD of all DAGs, where that is due."""
        table = self.table
        if self.slowdowns.is_due(table.now_s):
            self.slowdowns.note(table.now_s, self.policy.slowdowns(), (*table.apps, *table.ended))

    def _send_orders(self) -> None:
        table = self.table
        for name, worker in list(table.order_due.items()):
            if worker.has_reported:
                del table.order_due[name]
                self._order_sequence += 1
                can_wait = not has_news(worker)
                order = next_order(worker, self._order_sequence, self.settings)
                self._outbox.put(SendOrder(name, order), can_wait=can_wait)


def _check_app(app: ServedApp, is_settling: bool) -> None:
    assert sum(app.counts.values()) == app.spec.n_tasks, f"{app.id}: its counts do not add up"
    assert len(app.history.tasks) == app.counts[TaskState.DONE], f"{app.id}: not all that is done is kept"
    assert app.n_open or is_settling, f"{app.id}: all tasks ended, and nobody closes it"
    assert not app.counts[TaskState.FAILED] or app.is_over, f"{app.id}: a task failed, and it goes on"
    for task in app.tasks:
        held = task.assignment
        assert (held is not None) == (task.state in (TaskState.QUEUED, TaskState.RUNNING)), task.id
        if held is not None and held.drop is not None:
            assert held.listed_in is not None, f"{held.attempt}: has to leave where it never was"
            assert (held.drop is Drop.OVER) == app.is_over, held.attempt
        if app.is_over:
            assert task.state not in (TaskState.WAITING, TaskState.READY), f"{task.id}: waits for nothing"
        else:
            is_waiting = task.state is TaskState.WAITING
            assert bool(task.n_missing) is is_waiting, f"{task.id}: {task.state}, {task.n_missing} missing"
        assert task.n_failures < app.definition.max_attempts or task.state is TaskState.FAILED, task.id
