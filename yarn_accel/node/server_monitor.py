"""The pipeline server of this node: found by its state file, watched by its process, probed over HTTP.

A pidfd reports its death at once. A change of the state file reports its start, and whether it is healthy,
without a wait for its HTTP. A probe reads its statistics once per heartbeat; a heartbeat waits `_PATIENCE_S`
for it at most, because a server under load answers late. `server_stats.Liveness` decides from unanswered
probes and from the CPU time of the process whether the server is silent, or hangs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from yarn_accel.client.binding import Endpoint
from yarn_accel.core.ended_applications import ENDED_SUFFIX, format_ended
from yarn_accel.errors import AccelError, RemoteProtocolError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.node.server_stats import (
    Liveness,
    LoadMeter,
    ServerStateFile,
    Verdict,
    endpoint_of,
    is_local_only,
    parse_state,
    parse_stats,
)

logger = logging.getLogger(__name__)

#: The health of a server that hangs.
HUNG = "hung"
#: A server that is not well so soon after it appeared is asked at every look: its workers are still loading.
_YOUNG_S = 10.0
#: How often the state file is looked at between heartbeats; and how often, and for how long, when the server
#: has died, so that another one may come at any moment.
_LOOK_S, _LOOK_SOON_S, _SOON_S = 0.2, 0.04, 30.0
_PATIENCE_S = 0.3
#: A probe is sent after so long without a heartbeat, which sends one, too.
_PROBE_AGAIN_S = 1.2
_TIMEOUT_S = 2.5
_MAX_STATE_BYTES = 64 * 1024
_MAX_STATS_BYTES = 1024 * 1024
_MAX_ENVIRON_BYTES = 1024 * 1024
_CONTAINER = b"CONTAINER_ID="
#: Fields 14 and 15 of proc_pid_stat(5), counted from the one after the name.
_UTIME, _STIME = 11, 12


class ServerMonitor:
    """Follows the server that writes this state file; used from one event loop.

    Args:
        state_file: the server's.
        node: this node's name.
        address: where others reach this node.
        changed: called when the server appears, is replaced or dies, and when its health changes.
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
        self._state: ServerStateFile | None = None
        self._pidfd = -1
        self._container = ""
        self._is_gone = False
        self._probing: asyncio.Task[None] | None = None
        self._figures: dict[str, Any] = {}
        self._problems: list[str] = []
        self._meter, self._load = LoadMeter(), {"queue_s": 0.0, "rates": {}}
        self._liveness = Liveness()
        self._is_fenced = False
        self._probed_s = 0.0
        self._starting_until_s = 0.0
        self._died_s = 0.0
        self._has_answered = False
        self._written_ended: tuple[str, ...] = ()

    @property
    def endpoint(self) -> Endpoint | None:
        """Where it listens; None: there is none, or it is `is_down`."""
        if self._state is None or self.is_down:
            return None
        return endpoint_of(self._state, self._node, self._address)

    @property
    def is_gone(self) -> bool:
        """Whether its process died and left its state file behind."""
        return self._is_gone

    @property
    def is_down(self) -> bool:
        """Whether it died, is silent, or hangs: mappers of this node must not use it."""
        return self._is_gone or self._is_fenced or self._liveness.verdict() is not Verdict.RESPONSIVE

    @property
    def look_s(self) -> float:
        """How soon to look again."""
        is_expected = self._is_gone and asyncio.get_running_loop().time() < self._died_s + _SOON_S
        return _LOOK_SOON_S if is_expected else _LOOK_S

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
            self._probe_if_due()
            return
        self._forget()
        self._stamp = stamp
        self._read()
        self._changed()

    async def watch(self) -> None:
        """Look periodically until cancelled; notices silence."""
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        while True:
            await asyncio.sleep(self.look_s)
            before_s, at_s = at_s, loop.time()
            self.tick(at_s - before_s)

    def tick(self, elapsed_s: float) -> None:
        """Look at the server, `elapsed_s` after the last look."""
        before = self._health()
        if self._state is not None and self._liveness.is_asked:
            self._liveness.tick(elapsed_s, cpu_ticks_of(self._state.pid))
        if self._state is not None and self._health() != before:
            logger.warning("pipeline server %s is %s", self._state.name, self._health())
            self._changed()
        self.look()

    def fence(self, pid: int) -> None:
        """Keep a hanging process down even if it runs again: the master replaces its container."""
        if self._state is not None and self._state.pid == pid and self._container:
            self._is_fenced = True

    def end_applications(self, ended: tuple[str, ...]) -> None:
        """Have the server end its sessions of these applications."""
        if not ended or ended == self._written_ended:
            return
        place = self._state_file.with_name(self._state_file.name + ENDED_SUFFIX)
        try:
            write_atomic(place, format_ended(ended))
        except OSError as error:
            logger.warning("the server cannot learn which applications have ended: %s: %s", place, error)
        else:
            self._written_ended = ended

    async def report(self) -> dict[str, Any] | None:
        """The server's part of the heartbeat; None: there is no server."""
        self.look()
        if self._state is None:
            return None
        if self._state.http_port and not self._is_gone:
            probing = self._begin_probe(self._state)
            if self._has_answered or not self._state.is_well:
                await asyncio.wait([probing], timeout=_PATIENCE_S)
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
        """One word: gone, starting, silent, hung, unwatched, draining, unhealthy or ok."""
        if self._is_gone:
            return "gone"
        if self._state is not None and not self._state.http_port:
            return "unwatched"
        verdict = self._liveness.verdict()
        if self._is_fenced or verdict is Verdict.HUNG:
            return HUNG
        if verdict is Verdict.SILENT:
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
        self._starting_until_s = asyncio.get_running_loop().time() + _YOUNG_S
        try:
            self._pidfd = os.pidfd_open(state.pid)
        except OSError:
            self._is_gone = True
            logger.warning("pipeline server %s (pid %d) is gone", state.name, state.pid)
            return
        asyncio.get_running_loop().add_reader(self._pidfd, self._died)
        self._container = state.container or container_of(state.pid)
        logger.info("pipeline server %s found, pid %d", state.name, state.pid)

    def _probe_if_due(self) -> None:
        """Probe between heartbeats: a server that starts, one that does not answer, any after a while."""
        state = self._state
        if state is None or not state.http_port or self._is_gone:
            return
        now_s = asyncio.get_running_loop().time()
        is_starting = now_s < self._starting_until_s and not self._figures.get("is_healthy")
        if is_starting or self._liveness.is_asked or now_s >= self._probed_s + _PROBE_AGAIN_S:
            self._begin_probe(state)

    def _begin_probe(self, state: ServerStateFile) -> asyncio.Task[None]:
        """The probe under way, or a new one."""
        if self._probing is None or self._probing.done():
            self._liveness.asked()
            self._probed_s = asyncio.get_running_loop().time()
            self._probing = asyncio.create_task(self._probe(state))
        return self._probing

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
        self._liveness, self._is_fenced = Liveness(), False
        self._meter, self._load = LoadMeter(), {"queue_s": 0.0, "rates": {}}

    async def _probe(self, state: ServerStateFile) -> None:
        """Read the statistics; a failure counts as no answer."""
        try:
            figures = parse_stats(await self._get(state, "/stats.json"))
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError, AccelError) as error:
            logger.debug("pipeline server %s: %s", state.name, error)
            return
        if self._state is not state:
            return
        before, is_first = self._health(), not self._has_answered
        self._figures, self._problems, self._has_answered = figures, figures.pop("problems"), True
        self._liveness.answered()
        self._load = self._meter.measure(figures)
        if is_first or self._health() != before:
            self._changed()

    async def _get(self, state: ServerStateFile, path: str) -> str:
        host = state.http_host or "127.0.0.1"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        url = f"http://{f'[{host}]' if ':' in host else host}:{state.http_port}{path}"
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with self._session.get(url, timeout=timeout, allow_redirects=False) as answer:
            raw = b""
            async for part in answer.content.iter_any():
                raw += part
                if len(raw) > _MAX_STATS_BYTES:
                    raise RemoteProtocolError(f"{url} sent more than {_MAX_STATS_BYTES} bytes")
            return raw.decode("utf-8", "replace")


def cpu_ticks_of(pid: int) -> int | None:
    """CPU time of all threads of a process, in the kernel's ticks; None: not known."""
    try:
        after_name = (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        )
        fields = after_name.split()
        return int(fields[_UTIME]) + int(fields[_STIME])
    except (OSError, ValueError, IndexError):
        return None


def container_of(pid: int) -> str:
    """The YARN container a process runs in; empty when in none, or when it is another user's."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            variables = file.read(_MAX_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return ""
    found = [each[len(_CONTAINER) :] for each in variables if each.startswith(_CONTAINER)]
    return found[0].decode("ascii", "replace")[:100] if found else ""
