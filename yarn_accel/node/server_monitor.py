"""The pipeline server of this node: found by its state file, watched by its process, asked over HTTP.

Its death is noticed when it happens (a pidfd), its birth when the state file changes; that says also whether
it is well, so nobody waits for its HTTP.  Its figures are asked for once per heartbeat and never waited for
long: a server under load answers late, and late is not dead.  Only one that says nothing for `SILENCE_S` is
called silent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from yarn_accel.client.binding import Endpoint
from yarn_accel.errors import AccelError, RemoteProtocolError
from yarn_accel.node.loads import LoadMeter
from yarn_accel.node.server_stats import ServerState, endpoint_of, is_local_only, parse_metrics, parse_state

__all__ = ["LOOK_S", "SILENCE_S", "ServerMonitor", "container_of"]

logger = logging.getLogger(__name__)

SILENCE_S = 3.0
#: A server that is not well so soon after it appeared is asked at every look: its workers are still loading.
_YOUNG_S = 10.0
#: How often the state file is looked at between heartbeats; and how often, and for how long, when the server
#: has died, so that another one may come at any moment.
LOOK_S, _LOOK_SOON_S, _SOON_S = 0.2, 0.04, 30.0
_PATIENCE_S = 0.3
_TIMEOUT_S = 2.5
_MAX_STATE_BYTES = 64 * 1024
_MAX_METRICS_BYTES = 1024 * 1024
_MAX_ENVIRON_BYTES = 1024 * 1024
_CONTAINER = b"CONTAINER_ID="
_MAX_PROBLEMS, _MAX_PROBLEM_CHARACTERS = 8, 200


class ServerMonitor:
    """Follows the server that writes this state file; used from one event loop.

    Args:
        state_file: the server's.
        node: this node's name.
        address: where others reach this node.
        changed: called when the server appears, is replaced or dies, and when it says it is well, or not.
    """

    def __init__(
        self,
        state_file: Path,
        node: str,
        address: str,
        session: aiohttp.ClientSession,
        changed: Callable[[], None],
    ) -> None:
        self._state_file = state_file
        self._node = node
        self._address = address
        self._session = session
        self._changed = changed
        self._stamp: tuple[int, int, int] | None = None
        self._state: ServerState | None = None
        self._pidfd = -1
        self._container = ""
        self._is_gone = False
        self._probing: asyncio.Task[None] | None = None
        self._figures: dict[str, Any] = {}
        self._problems: list[str] = []
        self._meter, self._load = LoadMeter(), {"queue_s": 0.0, "rates": {}}
        self._heard_s = 0.0
        self._starting_until_s = 0.0
        self._died_s = 0.0
        self._has_answered = False

    @property
    def endpoint(self) -> Endpoint | None:
        """Where it listens, while it is alive."""
        if self._state is None or self._is_gone:
            return None
        return endpoint_of(self._state, self._node, self._address)

    @property
    def is_gone(self) -> bool:
        """Whether it died without a farewell."""
        return self._is_gone

    @property
    def look_s(self) -> float:
        """How soon to look again."""
        is_expected = self._is_gone and asyncio.get_running_loop().time() < self._died_s + _SOON_S
        return _LOOK_SOON_S if is_expected else LOOK_S

    def look(self) -> None:
        """Read the state file if it changed; costs one system call when it did not and the server is well."""
        try:
            status = self._state_file.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            if self._stamp is not None:
                self._forget()
                self._changed()
            return
        if stamp == self._stamp:
            self._probe_if_starting()
            return
        self._forget()
        self._stamp = stamp
        self._read()
        self._changed()

    async def report(self) -> dict[str, Any] | None:
        """What the heartbeat says about the server; None: there is none."""
        self.look()
        if self._state is None:
            return None
        if self._state.http_port and not self._is_gone:
            if self._probing is None or self._probing.done():
                self._probing = asyncio.create_task(self._probe(self._state))
            if self._has_answered or not self._state.is_well:
                await asyncio.wait([self._probing], timeout=_PATIENCE_S)
        state = self._state
        if state is None:
            return None
        endpoint = endpoint_of(state, self._node, self._address)
        return {
            "endpoint": asdict(endpoint),
            "is_local_only": is_local_only(endpoint, self._address),
            "pid": state.pid,
            "container": self._container,
            "started_at": state.started_at,
            "health": self._health(),
            "problems": self._problems,
            "load": self._load,
            **{
                key: value for key, value in self._figures.items() if key not in ("is_healthy", "is_draining")
            },
        }

    async def close(self) -> None:
        """Stop watching."""
        asking = self._probing
        self._forget()
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    def _health(self) -> str:
        """One word: gone, starting, silent, unwatched, draining, unhealthy or ok."""
        if self._is_gone:
            return "gone"
        if self._state is not None and not self._state.http_port:
            return "unwatched"
        if asyncio.get_running_loop().time() - self._heard_s > SILENCE_S:
            return "silent"
        if not self._has_answered:
            return "ok" if self._state is not None and self._state.is_well else "starting"
        if self._figures.get("is_draining"):
            return "draining"
        return "ok" if self._figures.get("is_healthy") else "unhealthy"

    def _read(self) -> None:
        try:
            with self._state_file.open("rb") as file:
                raw = file.read(_MAX_STATE_BYTES + 1)
            if len(raw) > _MAX_STATE_BYTES:
                raise RemoteProtocolError(f"more than {_MAX_STATE_BYTES} bytes")
            state = parse_state(raw.decode("utf-8", "replace"))
        except (OSError, AccelError) as error:
            logger.warning("%s: %s", self._state_file, error)
            return
        self._state = state
        self._heard_s = asyncio.get_running_loop().time()
        self._starting_until_s = self._heard_s + _YOUNG_S
        try:
            self._pidfd = os.pidfd_open(state.pid)
        except OSError:
            self._is_gone = True
            logger.warning("pipeline server %s (pid %d) is gone", state.name, state.pid)
            return
        asyncio.get_running_loop().add_reader(self._pidfd, self._died)
        self._container = container_of(state.pid)
        logger.info("pipeline server %s found, pid %d", state.name, state.pid)

    def _probe_if_starting(self) -> None:
        """Ask a server that has just come until it is well, and do not leave that to the next heartbeat."""
        state = self._state
        if state is None or not state.http_port or self._is_gone or self._figures.get("is_healthy"):
            return
        is_young = asyncio.get_running_loop().time() < self._starting_until_s
        if is_young and (self._probing is None or self._probing.done()):
            self._probing = asyncio.create_task(self._probe(state))

    def _died(self) -> None:
        self._unwatch()
        self._is_gone = True
        self._died_s = asyncio.get_running_loop().time()
        if self._state is not None:
            logger.warning("pipeline server %s (pid %d) died", self._state.name, self._state.pid)
        # It takes its state file along when it ends in peace.
        self.look()
        if self._is_gone:
            self._changed()

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _forget(self) -> None:
        self._unwatch()
        self._stamp, self._state, self._container, self._is_gone = None, None, "", False
        self._figures, self._problems, self._has_answered = {}, [], False
        self._meter, self._load = LoadMeter(), {"queue_s": 0.0, "rates": {}}

    async def _probe(self, state: ServerState) -> None:
        """Ask for the figures, and for the problems when there are some; failures show as silence."""
        try:
            figures = parse_metrics(await self._get(state, "/metrics"))
            problems: list[str] = []
            if not figures["is_healthy"]:
                problems = _problems(await self._get(state, "/healthz"))
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError, AccelError) as error:
            logger.debug("pipeline server %s: %s", state.name, error)
            return
        if self._state is not state:
            return
        before, is_first = self._health(), not self._has_answered
        self._figures, self._problems, self._has_answered = figures, problems, True
        self._load = self._meter.measure(figures)
        self._heard_s = asyncio.get_running_loop().time()
        if is_first or self._health() != before:
            self._changed()

    async def _get(self, state: ServerState, path: str) -> str:
        host = state.http_host or "127.0.0.1"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        url = f"http://{f'[{host}]' if ':' in host else host}:{state.http_port}{path}"
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with self._session.get(url, timeout=timeout, allow_redirects=False) as answer:
            raw = b""
            async for part in answer.content.iter_any():
                raw += part
                if len(raw) > _MAX_METRICS_BYTES:
                    raise RemoteProtocolError(f"{url} sent more than {_MAX_METRICS_BYTES} bytes")
            return raw.decode("utf-8", "replace")


def container_of(pid: int) -> str:
    """The YARN container a process runs in; empty when in none, or when it is another user's."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            variables = file.read(_MAX_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return ""
    found = [each[len(_CONTAINER) :] for each in variables if each.startswith(_CONTAINER)]
    return found[0].decode("ascii", "replace")[:100] if found else ""


def _problems(text: str) -> list[str]:
    document = json.loads(text)
    found = document.get("problems", []) if isinstance(document, dict) else []
    found = found if isinstance(found, list) else []
    return [str(each)[:_MAX_PROBLEM_CHARACTERS] for each in found[:_MAX_PROBLEMS]]
