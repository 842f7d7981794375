"""The agents' heartbeats as statistics, and the state document: the source of the tracking page.

The document is what `Application.snapshot` returns, and besides::

    format    1
    at        Unix time in seconds
    about     {application, name, user, queue, started_at, proxy_url, version}, each optional
    service   {problems: [text], and numbers of the service itself: see `metrics`}, each optional
    tasks     None, or what the task service is and does: see `LiveTaskService.shown`
    totals    {nodes, usable, accelerators, serving, bound, unbound, in_flight, queued, requests_per_s,
               device_busy, failures, late_binding}; unbound: usable nodes without accelerator that are
               bound to nobody; late_binding: None, or sums over the nodes heard in the last `WINDOW_S`
    history   {step_s, requests: [n], device_s: [s]} of the last steps, oldest first
    nodes[HOST].heard   None, or {age_s, seq, address, devices: [..], server: None or {..}, pressure, nic,
               disk, agent, late_binding, problems}: the agent's last heartbeat, see `node.agent`;
               late_binding: None, or what it reported of claims in the last `WINDOW_S`, see `claim_counts`
    nodes[HOST].rates   None, or {requests_per_s, device_busy, read, compute, write,
               operations: {op: {per_s, mean_s}}}; read, compute and write: how many threads or workers of
               the server's stage were at work on average in the last `WINDOW_S`

A heartbeat is kept as it came, and only the counters for rates and of claims are read at once; `sanitizing`
reads the rest when a document is built.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from yarn_accel.core.application import ClusterSummary
from yarn_accel.core.tasks.claim_counts import (
    claims_text,
    parse_claim_counts,
    results_text,
    sum_claim_counts,
)
from yarn_accel.master.sanitizing import is_number, operations, sanitized

#: Rates are taken over at most so long.
WINDOW_S = 10.0
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
    """What is kept of one node: its last heartbeat, and its server's samples of the last seconds."""

    at_s: float
    body: _Values
    claims: dict[str, float] | None = None
    samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=32))


class AgentStatistics:
    """The last heartbeats; one caller at a time.

    Args:
        wall_clock: Unix time in seconds, for the document's ``at``.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._heard: dict[str, _AgentRecord] = {}
        #: step -> requests answered and device-seconds used in it, over all servers
        self._steps: dict[int, list[float]] = {}

    def heard(self, node: str, body: _Values, now_s: float) -> None:
        """Take a heartbeat.

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
        while kept.samples[0].at_s < now_s - WINDOW_S:
            kept.samples.popleft()

    def state(
        self,
        snapshot: _Values,
        now_s: float,
        about: _Values | None = None,
        service: _Values | None = None,
        totals: _Values | None = None,
    ) -> dict[str, Any]:
        """The state document of now; see the top of this module.

        Args:
            snapshot: of `Application.snapshot`; it is not changed.
            about: who this application is.
            service: how the service itself is.
            totals: see `totals`; None: the snapshot has all nodes there are, which are counted.
        """
        if totals is None:
            self.forget(snapshot["nodes"], now_s)
        nodes = self.joined(snapshot["nodes"], now_s)
        return {
            **snapshot,
            "format": 1,
            "at": round(self._wall_clock(), 3),
            "about": dict(about or {}),
            "service": dict(service or {}),
            "totals": dict(totals) if totals is not None else _totals(nodes.values()),
            "history": self._history(now_s),
            "nodes": nodes,
        }

    def joined(self, node_snapshots: _Values, now_s: float) -> dict[str, Any]:
        """Nodes of a snapshot, with what their agents say."""
        return {host: {**node, **self._of(host, now_s)} for host, node in node_snapshots.items()}

    def totals(self, outline: ClusterSummary, now_s: float) -> dict[str, Any]:
        """The document's ``totals``, without a look at every node's picture."""
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
            rates = _rates(kept.samples) if kept.samples and now_s - kept.at_s < WINDOW_S else None
            if rates is not None:
                totals["requests_per_s"] += rates["requests_per_s"]
                totals["device_busy"] += rates["device_busy"]
        fresh = (kept for kept in self._heard.values() if now_s - kept.at_s < WINDOW_S)
        claims = sum_claim_counts(kept.claims for kept in fresh if kept.claims is not None)
        return {**totals, "late_binding": claims}

    def explain_claims(self, node: str, now_s: float) -> str:
        """What the agent of a node reports of late binding, in a line; empty: nothing."""
        kept = self._heard.get(node)
        if kept is None or kept.claims is None or now_s - kept.at_s >= WINDOW_S:
            return ""
        return f"Late binding: {claims_text(kept.claims)}; {results_text(kept.claims)}."

    def _of(self, host: str, now_s: float) -> dict[str, Any]:
        kept = self._heard.get(host)
        if kept is None:
            return {"heard": None, "rates": None}
        age_s = max(now_s - kept.at_s, 0.0)
        is_fresh = age_s < WINDOW_S
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

    def _history(self, now_s: float) -> dict[str, Any]:
        """Whole steps only: the running one would always look like a drop."""
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


def _totals(nodes: Any) -> dict[str, Any]:
    totals: dict[str, Any] = dict.fromkeys(
        ("nodes", "usable", "accelerators", "serving", "bound", "unbound", "in_flight", "queued"), 0
    )
    totals |= {"requests_per_s": 0.0, "device_busy": 0.0, "failures": 0}
    for node in nodes:
        is_usable = node["state"] in ("usable", "leaving")
        totals["nodes"] += 1
        totals["usable"] += is_usable
        totals["accelerators"] += is_usable and node["is_accelerator"]
        totals["serving"] += node["is_serving"]
        totals["bound"] += node["bound"] is not None
        totals["unbound"] += is_usable and node["bound"] is None and not node["is_accelerator"]
        totals["failures"] += sum(place["failures"] for place in node["places"].values())
        server = (node["heard"] or {}).get("server")
        if server is not None and node["is_serving"]:
            totals["in_flight"] += server.get("in_flight", 0)
            totals["queued"] += server.get("queued", 0)
        if node["rates"] is not None:
            totals["requests_per_s"] += node["rates"]["requests_per_s"]
            totals["device_busy"] += node["rates"]["device_busy"]
    found = [(node["heard"] or {}).get("late_binding") for node in nodes]
    claims = sum_claim_counts(each for each in found if each is not None)
    return {**totals, "late_binding": claims}


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
