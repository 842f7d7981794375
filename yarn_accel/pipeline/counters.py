"""Counters of a server, and who may see them; `PipelineServer.stats` puts them together.

What happens to a request is noted, and summed up for many at a time.  Tenants and operations are bounded in
number, so that nobody can make the server remember names.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Every counter, and what is counted.  requests = all that follow down to `abandoned` + what is still under
#: way.
COUNTED = {
    "requests": "requests received",
    "done": "answered with a result",
    "rejected": "refused because of what they are",
    "failed": "failed for another reason: storage, the server itself",
    "busy": "sent back to try again later",
    "cancelled": "cancelled by the client",
    "abandoned": "whose connection was lost before the answer",
    "duplicates": "of all these, answered from the computation of another request with the same key",
    "decoder_failures": "of all these, computed with JPEG decoded by the CPU, as the GPU's decoder failed",
    "bytes_in": "bytes of inputs, received or read",
    "bytes_out": "bytes of outputs, sent or written",
    "connections": "connections that proved a credential",
    "refused": "connections that did not, or were too many",
    "broken": "connections ended because the peer broke the protocol or was too slow",
}
#: Where the seconds of a request go.
STAGES = ("read", "queue", "compute", "write")
#: Upper bounds of the histogram of seconds from the arrival of a header to the answer; above the last: inf.
LATENCY_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
#: The tenant who sees everything: whoever can read the master secret can issue its credential.
OPERATOR = "operator"
#: So many tenants, and so many operations, are counted by name; the rest together as `OTHERS`.
MAX_NAMES = 256
OTHERS = "(others)"
#: Summed up when so much was noted.
_MOST_NOTED = 256

#: A counter, how many more, whose; or the arguments of `answered`.
_Count = tuple[str, int, str]
_Answer = tuple[str, str, str, Mapping[str, float], int]


@dataclass(slots=True)
class ConnectionUse:
    """The use by requests of one connection since it was last added up.

    Attributes:
        key: the idempotency key of the first one.
        cpu_s: seconds for which worker processes without a GPU computed, `gpu_s` those with one.
        first_at: Unix time of the first answer.
    """

    key: str = ""
    n_answered: int = 0
    n_failed: int = 0
    cpu_s: float = 0.0
    gpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    first_at: float = 0.0

    def begin(self, key: str) -> None:
        """Note the first request."""
        self.key, self.first_at = key, time.time()


class Counters:
    """Totals, per operation, per tenant and per stage; of one thread."""

    def __init__(self) -> None:
        self._noted: list[_Count | _Answer] = []
        self._totals = dict.fromkeys(COUNTED, 0)
        self._operations: dict[str, dict[str, float]] = {}
        self._tenants: dict[str, dict[str, float]] = {}
        self._latencies: dict[str, list[int]] = {}
        self._latency_sums_s: dict[str, float] = {}
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._requests: dict[tuple[str, str], int] = {}
        self._n_requests = 0

    def add(self, name: str, n: int = 1, tenant: str = "") -> None:
        """Count `n` more of one of `COUNTED`, also for a tenant if one is named."""
        if name not in COUNTED:
            raise KeyError(name)
        if n:
            noted = self._noted
            noted.append((name, n, tenant))
            if len(noted) >= _MOST_NOTED:
                self._sum_up()

    def n_requests(self) -> int:
        """Requests received so far; cheap."""
        return self._n_requests

    def requested(self, operation: str, tenant: str) -> None:
        """Count one more request."""
        self._n_requests += 1
        requests, key = self._requests, (operation, tenant)
        requests[key] = requests.get(key, 0) + 1

    def answered(
        self,
        operation: str,
        outcome: str,
        tenant: str,
        seconds: Mapping[str, float],
        bytes_out: int = 0,
    ) -> None:
        """Count all there is to count when a request is answered, at once.

        Args:
            operation: its name; must be one that the registry knows, or ``unknown``.
            outcome: ``done``, ``rejected`` or ``failed``.
            tenant: who asked.
            seconds: per stage, and ``total`` from the arrival of its header; not to be changed afterwards.
            bytes_out: bytes of its outputs.
        """
        noted = self._noted
        noted.append((operation, outcome, tenant, seconds, bytes_out))
        if len(noted) >= _MOST_NOTED:
            self._sum_up()

    def used(self, tenant: str, core_s: float, gpu_s: float) -> None:
        """Count what a tenant's requests took of cores and GPUs."""
        _count(self._tenants, tenant, "core_s", core_s)
        _count(self._tenants, tenant, "gpu_s", gpu_s)

    def snapshot(self) -> dict[str, Any]:
        """All of them, fit for JSON.

        ``latency`` holds, per operation, ``counts`` (one per bound and one above all, not cumulative),
        ``sum_s`` and, once for all, ``bounds_s``.
        """
        self._sum_up()
        latency: dict[str, Any] = {
            name: {"counts": list(counts), "sum_s": round(self._latency_sums_s[name], 6)}
            for name, counts in sorted(self._latencies.items())
        }
        return {
            **self._totals,
            "operations": _rounded(self._operations, "compute_s"),
            "tenants": _rounded(self._tenants, "device_s"),
            "stage_seconds": {name: round(value, 6) for name, value in self._seconds.items()},
            "latency": {"bounds_s": list(LATENCY_BOUNDS_S), "operations": latency},
        }

    def _sum_up(self) -> None:
        """Add what was noted until now."""
        noted, self._noted = self._noted, []
        requests, self._requests = self._requests, {}
        self._totals["requests"] = self._n_requests
        for (operation, tenant), n in requests.items():
            _count(self._operations, operation, "requests", n)
            _count(self._tenants, tenant, "requests", n)
        sums: dict[tuple[str, str], int] = {}
        groups: dict[tuple[str, str, str], list[_Answer]] = {}
        for entry in noted:
            if len(entry) == 5:
                groups.setdefault(entry[:3], []).append(entry)
            else:
                name, n, tenant = entry
                sums[name, tenant] = sums.get((name, tenant), 0) + n
        for (name, tenant), n in sums.items():
            self._totals[name] += n
            if tenant:
                _count(self._tenants, tenant, name, n)
        for (operation, outcome, tenant), answers in groups.items():
            self._add_answers(operation, outcome, tenant, answers)

    def _add_answers(self, operation: str, outcome: str, tenant: str, answers: list[_Answer]) -> None:
        bytes_out = sum([answer[4] for answer in answers])
        seconds = [answer[3] for answer in answers if answer[3]]
        self._totals[outcome] += len(answers)
        self._totals["bytes_out"] += bytes_out
        sums_s = {stage: sum([one.get(stage, 0.0) for one in seconds]) for stage in STAGES}
        for stage, sum_s in sums_s.items():
            self._seconds[stage] += sum_s
        _count(self._operations, operation, outcome, len(answers))
        _count(self._operations, operation, "compute_s", sums_s["compute"])
        _count(self._tenants, tenant, outcome, len(answers))
        _count(self._tenants, tenant, "bytes_out", bytes_out)
        _count(self._tenants, tenant, "device_s", sums_s["compute"])
        for one in seconds:
            if "total" in one:
                self._observe(operation, one["total"])

    def _observe(self, operation: str, seconds: float) -> None:
        counts = self._latencies.get(operation)
        if counts is None:
            if len(self._latencies) >= MAX_NAMES:
                operation = OTHERS
            counts = self._latencies.setdefault(operation, [0] * (len(LATENCY_BOUNDS_S) + 1))
            self._latency_sums_s.setdefault(operation, 0.0)
        counts[bisect.bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self._latency_sums_s[operation] += seconds


def _count(table: dict[str, dict[str, float]], key: str, name: str, n: float) -> None:
    counts = table.get(key)
    if counts is None:
        counts = table.setdefault(key if len(table) < MAX_NAMES else OTHERS, {})
    counts[name] = counts.get(name, 0) + n


def _rounded(table: Mapping[str, Mapping[str, float]], seconds_name: str) -> dict[str, dict[str, float]]:
    """Each entry with its counters and its seconds, which are there even when there were none."""
    return {
        key: {**counts, seconds_name: round(counts.get(seconds_name, 0.0), 6)}
        for key, counts in sorted(table.items())
    }


def visible(stats: dict[str, Any], tenant: str) -> dict[str, Any]:
    """The statistics as a tenant may see them: nothing of other tenants, no faults, no process ids."""
    if tenant == OPERATOR:
        return stats
    own = {name: item for name, item in stats["tenants"].items() if name == tenant}
    workers = [
        {key: worker[key] for key in ("device", "device_kind", "state") if key in worker}
        for worker in stats["workers"]
    ]
    health = {**stats["health"], "problems": []}
    shown = {name: item for name, item in stats.items() if name != "applications"}
    return {**shown, "tenants": own, "workers": workers, "health": health}
