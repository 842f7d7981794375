"""The pipeline server: its loop, and the parts that live in it, put together.

`PipelineServer` is a plain object that tests and the service own alike.  The service is its loop (`run`);
tests have it run in a thread of its own (`start`).  What a request meets on its way, in this order:
`connections` receives its header, `engine` tells the request machine of it (`core.requests`), which finds it
memory, a worker and an answer.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel.adapters.accounting import INTERVAL_S
from yarn_accel.adapters.credentials import RevocationList
from yarn_accel.core.ended_applications import ENDED_SUFFIX
from yarn_accel.core.requests.events import DrainStarted
from yarn_accel.operations.registry import load_more
from yarn_accel.pipeline.connections import Session
from yarn_accel.pipeline.counters import Counters, visible
from yarn_accel.pipeline.cpu_idle import LOOK_EVERY_S, CpuIdleLimit
from yarn_accel.pipeline.engine import RequestEngine
from yarn_accel.pipeline.job_users import ENDED_LOOK_S, LOGINS, TOKEN_CHECK_S, AuthToLocal, JobUsers
from yarn_accel.pipeline.listeners import Listeners
from yarn_accel.pipeline.loop import EventLoop
from yarn_accel.pipeline.own_filesystem import OwnFilesystem, site_properties
from yarn_accel.pipeline.request_use import RequestUse
from yarn_accel.pipeline.storage import Storage
from yarn_accel.pipeline.supervisor import WorkerSupervisor, has_places, problems_of
from yarn_accel.pipeline.trace import Trace
from yarn_accel.pipeline.transport import Carrier, SocketCarrier, TlsCarrier, server_context
from yarn_accel.pipeline.worker_process import Buffers
from yarn_accel.pipeline.workers.protocol import plain
from yarn_accel.storage import Store
from yarn_accel.wire import PROGRESS_INTERVAL_S, VERSION, Closed, Drain, Stats, StatsRequest, UserTokens

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.user_storage import UserStorage
    from yarn_accel.pipeline.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

#: So many connections above the limit still learn why they are refused; more are just closed.
_POLITE_REFUSALS = 16
_STATS_S = 10.0
#: A connection that was quiet for so long gives its buffer back.
_QUIET_S = 2.0
_FLUSH_S = 0.02


class PipelineServer:
    """One server.

    Args:
        config: all its settings.
        master: the site's master secret.
        store: where references are read and outputs written; default: as the configuration says.
        first: a worker process that was started already, by the thread that will run the loop.
        users: the storage of jobs' users; None: no requests run as these.

    Raises:
        StartupError: an address cannot be listened on, or a file of the configuration not used.
        ConfigError: operations that cannot be loaded, or a list of revoked credentials that cannot be read.
    """

    def __init__(
        self,
        config: PipelineConfig,
        master: bytes,
        store: Store | None = None,
        first: WorkerProcess | None = None,
        users: UserStorage | None = None,
    ) -> None:
        load_more(config.extra_operations)
        self._master = master
        self._revoked = RevocationList(config.revoked_file)
        self._tls = server_context(config)
        self._trace = Trace(config.trace_file) if config.trace_file else None
        self._listeners = Listeners(config)
        self.port = self._listeners.port
        name = config.name or f"{config.listen_host or socket.gethostname()}:{self.port}"
        self.config = config = config.model_copy(update={"name": name})
        self.loop = EventLoop()
        self.counters = Counters()
        self._cores = CpuIdleLimit(config.wake_latency_us, self.counters.n_requests)
        self._buffers = Buffers()
        site = site_properties(config)
        filesystem = OwnFilesystem.of(config, site, users.hdfs if users is not None else ())
        if users is not None:
            store = users.own_store
        store = store or Store(
            config.hdfs_conf_dir or None,
            default_fs=filesystem.default_fs,
            follow_symlinks=config.follow_symlinks,
        )
        self._storage = Storage(config, store, self.loop, LOGINS + 1 if users is not None else 0)
        self._users = None
        if users is not None:
            ended_file = Path(config.state_file + ENDED_SUFFIX) if config.state_file else None
            self._users = JobUsers(users, AuthToLocal.of(site), self._storage, ended_file)
        self._engine = RequestEngine(
            config,
            filesystem,
            self.loop,
            self._buffers,
            self._storage,
            self.counters,
            name,
            self._trace,
        )
        self._use = RequestUse(config, store, self.counters)
        self._engine.add_up_use = self._use.add_up
        self._handlers: dict[type, Callable[[Session, Any], None]] = {
            **self._engine.session_handlers,
            StatsRequest: self._answer_stats,
        }
        if self._users is not None:
            self._handlers |= {UserTokens: self._users.take, Closed: self._session_closed}
        self._workers = WorkerSupervisor(
            config, self.loop, self._buffers.by_id.__getitem__, self._engine, first
        )
        self._engine.device_kinds = self._workers.device_kinds
        self._engine.rest_kinds = self._workers.rest_kinds
        self._active: set[Session] = set()
        self._is_draining = False
        self._is_closed = False
        self._started_s = time.monotonic()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Serve in a thread of its own; returns at once, and connections are taken from now on."""
        self._thread = threading.Thread(target=self.run, name="server", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Serve, in this thread, until `close` is called or the loop is stopped."""
        config, loop = self.config, self.loop
        self._workers.start()
        self._storage.start()
        self._listeners.start(loop, self._welcome)
        patience_s = min(config.stall_timeout_s, config.handshake_timeout_s, 4 * _QUIET_S) / 4
        loop.repeat(patience_s, self._check_connections)
        # A little early, so that a client that expects them every so often never waits longer.
        interval_s = min(config.progress_interval_s, 0.9 * PROGRESS_INTERVAL_S)
        loop.repeat(interval_s, self._engine.report_progress)
        loop.repeat(INTERVAL_S, lambda: self._use.add_up(self._engine.sessions))
        self._use.start()
        if self._users is not None:
            loop.repeat(TOKEN_CHECK_S, self._users.look)
            loop.repeat(ENDED_LOOK_S, self._users.read_ended)
        if not self._cores.problem:
            loop.repeat(LOOK_EVERY_S, self._cores.look)
        loop.run()

    def drain(self, timeout_s: float, stop: threading.Event | None = None) -> bool:
        """Take nothing new and finish what is under way; from another thread than the loop's.

        Args:
            timeout_s: how long to wait for that.
            stop: when it is set, waiting ends at once.

        Returns:
            whether everything was finished.
        """
        over = threading.Event()
        self.loop.call_soon(lambda: self.begin_drain(over.set))
        until_s = time.monotonic() + timeout_s
        while not over.wait(0.02):
            if time.monotonic() >= until_s or (stop is not None and stop.is_set()):
                break
        return over.is_set()

    def begin_drain(self, on_over: Callable[[], None]) -> None:
        """Take nothing new; `on_over` is called when everything is finished."""
        if self._is_draining:
            return
        self._is_draining = True
        self._listeners.close()
        for session in self._open_sessions():
            session.send(Drain("the server is shutting down"))

        def flush() -> None:
            if any(session.has_outgoing for session in self._open_sessions()):
                self.loop.call_at(time.monotonic() + _FLUSH_S, flush)
            else:
                on_over()

        self._engine.on_drained = flush
        self._engine.feed(DrainStarted(time.monotonic()))

    def close(self) -> None:
        """Close every connection, stop every thread, end every worker; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.loop.stop()
        if self._thread is not None:
            self._thread.join()
        # Requests that are cut off now were not finished by a drain.
        self._engine.on_drained = _nothing
        self._listeners.close()
        for session in self._open_sessions():
            session.close()
        self._storage.close()
        self.loop.finish()
        if self._users is not None:
            self._users.close()
        for process, lost in self._workers.close():
            self._engine.worker_lost(process, lost, "the server is shutting down")
        self.loop.finish()
        self._use.add_up(self._open_sessions())
        self._use.close()
        self._cores.close()
        self._buffers.close()
        self._engine.models.close()
        if self._trace is not None:
            self._trace.close()
        self.loop.close()

    @property
    def left_pids(self) -> list[int]:
        """Worker processes that SIGKILL did not end."""
        return self._workers.left_pids

    @property
    def is_well(self) -> bool:
        """Whether it can compute, now too."""
        return self._engine.can_compute and has_places(self._workers.info())

    @property
    def knows_how_it_is(self) -> bool:
        """Whether it can compute, or knows that it cannot yet."""
        return self._engine.can_compute or not has_places(self._workers.info())

    @property
    def start_fault(self) -> str:
        """Why it cannot compute and will not by waiting; empty: it can, or may yet."""
        return "" if self._engine.can_compute else self._workers.start_fault

    @property
    def n_done(self) -> int:
        """Requests answered with a result so far."""
        return self._engine.n_done

    def stats(self, timeout_s: float = _STATS_S) -> dict[str, Any]:
        """Counters and the present state, fit for JSON; from any thread.

        Raises:
            TimeoutError: the loop does not answer.
        """
        return self.loop.ask(self._stats, timeout_s)

    def _stats(self) -> dict[str, Any]:
        carriers: dict[str, int] = {}
        sessions = self._open_sessions()
        for session in sessions:
            carriers[session.label] = carriers.get(session.label, 0) + 1
        self._use.add_up(sessions)
        counted = self.counters.snapshot()
        state = self._engine.machine.snapshot()
        for name, tenant in state.pop("tenants").items():
            counted["tenants"].setdefault(name, {"device_s": 0.0})["queued"] = tenant["queued"]
        workers = self._workers.info()
        return {
            "server": self.config.name,
            "protocol_version": VERSION,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "is_draining": self._is_draining,
            "health": {"ok": has_places(workers) and not self._is_draining, "problems": problems_of(workers)},
            "open_connections": carriers,
            "idle_connections": sum(session.is_idle for session in sessions if session not in self._active),
            "cores": self._cores.snapshot(),
            **state,
            **({"applications": self._users.applications} if self._users is not None else {}),
            "workers": workers,
            "devices": self._workers.gpus(),
            "stage_busy": {**self._storage.busy_s, "compute": state["busy_s"]},
            **counted,
        }

    def _session_closed(self, session: Session, event: object) -> None:
        """A connection is over: nobody uses its user's storage any more."""
        self._engine.session_handlers[Closed](session, event)
        assert self._users is not None
        self._users.closed(session)

    def _answer_stats(self, session: Session, request: StatsRequest) -> None:
        """Answer with the counters: all of them for the operator, without other tenants' for a tenant."""
        session.send(Stats(request.id, plain(visible(self._stats(), session.tenant))))

    # Connections

    def _welcome(self, sock: socket.socket, kind: str) -> None:
        """Take an accepted socket."""
        n_open = len(self._engine.sessions)
        most = self.config.max_connections
        refusal = None
        if n_open >= most:
            refusal = ("too-many-connections", f"server {self.config.name} has {n_open} connections already")
        if n_open >= most + _POLITE_REFUSALS:
            self.counters.add("refused")
            sock.close()
            return
        try:
            carrier: Carrier
            if kind == "tls" and self._tls is not None:
                carrier = TlsCarrier(sock, self._tls)
            else:
                carrier = SocketCarrier(sock, kind)
            session = Session(
                carrier,
                self.config,
                self._master,
                self.loop,
                self._handlers,
                self._engine.moved,
                self._engine.sent,
                self._active,
                refusal,
                self._revoked,
                "cuda" in self._workers.device_kinds,
            )
            self._engine.sessions[session] = None
        except OSError as error:
            logger.warning("a connection could not be served: %s", error)
            sock.close()

    def _check_connections(self) -> None:
        now_s = time.monotonic()
        for session in list(self._active):
            session.check(now_s)
            if session.is_over or (session.is_idle and now_s > session.heard_s + _QUIET_S):
                self._active.discard(session)

    def _open_sessions(self) -> list[Session]:
        return list(self._engine.sessions)


def _nothing() -> None:
    """Nobody waits for the end of a drain any more."""
