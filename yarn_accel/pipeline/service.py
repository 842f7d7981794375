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

from yarn_accel.adapters.local_files import write_atomic
from yarn_accel.errors import StartupError
from yarn_accel.pipeline.listeners import listen_http
from yarn_accel.pipeline.server import PipelineServer
from yarn_accel.pipeline.visibility import Sparing

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.observe import Observer
    from yarn_accel.pipeline.workers.process import WorkerProcess

__all__ = ["run"]

logger = logging.getLogger(__name__)

#: How long a thread may compute in Python while others want to; few do for so long.
_SWITCH_S = 0.0005
#: A server is made known when it can compute, or else after so long.
_WORKERS_S, _LOOK_S = 5.0, 0.1


def run(config: PipelineConfig, report: Callable[[str], None], first: WorkerProcess | None = None) -> int:
    """Serve until a signal says to stop.

    Args:
        config: the settings.
        report: told one line when the server is ready, and one when it stops.
        first: a worker process that was started already, by this thread.

    Returns:
        the exit code: 0 when everything was finished, 1 when work was cut off.

    Raises:
        StartupError: an address is in use, or the state file cannot be written.
        ConfigError: the master secret cannot be used.
    """
    stop = _Signals()
    _tune_process()
    for module in ("session", "sending", "server"):
        logging.getLogger(f"yarn_accel.pipeline.{module}").addFilter(Sparing())
    server = PipelineServer(config, config.master_secret(), first=first)
    with contextlib.ExitStack() as at_end:
        if config.state_file:
            at_end.callback(_remove_state, Path(config.state_file))
        at_end.callback(server.close)
        server.start()
        web = None
        if config.http_port >= 0:
            web = at_end.enter_context(listen_http(config.http_host, config.http_port))
        _wait_for_workers(server, stop)
        if config.state_file:
            _write_state(server, web.getsockname()[1] if web is not None else 0)
        if web is not None:
            at_end.callback(_observe(server, web).close)
        report(_readiness(server))
        gc.enable()
        import yarn_accel.pipeline.npz  # noqa: F401 -- the first request by reference finds it loaded

        stop.first.wait()
        report(f"pipeline server {server.config.name}: draining")
        was_finished = server.drain(config.drain_timeout_s, stop.second)
    ending = "stopped" if was_finished else "stopped with work cut off"
    report(f"pipeline server {server.config.name}: {ending}")
    return 0 if was_finished else 1


def _observe(server: PipelineServer, web: socket.socket) -> Observer:
    """Answer over HTTP; loaded so late that the workers have the processors while they load."""
    from yarn_accel.pipeline.observe import Observer

    observer = Observer(server.stats, web)
    observer.start()
    return observer


def _tune_process() -> None:
    """Let threads take turns quickly, and have as many descriptors as the system allows."""
    sys.setswitchinterval(_SWITCH_S)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Signals:
    """Two events: the first and the second signal."""

    def __init__(self) -> None:
        self.first = threading.Event()
        self.second = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()


def _wait_for_workers(server: PipelineServer, stop: _Signals) -> None:
    """Whoever hears of a server sends it requests, and these would wait for its workers."""
    until_s = time.monotonic() + _WORKERS_S
    while not (server.wait_well(_LOOK_S) or stop.first.is_set() or time.monotonic() >= until_s):
        pass


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
