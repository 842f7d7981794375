"""Sanitizes an agent's heartbeat for the state document: known keys, finite numbers, bounded texts and lists.

The texts are not escaped; whoever renders them must do it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_MAX_TEXT = 200
_MAX_ITEMS = 32
_MAX_NUMBER = 1e18

_DEVICE_TEXTS = ("device", "name", "health")
_DEVICE_NUMBERS = ("index", "temperature_c", "memory_bytes", "memory_total_bytes", "utilisation")
_SERVER_TEXTS = ("health", "started_at", "computes_on")
_SERVER_NUMBERS = (
    *(
        "pid",
        "in_flight",
        "queued",
        "queue_bytes",
        "queue_bound_bytes",
        "pool_used_bytes",
        "pool_bound_bytes",
    ),
    *("requests", "done", "rejected", "failed", "busy", "workers", "device_s", "gpu_other_bytes"),
    *("read_busy_s", "compute_busy_s", "write_busy_s"),
)
_PRESSURES = ("io_some_avg10", "io_full_avg10")
_NIC = ("rx_bytes_per_s", "tx_bytes_per_s", "errors_per_s")
_DISK = ("read_bytes_per_s", "write_bytes_per_s", "busy_share")
_AGENT = ("pid", "rss_bytes", "cpu_share")
_Values = Mapping[str, Any]


def sanitized(body: _Values) -> dict[str, Any]:
    """The heartbeat's part of the state document, without its age."""
    return {
        "seq": _numbers(body, ("seq",)).get("seq", 0),
        "address": _text(body.get("address")),
        "devices": [
            {**_texts(each, _DEVICE_TEXTS), **_numbers(each, _DEVICE_NUMBERS)}
            for each in _list(body.get("devices"))
            if isinstance(each, Mapping)
        ],
        "server": _server(body.get("server")),
        "pressure": _numbers(body.get("pressure"), _PRESSURES),
        "nic": _numbers(body.get("nic"), _NIC),
        "disk": _numbers(body.get("disk"), _DISK),
        "agent": _numbers(body.get("agent"), _AGENT),
        "problems": [_text(each) for each in _list(body.get("problems"))],
    }


def _server(values: Any) -> dict[str, Any] | None:
    if not isinstance(values, Mapping):
        return None
    endpoint = values.get("endpoint")
    endpoint = endpoint if isinstance(endpoint, Mapping) else {}
    port = _numbers(endpoint, ("port",)).get("port", 0)
    return {
        "name": _text(endpoint.get("name")),
        "address": f"{_text(endpoint.get('host'))}:{port}" if port else "",
        "is_local_only": values.get("is_local_only") is True,
        **_texts(values, _SERVER_TEXTS),
        **_numbers(values, _SERVER_NUMBERS),
        "operations": operations(values),
        "problems": [_text(each) for each in _list(values.get("problems"))],
    }


def operations(server: _Values) -> dict[str, dict[str, float]]:
    """How many of each operation a server has ``done``, and the ``compute_s`` they took."""
    found = server.get("operations")
    items = list(found.items())[:_MAX_ITEMS] if isinstance(found, Mapping) else []
    return {_text(name): _numbers(counts, ("done", "compute_s")) for name, counts in items}


def _numbers(values: Any, keys: tuple[str, ...]) -> dict[str, float]:
    """The keys that are there with a finite number that is not negative."""
    if not isinstance(values, Mapping):
        return {}
    return {key: values[key] for key in keys if key in values and is_number(values[key])}


def is_number(value: Any) -> bool:
    """Whether it is a finite number that is not negative and not absurd."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _MAX_NUMBER and math.isfinite(value)


def _texts(values: _Values, keys: tuple[str, ...]) -> dict[str, str]:
    return {key: _text(values.get(key)) for key in keys}


def _text(value: Any) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value[:_MAX_ITEMS] if isinstance(value, list) else []
