"""What a pipeline server says about itself, as values: its state file and its ``/metrics``; no I/O."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from yarn_accel.client.binding import Endpoint
from yarn_accel.errors import RemoteProtocolError

__all__ = ["ServerState", "endpoint_of", "is_local_only", "parse_metrics", "parse_state"]

_PREFIX = "yarn_accel_pipeline_"
_SAMPLE = re.compile(r"yarn_accel_pipeline_(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>[^ ]+)\Z")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_MAX_OPERATIONS = 32
_MAX_PORT = 65535

#: figure -> (metric, label, value of the label that counts or "" for all); samples are added up.
_FIGURES = {
    "in_flight": ("in_flight_requests", "", ""),
    "queued": ("tenant_queued_requests", "", ""),
    "queue_bytes": ("queue_bytes", "", ""),
    "queue_bound_bytes": ("queue_bound_bytes", "", ""),
    "pool_used_bytes": ("pool_bytes", "state", "used"),
    "pool_bound_bytes": ("pool_bound_bytes", "", ""),
    "requests": ("requests_total", "", ""),
    "done": ("answers_total", "outcome", "done"),
    "rejected": ("answers_total", "outcome", "rejected"),
    "failed": ("answers_total", "outcome", "failed"),
    "busy": ("answers_total", "outcome", "busy"),
    "device_s": ("tenant_device_seconds_total", "", ""),
    "read_busy_s": ("stage_busy_seconds_total", "stage", "read"),
    "compute_busy_s": ("stage_busy_seconds_total", "stage", "compute"),
    "write_busy_s": ("stage_busy_seconds_total", "stage", "write"),
    "workers": ("worker_processes", "", ""),
    "is_healthy": ("healthy_servers", "", ""),
    "is_draining": ("draining_servers", "", ""),
}


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state file of a pipeline server.

    Attributes:
        is_well: whether it could compute, and knew of no problem, when it wrote the file.
    """

    pid: int
    name: str
    host: str
    port: int
    unix_path: str
    http_host: str = ""
    http_port: int = 0
    tls: bool = False
    started_at: str = ""
    is_well: bool = False


def parse_state(text: str) -> ServerState:
    """Read a state file.

    Raises:
        RemoteProtocolError: it is not one; the message names the key.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise RemoteProtocolError("the server's state file is not JSON") from None
    if not isinstance(values, dict):
        raise RemoteProtocolError("the server's state file is not an object")
    if values.get("pid", 0) == 0:
        raise RemoteProtocolError("the server's state file: pid is 0")
    return ServerState(
        pid=_whole(values, "pid", 2**31),
        name=_text(values, "name"),
        host=_text(values, "host"),
        port=_whole(values, "port", _MAX_PORT),
        unix_path=_text(values, "unix_path"),
        http_host=_text(values, "http_host"),
        http_port=_whole(values, "http_port", _MAX_PORT),
        tls=values.get("tls") is True,
        started_at=_text(values, "started_at"),
        is_well=values.get("is_well") is True,
    )


def endpoint_of(state: ServerState, node: str, address: str) -> Endpoint:
    """Where the server listens, as other nodes must know it.

    Args:
        address: where others reach this node; takes the place of "every address".
    """
    host = address if state.host in ("0.0.0.0", "::", "") else state.host
    name = state.name or f"{node}:{state.port}"
    return Endpoint(name, host if state.port else "", state.port, state.unix_path, node, state.tls)


def is_local_only(endpoint: Endpoint, address: str) -> bool:
    """Whether no other node can reach it: it has only a Unix socket, or a foreign loopback address."""
    if not endpoint.port:
        return True
    if endpoint.host == address:
        return False
    try:
        return ipaddress.ip_address(endpoint.host).is_loopback
    except ValueError:
        return endpoint.host == "localhost"


def parse_metrics(text: str) -> dict[str, Any]:
    """The figures a heartbeat carries, from the text of ``/metrics``; what is not there is not in the result.

    ``operations`` maps an operation to how many were ``done`` and the ``compute_s`` they took;
    ``computing_workers`` are ``workers`` without those that stand by.

    Raises:
        RemoteProtocolError: this is not the metrics of a pipeline server.
    """
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line) if line.startswith(_PREFIX) else None
        if match is not None:
            labels = dict(_LABEL.findall(match["labels"] or ""))
            samples.setdefault(match["name"], []).append((labels, _number(match["value"])))
    if "healthy_servers" not in samples:
        raise RemoteProtocolError("these are not the metrics of a pipeline server")
    figures: dict[str, Any] = {}
    for figure, (metric, label, wanted) in _FIGURES.items():
        values = [
            value for labels, value in samples.get(metric, ()) if not label or labels.get(label) == wanted
        ]
        if values and all(math.isfinite(value) for value in values):
            figures[figure] = round(sum(values), 6)
    figures["is_healthy"] = bool(figures.get("is_healthy"))
    figures["is_draining"] = bool(figures.get("is_draining"))
    computing = [
        value for labels, value in samples.get("worker_processes", ()) if labels.get("state") != "standby"
    ]
    if computing and math.isfinite(sum(computing)):
        figures["computing_workers"] = sum(computing)
    figures["operations"] = _operations(samples)
    return figures


def _operations(samples: dict[str, list[tuple[dict[str, str], float]]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for labels, value in samples.get("operation_requests_total", ()):
        if labels.get("outcome") == "done" and math.isfinite(value) and len(found) < _MAX_OPERATIONS:
            found[labels.get("operation", "")[:100]] = {"done": value, "compute_s": 0.0}
    for labels, value in samples.get("operation_compute_seconds_total", ()):
        operation = labels.get("operation", "")[:100]
        if operation in found and math.isfinite(value):
            found[operation]["compute_s"] = round(value, 6)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _text(values: dict[str, Any], key: str) -> str:
    value = values.get(key, "")
    if not isinstance(value, str) or len(value) > 255:
        raise RemoteProtocolError(f"the server's state file: {key} is not text")
    return value


def _whole(values: dict[str, Any], key: str, limit: int) -> int:
    value = values.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise RemoteProtocolError(f"the server's state file: {key} is not a number from 0 to {limit}")
    return value
