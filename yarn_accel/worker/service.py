"""The worker as a process: startup, reports and orders, shutdown.

`core.tasks.worker_state` decides; this carries out. Everything of the state happens in one thread; attempts
run in threads of their own and hand their ends over. A report goes out when something ended, a little
later where more lies here that starts then, or where something started, and otherwise as soon as the master
has replied to the one before.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from yarn_accel.adapters.signed_http import Signer
from yarn_accel.client.agent_folders import VARIABLE
from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.core.tasks.worker_messages import (
    MAX_ORDER_BYTES,
    AttemptEnd,
    AttemptOutcome,
    OrderParser,
    WorkerOrder,
    WorkerReport,
    report_document,
)
from yarn_accel.core.tasks.worker_state import (
    AttemptProgress,
    ClockTicked,
    MemoryMeasured,
    OrderReceived,
    OrderRefused,
    ProcessesEnded,
    RunEnded,
    StartAttempt,
    StopAttempt,
    StopForce,
    WorkerAction,
    WorkerCapacity,
    WorkerFact,
    WorkerState,
)
from yarn_accel.errors import AccelError
from yarn_accel.node.master_client import HeartbeatInterval, MasterConnection, MasterDiscovery
from yarn_accel.node.paths import filled
from yarn_accel.storage import Store
from yarn_accel.worker.attempt_log import LogFolder
from yarn_accel.worker.attempt_run import AttemptRun, RunPlace
from yarn_accel.worker.config import WorkerConfig
from yarn_accel.worker.file_cache import FileCache, InputPrefetch
from yarn_accel.worker.function_pool import FunctionPool, PoolLimits
from yarn_accel.worker.guard import adopt_orphans, end_children
from yarn_accel.worker.guarded_process import Guard
from yarn_accel.worker.operation_program import operation_program
from yarn_accel.worker.process_tree import ProcessInfo, bytes_read, listed_processes, processes_of
from yarn_accel.worker.python_environments import PythonEnvironments
from yarn_accel.worker.read_phase import NodeIo, ReaderCount, node_meter
from yarn_accel.worker.reuse import AttemptFolders, AttemptThreads
from yarn_accel.worker.task_folder import EarlierTasks

REPORT_PATH = "/v1/worker"


class MasterLink(Protocol):
    """Two exchanges at once at most, begun one after the other; each may be cancelled."""

    async def exchange(self, report: WorkerReport) -> WorkerOrder:
        """Send a report, and return the order that is the reply.

        Raises:
            RemoteProtocolError: the reply is no order.
            AccelError: there is none; another try may work.
        """
        ...


class HttpMasterLink:
    """Signed requests to the master, wherever it is."""

    def __init__(self, connection: MasterConnection) -> None:
        self._connection = connection
        self._parser = OrderParser()

    async def exchange(self, report: WorkerReport) -> WorkerOrder:
        """See `MasterLink`."""

        def parse(document: Any, _: str) -> WorkerOrder:
            return self._parser.parse(document)

        return await self._connection.post(REPORT_PATH, report_document(report), parse)


logger = logging.getLogger(__name__)

_TICK_S = 0.25
_IDLE_TICKS = 8
#: In the folder for running tasks; no attempt is called so.
_FILES, _FUNCTIONS, _ENVIRONMENTS = ".files", ".functions", ".environments"
#: The first pause after a failed exchange.
_RETRY_S = 0.1
#: A master answers a report that it holds when a newer one arrives. One that it does not answer then is
#: dropped after so long, and its connection with it.
_SUPERSEDED_S = 0.02
#: A master that has nothing new and does not hold its reply is not asked more often than this.
_MIN_POLL_S = 0.1
#: The same where nothing could start: of tasks that take less it hears with their ends.
_FULL_POLL_S = 0.25
#: News that nobody waits for is sent so soon, with what else happens meanwhile.
_SOON_S = 0.02


def run(config: WorkerConfig, key: bytes, report: Callable[[str], None]) -> int:
    """Work until SIGTERM or SIGINT; the exit code is 1 where the guard was lost.

    Args:
        key: the node's.
        report: gets one line when the worker is ready.
    """
    return asyncio.run(_serve(config, key, report))


async def _serve(config: WorkerConfig, key: bytes, report: Callable[[str], None]) -> int:
    adopt_orphans()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with aiohttp.ClientSession(trust_env=False, auto_decompress=False) as session:
        signer = Signer(key, f"worker:{config.worker}")
        connection = MasterConnection(
            session, signer, MasterDiscovery(config), config.timeout_s, MAX_ORDER_BYTES
        )
        store = Store(default_fs=config.default_fs)
        service = WorkerService(config, HttpMasterLink(connection), store)
        report(f"worker {config.worker} ready, pid {os.getpid()}")
        # What is loaded stays: to look for garbage among it takes 30 ms each time, in which nothing starts.
        gc.freeze()
        try:
            return await service.run_until(stop)
        finally:
            # The guard has ended everything, unless it was killed itself.
            end_children()


class WorkerService:
    """One worker."""

    def __init__(self, config: WorkerConfig, link: MasterLink, store: Store) -> None:
        self._config = config
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._waking: asyncio.TimerHandle | None = None
        self._failed = asyncio.Event()
        self._interval = HeartbeatInterval(_RETRY_S, config.max_backoff_s, random.random)
        self._problem = ""
        self._runs: dict[AttemptId, AttemptRun] = {}
        self._threads = AttemptThreads()
        self._activity: dict[AttemptId, tuple[int, ...]] = {}
        self._state = WorkerState(
            WorkerCapacity(
                ResourceId(config.worker),
                config.node,
                secrets.token_hex(8),
                config.cores,
                len(config.gpus),
                config.memory_mib * 1024 * 1024,
                config.bandwidth_bytes_per_s,
                config.accelerator,
            )
        )
        readers = ReaderCount(lambda: node_meter(config.network_interfaces, config.io))
        self._io = NodeIo(readers, config.network_interfaces, config.io)
        work_folder = Path(config.work_dir).absolute()
        work_folder.mkdir(parents=True, exist_ok=True)
        logs = LogFolder(Path(config.log_dir).absolute(), config.max_log_bytes, config.max_logs)
        self._guard = Guard(self._note_lost_guard)
        agent_socket = filled(config.agent_socket, config.node, config.application_id)
        program = operation_program(work_folder, agent_socket, os.environ, config.default_fs)
        files = FileCache(store, work_folder / _FILES, config.max_files_mib * 1024 * 1024)
        self._prefetch = InputPrefetch(files, config.max_files_mib * 1024 * 1024 // 2)
        limits = PoolLimits(config.cores, config.memory_mib * 1024 * 1024, config.function_idle_s)
        self._functions = FunctionPool(self._guard, files, work_folder / _FUNCTIONS, limits)
        # Tasks use the servers of their own application, where several run.
        mine = (
            AttemptFolders(work_folder),
            logs,
            {VARIABLE: config.application_id, **os.environ},
            self._functions,
        )
        environments = PythonEnvironments(files, work_folder / _ENVIRONMENTS)
        earlier = EarlierTasks(store)
        self._place = RunPlace(self._guard, store, readers, files, *mine, environments, earlier, program)

    async def run_until(self, stop: asyncio.Event) -> int:
        """Exchange reports and orders until `stop`; then nothing that was started runs any more."""
        ends = [asyncio.create_task(stop.wait()), asyncio.create_task(self._failed.wait())]
        works = [asyncio.create_task(self._exchange_always()), asyncio.create_task(self._tick_always())]
        try:
            done, _ = await asyncio.wait([*ends, *works], return_when=asyncio.FIRST_COMPLETED)
            for work in works:
                if work in done:
                    work.result()
            if self._failed.is_set():
                logger.error("the guard is gone: this worker ends, and all that it runs")
            return 1 if self._failed.is_set() else 0
        finally:
            for task in (*ends, *works):
                task.cancel()
            await asyncio.gather(*ends, *works, return_exceptions=True)
            self._prefetch.want((), ())
            await asyncio.to_thread(self._guard.close)

    # ---- reports and orders

    async def _exchange_always(self) -> None:
        """One exchange after the other; while the master holds one, another begins where there is news."""
        older: asyncio.Task[WorkerOrder] | None = None
        newer: asyncio.Task[WorkerOrder] | None = None
        try:
            while True:
                self._wake.clear()
                if self._waking is not None:
                    self._waking.cancel()
                    self._waking = None
                started_s = time.monotonic()
                report = self._state.report(started_s, self._io.latest())
                newer = asyncio.create_task(self._link.exchange(report))
                if older is not None:
                    await self._finish(older)
                await self._first(newer)
                older = None if newer.done() else newer
                if older is None:
                    number = self._state.order_number
                    is_good = self._take(newer)
                    # An order that leaves nothing to do may be followed by another one at once.
                    if self._runs or self._state.order_number == number or not is_good:
                        await self._pause(is_good, started_s)
        finally:
            pending = [each for each in (older, newer) if each is not None]
            for each in pending:
                each.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _finish(self, superseded: asyncio.Task[WorkerOrder]) -> None:
        """Apply the reply to a report after which there was another one; so its connection stays."""
        await asyncio.wait([superseded], timeout=_SUPERSEDED_S)
        superseded.cancel()
        for order in await asyncio.gather(superseded, return_exceptions=True):
            # A failure is nobody's concern: the other exchange says what is wrong.
            if isinstance(order, WorkerOrder):
                self._apply(OrderReceived(order, time.monotonic()))

    async def _first(self, exchanging: asyncio.Task[WorkerOrder]) -> None:
        """Wait for the reply, or for news."""
        waking = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait([exchanging, waking], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()

    def _take(self, exchanging: asyncio.Task[WorkerOrder]) -> bool:
        """Apply the reply; whether there was one."""
        try:
            order = exchanging.result()
        except AccelError as error:
            self._apply(OrderRefused(str(error), time.monotonic()))
            self._note(str(error))
            return False
        self._note("")
        self._apply(OrderReceived(order, time.monotonic()))
        return True

    def _note(self, problem: str) -> None:
        """Log a problem that differs from the last one, and its end."""
        if problem != self._problem:
            logger.warning("no order: %s", problem) if problem else logger.info("the master answers again")
        self._problem = problem

    async def _pause(self, is_good: bool, started_s: float) -> None:
        """Wait before the next exchange: not at all after a reply that was held, and then only for news."""
        if is_good:
            self._interval.succeeded()
            least_s = _FULL_POLL_S if self._state.is_full else _MIN_POLL_S
            wait_s = least_s - (time.monotonic() - started_s)
            if wait_s > 0:
                waking = asyncio.create_task(self._wake.wait())
                await asyncio.wait([waking], timeout=wait_s)
                waking.cancel()
            return
        self._interval.failed()
        await asyncio.sleep(self._interval.next_wait_s())

    # ---- what the state decides

    def _apply(self, fact: WorkerFact) -> None:
        self._carry_out(self._state.apply(fact))
        if isinstance(fact, OrderReceived | ProcessesEnded | RunEnded):
            self._prefetch.want(*self._state.inputs())

    def _carry_out(self, actions: Iterable[WorkerAction]) -> None:
        for action in actions:
            if isinstance(action, StartAttempt):
                self._start(action)
            elif isinstance(action, StopAttempt):
                self._runs[action.attempt].stop(action.force is StopForce.KILL)
            elif action.is_urgent:
                self._wake.set()
            elif self._waking is None:
                self._waking = self._loop.call_later(_SOON_S, self._wake.set)

    def _start(self, action: StartAttempt) -> None:
        attempt = action.order.attempt
        devices = tuple(self._config.gpus[device] for device in action.devices)
        self._runs[attempt] = run = AttemptRun(self._place, action.order, devices)

        def tell(take: Callable[..., None], *facts: object) -> None:
            # The loop may be over: then nobody wants to know.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(take, *facts)

        def work() -> None:
            end = run.run(lambda: tell(self._apply, ProcessesEnded(attempt, time.monotonic())))
            tell(self._ended, action.order, end)
            # Nobody waits for that.
            run.clean()

        self._threads.run(work)

    def _ended(self, order: AttemptOrder, end: AttemptEnd) -> None:
        attempt = order.attempt
        # A line for each short task would cost a twentieth of all that the task costs here.
        level = logging.DEBUG if end.outcome is AttemptOutcome.DONE else logging.INFO
        logger.log(level, "%s of %s, %s: %s %s", attempt, order.app, order.task, end.outcome.value, end.error)
        del self._runs[attempt]
        self._activity.pop(attempt, None)
        self._apply(RunEnded(attempt, end, time.monotonic()))

    def _note_lost_guard(self) -> None:
        self._loop.call_soon_threadsafe(self._failed.set)

    # ---- what is measured

    async def _tick_always(self) -> None:
        n_ticks = 0
        #: Short attempts are over before anything of them is known.
        seen: frozenset[AttemptId] = frozenset()
        while True:
            self._watch_progress()
            if n_ticks % 2 == 0:
                if not seen.isdisjoint(self._runs):
                    # To look at all processes takes milliseconds, in which nothing would be answered.
                    self._watch_processes(await asyncio.to_thread(lambda: list(listed_processes())))
                seen = frozenset(self._runs)
            self._io.look()
            self._apply(ClockTicked(time.monotonic()))
            if n_ticks % _IDLE_TICKS == 0:
                await asyncio.to_thread(self._functions.end_idle)
            n_ticks += 1
            await asyncio.sleep(_TICK_S)

    def _watch_progress(self) -> None:
        for attempt, run in self._runs.items():
            activity = run.activity()
            if self._activity.get(attempt) != activity:
                self._activity[attempt] = activity
                fact = AttemptProgress(attempt, run.status, run.phase.n_bytes, time.monotonic())
                self._apply(fact)

    def _watch_processes(self, listed: list[ProcessInfo]) -> None:
        """Memory of each attempt, and what it has read where it reads by itself."""
        runs = {run.session: (attempt, run) for attempt, run in self._runs.items() if run.session}
        now_s = time.monotonic()
        for session, processes in processes_of(runs, listed).items():
            attempt, run = runs[session]
            run.sample(bytes_read(each.pid for each in processes))
            self._apply(MemoryMeasured(attempt, sum(each.resident_bytes for each in processes), now_s))
