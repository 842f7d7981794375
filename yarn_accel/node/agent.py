"""The agent as a process: startup, heartbeats, shutdown.

Once per interval it samples the node, sends a heartbeat to the master, writes the state file, and keeps the
master's response for local mappers. It reports a server that starts, dies or hangs at once. While the
master is away, mappers get the last response with its age. The state file is for the NodeManager's script,
for people, and for the next agent on this node.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from yarn_accel.adapters.signed_http import WRONG_KEY, Signer
from yarn_accel.client.agent_folders import IDENTITY_FILE, is_of_application
from yarn_accel.errors import (
    AccelError,
    AuthenticationError,
    ConfigError,
    StartupError,
    UnavailableError,
)
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.node.config import AgentConfig, key_place, read_key
from yarn_accel.node.heartbeat_response import (
    HeartbeatResponse,
    local_response,
    parse_response,
    response_document,
)
from yarn_accel.node.late_binding import NodeLateBinding
from yarn_accel.node.local_endpoint import LocalEndpoint, overflow_uid, user_ids
from yarn_accel.node.master_client import HeartbeatInterval, MasterConnection, MasterDiscovery
from yarn_accel.node.paths import make_run_dir, remove_abandoned
from yarn_accel.node.sampling import DeviceWatch, Sampler
from yarn_accel.node.server_monitor import HUNG, ServerMonitor

logger = logging.getLogger(__name__)

#: Without the master for so long, the response to mappers contains this node's own server as well.
_STALE_S = 10.0
#: Changes of the server are reported at once, but never more often than this.
_MIN_PAUSE_S = 0.05
#: The folder of an application that nobody used for so long may be one that was killed.
_ABANDONED_S = 3600.0
_HEARTBEAT_PATH = "/v1/heartbeat"
_MAX_REASON = 500
_STATE_VERSION = 1
_MAX_STATE_BYTES = 1024 * 1024
#: Of a dry run, between the two samples of which rates are made.
_PREVIEW_S = 1.0
_NO_KEY = bytes(32)
_KEY_CURE = (
    "make it with `yarn-accel node make-key --secret-file SECRET {node} FILE`, where SECRET is what the "
    "start was given as `agent: {{secret_file: SECRET}}`, and put it there; it is read again by itself"
)


def run(config: AgentConfig, key: bytes, report: Callable[[str], None]) -> int:
    """Work until SIGTERM or SIGINT.

    Args:
        key: this node's.
        report: gets one line when the agent is ready, and one when it ends.

    Raises:
        StartupError: another agent runs here already, or the run_dir cannot be used.
        ConfigError: a user of socket_users does not exist.
    """
    folder = Path(config.run_dir)
    make_run_dir(folder)
    with _only_one(config):
        _put_identity(config)
        for other in folder.parent.iterdir() if is_of_application(folder.name) else ():
            if other != folder:
                remove_abandoned(other, _ABANDONED_S)
        asyncio.run(_serve(config, key, report))
        remove_abandoned(folder, 0.0)
    report(f"node agent {config.node}: stopped")
    return 0


def _put_identity(config: AgentConfig) -> None:
    """Write whose folder this is, for mappers; without it they go by the folder's name."""
    if not config.application_id:
        return
    named = {"name": config.application_name, "user": config.application_user}
    text = json.dumps({"version": 1, "id": config.application_id, **named})
    try:
        write_atomic(Path(config.run_dir) / IDENTITY_FILE, text + "\n", is_for_all=True)
    except OSError as error:
        raise StartupError(f"run_dir {config.run_dir}: {(error.strerror or str(error)).lower()}") from None


async def _serve(config: AgentConfig, key: bytes, report: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with aiohttp.ClientSession(trust_env=False, auto_decompress=False) as session:
        agent = Agent(config, key, session)
        try:
            await agent.open()
            report(f"node agent {config.node} ready on {config.socket_path}, pid {os.getpid()}")
            await agent.run_until(stop)
        finally:
            await agent.close()


class Agent:
    """One agent.

    Args:
        key: this node's key.
    """

    def __init__(self, config: AgentConfig, key: bytes, session: aiohttp.ClientSession) -> None:
        self._config = config
        self._wake = asyncio.Event()
        self._devices = DeviceWatch(config.hot_celsius)
        self._sampler = Sampler(config.network_interfaces)
        state_file = Path(config.server_state_file)
        self._server = ServerMonitor(state_file, config.node, config.address, session, self._wake.set)
        self._signer = Signer(key, f"agent:{config.node}")
        self._master = MasterConnection(session, self._signer, MasterDiscovery(config), config.timeout_s)
        self._interval = HeartbeatInterval(config.interval_s, config.max_backoff_s, random.random)
        self._local_endpoint = LocalEndpoint(
            config.socket_path,
            int(config.socket_mode, 8),
            user_ids(config.socket_users),
            {
                "servers": lambda *_: self._answer_task(),
                "status": lambda *_: {"v": 1, **self._status},
                "claims": lambda *_: {"v": 1, **(self._late_binding.explain() if self._late_binding else {})},
            },
        )
        self._late_binding = self._make_late_binding() if config.late_binding.enabled else None
        self._observer: Any = None
        self._watching: asyncio.Task[None] | None = None
        self._epoch = int(time.time() * 1000)
        self._seq = 0
        self._response: HeartbeatResponse | None = None
        self._response_at = 0.0
        self._asked_s: float | None = None
        self._silence = "the master was not asked yet"
        self._trouble = ""
        self._status: dict[str, Any] = {"node": config.node, "epoch": self._epoch, "seq": 0}
        #: How heartbeats ended: ok, failed.
        self.counts = {"ok": 0, "failed": 0}

    def _make_late_binding(self) -> NodeLateBinding:
        config = self._config
        shared = {os.geteuid(), overflow_uid()} | user_ids(config.late_binding.shared_users)
        return NodeLateBinding(
            config.late_binding,
            config.node,
            Path(config.run_dir),
            int(config.socket_mode, 8),
            user_ids(config.socket_users),
            frozenset(shared),
            lambda: self._signer.key,
            self._wake.set,
        )

    async def open(self) -> None:
        """Read the state file of an earlier agent, and answer local mappers."""
        last = read_last_response(self._config.state_path, self._config.node)
        if last is not None:
            self._response, self._response_at = last
        self._server.look()
        self._watching = asyncio.create_task(self._server.watch(), name="server")
        await self._local_endpoint.open()
        if self._late_binding is not None:
            await self._late_binding.open()
        if self._config.http_port >= 0:
            from yarn_accel.node.agent_metrics import AgentMetricsServer

            self._observer = AgentMetricsServer(self.snapshot, self._config.http_host, self._config.http_port)
            await self._observer.open()

    async def close(self) -> None:
        """Stop answering; the state file stays, and ages."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._observer is not None:
            await self._observer.close()
        await self._local_endpoint.close()
        if self._late_binding is not None:
            await self._late_binding.close()
        await self._server.close()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Heartbeats until ``stop``."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                beating = asyncio.create_task(self.send_heartbeat())
                await asyncio.wait([beating, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not beating.done():
                    beating.cancel()
                    await asyncio.gather(beating, return_exceptions=True)
                    return
                beating.result()
                await self._pause(stopping)
        finally:
            stopping.cancel()

    async def send_heartbeat(self) -> None:
        """Sample the node, report to the master, write the state file."""
        self._server.look()
        self._wake.clear()
        heartbeat = await self.heartbeat()
        try:
            response = await self._master.post(_HEARTBEAT_PATH, heartbeat, self._parsed)
        except AccelError as error:
            self.counts["failed"] += 1
            self._interval.failed()
            self._note(*self._meaning(error))
        else:
            self.counts["ok"] += 1
            self._interval.succeeded(response.interval_s)
            server = heartbeat["server"]
            if server is not None and server["health"] == HUNG:
                self._server.fence(server["pid"])
            self._response, self._response_at, self._silence = response, time.time(), ""
            self._server.end_applications(response.ended)
            if self._late_binding is not None:
                self._late_binding.answered(response.late_binding)
            if self._trouble:
                logger.info("the master answers again, at %s", self._master.url)
            self._trouble = ""
        self._write(heartbeat)

    def _parsed(self, document: Any, url: str) -> HeartbeatResponse:
        """The response of the master at an address; one of an earlier attempt is refused."""
        response = parse_response(document, self._config.node)
        if response.is_older_than(self._response):
            raise UnavailableError(f"{url} is attempt {response.attempt}, which is over")
        return response

    def _note(self, trouble: str, why: str) -> None:
        """Keep why the master does not answer, and log a reason that differs from the last one."""
        self._silence = f"{trouble}: {why}"[:_MAX_REASON]
        if trouble != self._trouble:
            logger.warning("%s: %s", trouble, why)
        self._trouble = trouble

    def _meaning(self, error: AccelError) -> tuple[str, str]:
        """The kind of trouble for the log, and its details.

        A key that is refused is read again, so that it suffices to correct its file.
        """
        if not isinstance(error, AuthenticationError):
            return "the master is away", str(error)
        if WRONG_KEY not in error.message:
            return "no answer of the master's is to be believed", str(error)
        place = key_place(self._config, os.environ)
        trouble = f"the master refuses the key of {self._config.node}, from {place}"
        try:
            self._signer.key = read_key(self._config, os.environ)
        except ConfigError as broken:
            return f"{trouble}, which cannot be read any more", str(broken)
        return trouble, f"{_KEY_CURE.format(node=self._config.node)} ({error})"

    async def heartbeat(self) -> dict[str, Any]:
        """The body of the next heartbeat."""
        self._seq += 1
        devices, server = await asyncio.gather(self._devices.report(), self._server.report())
        sample = self._sampler.sample()
        late = {}
        if self._late_binding is not None:
            self._late_binding.sampled({"devices": devices, **sample})
            late = {"late_binding": self._late_binding.heartbeat()}
        asked = {} if self._asked_s is None else {"asked_age_s": round(time.monotonic() - self._asked_s, 3)}
        return {
            "version": 1,
            "node": self._config.node,
            "address": self._config.address,
            "container": os.environ.get("CONTAINER_ID", "")[:100],
            "epoch": self._epoch,
            "seq": self._seq,
            "at": round(time.time(), 3),
            "devices": devices,
            "server": server,
            "revision": 0 if self._response is None else self._response.revision,
            **late,
            **asked,
            **sample,
        }

    def _answer_task(self) -> dict[str, Any]:
        self._asked_s = time.monotonic()
        return self.local_response()

    def local_response(self) -> dict[str, Any]:
        """The response to a local mapper."""
        self._server.look()
        return local_response(
            self._config.node,
            self._response,
            age_s=max(0.0, time.time() - self._response_at),
            reason=self._silence,
            own=self._server.endpoint,
            is_own_down=self._server.is_down,
            stale_s=_STALE_S,
        )

    def snapshot(self) -> dict[str, Any]:
        """Everything for the metrics."""
        return {
            **self._status,
            "heartbeats": dict(self.counts),
            "questions": dict(self._local_endpoint.counts),
            "answer_age_s": None if self._response is None else max(0.0, time.time() - self._response_at),
            "is_master_silent": bool(self._silence),
            "late_binding": None if self._late_binding is None else self._late_binding.figures(),
        }

    def _write(self, heartbeat: dict[str, Any]) -> None:
        response = self._response
        self._status = {
            **heartbeat,
            "master": {"url": self._master.url, "silence": self._silence},
            "slots": None if response is None else response.slots,
            "answer": None if response is None else response_document(response, self._config.node),
            "answered_at": self._response_at,
        }
        try:
            write_state(self._config.state_path, self._status)
        except OSError as error:
            logger.error("the state file cannot be written: %s", error)

    async def _pause(self, stopping: asyncio.Task[Any]) -> None:
        """Wait for the next heartbeat, or for a reason to send one now."""
        wait_s = self._interval.next_wait_s()
        await asyncio.wait([stopping], timeout=_MIN_PAUSE_S)
        waking = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait(
                [waking, stopping],
                timeout=max(wait_s - _MIN_PAUSE_S, 0.0),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waking.cancel()


@contextlib.contextmanager
def _only_one(config: AgentConfig) -> Iterator[None]:
    """Hold the lock of the folder; the kernel releases it when this process ends, however it ends."""
    path = config.lock_path
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise StartupError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = " ".join(os.read(lock, 200).decode("ascii", "replace").split())
            raise StartupError(
                f"another agent (pid {owner or 'unknown'}) serves this node: it holds {path}",
                cure="stop that one first, or give this one a run_dir of its own, with {application} in it",
            ) from None
        os.truncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} {config.application_id}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def write_state(path: Path, document: dict[str, Any]) -> None:
    """Replace the state file; the NodeManager's user can read it whatever the umask.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps({"version": _STATE_VERSION, **document}, allow_nan=False) + "\n"
    write_atomic(path, text, is_for_all=True)


def read_last_response(path: Path, node: str) -> tuple[HeartbeatResponse, float] | None:
    """The last response that an earlier agent got, and when (Unix time); None: there is no usable one."""
    try:
        if path.lstat().st_uid not in (os.geteuid(), 0):
            return None
        with path.open("rb") as file:
            document = json.loads(file.read(_MAX_STATE_BYTES))
        if document["version"] != _STATE_VERSION or document["node"] != node or document["answer"] is None:
            return None
        return parse_response(document["answer"], node), float(document["answered_at"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AccelError):
        return None


async def preview(config: AgentConfig) -> dict[str, Any]:
    """A dry run: the heartbeat of this moment, with rates over a second, and where it would go."""
    try:
        master: dict[str, Any] = {"urls": await asyncio.to_thread(MasterDiscovery(config).find)}
    except AccelError as error:
        master = {"urls": [], "why": str(error)}
    async with aiohttp.ClientSession(trust_env=False, auto_decompress=False) as session:
        agent = Agent(config, _NO_KEY, session)
        try:
            await agent.heartbeat()
            await asyncio.sleep(_PREVIEW_S)
            return {"master": master, "heartbeat": await agent.heartbeat()}
        finally:
            await agent.close()
