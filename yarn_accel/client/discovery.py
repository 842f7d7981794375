"""Finds the pipeline servers of this task's node: asks the node's agent, else the master.

Sources in this order, each with a short time-out:

1. the agent's Unix socket: ``ACCEL_AGENT``, else where agents listen by default (`agent_folders`); where it
   knows no server, that of another application of the same user, such as one that this one shall replace;
2. the master: each address in ``ACCEL_MASTER`` (comma separated; the ResourceManager's proxy of the
   application survives attempts), asked for the servers of ``NM_HOST``;
3. none: the reason says why, and the mapper computes on its own CPU.

The answer is one line of JSON with a binding (see `binding`). It is trusted for addresses only: a pipeline
server proves itself with the job's credential. The peer at the default path in ``/tmp`` is checked too,
because any local user could listen there.

Standard library only, Python 3.8: mappers import it.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, List, Mapping, Optional, Tuple

from yarn_accel.client.agent_folders import agent_sockets, application_user
from yarn_accel.client.binding import Binding, Endpoint, choose, parse_binding
from yarn_accel.client.request_routing import RoutingHints, parse_routing_hints
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.errors import ConfigError
from yarn_accel.users import peer_uid

AGENT_TIMEOUT_S = 0.5
MASTER_TIMEOUT_S = 1.0
#: Agents learn the loads of servers once per second.
HINTS_EVERY_S = 1.0
MAX_ANSWER_BYTES = 1024 * 1024
SERVERS_PATH = "/v1/servers"
#: After a lookup without an answer, the next one comes after so many times the seconds it took.
_PAUSE_PER_LOOKUP = 19.0
_QUESTION = b'{"v": 1, "want": "servers"}\n'
_MAX_MASTERS = 4


@dataclass(frozen=True)
class DiscoveredServers:
    """The servers of a node, and where the answer came from.

    Attributes:
        binding: the servers; none when there is nobody to ask, or no server.
        node: this task's node, as YARN names it.
        source: ``agent``, ``master`` or ``none``.
        where: the socket or URL that answered.
        age_s: age of the master's figures in the answer; 0: unknown.
        reason: why there is no server, or what is doubtful about those there are; else empty.
        routing_hints: for choosing a server for every single request; None: they all go to the first.
        may_come: there is somebody to ask, so a server may be found later.
    """

    binding: Binding = field(default_factory=Binding)
    node: str = ""
    source: str = "none"
    where: str = ""
    age_s: float = 0.0
    reason: str = ""
    routing_hints: Optional[RoutingHints] = None
    may_come: bool = True

    def endpoints(self, spread: int = 0) -> Tuple[Endpoint, ...]:
        """The servers in the order in which to try them; see `binding.choose`."""
        return choose(self.binding, self.node, spread)


def discover_servers(environ: Mapping[str, str]) -> DiscoveredServers:
    """Ask now; never raises, and takes at most the sum of the time-outs."""
    node = environ.get("NM_HOST", "")
    failures: List[str] = []
    first: Optional[DiscoveredServers] = None
    for path, is_trusted in agent_sockets(environ):
        if first is not None and application_user(path) != application_user(first.where):
            continue
        try:
            found = _from_agent(path, is_trusted, node)
        except (OSError, ValueError, ConfigError) as error:
            reraise_from_signal(error)
            failures.append("agent {}: {}".format(path, _why(error)))
            continue
        if found.binding.servers:
            return found
        first = first or found
    if first is not None:
        return first
    masters = [url.strip() for url in environ.get("ACCEL_MASTER", "").split(",") if url.strip()]
    for url in masters[:_MAX_MASTERS]:
        if not node:
            failures.append("master: NM_HOST is not set")
            break
        try:
            return _from_master(url, node)
        except (OSError, ConfigError, ValueError) as error:
            reraise_from_signal(error)
            failures.append("master {}: {}".format(url, _why(error)))
    if not masters:
        failures.append("ACCEL_MASTER is not set")
    may_come = bool(masters or environ.get("ACCEL_AGENT"))
    return DiscoveredServers(node=node, reason="; ".join(failures), may_come=may_come)


class ServerWatch:
    """Repeats the discovery for a task that outlives a binding.

    Args:
        every_s: lifetime of an answer; one with routing hints lives for a second at most.
        ask, clock: as `discover_servers` and `time.monotonic`.

    Attributes:
        until_s: when the last answer ends, by the clock.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        every_s: float = 2.0,
        ask: Callable[[Mapping[str, str]], DiscoveredServers] = discover_servers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environ = environ
        self._every_s = every_s
        self._ask = ask
        self._clock = clock
        self._found: Optional[DiscoveredServers] = None
        self.until_s = -math.inf

    def now(self, is_urgent: bool = False) -> DiscoveredServers:
        """The current servers; `is_urgent` asks again at once, as after the failure of a server.

        Without an answer the last known servers stay, and the reason says so.
        """
        began_s = self._clock()
        if self._found is None or is_urgent or began_s >= self.until_s:
            found = self._ask(self._environ)
            every_s = self._every_s if found.routing_hints is None else min(self._every_s, HINTS_EVERY_S)
            now_s = self._clock()
            if found.source == "none":
                every_s = max(every_s, _PAUSE_PER_LOOKUP * (now_s - began_s))
            self.until_s = now_s + every_s
            if found.source == "none" and self._found is not None and self._found.binding.servers:
                last = self._found
                found = DiscoveredServers(
                    last.binding, last.node, last.source, last.where, last.age_s, found.reason
                )
            self._found = found
        return self._found


def parse_servers(raw: bytes, node: str) -> DiscoveredServers:
    """An answer; where it came from is not in it.

    Args:
        node: this task's node, empty when it is not known.

    Raises:
        ConfigError: it is no answer, or one for another node.
    """
    try:
        document = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ConfigError("the answer is not JSON") from None
    if not isinstance(document, dict) or document.get("v") != 1:
        raise ConfigError("the answer is not of version 1")
    if document.get("error"):
        raise ConfigError("refused: {}".format(str(document["error"])[:200]))
    named = str(document.get("node", ""))
    if node and named.split(".")[0] != node.split(".")[0]:
        raise ConfigError("it answers for node {!r}".format(named[:100]))
    age_s = document.get("age_s")
    reason = " ".join(str(document.get("reason", "")).split())[:500]
    binding = parse_binding(json.dumps(document.get("binding")))
    # What YARN calls the node and what the agent calls it may differ by the domain.
    is_known = isinstance(age_s, (int, float)) and math.isfinite(age_s)
    age = float(age_s or 0) if is_known else 0.0
    routing_hints = parse_routing_hints(document, binding, named or node, age)
    return DiscoveredServers(binding, named, age_s=age, reason=reason, routing_hints=routing_hints)


def _from_agent(path: str, is_trusted: bool, node: str) -> DiscoveredServers:
    deadline_s = time.monotonic() + AGENT_TIMEOUT_S
    sock = socket.SocketType(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(AGENT_TIMEOUT_S)
        sock.connect(path)
        if not is_trusted:
            check_peer(sock)
        sock.sendall(_QUESTION)
        raw = b""
        while not raw.endswith(b"\n"):
            sock.settimeout(max(0.001, deadline_s - time.monotonic()))
            part = sock.recv(65536)
            if not part:
                break
            raw += part
            if len(raw) > MAX_ANSWER_BYTES:
                raise ConfigError("the answer is longer than {} bytes".format(MAX_ANSWER_BYTES))
            if time.monotonic() >= deadline_s and not raw.endswith(b"\n"):
                raise socket.timeout()
    finally:
        sock.close()
    return _found(raw, node, "agent", path)


def check_peer(sock: socket.SocketType) -> None:
    """Raise ConfigError unless root or this task's own user listens at the other end."""
    user = peer_uid(sock)
    if user not in (0, os.geteuid()):
        raise ConfigError("user {} listens there, neither root nor this task's".format(user))


def _from_master(url: str, node: str) -> DiscoveredServers:
    # Imported here: with an agent, no mapper needs it.
    import http.client
    import urllib.request
    from urllib.parse import quote

    if not url.startswith(("http://", "https://")):
        raise ConfigError("not an address with http:// or https://")
    where = "{}{}?node={}".format(url.rstrip("/"), SERVERS_PATH, quote(node, safe=""))
    # A proxy named in the environment is not used: the master is inside the cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline_s = time.monotonic() + MASTER_TIMEOUT_S
    raw = b""
    try:
        with opener.open(where, timeout=MASTER_TIMEOUT_S) as answer:
            while True:
                part = answer.read1(65536)
                if not part:
                    break
                raw += part
                if len(raw) > MAX_ANSWER_BYTES:
                    raise ConfigError("the answer is longer than {} bytes".format(MAX_ANSWER_BYTES))
                if time.monotonic() >= deadline_s:
                    raise socket.timeout()
    except http.client.HTTPException as error:
        raise ConfigError("no HTTP: {!r}".format(error)) from None
    return _found(raw, node, "master", where)


def _found(raw: bytes, node: str, source: str, where: str) -> DiscoveredServers:
    parsed = parse_servers(raw, node)
    reason = parsed.reason
    if not parsed.binding.servers and not reason:
        reason = "the {} knows no server for this node".format(source)
    return replace(parsed, source=source, where=where, reason=reason)


def _why(error: Any) -> str:
    if isinstance(error, socket.timeout):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return " ".join(str(getattr(error, "reason", "") or error).split())[:200]
