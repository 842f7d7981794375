"""The master's response to a heartbeat, and the agent's response to local mappers: values and JSON, no I/O.

The master's response::

    {"version": 1, "servers": [Endpoint, ...], "bound": ["w1"], "racks": {"w1": "/r1", "w2": "/r1"},
     "interval_s": 1.0, "slots": 4, "application": "application_1_0001", "attempt": 2, "revision": 17,
     "policy": {"name": "container", "max_moves": 1}, "loads": {"w1": {"seq": 7, "queue_s": 0.2, ...}}}

``servers`` are all servers that this node may use; ``bound`` names those it is bound to, in order. Only
``version`` and ``servers`` are mandatory. ``policy`` and ``loads`` are present when mappers choose a server
for every request, and are passed on to them.

An agent measures the load of its own server (`server_stats.LoadMeter`) and sends it with its heartbeat; under
the policy `container` the master sends it to the agents of all nodes that may use that server, and these pass
it on to their mappers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from yarn_accel.client.binding import Binding, Endpoint, format_binding, parse_binding
from yarn_accel.core.ended_applications import application_ids
from yarn_accel.errors import ConfigError, RemoteProtocolError

VERSION = 1
MAX_SERVERS = 256
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.1, 60.0
_MAX_NUMBER = 2**53
_MAX_SETTINGS, _MAX_SETTING = 16, 100
MAX_OPERATIONS = 32
_MAX_QUEUE_S = 1e6
_MAX_NAME = 100
_MAX_SEQ = 2**53


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The load of a server, for clients that choose among servers.

    Attributes:
        seq: number of the report it comes from.
        queue_s: expected seconds until all requests that it has taken are computed.
        rates: requests per second that the whole server computes, by operation; measured ones only.
        weight: speed of its devices against the others', above 0.
        accepts: whether it takes requests.
    """

    seq: int = 0
    queue_s: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1.0
    accepts: bool = True


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """The master's response to one node.

    Attributes:
        binding: the servers this node may use, and which of them it was bound to.
        interval_s: the pause between heartbeats that the master asks for; 0: none given.
        slots: accelerated mappers this node may run at once; None: not limited by the master.
        application: the master's application; with ``attempt`` it tells an old attempt from a new one.
        attempt: counts the attempts of that application.
        revision: counts the changes of the binding; for people.
        policy: name and settings of the choice per request; empty: requests follow the binding.
        loads: loads of the servers, by name.
        late_binding: for `NodeLateBinding`, which checks it.
        ended: applications whose sessions this node's server must end.
    """

    binding: Binding
    interval_s: float = 0.0
    slots: int | None = None
    application: str = ""
    attempt: int = 0
    revision: int = 0
    policy: Mapping[str, Any] = field(default_factory=dict)
    loads: Mapping[str, ServerLoad] = field(default_factory=dict)
    late_binding: Mapping[str, Any] = field(default_factory=dict)
    ended: tuple[str, ...] = ()

    def is_older_than(self, other: HeartbeatResponse | None) -> bool:
        """Whether it is from an earlier attempt of the same application."""
        return other is not None and other.application == self.application and other.attempt > self.attempt


def parse_response(document: Any, node: str) -> HeartbeatResponse:
    """Parse and check a response.

    Raises:
        RemoteProtocolError: names the place.
    """
    if not isinstance(document, dict):
        raise RemoteProtocolError("the master's answer is not an object")
    servers, bound = document.get("servers"), document.get("bound", [])
    if document.get("version") != VERSION:
        version = str(document.get("version"))[:40]
        raise RemoteProtocolError(f"the master's answer has version {version}, not {VERSION}")
    if not isinstance(servers, list) or len(servers) > MAX_SERVERS:
        raise RemoteProtocolError(f"the master's answer: servers is not a list of at most {MAX_SERVERS}")
    text = json.dumps(
        {"version": 1, "servers": servers, "racks": document.get("racks", {}), "bound": {node: bound}}
    )
    try:
        binding = parse_binding(text)
    except ConfigError as error:
        raise RemoteProtocolError(f"the master's answer: {error}") from None
    slots = document.get("slots")
    return HeartbeatResponse(
        binding=_as_seen_from(binding, node),
        interval_s=_interval(document.get("interval_s")),
        slots=None if slots is None else _count(slots, "slots"),
        application=str(document.get("application", ""))[:100],
        attempt=_count(document.get("attempt", 0), "attempt"),
        revision=_count(document.get("revision", 0), "revision"),
        policy=_policy(document.get("policy")),
        loads=_loads(document.get("loads")),
        late_binding=late if isinstance(late := document.get("late_binding"), dict) else {},
        ended=application_ids(document.get("ended_applications")),
    )


def response_document(answer: HeartbeatResponse, node: str) -> dict[str, Any]:
    """A response in the format that `parse_response` reads."""
    return {
        "version": VERSION,
        "servers": [asdict(server) for server in answer.binding.servers],
        "bound": list(answer.binding.bound.get(node, ())),
        "racks": dict(answer.binding.racks),
        "interval_s": answer.interval_s or None,
        "slots": answer.slots,
        "application": answer.application,
        "attempt": answer.attempt,
        "revision": answer.revision,
        **_requests_document(answer, {server.name for server in answer.binding.servers}),
    }


def local_response(
    node: str,
    answer: HeartbeatResponse | None,
    *,
    age_s: float,
    reason: str,
    own: Endpoint | None,
    is_own_down: bool,
    stale_s: float,
) -> dict[str, Any]:
    """The response to a local mapper.

    Args:
        answer: the master's last response; None: there was none.
        age_s: its age.
        reason: why the master does not answer now; empty: it does.
        own: this node's own server, when it answers.
        is_own_down: this node's server is dead, silent or hung, which the agent knows before the master.
        stale_s: after so long without the master the node's own server is added in any case.
    """
    binding = answer.binding if answer is not None else Binding()
    servers = tuple(s for s in binding.servers if not (is_own_down and s.node == node))
    if own is not None and (answer is None or age_s > stale_s) and all(s.name != own.name for s in servers):
        servers = (own, *servers)
    names = {server.name for server in servers}
    bound = {key: tuple(n for n in value if n in names) for key, value in binding.bound.items()}
    document = json.loads(format_binding(Binding(servers, binding.racks, bound)))
    return {
        "v": 1,
        "node": node,
        "binding": document,
        "age_s": None if answer is None else round(age_s, 3),
        "reason": reason if servers or reason else "the master has bound no server to this node",
        "slots": None if answer is None else answer.slots,
        **({} if answer is None else _requests_document(answer, names)),
    }


def _requests_document(answer: HeartbeatResponse, names: set[str]) -> dict[str, Any]:
    """Policy and loads for the choice per request; empty without one."""
    if not answer.policy:
        return {}
    loads = {name: load_document(load) for name, load in answer.loads.items() if name in names}
    return {"policy": dict(answer.policy), "loads": loads}


def _as_seen_from(binding: Binding, node: str) -> Binding:
    """Without the Unix sockets of other nodes, whose paths mean nothing, or another server, on this one."""
    servers = tuple(s if s.node == node else replace(s, unix_path="") for s in binding.servers)
    servers = tuple(s for s in servers if s.unix_path or (s.host and s.port))
    names = {server.name for server in servers}
    bound = {key: tuple(n for n in value if n in names) for key, value in binding.bound.items()}
    return Binding(servers, binding.racks, bound)


def _policy(value: Any) -> dict[str, Any]:
    """Name and settings; those who use them check each."""
    if not isinstance(value, dict):
        return {}
    plain = {str(key)[:_MAX_SETTING]: each for key, each in list(value.items())[:_MAX_SETTINGS]}
    return {
        key: each[:_MAX_SETTING] if isinstance(each, str) else each
        for key, each in plain.items()
        if isinstance(each, str) or (isinstance(each, int | float) and math.isfinite(each))
    }


def _loads(value: Any) -> dict[str, ServerLoad]:
    if not isinstance(value, dict):
        return {}
    return {str(name): parse_load(each) for name, each in list(value.items())[:MAX_SERVERS]}


def _interval(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RemoteProtocolError(f"the master's answer: interval_s is {str(value)[:40]}, not seconds")
    return min(_MAX_INTERVAL_S, max(_MIN_INTERVAL_S, float(value)))


def _count(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_NUMBER:
        raise RemoteProtocolError(f"the master's answer: {key} is {str(value)[:40]}, not a count")
    return value


def parse_load(document: Any, seq: int = 0, weight: float = 1.0) -> ServerLoad:
    """Read a load; never raises: invalid values are left out.

    Args:
        document: as `load_document` writes it, or what a heartbeat says (``queue_s`` and ``rates`` only).
        seq, weight: for a document that does not say.
    """
    values = document if isinstance(document, dict) else {}
    rates = values.get("rates")
    good = {
        str(name)[:_MAX_NAME]: float(rate)
        for name, rate in (rates.items() if isinstance(rates, dict) else ())
        if _is_number(rate) and rate > 0
    }
    given_seq, given_weight = values.get("seq", seq), values.get("weight", weight)
    queue_s = values.get("queue_s", 0.0)
    return ServerLoad(
        seq=int(given_seq) if _is_number(given_seq) and 0 <= given_seq < _MAX_SEQ else seq,
        queue_s=min(max(float(queue_s), 0.0), _MAX_QUEUE_S) if _is_number(queue_s) else 0.0,
        rates=dict(list(good.items())[:MAX_OPERATIONS]),
        weight=float(given_weight) if _is_number(given_weight) and given_weight > 0 else weight,
        accepts=values.get("accepts", True) is True,
    )


def load_document(load: ServerLoad) -> dict[str, Any]:
    """A load as `parse_load` reads it."""
    return {
        "seq": load.seq,
        "queue_s": round(load.queue_s, 6),
        "rates": {name: float(f"{rate:.6g}") for name, rate in load.rates.items()},
        "weight": load.weight,
        "accepts": load.accepts,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
