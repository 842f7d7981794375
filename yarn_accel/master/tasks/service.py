"""The task service of a master: carries out what `core.tasks.service` decides.

::

    owners ── ControlApi ──▶ submit, cancel ─┐                         ┌─▶ TaskJournal ──▶ HDFS
    workers ─ reports ────▶ WorkerReported ──┼──▶ TaskService (core) ──┼─▶ orders, the answers to reports
    containers ──────────▶ WorkerGone ───────┘                         ├─▶ nodes that get a worker
                                                                       └─▶ output folders

A worker's report is answered at once when there is an order that it has not taken, else when there is one, or
after a second: so a task's end reaches the service, and what follows from it the worker, without a wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from yarn_accel.adapters.accounting import INTERVAL_S, Accounting, JobUse
from yarn_accel.adapters.journal_file import StoredJournal
from yarn_accel.adapters.signed_http import decode_json
from yarn_accel.core.application import commands as app_cmd
from yarn_accel.core.application import events as app_ev
from yarn_accel.core.application.exits import describe_exit, is_excused
from yarn_accel.core.tasks.applications import AppDefinition
from yarn_accel.core.tasks.attempt_orders import AttemptId, unfinished_uri
from yarn_accel.core.tasks.events import EndReason
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.server_gpus import ServingServers
from yarn_accel.core.tasks.service import TaskService
from yarn_accel.core.tasks.service import commands as cmd
from yarn_accel.core.tasks.service import events as ev
from yarn_accel.core.tasks.service.prepared import PreparedApp, prepare_app
from yarn_accel.core.tasks.service.submission import parse_app
from yarn_accel.core.tasks.service.use_samples import N_STEPS
from yarn_accel.core.tasks.values import AppId, ResourceId, TaskId
from yarn_accel.core.tasks.worker_messages import (
    MAX_REPORT_BYTES,
    WorkerOrder,
    WorkerReport,
    order_document,
    parse_report,
)
from yarn_accel.core.tasks.worker_nodes import WorkerNodes
from yarn_accel.errors import ConfigError, RejectedError, RemoteProtocolError, StorageError, UnavailableError
from yarn_accel.master.config import journal_uri
from yarn_accel.master.control_api import node_of
from yarn_accel.master.credentials import WORKER_ROLE
from yarn_accel.master.inventory import container_logs
from yarn_accel.master.plugin import MasterPlugin, PluginContext, Post, Section, Serving, Verb
from yarn_accel.master.tasks import views
from yarn_accel.master.tasks.places import SizePlaces, WorkerPlaces, usable_nodes
from yarn_accel.master.tasks.settings import TaskSettings
from yarn_accel.master.tasks.storage import FigureFile, TaskJournal
from yarn_accel.storage import Store

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

_TICK_S = 1.0
_HOLD_S = 1.0
_CLOSE_S = 5.0
#: A container of which nobody hears for two minutes is replaced; after half a minute its node is asked.
_HEARD_S = 5.0
_SUCCESS = "_SUCCESS"
#: Into which owners put what they submit.
_SUBMITTED_FOLDER = "submitted"
_MAX_SHOWN = 200
_MAX_TEXT = 4096
_MAX_COUNT = 10**9
_MAX_NODES = 100
#: From this number on no task of an application is listed.
_NO_ROWS = 1 << 30
_MAX_KEPT = 100_000
#: Ten minutes of the page's pictures, and how many there are.
_SHOWN_STEPS = 120
_SHOWN_WORKERS = 24
_MAX_APP_BYTES = 64 * 1024 * 1024


class LiveTaskService(MasterPlugin):
    """One task service.

    Args:
        service: the decisions.
        journal: where its records go; `journal_written` and `journal_failed` are what it calls.
        store: where outputs are.
        folder_uri: of this application.
        places: chooses nodes for workers.
        clock: of events.
        figure_file: keeps what is learned of applications.
        serving: see `PluginContext`.
        heard: gets role and node of a worker that reports, every some seconds: its container is well.
        accounting: adds up what jobs use.
        owner: the user and the application that they belong to.
        logs_of: the address of the logs of a container, by node and id; empty: not known.
        want_servers: see `PluginContext`.
    """

    def __init__(
        self,
        service: TaskService,
        make_journal: Callable[[Callable[[int], None], Callable[[], None]], TaskJournal],
        store: Store,
        folder_uri: str,
        places: WorkerPlaces,
        clock: Callable[[], float],
        figure_file: FigureFile | None = None,
        serving: Callable[[], Serving] = lambda: ({}, {}),
        heard: Callable[[str, str], None] = lambda role, node: None,
        accounting: Accounting | None = None,
        owner: tuple[str, str] = ("", ""),
        logs_of: Callable[[str, str], str] = lambda node, container: "",
        want_servers: Callable[[], None] = lambda: None,
    ) -> None:
        self._service = service
        self._accounting = accounting or Accounting(store, "", "")
        #: By all jobs since this master started.
        self._used = JobUse(*owner, "")
        self._logs_of = logs_of
        #: The container and node of each attempt that a worker got, by task; those that began last are last.
        self._tried: dict[str, dict[AttemptId, tuple[str, str]]] = {}
        #: The container that is there now, and its node.
        self._container_of: dict[ResourceId, tuple[str, str]] = {}
        #: Cores and GPUs of a task, by application and form.
        self._held: dict[tuple[AppId, str], tuple[int, int]] = {}
        self._read_bytes: dict[AttemptId, int] = {}
        self._heard, self._heard_s = heard, dict[ResourceId, float]()
        self._figure_file = figure_file or FigureFile(store, "", FigureStore())
        self._serving, self._servers, self._want_servers = serving, ServingServers(), want_servers
        self._journal = make_journal(self._journal_written, self._journal_failed)
        self._store = store
        self._submitted = f"{folder_uri.rstrip('/')}/{_SUBMITTED_FOLDER}"
        self._places = places
        self._clock = clock
        self._is_open = self._is_tick_due = False
        self._unwritten: list[cmd.WriteJournal] = []
        #: Looking at all nodes is too much for every report.
        self._are_nodes_due = False
        self._orders: dict[ResourceId, WorkerOrder] = {}
        self._wakes: dict[ResourceId, asyncio.Event] = {}
        #: Incarnation and sequence of each worker's newest report.
        self._newest: dict[ResourceId, tuple[str, int]] = {}
        self._answers: dict[AppId, list[asyncio.Future[str]]] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Semaphore(1)
        self._n_submissions = 0
        #: The containers that run workers.
        self._containers: dict[str, ResourceId] = {}
        #: Workers whose containers ended before the journal was read.
        self._gone_early: list[ev.WorkerGone] = []
        #: Form and end -> how many attempts ended so since this master started, and how long they ran.
        self._attempts: dict[tuple[str, str], list[float]] = {}
        self._entries = self._make_entries()

    def _make_entries(self) -> dict[type, Callable[[Any], None]]:
        return {
            cmd.WriteJournal: self._unwritten.append,
            cmd.ReplaceJournal: self._replace_journal,
            cmd.SendOrder: self._send_order,
            cmd.AppAccepted: lambda command: self._answer(command.app, ""),
            cmd.AppRefused: lambda command: self._answer(command.app, command.error),
            cmd.CommitOutput: lambda command: self._begin(self._settle(command, is_complete=True)),
            cmd.RemoveUnfinished: lambda command: self._begin(self._settle(command, is_complete=False)),
            cmd.AppEnded: self._app_ended,
            cmd.AttemptEnded: self._attempt_ended,
            cmd.WorkersWanted: self._workers_wanted,
            cmd.ReleaseWorker: self._release,
        }

    # ---- what it adds to the master

    def verbs(self) -> Mapping[str, Verb]:
        """The commands of owners."""

        async def submitted(document: Any) -> dict[str, Any]:
            return {"app": await self.submit(_text_of(document, "uri"))}

        def cancelled(document: Any) -> dict[str, Any]:
            self.cancel(_text_of(document, "app"))
            return {}

        def paused(document: Any) -> dict[str, Any]:
            self.pause(_text_of(document, "app"), _flag_of(document, "is_paused"))
            return {}

        return {
            "tasks-submit": submitted,
            "tasks-cancel": cancelled,
            "tasks-pause": paused,
            "tasks-result": lambda document: {"result": self.result(_text_of(document, "task"))},
            "tasks-status": lambda _: self.status(),
            "tasks-outcome": lambda document: self.outcome(
                _text_of(document, "app"), _count_of(document, "first")
            ),
            "tasks-use": lambda document: self.use(_nodes_of(document)),
            "tasks-logs": lambda document: {"attempts": self.logs(_text_of(document, "task"))},
            "tasks-explain": lambda document: {"text": self.explain(_text_of(document, "task"))},
        }

    def posts(self) -> Mapping[str, Post]:
        """The reports of workers."""
        return {"/v1/worker": Post(self.report, MAX_REPORT_BYTES)}

    def sections(self, document: Mapping[str, Any] | None, at: float) -> Iterable[Section]:
        """DAGs, applications, workers over time, figures."""
        return views.sections(document or {}, at)

    def families(self, document: Mapping[str, Any] | None) -> Iterable[Metric]:
        """Counts and sums of applications, workers and attempts."""
        return views.families(document or {})

    # ---- startup, main loop, shutdown

    async def work(self) -> None:
        """Take the journal over and serve, until it is cancelled.

        Raises:
            StorageError: the journal cannot be read, is damaged, or is gone.
            AttemptGoneError: a later master has it.
        """
        found = await self._journal.read()
        logger.info("read the journal: %d records, %d bytes", len(found.records), found.n_bytes)
        if found.torn_bytes:
            logger.warning("the journal's last line was torn, %d bytes are left out", found.torn_bytes)
        await self._figure_file.read()
        self._is_open = True
        self._apply(ev.Recovered(found.records, self._clock(), time.time()))
        for gone in self._gone_early:
            self._apply(replace(gone, now_s=self._clock()))
        writing = asyncio.create_task(self._journal.work(), name="task journal")
        keeping = asyncio.create_task(self._figure_file.work(), name="task figures")
        counting = asyncio.create_task(self._write_accounting(), name="accounting")
        try:
            while True:
                self._are_nodes_due = True
                self._look_at_servers()
                self._tick()
                done, _ = await asyncio.wait([writing], timeout=_TICK_S)
                for each in done:
                    each.result()
        finally:
            writing.cancel()
            keeping.cancel()
            counting.cancel()
            await asyncio.gather(writing, keeping, counting, *self._jobs, return_exceptions=True)
            await self._journal.close()
            await self._figure_file.close()
            try:
                await asyncio.wait_for(asyncio.to_thread(self._accounting.write), _CLOSE_S)
            except asyncio.TimeoutError:
                logger.warning("accounting: not written in time")

    async def _write_accounting(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await asyncio.to_thread(self._accounting.write)

    # ---- what comes in

    async def report(self, sender: str, document: Any) -> Any:
        """Apply a worker's report, and answer with its order.

        Raises:
            RejectedError: it is none, or another worker's.
            UnavailableError: there is no order for it yet.
        """
        report = self._report_of(sender, document)
        worker = report.worker
        self._tell_heard(report)
        wake = self._wakes.setdefault(worker, asyncio.Event())
        self._newest[worker] = newest = (report.incarnation, report.sequence)
        # A report of it that is held is answered now: so the worker keeps that connection.
        wake.set()
        for each in report.attempts:
            if each.read_bytes:
                self._read_bytes[each.attempt] = each.read_bytes
        self._apply(ev.WorkerReported(report, self._clock()))
        until_s = self._clock() + _HOLD_S
        while (order := self._news(report)) is None and (left_s := until_s - self._clock()) > 0:
            if self._newest.get(worker) != newest:
                break
            wake.clear()
            await _wait(wake, left_s)
        order = order or self._orders.get(worker)
        if order is None or self._newest.get(worker, newest)[0] != report.incarnation:
            raise UnavailableError("the task service has no order for this worker yet")
        return order_document(order)

    def _report_of(self, sender: str, document: Any) -> WorkerReport:
        self._check_open()
        try:
            report = parse_report(document)
        except RemoteProtocolError as error:
            raise RejectedError("bad-report", str(error)) from None
        is_there = self._places.role_of(report.worker, report.node) is not None
        if sender != f"{WORKER_ROLE}:{report.worker}" or not is_there:
            raise RejectedError("not-yours", f"{sender} may not report for {report.worker}")
        return report

    def _tell_heard(self, report: WorkerReport) -> None:
        now_s, role = self._clock(), self._places.role_of(report.worker, report.node)
        if role is not None and now_s >= self._heard_s.get(report.worker, -_HEARD_S) + _HEARD_S:
            self._heard_s[report.worker] = now_s
            self._heard(role, report.node)

    def _news(self, report: WorkerReport) -> WorkerOrder | None:
        """An order that this process has not taken yet."""
        order = self._orders.get(report.worker)
        if order is None or order.incarnation != report.incarnation:
            return None
        has_taken = report.order is not None and report.order >= order.number
        return None if has_taken else order

    async def submit(self, uri: str) -> str:
        """Take in the application of a file, see `app_document`; returns its name when the journal has it.

        Raises:
            RejectedError: it cannot run here, and why.
            UnavailableError: the journal is not read yet.
        """
        self._check_open()
        # One at a time: what is read takes memory, and threads that the journal needs; what is new stays so.
        self._n_submissions += 1
        try:
            async with self._reading:
                prepared = await asyncio.to_thread(self._read, uri)
                definition = prepared.app.definition
                if any(need.is_served for need in definition.spec.demands.values()):
                    self._want_servers()
                is_new = self._is_new(definition)
                if is_new and definition.output:
                    await self._make_unfinished_folder(definition.output)
                answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                self._answers.setdefault(definition.spec.app, []).append(answer)
                self._apply(ev.SubmitRequested(definition, self._clock(), prepared if is_new else None))
        finally:
            self._n_submissions -= 1
        if error := await answer:
            raise RejectedError("app-refused", error)
        return definition.spec.app

    def _is_new(self, definition: AppDefinition) -> bool:
        try:
            return self._service.check_submission(definition)
        except ConfigError as error:
            raise RejectedError("app-refused", str(error)) from None

    def _read(self, uri: str) -> PreparedApp:
        folder = f"{self._submitted}/"
        if not uri.startswith(folder) or "/" in uri[len(folder) :]:
            raise RejectedError("not-here", f"{uri} is no file in {folder}")
        try:
            return prepare_app(parse_app(decode_json(self._store.read_bytes(uri, _MAX_APP_BYTES), uri)))
        except (ConfigError, StorageError, RemoteProtocolError) as error:
            raise RejectedError("bad-app", f"{uri}: {error}") from None

    async def _make_unfinished_folder(self, output: str) -> None:
        """Make the folder in which attempts write, as no worker does, see `worker.task_folder`.

        Not for an application that is refused: its output folder is to stay free for the next try.
        """
        try:
            await asyncio.to_thread(self._store.mkdirs, unfinished_uri(output))
        except StorageError as error:
            raise RejectedError("bad-output", str(error)) from None

    def cancel(self, app: str) -> None:
        """End an application early; one that is not known is ignored.

        Raises:
            UnavailableError: the journal is not read yet.
        """
        self._check_open()
        self._apply(ev.CancelRequested(AppId(app), self._clock()))

    def pause(self, app: str, is_paused: bool) -> None:
        """Let nothing of a DAG start from now on, or let it go on.

        Raises:
            RejectedError: there is no such application that runs, or it is no DAG.
            UnavailableError: the journal is not read yet.
        """
        self._check_open()
        if self._service.is_dag(AppId(app)) is None:
            raise RejectedError("unknown-app", f"{app[:_MAX_SHOWN]!r} is no application that runs here")
        if not self._service.is_dag(AppId(app)):
            raise RejectedError("no-dag", f"{app[:_MAX_SHOWN]} is no DAG: only those can be paused")
        self._apply(ev.PauseRequested(AppId(app), is_paused, self._clock()))

    def result(self, task: str) -> str:
        """The result of a task's function, as JSON.

        Raises:
            RejectedError: it has not ended, it returned nothing, or that is not kept.
            UnavailableError: the journal is not read yet.
        """
        self._check_open()
        found = self._service.result(TaskId(task))
        if found is None:
            raise RejectedError(
                "no-result",
                f"{task[:_MAX_SHOWN]!r}: no result of it is known",
                cure="wait for its end; a command has none, and those of DAGs that ended long ago are gone",
            )
        return found

    def logs(self, task: str) -> list[dict[str, str]]:
        """The attempts of a task: each with its node and the address of its log, the last one last.

        Raises:
            RejectedError: this master gave no attempt of it to a worker.
        """
        tried = self._tried.get(task)
        if not tried:
            raise RejectedError(
                "no-log",
                f"{task[:_MAX_SHOWN]!r}: this master knows no attempt of it",
                cure="name it as APP/NUMBER or DAG/TASK; what an earlier master started is in YARN's logs",
            )
        return [
            {"attempt": attempt, "node": node, "url": f"{url}/{attempt}.log" if url else ""}
            for attempt, (container, node) in tried.items()
            for url in (self._logs_of(node, container),)
        ]

    def observe(self, event: app_ev.Event, commands: Iterable[app_cmd.Command]) -> None:
        """Note which container is whose worker, and when one ended."""
        for command in commands:
            if isinstance(command, app_cmd.LaunchContainer):
                self._note(command.container, self._places.worker(command.role, command.container.node))
        # Those that an earlier attempt launched: YARN may preempt them as well.
        for container in _of_earlier_attempts(event):
            self._note(container, self._places.worker_of(container.priority, container.node))
        if isinstance(event, app_ev.PreemptionAnnounced) and self._is_open:
            named = (self._containers.get(each) for each in event.containers)
            if workers := tuple(each for each in named if each is not None):
                self._apply(ev.WorkersAtRisk(workers, self._clock()))
        if isinstance(event, app_ev.ContainerCompleted):
            worker = self._containers.pop(event.container, None)
            if worker is not None:
                by_itself = not is_excused(event.exit_status)
                reason = describe_exit(event.exit_status, event.diagnostics)
                gone = ev.WorkerGone(worker, by_itself, reason, self._clock())
                if self._is_open:
                    self._apply(gone)
                else:
                    self._gone_early.append(gone)

    def _note(self, container: app_ev.ContainerRef, worker: ResourceId | None) -> None:
        if worker is not None:
            self._containers[container.id] = worker
            self._container_of[worker] = container.id, container.node

    def status(self) -> dict[str, Any]:
        """Applications, workers and what is wrong, as JSON values.

        Raises:
            UnavailableError: the journal is not read yet.
        """
        self._check_open()
        problems = [f"the journal is not written: {self._journal.problem}"] if self._journal.problem else []
        return {
            **self._service.snapshot(),
            "workers_wanted": self._places.n_wanted,
            "nodes": self._places.nodes,
            "submit_to": self._submitted,
            "submissions": self._n_submissions,
            "problems": problems,
        }

    def document(self) -> dict[str, Any]:
        """The data of page and metrics: `status`, the use of workers over time, how attempts ended.

        ``problems`` alone while the journal is not read yet.
        """
        if not self._is_open:
            return {"problems": ["the task service has not read its journal yet"]}
        return {
            **self.status(),
            "use": self._service.use(_SHOWN_STEPS, _SHOWN_WORKERS),
            "attempts": [[form, end, *values] for (form, end), values in self._attempts.items()],
            "used": asdict(self._used),
        }

    def use(self, nodes: Collection[str]) -> dict[str, Any]:
        """The use of workers on these nodes over time, all that is kept.

        Raises:
            UnavailableError: the journal is not read yet.
        """
        self._check_open()
        return self._service.use(N_STEPS, len(nodes), nodes)

    def outcome(self, app: str, first: int) -> dict[str, Any]:
        """The outcomes of an application's tasks, from number `first` of those that are done.

        Raises:
            RejectedError: there is no such application.
            UnavailableError: the journal is not read yet.
        """
        self._check_open()
        found = self._service.outcome(AppId(app), first)
        if found is None:
            raise RejectedError("unknown-app", f"{app[:_MAX_SHOWN]!r} is no application that is known here")
        return found

    def explain(self, name: str) -> str:
        """Where a task is, and why there; or how far an application is, and what is believed of it.

        Raises:
            UnavailableError: the journal is not read yet.
        """
        self._check_open()
        return self._service.explain(name)

    def _check_open(self) -> None:
        if not self._is_open:
            why = f": {self._journal.problem}" if self._journal.problem else ""
            raise UnavailableError(f"the task service has not read its journal yet{why}")

    # ---- what goes out

    def _apply(self, event: ev.ServiceEvent) -> None:
        for command in self._service.apply(event):
            self._entries[type(command)](command)
        if isinstance(event, ev.ServiceTick):
            # Events and the decisions that follow are written at once: else each order would wait for two
            # writes.
            for command in self._unwritten:
                self._journal.put(command)
            self._unwritten.clear()
        elif not self._is_tick_due and (self._unwritten or not isinstance(event, ev.JournalWritten)):
            # All that is there already is applied first: a burst costs one decision. What is safe now gives
            # nothing to decide.
            self._is_tick_due = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _look_at_servers(self) -> None:
        if self._service.wants_servers:
            self._want_servers()
        servers = ServingServers(*self._serving())
        if servers != self._servers:
            self._servers = servers
            self._apply(ev.ServersServe(servers, self._clock()))

    def _tick(self) -> None:
        self._is_tick_due = False
        self._apply(ev.ServiceTick(self._clock()))
        if self._are_nodes_due:
            self._are_nodes_due = False
            self._choose_nodes()

    def _replace_journal(self, command: cmd.ReplaceJournal) -> None:
        self._unwritten.clear()  # it has all that
        self._journal.put(command)

    def _journal_written(self, sequence: int) -> None:
        self._apply(ev.JournalWritten(sequence, self._clock()))

    def _journal_failed(self) -> None:
        self._apply(ev.JournalFailed(self._clock()))

    def _send_order(self, command: cmd.SendOrder) -> None:
        self._orders[command.worker] = command.order
        if (place := self._container_of.get(command.worker)) is not None:
            for each in command.order.attempts:
                if each.task not in self._tried and len(self._tried) >= _MAX_KEPT:
                    del self._tried[next(iter(self._tried))]
                self._tried.setdefault(each.task, {})[each.attempt] = place
        self._wakes.setdefault(command.worker, asyncio.Event()).set()

    def _answer(self, app: AppId, error: str) -> None:
        for answer in self._answers.pop(app, ()):
            if not answer.done():
                answer.set_result(error)

    def _app_ended(self, command: cmd.AppEnded) -> None:
        how = "cancelled" if command.is_cancelled else command.error or "done"
        logger.info("application %s ended: %s", command.app, how)

    def _attempt_ended(self, command: cmd.AttemptEnded) -> None:
        counted = self._attempts.setdefault((command.form.value, command.end.value), [0, 0.0])
        counted[0] += 1
        if command.started_s is not None:
            counted[1] += max(0.0, command.ended_s - command.started_s)
            self._account(command, command.started_s)

    def _account(self, command: cmd.AttemptEnded, started_s: float) -> None:
        app, at = command.app, time.time() - self._clock()
        # They also have attempts whose ends this master never gets.
        if max(len(self._held), len(self._read_bytes)) > _MAX_KEPT:
            self._held.clear()
            self._read_bytes.clear()
        if (app, command.form.value) not in self._held:
            about = self._service.outcome(app, _NO_ROWS) or {"demands": []}
            self._held |= {(app, form): (cores, gpus) for form, cores, gpus in about["demands"]}
        cores, gpus = self._held.get((app, command.form.value), (0, 0))
        took_s = max(0.0, command.ended_s - started_s)
        use = JobUse(
            self._used.user,
            self._used.application,
            app,
            cores * took_s,
            gpus * took_s,
            self._read_bytes.pop(command.attempt, 0),
            attempts=1,
            failed=int(command.end is not EndReason.DONE),
            first_at=at + started_s,
            last_at=at + command.ended_s,
        )
        self._used.add(use)
        self._accounting.add(use)

    def _workers_wanted(self, command: cmd.WorkersWanted) -> None:
        self._places.want(command.counts)
        self._are_nodes_due = True

    def _release(self, command: cmd.ReleaseWorker) -> None:
        self._places.release(command.worker)
        self._are_nodes_due = True
        for table in (self._orders, self._wakes, self._newest, self._heard_s):
            table.pop(command.worker, None)

    def _choose_nodes(self) -> None:
        preferred = self._servers.server_of if self._service.wants_servers else ()
        self._places.choose(self._service.workers(), preferred, self._clock())

    def _begin(self, job: Any) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _settle(self, command: cmd.CommitOutput | cmd.RemoveUnfinished, *, is_complete: bool) -> None:
        """Remove what attempts left in an output folder, and mark it as complete."""
        error = ""
        if command.folder:
            try:
                await asyncio.to_thread(self._clean, command.folder, is_complete)
            except StorageError as failure:
                error = str(failure)
        self._apply(ev.OutputSettled(command.app, error, self._clock()))

    def _clean(self, folder: str, is_complete: bool) -> None:
        self._store.delete(unfinished_uri(folder))
        if is_complete:
            self._store.write_atomic(f"{folder.rstrip('/')}/{_SUCCESS}", lambda: [b""])


def make_task_service(context: PluginContext) -> LiveTaskService:
    """The task service that a master's settings ask for.

    Raises:
        ConfigError: the plan has no containers for workers.
    """
    config, settings = context.config, context.config.tasks
    store = Store(default_fs=config.default_fs)
    stored = StoredJournal(store, journal_uri(config.staging_uri), context.attempt)
    figures = FigureStore()
    policy = settings.make_policy(figures)
    decided = settings.service_settings(int(time.time() * 1000), context.attempt)
    return LiveTaskService(
        TaskService(decided, policy, figures),
        lambda written, failed: TaskJournal(stored, written, failed),
        store,
        config.staging_uri,
        _places(settings, context),
        context.clock,
        FigureFile(store, settings.figures_uri, figures),
        context.serving,
        lambda role, node: context.tell(app_ev.StatusReported(node, role, context.clock())),
        Accounting(
            store,
            settings.accounting_uri,
            f"{context.application}-{context.attempt:02d}",
        ),
        (config.user, context.application),
        partial(container_logs, context.inventory),
        context.want_servers,
    )


def _places(settings: TaskSettings, context: PluginContext) -> WorkerPlaces:
    roles = {role.name: role for role in context.roles}
    found = []
    for size in settings.sizes():
        role = roles.get(size.role)
        if role is None:
            raise ConfigError(
                f"tasks: the plan has no role {size.role}",
                cure="set `worker: {enabled: true}` in the launch settings",
            )
        usable = partial(usable_nodes, context.inventory, role.resource, size.node_label, size.node_attribute)
        found.append(SizePlaces(size.role, WorkerNodes(settings.start_s), usable, role.priority))

    def choose(role: str, nodes: frozenset[str]) -> None:
        context.tell(app_ev.NodesChosen(role, nodes, context.clock()))

    return WorkerPlaces(found, choose)


def _of_earlier_attempts(event: app_ev.Event) -> tuple[app_ev.ContainerRef, ...]:
    if isinstance(event, app_ev.Registered):
        return event.previous
    return event.containers if isinstance(event, app_ev.ContainersRecovered) else ()


async def _wait(wake: asyncio.Event, limit_s: float) -> None:
    waiting = asyncio.ensure_future(wake.wait())
    try:
        await asyncio.wait([waiting], timeout=limit_s)
    finally:
        waiting.cancel()


def _text_of(document: Any, key: str) -> str:
    text = document.get(key) if isinstance(document, dict) else None
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_TEXT:
        raise RejectedError(f"no-{key}", f"{key}: a text of 1 to {_MAX_TEXT} characters is expected")
    return text


def _count_of(document: Any, key: str) -> int:
    count = document.get(key, 0)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MAX_COUNT:
        raise RejectedError(f"no-{key}", f"{key}: a number from 0 to {_MAX_COUNT} is expected")
    return count


def _flag_of(document: Any, key: str) -> bool:
    flag = document.get(key)
    if not isinstance(flag, bool):
        raise RejectedError(f"no-{key}", f"{key}: true or false is expected")
    return flag


def _nodes_of(document: Any) -> frozenset[str]:
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, list) or len(nodes) > _MAX_NODES:
        raise RejectedError("no-nodes", f"nodes: a list of at most {_MAX_NODES} names is expected")
    return frozenset(node_of({"node": node}) for node in nodes)
