"""The pipeline server: listeners, sessions, memory, the three stages, put together.

`PipelineServer` is a plain object that tests and the service own alike: ``start``, ``drain``, ``close``.
What a request meets on its way, in this order: `session` receives its header, `admission` judges it and finds
it memory, `session` receives its payload (or `stages` reads what it refers to), `flow` has it computed,
`stages` writes it to storage if it says so, `delivery` answers.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from yarn_accel.adapters.hdfs import Store
from yarn_accel.core.weights import Weights
from yarn_accel.errors import AccelError, RejectedError, UnavailableError
from yarn_accel.operations.registry import get as find_operation
from yarn_accel.operations.registry import load_more
from yarn_accel.pipeline.admission import Admission
from yarn_accel.pipeline.arrays import plain
from yarn_accel.pipeline.budget import ByteBudget
from yarn_accel.pipeline.counters import Counters
from yarn_accel.pipeline.delivery import Delivery
from yarn_accel.pipeline.flow import Flow
from yarn_accel.pipeline.ledger import Ledger
from yarn_accel.pipeline.listeners import Listeners
from yarn_accel.pipeline.nvml import read_devices
from yarn_accel.pipeline.parking import Parking
from yarn_accel.pipeline.pool import Pool
from yarn_accel.pipeline.sending import Parcel
from yarn_accel.pipeline.session import Session
from yarn_accel.pipeline.stages import Stages
from yarn_accel.pipeline.tls import TlsStream, server_context
from yarn_accel.pipeline.trace import Trace
from yarn_accel.pipeline.visibility import visible
from yarn_accel.pipeline.wakefulness import Wakefulness
from yarn_accel.pipeline.work import Work, failed, failure
from yarn_accel.pipeline.workers.jobs import EXPIRED
from yarn_accel.wire import (
    PROGRESS_INTERVAL_S,
    VERSION,
    Busy,
    Cancelled,
    Drain,
    Lend,
    Lent,
    Progress,
    Request,
    Stats,
    StatsRequest,
)

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.sending import Stream
    from yarn_accel.pipeline.workers.jobs import JobDone, Lost
    from yarn_accel.pipeline.workers.process import WorkerProcess

__all__ = ["PipelineServer"]

logger = logging.getLogger(__name__)

#: So many connections above the limit are still told why they are refused; more are just closed.
_POLITE_REFUSALS = 16
_LEND_RETRY_S = 0.1
#: A request goes down with no more workers than this, even if it is suspected of nothing.
_MOST_LOSSES = 8
#: Answers that were dear may keep this part of the memory until it is needed.
_KEPT_SHARE = 4


class PipelineServer:
    """One server.

    Args:
        config: all its settings.
        master: the site's master secret.
        store: where references are read and outputs written; default: as the configuration says.
        first: a worker process that was started already, see `WorkerPool`.

    Raises:
        StartupError: an address cannot be listened on, or a file of the configuration not used.
        ConfigError: operations that cannot be loaded.
    """

    def __init__(
        self,
        config: PipelineConfig,
        master: bytes,
        store: Store | None = None,
        first: WorkerProcess | None = None,
    ) -> None:
        load_more(config.extra_operations)
        self._master = master
        self._tls = server_context(config)
        self._trace = Trace(config.trace_file) if config.trace_file else None
        self._listeners = Listeners(config)
        self.port = self._listeners.port
        name = config.name or f"{config.listen_host or socket.gethostname()}:{self.port}"
        self.config = config = config.model_copy(update={"name": name})
        self.counters = Counters()
        kept_bytes = config.pool_bytes // _KEPT_SHARE
        self._ledger = Ledger(config.reply_cache_bytes, config.reply_cache_age_s, kept_bytes=kept_bytes)
        self.pool = Pool(config.pool_bytes, evict=self._ledger.evict)
        self._reading = ByteBudget(config.queue_bytes)
        self.writing = ByteBudget(config.queue_bytes)
        self._parking = Parking(self._resume)
        self._wakefulness = Wakefulness(config.wake_latency_us, self.counters.n_requests)
        self._lock = threading.Lock()
        self._sessions: dict[Session, threading.Thread | None] = {}
        self._closing = threading.Event()
        self._started_s = time.monotonic()
        self._threads: list[threading.Thread] = []
        self._put_together(store or Store(config.hdfs_conf_dir or None, follow_symlinks=False), first)

    def _put_together(self, store: Store, first: WorkerProcess | None) -> None:
        """Tell the stages of each other."""
        config = self.config
        self._flow = Flow(
            config,
            self.pool,
            Weights(),
            self.writing,
            on_started=self._started,
            on_done=self._computed,
            on_expired=self._expired,
            on_dropped=self._dropped,
            on_lost=self._lost,
            trace=self._trace,
            first=first,
        )
        self.pool.on_drop = self._flow.workers.drop_segment
        self._delivery = Delivery(config, self._ledger, self.counters, self._trace)
        self._admission = Admission(
            config,
            store,
            self.pool,
            self._reading,
            self._ledger,
            self.counters,
            self._delivery,
            find_operation,
        )
        self._stages = Stages(
            config,
            store,
            self.pool,
            self.counters,
            self.writing,
            take_memory=self._admission.take_memory,
            confirm=self._admission.confirm,
            on_read=self._read,
            on_written=self._written,
            on_failed=self._failed,
            trace=self._trace,
        )

    def start(self) -> None:
        """Start all threads and workers; returns at once, and connections are taken from now on."""
        self._flow.start()
        self._stages.start()
        self._parking.start()
        self._wakefulness.start()
        self._listeners.start(self._welcome)
        self._run("progress", self._progress_loop)

    def drain(self, timeout_s: float, stop: threading.Event | None = None) -> bool:
        """Take nothing new and finish what is under way.

        Args:
            timeout_s: how long to wait for that.
            stop: when it is set, waiting ends at once.

        Returns:
            whether everything was finished.
        """
        self._admission.is_draining = True
        self._listeners.close()
        for session in self._open_sessions():
            session.sender.post(Parcel(Drain("the server is shutting down")))
        until_s = time.monotonic() + timeout_s
        stop = stop or threading.Event()
        while time.monotonic() < until_s and not stop.is_set():
            if self._is_finished():
                return True
            stop.wait(0.02)
        return not self._ledger.n_running

    def _is_finished(self) -> bool:
        """Nothing is under way or on its way out; asked in the order in which an answer goes."""
        if self._ledger.n_running or not self._delivery.is_idle:
            return False
        return not any(session.sender.has_outgoing for session in self._open_sessions())

    def close(self) -> None:
        """Close every connection, stop every thread, end every worker."""
        self._closing.set()
        self._listeners.close()
        self._reading.close()
        self.pool.close()
        for session in self._open_sessions():
            session.close()
        self._parking.close()
        self._wakefulness.close()
        with self._lock:
            threads = [thread for thread in self._sessions.values() if thread is not None]
        for thread in [*threads, *self._threads]:
            thread.join(timeout=5.0)
        self._stages.close()
        self._flow.close()
        self._ledger.evict(self.config.pool_bytes)
        if self._trace is not None:
            self._trace.close()

    @property
    def is_well(self) -> bool:
        """Whether it can compute, and an operator need not know of anything."""
        return self._flow.can_compute.is_set() and not _problems(self._flow.workers.info())

    def wait_well(self, timeout_s: float) -> bool:
        """Wait until it can compute, or knows that it cannot yet; whether one of these is so."""
        return self._flow.can_compute.wait(timeout_s) or bool(_problems(self._flow.workers.info()))

    def stats(self) -> dict[str, Any]:
        """Counters and the present state, fit for JSON."""
        sessions = self._open_sessions()
        carriers: dict[str, int] = {}
        for session in sessions:
            carriers[session.label] = carriers.get(session.label, 0) + 1
        counted = self.counters.snapshot()
        for name, state in self._flow.snapshot()["tenants"].items():
            counted["tenants"].setdefault(name, {"device_s": 0.0})["queued"] = state["queued"]
        workers = self._flow.workers.info()
        problems = _problems(workers)
        return {
            "server": self.config.name,
            "protocol_version": VERSION,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "is_draining": self._admission.is_draining,
            "health": {"ok": not problems and not self._admission.is_draining, "problems": problems},
            "in_flight": self._ledger.n_running,
            "open_connections": carriers,
            "parked_connections": self._parking.n_parked,
            "cores": self._wakefulness.snapshot(),
            "queues": {"read": _queue(self._reading), "write": _queue(self.writing)},
            "pool": {**self.pool.snapshot(), "kept_bytes": self._ledger.kept_bytes},
            "workers": workers,
            "devices": read_devices(),
            "reply_cache_bytes": self._ledger.cached_bytes,
            "stage_busy": {**self._stages.busy_s, "compute": self._flow.busy_s},
            **counted,
        }

    # What sessions ask for (session.Front)

    def room_made(self) -> None:
        """Some answers have left."""
        self._flow.room_made()

    def opened(self, session: Session) -> None:
        """Count a connection that proved its credential."""
        self.counters.add("connections")
        logger.info("tenant %s connected over %s", session.credential.tenant, session.carrier)

    def request(self, session: Session, request: Request) -> Work | None:
        """Admit a request, or answer it at once."""
        return self._admission.admit(session, request)

    def arrived(self, work: Work) -> None:
        """Hand a complete request to the stages."""
        if work.references:
            self._stages.read(work)
            return
        if not self._admission.confirm(work, work.digest()):
            return
        now_s = time.monotonic()
        work.read_s = now_s - work.arrived_s
        if self._trace is not None:
            self._trace.span("read", "session", work.request.operation, work.arrived_s, now_s, id=work.id)
        self._compute(work)

    def broken_off(self, work: Work) -> None:
        """Forget a request whose payload broke off; who else waits for it may send it again."""
        self.counters.add("abandoned", self._ledger.withdraw(work.session, work.request.id))
        self._failed(work, UnavailableError("the connection that sent this request was lost"))

    def cancel(self, session: Session, request_id: int) -> None:
        """Answer `Cancelled` unless the answer is out already; the work is dropped if nobody else waits."""
        n_cancelled = self._ledger.withdraw(session, request_id)
        if n_cancelled:
            self.counters.add("cancelled", n_cancelled)
            self._drop_if_abandoned(session.works.get(request_id))
            session.sender.post(Parcel(Cancelled(request_id)))

    def lend(self, session: Session, request: Lend) -> None:
        """Lend shared memory, or say that there is none to lend now."""
        loan = session.loans.lend(request.n_bytes)
        if loan is None:
            session.sender.post(Parcel(Busy(request.id, _LEND_RETRY_S, "no memory to lend now")))
            return
        loan.is_known = True
        segment = loan.segment
        session.sender.post(Parcel(Lent(request.id, segment.id, segment.n_bytes), (), None, segment.fd))

    def stats_wanted(self, session: Session, request: StatsRequest) -> None:
        """Answer with the counters: all of them for the operator, without other tenants' for a tenant."""
        seen = visible(self.stats(), session.credential.tenant)
        session.sender.post(Parcel(Stats(request.id, plain(seen))))

    # From stage to stage

    def _compute(self, work: Work) -> None:
        work.entry.stage = "queue"
        try:
            self._flow.put(work)
        except Exception as error:
            logger.exception("a request could not be queued")
            self._failed(work, error)

    def _started(self, work: Work) -> None:
        self._admission.stop_reading(work)

    def _read(self, work: Work) -> None:
        if work.is_dropped:
            self._dropped(work)
        else:
            self._compute(work)

    def _computed(self, work: Work, done: JobDone) -> None:
        try:
            self._pass_on(work, done)
        except Exception as error:
            logger.exception("a result could not be passed on")
            self._failed(work, error)

    def _pass_on(self, work: Work, done: JobDone) -> None:
        if done.error is not None:
            self._delivery.failure(work.entry, failed(*done.error), work.request.operation, work)
        elif work.request.output_uri and work.entry.waiters:
            self._stages.write(work, done)
        else:
            self._delivery.result(work, done)

    def _written(self, work: Work, done: JobDone, write_s: float) -> None:
        self._delivery.result(work, done, write_s, is_written=True)
        self._flow.room_made()

    def _failed(self, work: Work, error: Exception) -> None:
        self._admission.stop_reading(work)
        if not isinstance(error, AccelError):
            logger.error("a request broke the server's own code", exc_info=error)
        self._delivery.failure(work.entry, failure(error), work.request.operation, work)
        self._flow.room_made()

    def _expired(self, work: Work) -> None:
        self._failed(work, RejectedError(EXPIRED.code, EXPIRED.message))

    def _dropped(self, work: Work) -> None:
        if not self._ledger.drop_if_abandoned(work.entry) and not self._closing.is_set():
            # Somebody sent the same request in the meantime.
            work.is_dropped = False
            self._compute(work)
            return
        self._admission.stop_reading(work)
        work.session.works.pop(work.request.id, None)
        work.holding.free()

    def _lost(self, work: Work, loss: Lost, what: str) -> None:
        """A worker is gone: compute again what still can be, so often as the configuration says."""
        work.n_gone += 1
        if loss.is_suspect:
            work.n_lost = self._ledger.crashed(work.entry)
        if self._closing.is_set() or (work.is_dropped and self._ledger.drop_if_abandoned(work.entry)):
            self._dropped(work)
        elif work.n_lost >= self.config.max_attempts or work.n_gone >= _MOST_LOSSES:
            text = f"{what}; this request was with {work.n_gone} workers that are gone"
            self._delivery.failure(
                work.entry, failed("internal", "worker-lost", text), work.request.operation, work
            )
        elif not loss.overwritten:
            self._compute(work)
        elif work.references and not work.plan.payload_bytes:
            work.holding.free()
            self._stages.read(work)
        else:
            self._delivery.again(work, what)

    def _drop_if_abandoned(self, work: Work | None) -> None:
        if work is not None and not work.entry.waiters:
            self._flow.cancel(work)

    # Connections

    def _run(self, name: str, body: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=body, args=args, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _welcome(self, sock: socket.socket, carrier: str) -> None:
        """Take an accepted socket."""
        with self._lock:
            n_open = len(self._sessions)
        refusal = None
        if n_open >= self.config.max_connections:
            refusal = ("too-many-connections", f"server {self.config.name} has {n_open} connections already")
        if n_open >= self.config.max_connections + _POLITE_REFUSALS or self._closing.is_set():
            self.counters.add("refused")
            sock.close()
            return
        try:
            stream: Stream = sock
            if carrier == "tls" and self._tls is not None:
                stream = TlsStream(sock, self._tls, self.config.handshake_timeout_s)
            session = Session(stream, carrier, self.config, self._master, self.pool, self, refusal)
            self._serve(session)
        except (OSError, RuntimeError) as error:
            logger.warning("a connection could not be served: %s", error)
            sock.close()

    def _serve(self, session: Session) -> None:
        """Give a session a thread of its own."""
        thread = threading.Thread(target=self._session_body, args=(session,), name="session", daemon=True)
        with self._lock:
            self._sessions[session] = thread
            try:
                thread.start()
            except RuntimeError:
                del self._sessions[session]
                raise

    def _session_body(self, session: Session) -> None:
        try:
            is_over = session.run()
        except Exception:
            logger.exception("a session broke")
            is_over = True
        if not is_over:
            with self._lock:
                self._sessions[session] = None
            if self._parking.park(session):
                return
        self._ended(session)

    def _resume(self, session: Any) -> None:
        """A quiet session has something to say, or is closed."""
        try:
            self._serve(session)
        except RuntimeError as error:
            logger.warning("a connection could not be served: %s", error)
            self._ended(session)

    def _ended(self, session: Session) -> None:
        """Clean up after a connection."""
        works = list(session.works.values())
        session.end()
        self.counters.add("abandoned", self._ledger.withdraw(session))
        for work in works:
            self._drop_if_abandoned(work)
        if session.how_ended != "closed":
            self.counters.add(session.how_ended)
        with self._lock:
            self._sessions.pop(session, None)

    def _progress_loop(self) -> None:
        interval_s = self.config.progress_interval_s
        while not self._closing.wait(min(interval_s, PROGRESS_INTERVAL_S)):
            now_s = time.monotonic()
            for entry, waiter in self._ledger.waiters():
                age_s = now_s - entry.since_s
                is_due = waiter.session.wants_progress or age_s >= interval_s
                if not is_due or waiter.session.sender.has_outgoing:
                    continue
                waiter.session.sender.post(Parcel(Progress(waiter.request_id, entry.stage, round(age_s, 3))))

    def _open_sessions(self) -> list[Session]:
        with self._lock:
            return list(self._sessions)


def _queue(budget: ByteBudget) -> dict[str, int]:
    return {"bytes": budget.used_bytes, "peak_bytes": budget.peak_bytes, "bound_bytes": budget.bound_bytes}


def _problems(workers: list[dict[str, Any]]) -> list[str]:
    """What an operator should know, in one line each."""
    return [
        f"{worker['device']}: {worker['state']}{': ' + fault if (fault := worker['last_fault']) else ''}"
        for worker in workers
        if worker["state"] in ("absent", "quarantined")
    ]
