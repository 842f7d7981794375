"""The records of a site: its audit file and its figures for Prometheus.

The audit file has one JSON object a line for every request of another site: who, what, and the answer. Names
of figures begin with ``torque_sched_site_``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torque_sched.adapters.metrics import serve_metrics


class Audit:
    """Writes the file; a full one gets a number, and the oldest go.

    Args:
        path: the file, readable for its owner alone.
        file_bytes: it is closed when it is this long.
        n_files: so many are kept.
    """

    def __init__(self, path: Path, file_bytes: int = 16 << 20, n_files: int = 8) -> None:
        self._path, self._most, self._n_files = path, file_bytes, n_files
        self._fd = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, peer: str, address: str, what: str, answer: str, **facts: object) -> None:
        """One request.

        Args:
            peer: name of the site; empty: nobody we know.
            address: where it came from.
            what: kind of the request.
            answer: the answer, or why it was refused.
            facts: token, user and the like.

        Raises:
            OSError: it cannot be written.
        """
        line = {"at": round(time.time(), 3), "peer": peer, "address": address, "what": what, "answer": answer}
        line |= {key: value for key, value in facts.items() if value not in (None, "")}
        os.write(self._fd, json.dumps(line, default=str).encode() + b"\n")
        if os.fstat(self._fd).st_size >= self._most:
            self._turn()

    def _turn(self) -> None:
        for number in range(self._n_files - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            with suppress(FileNotFoundError):
                newer.replace(older)
        os.close(self._fd)
        self._fd = self._open()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """One peer now."""

    name: str
    is_alive: bool
    n_answers: int
    n_failed: int
    skew_s: float


@dataclass(frozen=True, slots=True)
class SiteFigures:
    """The whole link now; read when Prometheus asks."""

    peers: tuple[PeerFigures, ...]
    requests: tuple[tuple[str, str, str, int], ...]
    """Peer, kind, outcome, number."""
    blocks: int
    grants: int
    jobs: int


def serve_site_figures(read: Callable[[], SiteFigures], address: str, port: int) -> Callable[[], None]:
    """Answer ``GET /metrics`` until the returned function is called.

    Raises:
        StartupError: the library is not installed, or the port is taken.
    """
    return serve_metrics(lambda: _collector(read), address, port, "metrics_port")


def _collector(read: Callable[[], SiteFigures]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    class Collected(Collector):
        def collect(self) -> Iterable[Any]:
            now = read()
            alive = GaugeMetricFamily("torque_sched_site_peer_alive", "1: it answers", labels=["peer"])
            skew = GaugeMetricFamily(
                "torque_sched_site_peer_clock_skew_seconds", "At least so far from ours", labels=["peer"]
            )
            sent = CounterMetricFamily(
                "torque_sched_site_requests_sent", "Requests to a peer", labels=["peer", "outcome"]
            )
            for peer in now.peers:
                alive.add_metric([peer.name], int(peer.is_alive))
                skew.add_metric([peer.name], peer.skew_s)
                sent.add_metric([peer.name, "answered"], peer.n_answers)
                sent.add_metric([peer.name, "failed"], peer.n_failed)
            taken = CounterMetricFamily(
                "torque_sched_site_requests_taken", "Requests of peers", labels=["peer", "kind", "outcome"]
            )
            for name, kind, outcome, number in now.requests:
                taken.add_metric([name, kind, outcome], number)
            yield from (alive, skew, sent, taken)
            yield GaugeMetricFamily("torque_sched_site_foreign_blocks", "Blocks here", now.blocks)
            yield GaugeMetricFamily("torque_sched_site_grants", "Holds and committed claims here", now.grants)
            yield GaugeMetricFamily("torque_sched_site_own_jobs", "Jobs of ours under way", now.jobs)

    return Collected()
