"""The agents of the nodes: their heartbeats are parsed, become events of the core, and are answered.

An agent reports on its own node only: the server's node is the node whose key signed the heartbeat. Texts and
numbers are bounded. Heartbeats are the core's only source of the servers' status. For late binding the
response has the cluster's counts, verifiers of credentials, and figures of other nodes.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from yarn_accel.adapters.credentials import RevocationList
from yarn_accel.client.binding import Binding, Endpoint, parse_binding
from yarn_accel.core.application import Application, NodeAssignment
from yarn_accel.core.application.events import (
    Event,
    NodesReported,
    ServerGauges,
    ServersWanted,
    StatusReported,
)
from yarn_accel.core.binding import DeviceWeights
from yarn_accel.core.ended_applications import application_ids
from yarn_accel.core.late_binding_reports import (
    MAX_IDENTIFIERS,
    ClusterCounts,
    ClusterFigures,
    counts_document,
    figures_document,
    parse_counts,
    parse_figures,
)
from yarn_accel.errors import AccelError, AuthenticationError, ConfigError, RejectedError, UnavailableError
from yarn_accel.master.config import MasterConfig
from yarn_accel.master.ended_applications import EndedApplications
from yarn_accel.master.environment import SERVER_ROLE
from yarn_accel.master.inventory import Inventory
from yarn_accel.master.plugin import Serving
from yarn_accel.master.status_documents import AgentStatistics
from yarn_accel.node.heartbeat_response import ServerLoad, load_document, parse_load
from yarn_accel.wire.credential import (
    Credential,
    claim_token,
    claim_verifier,
    derive_key,
    parse_identifier,
)

AGENT_ROLE = "agent"
MAX_SERVERS = 256
_SENDER = "agent:"
_SERVING = ("ok", "unwatched")
#: Details of a server that does not serve, by its health; of other healths: "it is <health>".
_DETAILS = {"silent": "it does not answer", "hung": "it hangs and is replaced"}
#: The longest time in which an agent finds a new master.
_YOUNG_S = 10.0
_MAX_IDENTIFIER = 512
_MAX_TEXT = 200
_MAX_COUNT = 2**53
_CONTAINER = re.compile(r"container_(?:e[0-9]+_)?(?P<application>[0-9]+_[0-9]+)_[0-9]+_[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of the node's server.

    Attributes:
        container: the server's container; empty: not known.
        is_gone: its process is dead.
        is_hung: its process neither answers nor runs.
        n_open: requests it has taken and not answered.
        n_taken: requests it has ever taken.
        load: what clients need to choose among servers.
    """

    endpoint: Endpoint
    container: str
    is_gone: bool
    is_hung: bool
    is_healthy: bool
    detail: str
    n_workers: int
    n_open: int
    n_taken: int
    load: ServerLoad = field(default_factory=ServerLoad)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat.

    Attributes:
        has_device: a healthy accelerator, or only broken ones; None: the agent knows of none.
        devices: names of the devices that work.
        server: None: the node has none.
        asked_age_s: how long ago a task of the node last asked for servers; None: not that the agent knows.
        applications: whose tokens the server has.
    """

    node: str
    has_device: bool | None
    devices: tuple[str, ...]
    server: ServerStatus | None
    asked_age_s: float | None = None
    applications: tuple[str, ...] = ()


class Agents:
    """All agents.

    Args:
        figures: statistics of heartbeats, for people.
        tell: takes the events of a heartbeat.
        clock: of events.
        application, attempt: ours, for the responses.
        is_settled: the first bindings are made. A later attempt collects reports first, and some agents
            report late: until then no response says that there is no server, and agents keep the last one.
        late_binding: answers the agents' part of late binding.
        ended: knows which applications have ended that servers have sessions of.
    """

    def __init__(
        self,
        config: MasterConfig,
        core: Application,
        inventory: Inventory,
        figures: AgentStatistics,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
        application: str,
        attempt: int,
        is_settled: Callable[[], bool],
        late_binding: LateBindingReports,
        ended: EndedApplications,
    ) -> None:
        self._interval_s = config.agent_interval_s
        self._mappers_per_worker = config.mappers_per_worker
        self._weights = config.device_weights
        self._choice = config.choice
        self._core = core
        self._inventory = inventory
        self._tell = tell
        self._clock = clock
        self._application, self._attempt = application, attempt
        self._is_settled = is_settled
        self._late_binding = late_binding
        self._ended = ended
        self._young_until_s = core.awake_s(clock()) + (_YOUNG_S if attempt > 1 else 0.0)
        self._statistics = figures
        self._servers: dict[str, ServerStatus | None] = {}
        self._loads: dict[str, ServerLoad | None] = {}
        self._n_devices: dict[str, int] = {}
        self._wanted_s = -math.inf
        self.n_heard = 0

    async def heartbeat(self, sender: str, document: Any) -> Any:
        """Apply a heartbeat; returns the response.

        Raises:
            RejectedError: it is none.
            UnavailableError: nothing is bound yet.
        """
        heartbeat = parse_heartbeat(sender, document, self._application)
        now_s = self._clock()
        self.n_heard += 1
        self._statistics.heard(heartbeat.node, document, now_s)
        view = self._inventory.devices(heartbeat.node, heartbeat.has_device)
        if view is not None:
            self._tell(NodesReported((view,), now_s))
        before = self._servers.get(heartbeat.node)
        self._servers[heartbeat.node] = heartbeat.server
        self._loads[heartbeat.node] = load_of(heartbeat, self._weights)
        self._n_devices[heartbeat.node] = len(heartbeat.devices)
        if heartbeat.asked_age_s is not None:
            self.wanted(heartbeat.asked_age_s)
        for event in status_events(heartbeat, before, now_s, self._weights, self._mappers_per_worker):
            self._tell(event)
        assignment = self.assignment(heartbeat.node)
        if assignment is None:
            raise UnavailableError("nothing is bound yet in this attempt")
        response = response_document(
            assignment,
            heartbeat.node,
            self.rack,
            interval_s=self._interval_s,
            application=self._application,
            attempt=self._attempt,
            policy=self._choice,
            loads=self._loads,
        )
        if over := self._ended.noted(heartbeat.node, heartbeat.applications):
            response["ended_applications"] = over
        return {**response, **self._late_binding.answer(heartbeat.node, document, now_s)}

    def assignment(self, node: str) -> NodeAssignment | None:
        """The servers of a node; None: not known yet, see `is_settled`."""
        if not self._is_settled():
            return None
        assignment = self._core.assignment(node)
        is_young = self._core.awake_s(self._clock()) < self._young_until_s
        return None if is_young and not assignment.servers else assignment

    def wanted(self, age_s: float = 0.0) -> None:
        """Somebody asked for servers so long ago; the core hears of it once a second at most."""
        now_s = self._clock()
        if now_s - age_s >= self._wanted_s + 1.0:
            self._wanted_s = now_s - age_s
            self._tell(ServersWanted(age_s, now_s))

    def serving(self) -> Serving:
        """The pipeline servers that serve, their GPUs, and which one each node asks first.

        A server without GPUs counts as many as it computes at once.
        """
        n_gpus = {
            node: min(self._n_devices[node] or server.n_workers, server.n_workers)
            for node, server in self._servers.items()
            if server is not None and server.is_healthy
        }
        first = {node: self._core.assignment(node).servers[:1] for node in self._servers}
        server_of = {node: found[0][0] for node, found in first.items() if found and found[0][0] in n_gpus}
        return n_gpus, server_of

    def rack(self, node: str) -> str | None:
        """The rack of a node."""
        return self._inventory.rack(node)

    def forget(self) -> None:
        """Drop the status of nodes that are gone."""
        for node in [node for node in self._servers if node not in self._inventory]:
            del self._servers[node], self._loads[node], self._n_devices[node]


class LateBindingReports:
    """The master's part of late binding: the cluster's counts, verifiers of credentials, shared figures.

    Args:
        secret: the pipeline servers' master secret; empty: the master has none.
        revoked_file: see `PipelineConfig.revoked_file`.
        clock: Unix seconds, against which credentials expire.
    """

    def __init__(self, secret: bytes, revoked_file: str = "", clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._revoked_file = revoked_file
        self._revoked: RevocationList | None = None
        self._clock = clock
        self._counts = ClusterCounts()
        self._figures = ClusterFigures()
        #: Of this master: another one has other sequence numbers.
        self._epoch = int(clock() * 1000)

    def answer(self, node: str, heartbeat: Mapping[str, Any], now_s: float) -> dict[str, Any]:
        """The part of the answer to a heartbeat; empty where the agent does not bind late.

        Args:
            node: whose key signed the heartbeat.
        """
        document, epoch = heartbeat.get("late_binding"), heartbeat.get("epoch")
        if not isinstance(document, Mapping):
            return {}
        number = epoch if isinstance(epoch, int) else 0
        elsewhere = self._counts.report(node, number, parse_counts(document.get("apps")), now_s)
        identifiers = document.get("identifiers")
        wanted = identifiers[:MAX_IDENTIFIERS] if isinstance(identifiers, list) else ()
        verifiers = {
            each: self._verifier(each, node)
            for each in wanted
            if isinstance(each, str) and len(each) <= _MAX_IDENTIFIER
        }
        answer = {"apps": counts_document(elsewhere), "verifiers": verifiers}
        return {"late_binding": {**answer, **self._shared(node, document, now_s)}}

    def _shared(self, node: str, document: Mapping[str, Any], now_s: float) -> dict[str, Any]:
        """Take in the figures that a node measured; those of others that it has not got yet."""
        if "figures" not in document:
            return {}
        self._figures.report(node, parse_figures(document["figures"]), now_s)
        seen = document.get("figures_seen")
        sequence = 0
        if isinstance(seen, list) and len(seen) == 2 and seen[0] == self._epoch and isinstance(seen[1], int):
            sequence = seen[1]
        rows = self._figures.since(sequence, node, now_s)
        return {"figures": figures_document(rows), "figures_seen": [self._epoch, self._figures.sequence]}

    def _verifier(self, identifier: str, node: str) -> dict[str, str]:
        """``sha256`` or ``refused``; neither without a secret."""
        if not self._secret:
            return {}
        try:
            shown = parse_identifier(identifier.encode("utf-8", "replace"))
            if self._revoked is None:
                self._revoked = RevocationList(self._revoked_file)
            if self._revoked.now().covers(shown.tenant, shown.key_id):
                raise AuthenticationError("it is revoked")
            if shown.expires_s <= self._clock():
                raise AuthenticationError("it has expired")
        except AccelError as error:
            return {"refused": error.message}
        key = derive_key(self._secret, shown.identifier())
        credential = Credential(shown.tenant, shown.expires_s, shown.key_id, key)
        return {"sha256": claim_verifier(claim_token(credential, node))}


def parse_heartbeat(sender: str, document: Any, application: str) -> Heartbeat:
    """Parse a heartbeat that `sender` signed; a server of another application is ignored.

    Args:
        application: ours, as YARN writes it.

    Raises:
        RejectedError: it is none, or of another node.
    """
    node = sender.removeprefix(_SENDER)
    if not sender.startswith(_SENDER) or not isinstance(document, dict) or document.get("node") != node:
        raise RejectedError("not-yours", f"{sender} sent no heartbeat of its own node")
    if document.get("version") != 1:
        raise RejectedError("bad-heartbeat", f"version {str(document.get('version'))[:40]}, not 1")
    found = document.get("devices")
    devices = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    healths = [str(each.get("health")) for each in devices]
    names = tuple(
        str(each.get("name"))[:_MAX_TEXT]
        for each, health in zip(devices, healths, strict=True)
        if health in ("ok", "hot")
    )
    has_device: bool | None = bool(names)
    if not devices or (not names and "silent" in healths):
        has_device = None
    server = document.get("server")
    status = _server(node, server, _count(document.get("seq"))) if isinstance(server, dict) else None
    if status is not None and not _is_of(status.container, application):
        status = None
    asked = document.get("asked_age_s")
    named = server.get("applications") if isinstance(server, dict) and status is not None else ()
    return Heartbeat(node, has_device, names, status, _age_s(asked), application_ids(named))


def status_events(
    heartbeat: Heartbeat,
    before: ServerStatus | None,
    now_s: float,
    weights: DeviceWeights,
    mappers_per_worker: float,
) -> list[StatusReported]:
    """The events of a heartbeat.

    Args:
        before: the server's status in the heartbeat before.
        weights: speeds by device, see `MasterConfig.weights`.
    """
    node, server = heartbeat.node, heartbeat.server
    events = [StatusReported(node, AGENT_ROLE, now_s)]
    if server is not None:
        # A dead one that does not name its container must not be taken for its replacement.
        is_repeated = server.is_gone and not server.container and before is not None and before.is_gone
        if not is_repeated:
            events.append(_server_event(heartbeat, server, now_s, weights, mappers_per_worker))
    elif before is not None:
        ended = StatusReported(
            node, SERVER_ROLE, now_s, before.container, None, is_healthy=False, detail="it has ended"
        )
        events.append(ended)
    return events


def _server_event(
    heartbeat: Heartbeat,
    server: ServerStatus,
    now_s: float,
    weights: DeviceWeights,
    mappers_per_worker: float,
) -> StatusReported:
    capacity = max(1, round(server.n_workers * mappers_per_worker))
    return StatusReported(
        heartbeat.node,
        SERVER_ROLE,
        now_s,
        server.container,
        server.endpoint if server.is_healthy else None,
        is_healthy=server.is_healthy,
        detail=server.detail,
        gauges=ServerGauges(capacity, server.n_open, weight_of(heartbeat, weights), server.n_taken),
        is_gone=server.is_gone,
        is_hung=server.is_hung,
    )


def weight_of(heartbeat: Heartbeat, weights: DeviceWeights) -> float:
    """The speed of a node's devices."""
    return weights.of_node(heartbeat.devices or (heartbeat.node,))


def load_of(heartbeat: Heartbeat, weights: DeviceWeights) -> ServerLoad | None:
    """The load of a node's server, for clients that choose among servers; None: it has none."""
    server = heartbeat.server
    if server is None:
        return None
    return replace(server.load, weight=weight_of(heartbeat, weights), accepts=server.is_healthy)


def binding_of(assignment: NodeAssignment, node: str, rack_of: Callable[[str], str | None]) -> Binding:
    """The servers of a node, in the mappers' format; servers are named after their nodes."""
    servers = tuple(each for _, each in assignment.servers[:MAX_SERVERS] if isinstance(each, Endpoint))
    names = {each.name for each in servers}
    nodes = (node, *(each.node for each in servers))
    racks = {each: rack for each in nodes if (rack := rack_of(each)) is not None}
    return Binding(servers, racks, {node: tuple(each for each in assignment.bound if each in names)})


def response_document(
    assignment: NodeAssignment,
    node: str,
    rack_of: Callable[[str], str | None],
    *,
    interval_s: float,
    application: str,
    attempt: int,
    policy: Mapping[str, Any] | None = None,
    loads: Mapping[str, ServerLoad | None] | None = None,
) -> dict[str, Any]:
    """The answer to a heartbeat.

    Args:
        policy: how to choose for every single request; None: each goes where its node is bound.
        loads: of all servers by node, for that choice.
    """
    binding = binding_of(assignment, node, rack_of)
    known = loads or {}
    found = {each.name: known.get(each.name) for each in binding.servers}
    known_loads = {name: load_document(load) for name, load in found.items() if load is not None}
    choice = {"policy": dict(policy), "loads": known_loads} if policy is not None else {}
    return {
        "version": 1,
        "servers": [asdict(each) for each in binding.servers],
        "bound": list(binding.bound[node]),
        "racks": dict(binding.racks),
        "interval_s": interval_s,
        "slots": assignment.slots,
        "application": application,
        "attempt": attempt,
        "revision": assignment.version,
        **choice,
    }


def _is_of(container: str, application: str) -> bool:
    match = _CONTAINER.match(container)
    return match is None or f"application_{match['application']}" == application


def _server(node: str, values: Mapping[str, Any], seq: int) -> ServerStatus:
    endpoint, container = _endpoint(node, values.get("endpoint")), str(values.get("container"))
    health = str(values.get("health"))[:_MAX_TEXT]
    problems = values.get("problems")
    texts = [str(each)[:_MAX_TEXT] for each in problems[:3]] if isinstance(problems, list) else []
    is_local_only = values.get("is_local_only") is True
    if is_local_only:
        texts.insert(0, "no other node can reach it")
    return ServerStatus(
        endpoint,
        container if _CONTAINER.match(container) else "",
        is_gone=health == "gone",
        is_hung=health == "hung",
        is_healthy=health in _SERVING and not is_local_only,
        detail="; ".join((_DETAILS.get(health, f"it is {health}"), *texts)),
        # Those that stand by compute nothing.
        n_workers=max(1, _count(values.get("computing_workers", values.get("workers")))),
        n_open=_count(values.get("in_flight")),
        n_taken=_count(values.get("requests")),
        load=replace(parse_load(values.get("load")), seq=seq),
    )


def _endpoint(node: str, values: Any) -> Endpoint:
    """Where the server listens, renamed after its node."""
    document = {"version": 1, "servers": [values]}
    try:
        (endpoint,) = parse_binding(json.dumps(document)).servers
    except (ConfigError, ValueError, TypeError) as error:
        raise RejectedError("bad-heartbeat", f"server.endpoint: {error}") from None
    return replace(endpoint, name=node, node=node)


def _age_s(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _MAX_COUNT else None


def _count(value: Any) -> int:
    """Figures come as whole numbers written as floats."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_COUNT:
        return 0
    return int(value)
