"""The pipeline server: listeners, sessions and the three stages, put together.

`PipelineServer` is a plain object that tests and the service own alike: ``start``, ``drain``, ``close``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel.adapters.hdfs import Store
from yarn_accel.errors import StartupError, UnavailableError
from yarn_accel.operations.registry import get as find_operation
from yarn_accel.pipeline.admission import Admission
from yarn_accel.pipeline.arrays import plain
from yarn_accel.pipeline.counters import Counters
from yarn_accel.pipeline.ledger import Ledger
from yarn_accel.pipeline.session import Parcel, Session
from yarn_accel.pipeline.stages import DEVICE, Stages
from yarn_accel.pipeline.work import Work, failure
from yarn_accel.wire import VERSION, Cancelled, Drain, Progress, Request, Stats, StatsRequest

if TYPE_CHECKING:
    from yarn_accel.operations.operation import Operation
    from yarn_accel.pipeline.config import PipelineConfig

__all__ = ["PipelineServer"]

logger = logging.getLogger(__name__)

_BACKLOG = 128
#: So many connections above the limit are still told why they are refused; more are just closed.
_POLITE_REFUSALS = 16


class PipelineServer:
    """One server.

    Args:
        config: all its settings.
        master: the site's master secret.
        store: where references are read and outputs written; default: as the configuration says.
        find: the operation of a name, or `RejectedError`.

    Raises:
        StartupError: an address cannot be listened on.
    """

    def __init__(
        self,
        config: PipelineConfig,
        master: bytes,
        store: Store | None = None,
        find: Callable[[str], Operation] = find_operation,
    ) -> None:
        self._master = master
        self._listeners: list[tuple[str, socket.socket]] = []
        self.port = 0
        if config.listen_host:
            self._listeners.append(("tcp", _listen_tcp(config.listen_host, config.listen_port)))
            self.port = self._listeners[0][1].getsockname()[1]
        if config.unix_path:
            try:
                self._listeners.append(("unix", _listen_unix(config.unix_path)))
            except StartupError:
                self._close_listeners()
                raise
        name = config.name or f"{config.listen_host or socket.gethostname()}:{self.port}"
        self.config = config.model_copy(update={"name": name})
        self.counters = Counters()
        self._ledger = Ledger(config.reply_cache_bytes, config.reply_cache_age_s)
        store = store or Store(config.hdfs_conf_dir or None)
        self._stages = Stages(self.config, store, self._ledger, self.counters)
        self._admission = Admission(self.config, store, self._ledger, self.counters, self._stages, find)
        self._lock = threading.Lock()
        self._sessions: dict[Session, threading.Thread] = {}
        self._n_refusing = 0
        self._closing = threading.Event()
        self._started_s = time.monotonic()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all threads; returns at once."""
        self._stages.start()
        for carrier, listener in self._listeners:
            self._run(f"accept-{carrier}", self._accept_loop, carrier, listener)
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
        self._close_listeners()
        for session in self._open_sessions():
            if session.post(Parcel(Drain("the server is shutting down"))):
                self._stages.send(session)
        until_s = time.monotonic() + timeout_s
        stop = stop or threading.Event()
        while time.monotonic() < until_s and not stop.is_set():
            if not self._ledger.n_running and not any(item.has_outgoing for item in self._open_sessions()):
                return True
            stop.wait(0.02)
        return not self._ledger.n_running

    def close(self) -> None:
        """Close every connection and stop every thread."""
        self._closing.set()
        self._close_listeners()
        for thread in self._threads:
            thread.join(timeout=5.0)
        with self._lock:
            sessions = dict(self._sessions)
        for session in sessions:
            session.close()
        self._stages.close()
        for thread in sessions.values():
            thread.join(timeout=5.0)

    def stats(self) -> dict[str, Any]:
        """Counters and the present state, fit for JSON."""
        sessions = self._open_sessions()
        queues = {
            name: {
                "bytes": budget.used_bytes,
                "peak_bytes": budget.peak_bytes,
                "bound_bytes": budget.bound_bytes,
            }
            for name, budget in (("read", self._stages.read_budget), ("write", self._stages.write_budget))
        }
        carriers: dict[str, int] = {}
        for session in sessions:
            label = f"{session.carrier}/{session.checksum}"
            carriers[label] = carriers.get(label, 0) + 1
        return {
            "server": self.config.name,
            "protocol_version": VERSION,
            "pid": os.getpid(),
            "device": DEVICE,
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "is_draining": self._admission.is_draining,
            "workers": self.config.n_workers,
            "in_flight": self._ledger.n_running,
            "open_connections": carriers,
            "queues": queues,
            "reply_cache_bytes": self._ledger.cached_bytes,
            **self.counters.snapshot(),
        }

    # What sessions ask for (session.Front)

    def opened(self, session: Session) -> None:
        """Count a connection that proved its credential."""
        self.counters.add("connections")
        logger.info("tenant %s connected over %s", session.credential.tenant, session.carrier)

    def request(self, session: Session, request: Request) -> Work | None:
        """Admit a request, or answer it at once."""
        return self._admission.admit(session, request)

    def arrived(self, work: Work) -> None:
        """Hand a complete request to the stages."""
        self._stages.put(work)

    def broken_off(self, work: Work) -> None:
        """Forget a request whose payload broke off; who else waits for it may send it again."""
        self._stages.read_budget.release(work.reserved_bytes)
        error = UnavailableError("the connection that sent this request was lost")
        self._stages.finish(work.entry, failure(error), work.operation.name)

    def cancel(self, session: Session, request_id: int) -> None:
        """Answer `Cancelled` unless the answer is out already; the work is dropped if nobody else waits."""
        n_cancelled = self._ledger.withdraw(session, request_id)
        if n_cancelled:
            self.counters.add("cancelled", n_cancelled)
            session.post_and_send(Parcel(Cancelled(request_id)))

    def stats_wanted(self, session: Session, request: StatsRequest) -> None:
        """Answer with the counters."""
        session.post_and_send(Parcel(Stats(request.id, plain(self.stats()))))

    def ended(self, session: Session, how: str) -> None:
        """Clean up after a connection."""
        self.counters.add("abandoned", self._ledger.withdraw(session))
        if how != "closed":
            self.counters.add(how)
        with self._lock:
            self._sessions.pop(session, None)

    # Threads

    def _run(self, name: str, body: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=body, args=args, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept_loop(self, carrier: str, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if listener.fileno() < 0 or self._admission.is_draining or self._closing.is_set():
                    return
                logger.warning("cannot accept a connection: %s", error)
                self._closing.wait(0.1)
                continue
            self._welcome(sock, carrier)

    def _welcome(self, sock: socket.socket, carrier: str) -> None:
        with self._lock:
            n_open = len(self._sessions)
        refusal = None
        if n_open >= self.config.max_connections:
            refusal = ("too-many-connections", f"server {self.config.name} has {n_open} connections already")
        if n_open >= self.config.max_connections + _POLITE_REFUSALS:
            self.counters.add("refused")
            sock.close()
            return
        try:
            if carrier == "tcp":
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            session = Session(sock, carrier, self.config, self._master, self, refusal)
            thread = threading.Thread(target=self._serve, args=(session,), name="session", daemon=True)
            with self._lock:
                thread.start()
                self._sessions[session] = thread
        except (OSError, RuntimeError) as error:
            logger.warning("a connection could not be served: %s", error)
            sock.close()

    def _serve(self, session: Session) -> None:
        try:
            session.run()
        except Exception:
            logger.exception("a session broke")
        finally:
            session.release()

    def _progress_loop(self) -> None:
        while not self._closing.wait(self.config.progress_interval_s):
            now_s = time.monotonic()
            for entry, waiter in self._ledger.waiters():
                age_s = now_s - entry.since_s
                if age_s < self.config.progress_interval_s or waiter.session.has_outgoing:
                    continue
                progress = Progress(waiter.request_id, entry.stage, round(age_s, 3))
                if waiter.session.post(Parcel(progress)):
                    self._stages.send(waiter.session)

    def _open_sessions(self) -> list[Session]:
        with self._lock:
            return list(self._sessions)

    def _close_listeners(self) -> None:
        for carrier, listener in self._listeners:
            if listener.fileno() < 0:
                continue
            path = listener.getsockname() if carrier == "unix" else ""
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            if path:
                Path(path).unlink(missing_ok=True)


def _listen_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}",
            cure="choose another listen_host or listen_port, or stop what listens there (ss -ltnp)",
        ) from None
    return listener


def _listen_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        # Containers run as other users; who may use the server is decided by the credential.
        Path(path).chmod(0o666)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {path}: {(error.strerror or str(error)).lower()}",
            cure="choose another unix_path",
        ) from None
    return listener


def _remove_stale(path: str) -> None:
    """Remove the socket that a killed server left; one that still answers stays."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            Path(path).unlink(missing_ok=True)
