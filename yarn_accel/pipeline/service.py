"""The server as a process: startup, main loop, shutdown.

The first SIGTERM or SIGINT drains: nothing new is taken, what is under way is finished.  A second one stops
at once.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from yarn_accel.errors import StartupError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.pipeline.job_users import storage_of_users
from yarn_accel.pipeline.listeners import listen_http
from yarn_accel.pipeline.server import PipelineServer

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.http import HttpServer
    from yarn_accel.pipeline.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

#: How long a thread may compute in Python while others want to; few do for so long.
_SWITCH_S = 0.0005
#: A server is made known when it can compute, or else after so long.
_WORKERS_S, _LOOK_S = 5.0, 0.02
#: Objects made before garbage is looked for: a request makes some thirty that are kept for a while.
_GARBAGE_AFTER = 10_000
#: Modules that nobody waits for are loaded after the first answer, or after so long without one.
_FIRST_ANSWER_S = 0.5


def run(
    config: PipelineConfig,
    report: Callable[[str], None],
    first: WorkerProcess | None = None,
    *,
    must_compute: bool = False,
) -> int:
    """Serve until a signal says to stop; this thread is the server's loop.

    Args:
        config: the settings.
        report: called with one line when the server is ready, and one when it stops.
        first: a worker process that was started already, by this thread.
        must_compute: end with an error when no worker process can start, which a site may yet cure.

    Returns:
        the exit code: 0 when everything was finished, 1 when work was cut off.

    Raises:
        StartupError: an address is in use, the state file cannot be written, or no worker can start.
        ConfigError: the master secret cannot be used.
    """
    _tune_process()
    for module in ("connections", "transport", "engine", "server"):
        logging.getLogger(f"yarn_accel.pipeline.{module}").addFilter(Sparing())
    # People look for a request by its key: a job whose requests fail at once finds each of them.
    logging.getLogger("yarn_accel.pipeline.requests").addFilter(Sparing(burst=1000))
    users = storage_of_users(config, os.environ)
    server = PipelineServer(config, config.master_secret(), first=first, users=users)
    with contextlib.ExitStack() as at_end:
        if config.state_file:
            at_end.callback(_remove_state, Path(config.state_file))
        at_end.callback(server.close)
        web = None
        if config.http_port >= 0:
            web = at_end.enter_context(listen_http(config.http_host, config.http_port))
        service = _Service(server, report, web, must_compute)
        at_end.callback(service.close)
        service.serve()
    ending = "stopped" if service.was_finished else "stopped with work cut off"
    if server.left_pids:
        pids = ", ".join(map(str, server.left_pids))
        ending += f"; left worker processes that SIGKILL does not end: {pids} (see docs/troubleshooting.md)"
    report(f"pipeline server {server.config.name}: {ending}")
    return 0 if service.was_finished else 1


class _Service:
    """Everything beside the requests, from the start to the end; in the loop."""

    def __init__(
        self,
        server: PipelineServer,
        report: Callable[[str], None],
        web: socket.socket | None,
        must_compute: bool,
    ) -> None:
        self.was_finished = False
        self._server = server
        self._loop = server.loop
        self._report = report
        self._web = web
        self._must_compute = must_compute
        self._http: HttpServer | None = None
        self._error: StartupError | None = None
        self._n_signals = 0
        self._is_ready = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def serve(self) -> None:
        """Be the server until it is over; raises `StartupError` when the state file cannot be written."""
        self._loop.call_at(time.monotonic(), self._wait_for_workers)
        self._started_s = time.monotonic()
        self._server.run()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Answer nothing over HTTP any more."""
        if self._http is not None:
            self._http.close()

    def _note(self, number: int, frame: object) -> None:
        self._n_signals += 1
        self._loop.call_soon(self._drain if self._n_signals == 1 else self._loop.stop)

    def _wait_for_workers(self) -> None:
        """Whoever hears of a server sends it requests, and these would wait for its workers."""
        now_s, server = time.monotonic(), self._server
        if self._must_compute and server.start_fault:
            self._error = StartupError(f"a worker process cannot start: {server.start_fault}")
            self._loop.stop()
            return
        waits = self._must_compute or now_s < self._started_s + _WORKERS_S
        if not server.knows_how_it_is and waits:
            self._loop.call_at(now_s + _LOOK_S, self._wait_for_workers)
            return
        if server.config.state_file:
            try:
                _write_state(server, self._web.getsockname()[1] if self._web is not None else 0)
            except StartupError as error:
                self._error = error
                self._loop.stop()
                return
        self._report(_readiness(server))
        gc.set_threshold(_GARBAGE_AFTER)
        gc.enable()
        self._ready_s = now_s
        self._load_late()

    def _load_late(self) -> None:
        """Load what nobody waits for, in a thread, so that workers and requests have the processors first."""
        now_s = time.monotonic()
        if not self._server.n_done and now_s < self._ready_s + _FIRST_ANSWER_S:
            self._loop.call_at(now_s + _LOOK_S, self._load_late)
            return
        threading.Thread(target=self._load, name="late", daemon=True).start()

    def _load(self) -> None:
        if self._web is not None:
            from yarn_accel.pipeline.http import STATS_TIMEOUT_S, HttpServer

            server = self._server
            self._http = HttpServer(lambda: server.stats(STATS_TIMEOUT_S), self._web)
            self._http.start()
        # The first request by reference finds them loaded.
        import numpy  # noqa: F401

        import yarn_accel.formats.npz_writer  # noqa: F401

        # Modules stay: nobody has to look for garbage among them again.
        gc.freeze()

    def _drain(self) -> None:
        config = self._server.config
        self._report(f"pipeline server {config.name}: draining")
        self._loop.call_at(time.monotonic() + config.drain_timeout_s, self._loop.stop)
        self._server.begin_drain(self._finish)

    def _finish(self) -> None:
        self.was_finished = True
        self._loop.stop()


def _tune_process() -> None:
    """Let threads take turns quickly, and have as many descriptors as the system allows."""
    sys.setswitchinterval(_SWITCH_S)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _readiness(server: PipelineServer) -> str:
    config = server.config
    addresses = [f"{config.listen_host}:{server.port}"] if server.port else []
    addresses += [config.unix_path] if config.unix_path else []
    return (
        f"pipeline server {config.name} ready on {' and '.join(addresses)}: "
        f"{config.n_workers} workers, pid {os.getpid()}"
    )


def _write_state(server: PipelineServer, http_port: int) -> None:
    config = server.config
    state = {
        "pid": os.getpid(),
        "name": config.name,
        "container": os.environ.get("CONTAINER_ID", ""),
        "host": config.listen_host,
        "port": server.port,
        "unix_path": config.unix_path,
        "tls": bool(config.tls_cert_file),
        "http_host": config.http_host if http_port else "",
        "http_port": http_port,
        "is_well": server.is_well,
        "started_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    path = Path(config.state_file)
    try:
        write_atomic(path, json.dumps(state, indent=1) + "\n")
    except OSError as error:
        raise StartupError(
            f"state_file {path}: {(error.strerror or str(error)).lower()}", cure="choose another state_file"
        ) from None


def _remove_state(path: Path) -> None:
    """Remove the state file, unless another server has put its own there."""
    try:
        if json.loads(path.read_text(encoding="utf-8")).get("pid") == os.getpid():
            path.unlink()
    except (OSError, ValueError):
        logger.info("state file %s was not there any more", path)


class Sparing(logging.Filter):
    """Lets a few lines a second through and counts the rest, so that no peer can fill a disk with its faults.

    Args:
        per_s: lines a second in the long run.
        burst: lines that may come at once after a quiet time.
        clock: monotonic seconds.
    """

    def __init__(self, per_s: int = 10, burst: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._at_s = clock()
        self._n_free = float(burst)
        self._n_hidden = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is written; the first one after a flood tells how many were not."""
        with self._lock:
            now_s = self._clock()
            self._n_free = min(self._burst, self._n_free + (now_s - self._at_s) * self._per_s)
            self._at_s = now_s
            if self._n_free < 1.0:
                self._n_hidden += 1
                return False
            self._n_free -= 1.0
            if self._n_hidden:
                record.msg = f"({self._n_hidden} lines like this one were left out) {record.msg}"
                self._n_hidden = 0
        return True
