"""The reports of a pipeline server, and what follows from them: figures, load, liveness; pure, no clock.

`parse_state` and `parse_stats` read the server's state file and its ``/stats.json``. `LoadMeter` measures its
load from one report to the next. `Liveness` tells a server that hangs from one that is slow by two facts: how
long a probe has been unanswered, and whether the process used CPU time meanwhile. A stopped or deadlocked
process uses none; a server on a busy machine answers late, but gets some. Time is the sum of the intervals
between two `Liveness.tick` calls, each counted as `MAX_TICK_S` at most, so the time in which the caller
itself did not run counts as no server's silence.
"""

from __future__ import annotations

import enum
import ipaddress
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.client.binding import Endpoint
from yarn_accel.core.ended_applications import application_ids
from yarn_accel.errors import RemoteProtocolError

_MAX_OPERATIONS = 32
_MAX_PORT = 65535

#: figure -> keys that lead to it in the statistics
_FIGURES = {
    "in_flight": ("in_flight",),
    "pool_used_bytes": ("pool", "used_bytes"),
    "pool_bound_bytes": ("pool", "bound_bytes"),
    "requests": ("requests",),
    "done": ("done",),
    "rejected": ("rejected",),
    "failed": ("failed",),
    "busy": ("busy",),
    "read_busy_s": ("stage_busy", "read"),
    "compute_busy_s": ("stage_busy", "compute"),
    "write_busy_s": ("stage_busy", "write"),
}
#: figure -> table in the statistics, and the column that is added up
_SUMS = {
    "queued": ("tenants", "queued"),
    "device_s": ("tenants", "device_s"),
    "queue_bytes": ("queues", "bytes"),
    "queue_bound_bytes": ("queues", "bound_bytes"),
}
_MAX_DEVICES_CHARACTERS = 200
_NOT_AT_WORK = ("absent", "quarantined", "standby", "unkillable")
_MAX_PROBLEMS, _MAX_PROBLEM_CHARACTERS = 8, 200
#: How much the newest measurement counts against those before.
_SHARE_OF_NEW = 0.5

MAX_TICK_S = 0.5
#: An unanswered probe means silence after so long, with the last part of it without CPU time.
SILENT_S, _SILENT_IDLE_S = 1.6, 1.0
#: The same for a process that uses CPU time.
SILENT_BUSY_S = 8.0
#: Silence without CPU time means a hang after so long ...
HUNG_IDLE_S = 5.0
#: ... after so long where a slow start explains it, or CPU time is not known ...
HUNG_UNSURE_S = 30.0
#: ... and silence of a process that uses CPU time after so long.
HUNG_BUSY_S = 60.0


@dataclass(frozen=True, slots=True)
class ServerStateFile:
    """The state file of a pipeline server.

    Attributes:
        container: the YARN container it runs in; empty: none, or it does not say.
        is_well: whether it could compute when it wrote the file.
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
    container: str = ""
    is_well: bool = False


def parse_state(text: str) -> ServerStateFile:
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
    return ServerStateFile(
        pid=_whole(values, "pid", 2**31),
        name=_text(values, "name"),
        host=_text(values, "host"),
        port=_whole(values, "port", _MAX_PORT),
        unix_path=_text(values, "unix_path"),
        http_host=_text(values, "http_host"),
        http_port=_whole(values, "http_port", _MAX_PORT),
        tls=values.get("tls") is True,
        started_at=_text(values, "started_at"),
        container=_text(values, "container"),
        is_well=values.get("is_well") is True,
    )


def endpoint_of(state: ServerStateFile, node: str, address: str) -> Endpoint:
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


def parse_stats(text: str) -> dict[str, Any]:
    """The figures of a heartbeat, from the JSON of ``/stats.json``, as far as it has them.

    ``operations`` maps an operation to how many were ``done`` and the ``compute_s`` they took;
    ``computing_workers`` are ``workers`` without standbys and places that rest, ``computes_on`` is the
    devices they have, in one text; ``gpu_other_bytes`` is the GPU memory that processes of others use;
    ``problems`` are texts; ``applications`` are those that its sessions belong to.

    Raises:
        RemoteProtocolError: these are not the statistics of a pipeline server.
    """
    try:
        stats = json.loads(text)
    except (ValueError, RecursionError):
        stats = None
    health = stats.get("health") if isinstance(stats, dict) else None
    if not isinstance(health, dict):
        raise RemoteProtocolError("these are not the statistics of a pipeline server")
    figures: dict[str, Any] = {}
    for figure, keys in _FIGURES.items():
        value: Any = stats
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        figures[figure] = _number(value)
    for figure, (table, column) in _SUMS.items():
        values = [_number(row.get(column)) for row in _rows(stats.get(table)).values()]
        known = [value for value in values if value is not None]
        figures[figure] = _number(sum(known)) if known else None
    figures = {figure: value for figure, value in figures.items() if value is not None}
    workers = stats.get("workers")
    if isinstance(workers, list):
        # Beside GPUs there may be CPUs for the few operations that have no form for these.
        workers = [each for each in workers if isinstance(each, dict) and not each.get("is_for_rest")]
        states = [each.get("state") for each in workers]
        figures["workers"] = float(len(states))
        figures["computing_workers"] = float(sum(state not in _NOT_AT_WORK for state in states))
        figures["computes_on"] = _computes_on(workers)
    figures |= _used_by_others(stats.get("devices"))
    problems = health.get("problems")
    figures["is_healthy"] = health.get("ok") is True
    figures["is_draining"] = stats.get("is_draining") is True
    figures["problems"] = [
        str(each)[:_MAX_PROBLEM_CHARACTERS]
        for each in (problems[:_MAX_PROBLEMS] if isinstance(problems, list) else ())
    ]
    figures["operations"] = _operations(stats.get("operations"))
    if applications := application_ids(stats.get("applications")):
        figures["applications"] = list(applications)
    return figures


def _computes_on(workers: list[Any]) -> str:
    at_work = [each for each in workers if isinstance(each, dict) and each.get("state") not in _NOT_AT_WORK]
    devices = [str(each.get("device", "")) for each in at_work]
    return " ".join(dict.fromkeys(device for device in devices if device))[:_MAX_DEVICES_CHARACTERS]


def _used_by_others(devices: Any) -> dict[str, float]:
    rows = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    known = [n_bytes for each in rows if (n_bytes := _number(each.get("other_bytes"))) is not None]
    return {"gpu_other_bytes": sum(known)} if known else {}


def _operations(table: Any) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, counts in _rows(table).items():
        done = _number(counts.get("done"))
        if done is not None and len(found) < _MAX_OPERATIONS:
            found[name[:100]] = {"done": done, "compute_s": _number(counts.get("compute_s")) or 0.0}
    return found


def _rows(table: Any) -> dict[str, dict[str, Any]]:
    """The rows of a table that are mappings."""
    rows = table.items() if isinstance(table, dict) else ()
    return {str(name): row for name, row in rows if isinstance(row, dict)}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(float(value), 6)


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


class LoadMeter:
    """Measures one server from the figures it shows, one report after the other."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}
        self._request_s: dict[str, float] = {}
        self._any_s = 0.0

    def measure(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """The load for a heartbeat: ``queue_s`` and ``rates``.

        Args:
            figures: of `parse_stats`; a server whose counters fell back is a new one.
        """
        n_workers = max(1.0, float(figures.get("computing_workers", figures.get("workers", 1.0))))
        n_done, spent_s = 0.0, 0.0
        for name, counts in figures.get("operations", {}).items():
            done, compute_s = counts["done"], counts["compute_s"]
            done_before, s_before = self._before.get(name, (0.0, 0.0))
            if done < done_before or compute_s < s_before:
                done_before, s_before = 0.0, 0.0
                self._request_s.pop(name, None)
            self._before[name] = done, compute_s
            if done > done_before and compute_s > s_before:
                n_done, spent_s = n_done + done - done_before, spent_s + compute_s - s_before
                seen_s = (compute_s - s_before) / (done - done_before)
                self._request_s[name] = _smoothed(self._request_s.get(name), seen_s)
        if n_done:
            self._any_s = _smoothed(self._any_s or None, spent_s / n_done)
        return {
            "queue_s": round(figures.get("in_flight", 0.0) * self._any_s / n_workers, 6),
            "rates": {name: float(f"{n_workers / s:.6g}") for name, s in self._request_s.items()},
        }


def _smoothed(before: float | None, seen: float) -> float:
    return seen if before is None else before + _SHARE_OF_NEW * (seen - before)


class Verdict(enum.Enum):
    """The liveness of a server, by its probes."""

    RESPONSIVE = "responsive"
    SILENT = "silent"
    HUNG = "hung"


class Liveness:
    """The record of one server process."""

    def __init__(self) -> None:
        self._has_answered = False
        self._is_asked = False
        self._silent_s = 0.0
        self._idle_s = 0.0
        self._cpu_ticks: int | None = None

    @property
    def is_asked(self) -> bool:
        """A probe is unanswered."""
        return self._is_asked

    def asked(self) -> None:
        """A probe was sent; silence counts from the first one that is not answered."""
        self._is_asked = True

    def answered(self) -> None:
        """A probe was answered."""
        self._has_answered, self._is_asked = True, False
        self._silent_s, self._idle_s, self._cpu_ticks = 0.0, 0.0, None

    def tick(self, elapsed_s: float, cpu_ticks: int | None) -> None:
        """Time passed.

        Args:
            elapsed_s: since the last call.
            cpu_ticks: CPU time of the process, in the kernel's ticks; None: not known.
        """
        if not self._is_asked:
            return
        step_s = min(elapsed_s, MAX_TICK_S)
        self._silent_s += step_s
        is_idle = cpu_ticks is None or cpu_ticks == self._cpu_ticks
        self._idle_s = self._idle_s + step_s if is_idle else 0.0
        self._cpu_ticks = cpu_ticks

    def verdict(self) -> Verdict:
        """Whether the server responds, by all probes so far."""
        is_idle = self._idle_s >= _SILENT_IDLE_S
        if self._silent_s < (SILENT_S if is_idle else SILENT_BUSY_S):
            return Verdict.RESPONSIVE
        is_sure = self._has_answered and self._cpu_ticks is not None
        is_hung = self._idle_s >= (HUNG_IDLE_S if is_sure else HUNG_UNSURE_S) or self._silent_s >= HUNG_BUSY_S
        return Verdict.HUNG if is_hung else Verdict.SILENT
