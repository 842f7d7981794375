"""Which pipeline server a task on a node should use, and why.

A binding is a value: the servers, the racks of the nodes, and for each node without an accelerator the
servers it was bound to. It is fed from a file (JSON, version 1)::

    {"version": 1,
     "servers": [{"name": "w1", "host": "10.0.0.1", "port": 7070, "unix_path": "", "node": "w1",
                  "tls": false, "ca_file": ""}],
     "racks": {"w1": "/rack1", "w2": "/rack1"},
     "bound": {"w2": ["w1"]}}

Who writes the file is somebody else's business, and so is reading it: this module does no input or output.
Standard library only, Python 3.8: mappers import it.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from yarn_accel.errors import ConfigError

VERSION = 1
_SERVER_KEYS = ("name", "host", "port", "unix_path", "node", "tls", "ca_file")
_TOP_KEYS = ("version", "servers", "racks", "bound")


class Reason(enum.Enum):
    """Why an endpoint is in a node's list; the order of the members is the order of preference."""

    OWN_NODE = "own-node"
    BOUND = "bound"
    SAME_RACK = "same-rack"
    OTHER = "other"


@dataclass(frozen=True)
class Endpoint:
    """Where one pipeline server listens.

    Attributes:
        name: unique name of the server in its binding.
        host: address for TCP; may be empty when only ``unix_path`` is served.
        port: TCP port, 0 when there is none.
        unix_path: path of the Unix socket on the server's node, empty when there is none.
        node: the node the server runs on, as YARN names it; empty when unknown.
        tls: the TCP port uses TLS.
        ca_file: file with the authority (PEM) that signed the server's certificate, on the task's node or
            among the job's files; empty: one that the node trusts anyway.
    """

    name: str
    host: str
    port: int
    unix_path: str = ""
    node: str = ""
    tls: bool = False
    ca_file: str = ""

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Binding:
    """All a task needs to choose its servers.

    Attributes:
        servers: every pipeline server, in the order of the file.
        racks: rack of each node, such as ``{"w1": "/rack1"}``.
        bound: for a node, the names of the servers it was bound to, best first.
    """

    servers: Tuple[Endpoint, ...] = ()
    racks: Mapping[str, str] = field(default_factory=dict)
    bound: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)


def choose(binding: Binding, node: str, spread: int = 0) -> Tuple[Endpoint, ...]:
    """Every server in the order in which a task on ``node`` should try them.

    Args:
        binding: the current binding.
        node: the task's node, as YARN names it.
        spread: any number that differs between tasks (a task number): rotates servers that are equally near.

    Returns:
        the node's own servers, then those it is bound to, then those of its rack, then all others.
    """
    return tuple(endpoint for endpoint, _ in explain(binding, node, spread))


def explain(binding: Binding, node: str, spread: int = 0) -> List[Tuple[Endpoint, Reason]]:
    """As `choose`, each endpoint with the reason for its place."""
    order = {name: i for i, name in enumerate(binding.bound.get(node, ()))}
    groups: Dict[Reason, List[Endpoint]] = {reason: [] for reason in Reason}
    for endpoint in binding.servers:
        groups[_reason(binding, node, endpoint, order)].append(endpoint)
    groups[Reason.BOUND].sort(key=lambda endpoint: order[endpoint.name])
    for reason in (Reason.OWN_NODE, Reason.SAME_RACK, Reason.OTHER):
        groups[reason] = _rotated(groups[reason], spread)
    return [(endpoint, reason) for reason in Reason for endpoint in groups[reason]]


def _reason(binding: Binding, node: str, endpoint: Endpoint, order: Mapping[str, int]) -> Reason:
    if node and endpoint.node == node:
        return Reason.OWN_NODE
    if endpoint.name in order:
        return Reason.BOUND
    rack = binding.racks.get(node)
    if rack is not None and binding.racks.get(endpoint.node) == rack:
        return Reason.SAME_RACK
    return Reason.OTHER


def _rotated(endpoints: List[Endpoint], spread: int) -> List[Endpoint]:
    if not endpoints:
        return endpoints
    start = spread % len(endpoints)
    return endpoints[start:] + endpoints[:start]


def format_binding(binding: Binding) -> str:
    """The binding as JSON text; `parse_binding` gives an equal binding back."""
    document = {
        "version": VERSION,
        "servers": [{key: getattr(server, key) for key in _SERVER_KEYS} for server in binding.servers],
        "racks": dict(binding.racks),
        "bound": {node: list(names) for node, names in binding.bound.items()},
    }
    return json.dumps(document, indent=1) + "\n"


def parse_binding(text: str) -> Binding:
    """Read a binding from JSON text.

    Raises:
        ConfigError: naming the place in the document (such as ``servers[1].port``) and what was expected
        there.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError("binding: not JSON: {}".format(error)) from None
    top = _mapping(document, "binding")
    _known(top, _TOP_KEYS, "binding")
    if top.get("version") != VERSION:
        raise ConfigError(
            "binding: version is {!r}, this program reads {}".format(top.get("version"), VERSION)
        )
    servers = tuple(_servers(top.get("servers", [])))
    names = {server.name for server in servers}
    racks = {
        node: _text(rack, "racks." + node) for node, rack in _mapping(top.get("racks", {}), "racks").items()
    }
    bound = {
        node: tuple(_bound_names(value, "bound." + node, names))
        for node, value in _mapping(top.get("bound", {}), "bound").items()
    }
    return Binding(servers, racks, bound)


def _servers(value: Any) -> Iterator[Endpoint]:
    seen = set()
    for i, item in enumerate(_list(value, "servers")):
        place = "servers[{}]".format(i)
        server = _endpoint(_mapping(item, place), place)
        if server.name in seen:
            raise ConfigError("{}.name: {!r} is used twice".format(place, server.name))
        seen.add(server.name)
        yield server


def _endpoint(item: Mapping[str, Any], place: str) -> Endpoint:
    _known(item, _SERVER_KEYS, place)
    name = _text(item.get("name", ""), place + ".name")
    host = _text(item.get("host", ""), place + ".host")
    unix_path = _text(item.get("unix_path", ""), place + ".unix_path")
    node = _text(item.get("node", ""), place + ".node")
    port = item.get("port", 0)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ConfigError("{}.port: expected a number from 0 to 65535, found {!r}".format(place, port))
    if not name:
        raise ConfigError("{}.name: expected a name, found nothing".format(place))
    if not unix_path and not (host and port):
        raise ConfigError("{}: expected host and port, or unix_path, found neither".format(place))
    tls = item.get("tls", False)
    if not isinstance(tls, bool):
        raise ConfigError("{}.tls: expected true or false, found {!r}".format(place, tls))
    ca_file = _text(item.get("ca_file", ""), place + ".ca_file")
    return Endpoint(name, host, port, unix_path, node, tls, ca_file)


def _bound_names(value: Any, place: str, known: Iterable[str]) -> Iterator[str]:
    for i, item in enumerate(_list(value, place)):
        name = _text(item, "{}[{}]".format(place, i))
        if name not in known:
            raise ConfigError(
                "{}[{}]: no server is named {!r}; known: {}".format(
                    place, i, name, ", ".join(sorted(known)) or "none"
                )
            )
        yield name


def _known(item: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for key in item:
        if key not in known:
            raise ConfigError("{}: unknown key {!r}; known: {}".format(place, key, ", ".join(known)))


def _mapping(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError("{}: expected an object, found {}".format(place, type(value).__name__))
    return value


def _list(value: Any, place: str) -> List[Any]:
    if not isinstance(value, list):
        raise ConfigError("{}: expected a list, found {}".format(place, type(value).__name__))
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise ConfigError("{}: expected text, found {}".format(place, type(value).__name__))
    return value
