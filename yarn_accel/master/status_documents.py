"""The state document: the one source of page, JSON, metrics, `status` and `top`.

It has what `Application.snapshot` returns, and besides::

    format    1
    at        Unix time in seconds
    about     {application, name, user, queue, started_at, proxy_url, version}, each optional
    service   {problems: [text], and numbers of the service itself: see `metrics`}, each optional
    tasks     None, or what the task service is and does: see `MasterPlugin.document`
    totals    {nodes, usable, accelerators, serving, bound, unbound, in_flight, queued, requests_per_s,
               device_busy, failures, late_binding}; unbound: usable nodes without accelerator that are
               bound to nobody; late_binding: None, or sums over the nodes heard in the last `RATE_WINDOW_S`
    history   {step_s, requests: [n], device_s: [s]} of the last steps, oldest first
    nodes[HOST].heard   None, or {age_s, seq, address, devices: [..], server: None or {..}, pressure, nic,
               disk, agent, late_binding, problems}: the agent's last heartbeat, see `node.agent`;
               late_binding: None, or the claims reported in the last `RATE_WINDOW_S`, see `claim_counts`
    nodes[HOST].rates   None, or {requests_per_s, device_busy, read, compute, write,
               operations: {op: {per_s, mean_s}}}; read, compute and write: how many threads or workers of
               the server's stage were at work on average in the last `RATE_WINDOW_S`

A heartbeat is kept as it came; only the counters for rates and of claims are read at once. The rest is
sanitized when a document is built: known keys, finite numbers, bounded texts and lists. Its texts are not
escaped; the code that renders them must do it.

10,000 nodes take some hundred milliseconds, so `_N_STEP` of them are built in one turn of the event loop, and
heartbeats are not delayed; the last ones are some milliseconds newer than the first. A page shows at most
`MAX_DRAWN` nodes, whole racks with those in trouble first, and only these are built for it; the others are
counted.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from yarn_accel.core.application import Application, ClusterSummary
from yarn_accel.core.late_binding_reports import (
    claims_text,
    parse_claim_counts,
    results_text,
    sum_claim_counts,
)

#: Rates are taken over at most so long.
RATE_WINDOW_S = 10.0
_MIN_WINDOW_S = 0.5
_STEP_S = 2.0
_N_STEPS = 60
#: A node that the resource manager does not know any more is forgotten after so long without a heartbeat.
_FORGET_S = 600.0

#: rate -> counter of the server
_RATES = {
    "requests_per_s": "done",
    "device_busy": "device_s",
    "read": "read_busy_s",
    "compute": "compute_busy_s",
    "write": "write_busy_s",
}
MAX_DRAWN = 1000
#: Nodes per step: some 4 ms.
_N_STEP = 100
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


@dataclass(frozen=True, slots=True)
class _Sample:
    """A server's counters at one time; `process` tells one server from the next on the same node."""

    at_s: float
    process: tuple[object, object]
    counters: Mapping[str, float]
    operations: Mapping[str, Mapping[str, float]]

    def is_continued_by(self, later: _Sample) -> bool:
        """Whether both are counters of the same process."""
        return self.process == later.process and all(
            later.counters[name] >= value for name, value in self.counters.items()
        )


@dataclass(slots=True, eq=False)
class _AgentRecord:
    """The record of one node: its last heartbeat, and its server's samples of the last seconds."""

    at_s: float
    body: _Values
    claims: dict[str, float] | None = None
    samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=32))


class AgentStatistics:
    """The last heartbeats; one caller at a time."""

    def __init__(self) -> None:
        self._heard: dict[str, _AgentRecord] = {}
        #: step -> requests answered and device-seconds used in it, over all servers
        self._steps: dict[int, list[float]] = {}

    def heard(self, node: str, body: _Values, now_s: float) -> None:
        """Apply a heartbeat.

        Args:
            node: whose it is, as its signature says.
            body: as the agent wrote it; invalid parts are ignored.
            now_s: the same clock as `Application`'s.
        """
        kept = self._heard.get(node)
        if kept is None:
            kept = self._heard[node] = _AgentRecord(now_s, body)
        kept.at_s, kept.body, kept.claims = now_s, body, _claims(body)
        server = body.get("server")
        if not isinstance(server, Mapping):
            kept.samples.clear()
            return
        sample = _sample(server, now_s)
        if kept.samples and kept.samples[-1].is_continued_by(sample):
            self._count(kept.samples[-1], sample)
        else:
            kept.samples.clear()
        kept.samples.append(sample)
        while kept.samples[0].at_s < now_s - RATE_WINDOW_S:
            kept.samples.popleft()

    def joined(self, node_snapshots: _Values, now_s: float) -> dict[str, Any]:
        """Nodes of a snapshot, each with its agent's last heartbeat and rates."""
        return {host: {**node, **self._of(host, now_s)} for host, node in node_snapshots.items()}

    def totals(self, outline: ClusterSummary, now_s: float) -> dict[str, Any]:
        """The document's ``totals``, without building every node's part."""
        totals: dict[str, Any] = {**outline.counts, "in_flight": 0, "queued": 0}
        totals |= {"requests_per_s": 0.0, "device_busy": 0.0}
        for host in outline.serving:
            kept = self._heard.get(host)
            server = kept.body.get("server") if kept is not None else None
            if isinstance(server, Mapping):
                for name in ("in_flight", "queued"):
                    value = server.get(name)
                    totals[name] += value if is_number(value) else 0
        for kept in self._heard.values():
            rates = _rates(kept.samples) if kept.samples and now_s - kept.at_s < RATE_WINDOW_S else None
            if rates is not None:
                totals["requests_per_s"] += rates["requests_per_s"]
                totals["device_busy"] += rates["device_busy"]
        fresh = (kept for kept in self._heard.values() if now_s - kept.at_s < RATE_WINDOW_S)
        claims = sum_claim_counts(kept.claims for kept in fresh if kept.claims is not None)
        return {**totals, "late_binding": claims}

    def explain_claims(self, node: str, now_s: float) -> str:
        """The claims that the agent of a node reports, in a line; empty: it reports none."""
        kept = self._heard.get(node)
        if kept is None or kept.claims is None or now_s - kept.at_s >= RATE_WINDOW_S:
            return ""
        return f"Late binding: {claims_text(kept.claims)}; {results_text(kept.claims)}."

    def _of(self, host: str, now_s: float) -> dict[str, Any]:
        kept = self._heard.get(host)
        if kept is None:
            return {"heard": None, "rates": None}
        age_s = max(now_s - kept.at_s, 0.0)
        is_fresh = age_s < RATE_WINDOW_S
        claims = kept.claims if is_fresh else None
        return {
            "heard": {**sanitized(kept.body), "late_binding": claims, "age_s": age_s},
            "rates": _rates(kept.samples) if is_fresh else None,
        }

    def _count(self, before: _Sample, after: _Sample) -> None:
        step = int(after.at_s // _STEP_S)
        if step not in self._steps:
            self._steps[step] = [0.0, 0.0]
            for old in [each for each in self._steps if each < step - _N_STEPS]:
                del self._steps[old]
        counted = self._steps[step]
        for i, counter in enumerate(("done", "device_s")):
            counted[i] += after.counters[counter] - before.counters[counter]

    def history(self, now_s: float) -> dict[str, Any]:
        """The document's ``history``: whole steps only, as the running one would always look like a drop."""
        last = int(now_s // _STEP_S)
        steps = [self._steps.get(step, (0.0, 0.0)) for step in range(last - _N_STEPS, last)]
        return {
            "step_s": _STEP_S,
            "requests": [step[0] for step in steps],
            "device_s": [round(step[1], 3) for step in steps],
        }

    def forget(self, nodes: Container[str], now_s: float) -> None:
        """Drop the heartbeats of nodes that are not among these, after a while."""
        gone = [
            host for host, kept in self._heard.items() if host not in nodes and now_s - kept.at_s > _FORGET_S
        ]
        for host in gone:
            del self._heard[host]


def _claims(body: _Values) -> dict[str, float] | None:
    late_binding = body.get("late_binding")
    return parse_claim_counts(late_binding.get("claims")) if isinstance(late_binding, Mapping) else None


def _sample(server: _Values, now_s: float) -> _Sample:
    values: dict[str, Any] = {name: server.get(name) for name in _RATES.values()}
    counters = {name: float(value) if is_number(value) else 0.0 for name, value in values.items()}
    return _Sample(now_s, (server.get("pid"), server.get("started_at")), counters, operations(server))


def _rates(samples: deque[_Sample]) -> dict[str, Any] | None:
    if not samples or samples[-1].at_s - samples[0].at_s < _MIN_WINDOW_S:
        return None
    before, after = samples[0], samples[-1]
    elapsed_s = after.at_s - before.at_s
    rates: dict[str, Any] = {
        rate: (after.counters[name] - before.counters[name]) / elapsed_s for rate, name in _RATES.items()
    }
    rates["operations"] = {}
    for operation, counts in after.operations.items():
        earlier = before.operations.get(operation, {})
        n_done = counts.get("done", 0) - earlier.get("done", 0)
        if n_done > 0:
            mean_s = max(counts.get("compute_s", 0) - earlier.get("compute_s", 0), 0) / n_done
            rates["operations"][operation] = {"per_s": n_done / elapsed_s, "mean_s": mean_s}
    return rates


@dataclass(frozen=True, slots=True)
class Query:
    """The part of the cluster to show: a node, a rack, or (both empty) everything."""

    node: str = ""
    rack: str = ""


class StatusDocuments:
    """Makes the state document.

    Args:
        clock: the core's.
        about: who this application is.
        service: how the service itself is, at a time of the clock.
        tasks: the document's ``tasks``.
        wall_clock: Unix time in seconds, for the document's ``at``.
    """

    def __init__(
        self,
        core: Application,
        statistics: AgentStatistics,
        clock: Callable[[], float],
        about: _Values,
        service: Callable[[float], _Values],
        tasks: Callable[[], _Values | None] = lambda: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._core = core
        self._statistics = statistics
        self._clock = clock
        self._about = about
        self._service = service
        self._tasks = tasks
        self._wall_clock = wall_clock

    async def whole(self) -> dict[str, Any]:
        """The document with all nodes."""
        hosts = sorted(host for rack in self._core.summarize().racks.values() for host in rack)
        self._statistics.forget(frozenset(hosts), self._clock())
        return await self._document(hosts)

    async def part(self, node: str, rack: str) -> dict[str, Any]:
        """The document with the nodes that a page shows; ``others``: [(rack, number of nodes)] of the rest.

        Args:
            node: whose rack is shown; empty or not known: any.
            rack: that is shown; empty or not known: as many as fit, those with trouble first.
        """
        outline = self._core.summarize()
        hosts, others = choose(outline.racks, outline.troubled, Query(node, rack))
        return {**await self._document(hosts), "others": others}

    async def _document(self, hosts: list[str]) -> dict[str, Any]:
        nodes: dict[str, Any] = {}
        for first in range(0, len(hosts), _N_STEP):
            now_s = self._clock()
            node_snapshots = self._core.node_snapshots(now_s, hosts[first : first + _N_STEP])
            nodes.update(self._statistics.joined(node_snapshots, now_s))
            await asyncio.sleep(0)
        now_s = self._clock()
        return {
            **self._core.snapshot(now_s, ()),
            "format": 1,
            "at": round(self._wall_clock(), 3),
            "about": dict(self._about),
            "service": dict(self._service(now_s)),
            "totals": self._statistics.totals(self._core.summarize(), now_s),
            "history": self._statistics.history(now_s),
            "nodes": nodes,
            "tasks": self._tasks(),
        }


def choose(
    racks: Mapping[str, Sequence[str]], troubled: Container[str], query: Query
) -> tuple[list[str], list[tuple[str, int]]]:
    """The nodes to show, and name and size of the racks that are left out.

    Args:
        racks: hosts by rack.
        troubled: racks to be shown first.
    """
    of_node = next((rack for rack, hosts in racks.items() if query.node in hosts), None)
    rack = of_node if of_node is not None else query.rack
    if rack in racks and (query.rack or of_node is not None):
        hosts, others = list(racks[rack][:MAX_DRAWN]), [name for name in racks if name != rack]
    else:
        hosts, others = _whole_racks(racks, troubled)
    return hosts, [(name, len(racks[name])) for name in sorted(others, key=natural)]


def _whole_racks(racks: Mapping[str, Sequence[str]], troubled: Container[str]) -> tuple[list[str], list[str]]:
    """Racks with trouble first, as many as can be shown, and the names of the others."""
    hosts: list[str] = []
    others: list[str] = []
    for rack in sorted(racks, key=lambda name: (name not in troubled, natural(name))):
        fits = len(hosts) + len(racks[rack]) <= MAX_DRAWN
        if fits or not hosts:
            hosts += racks[rack][: MAX_DRAWN - len(hosts)]
        else:
            others.append(rack)
    return hosts, others


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts names as people do: w2 before w10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return tuple((int(part), part) if part.isdecimal() and len(part) <= 18 else (-1, part) for part in parts)


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
    """Whether it is a finite number from 0 to `_MAX_NUMBER`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _MAX_NUMBER and math.isfinite(value)


def _texts(values: _Values, keys: tuple[str, ...]) -> dict[str, str]:
    return {key: _text(values.get(key)) for key in keys}


def _text(value: Any) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value[:_MAX_ITEMS] if isinstance(value, list) else []
