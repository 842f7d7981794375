"""Parses an agent's heartbeat, and makes the response: values and JSON, no I/O.

An agent reports on its own node only: the server's node is the node whose key signed the heartbeat.  Texts
and numbers are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from yarn_accel.client.binding import Binding, Endpoint, parse_binding
from yarn_accel.core.application import NodeAssignment
from yarn_accel.core.application.events import ServerGauges, StatusReported
from yarn_accel.core.binding import DeviceWeights
from yarn_accel.errors import ConfigError, RejectedError
from yarn_accel.master.launch_plan import SERVER_ROLE
from yarn_accel.node.loads import ServerLoad, load_document, parse_load

AGENT_ROLE = "agent"
MAX_SERVERS = 256
_SENDER = "agent:"
_SERVING = ("ok", "unwatched")
#: Said of a server that does not serve; others: "it is <health>".
_DETAILS = {"silent": "it does not answer", "hung": "it hangs and is replaced"}
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
    load: ServerLoad = field(default_factory=ServerLoad)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat.

    Attributes:
        has_device: a healthy accelerator, or only broken ones; None: the agent knows of none.
        devices: names of the devices that work.
        server: None: the node has none.
    """

    node: str
    has_device: bool | None
    devices: tuple[str, ...]
    server: ServerStatus | None


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
    return Heartbeat(node, has_device, names, status)


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
        gauges=ServerGauges(capacity, server.n_open, weight_of(heartbeat, weights)),
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


def _count(value: Any) -> int:
    """Figures come as whole numbers written as floats."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_COUNT:
        return 0
    return int(value)
