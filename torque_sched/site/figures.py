"""Figures of the link for Prometheus; names begin with ``torque_sched_site_``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torque_sched.adapters.metrics import serve_metrics


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
