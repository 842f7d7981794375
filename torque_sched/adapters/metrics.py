"""Figures for Prometheus: counted here, read over HTTP; names begin with ``torque_sched_``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torque_sched.errors import StartupError

__all__ = ["Figures", "serve_figures"]

_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)


class Figures:
    """Counts what cycles did; costs nothing worth measuring, so it always counts."""

    def __init__(self) -> None:
        self.n_cycles = 0
        self.n_failures = 0
        self.n_events = 0
        self.starts: dict[str, int] = {}
        """Answers of qrun by kind."""
        self.decisions: Mapping[str, int] = {}
        """Of the last cycle, by kind."""
        self.waiting: Mapping[str, int] = {}
        """Jobs of the last cycle that wait, by reason."""
        self.cycle_s: list[int] = [0] * (len(_BUCKETS_S) + 1)
        self.cycle_sum_s = 0.0
        self.decide_sum_s = 0.0

    def cycle(
        self,
        total_s: float,
        decide_s: float,
        starts: Mapping[str, int],
        decisions: Mapping[str, int],
        waiting: Mapping[str, int],
    ) -> None:
        """A cycle with a snapshot ended."""
        self.n_cycles += 1
        self.cycle_sum_s += total_s
        self.decide_sum_s += decide_s
        self.cycle_s[next((at for at, top in enumerate(_BUCKETS_S) if total_s <= top), len(_BUCKETS_S))] += 1
        for kind, number in starts.items():
            self.starts[kind] = self.starts.get(kind, 0) + number
        self.decisions, self.waiting = dict(decisions), dict(waiting)

    def failure(self) -> None:
        """A cycle got no snapshot."""
        self.n_failures += 1


def serve_figures(figures: Figures, address: str, port: int) -> Callable[[], None]:
    """Answer ``GET /metrics`` until the returned function is called.

    Raises:
        StartupError: the library is not installed, or the port is taken.
    """
    try:
        import prometheus_client
    except ImportError:
        raise StartupError(
            "metrics.port is set, but prometheus-client is not installed",
            cure="pip install prometheus-client",
        ) from None
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(_collector(figures))
    try:
        server, thread = prometheus_client.start_http_server(port, address, registry)
    except OSError as error:
        raise StartupError(
            f"metrics on {address}:{port}: {error.strerror}", cure="set another metrics.port"
        ) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)

    return stop


def _collector(figures: Figures) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector

    class Collected(Collector):
        def collect(self) -> Any:
            yield CounterMetricFamily("torque_sched_cycles", "Cycles with a snapshot", figures.n_cycles)
            yield CounterMetricFamily(
                "torque_sched_snapshot_failures", "Cycles that got no snapshot", figures.n_failures
            )
            yield CounterMetricFamily("torque_sched_events", "Events heard", figures.n_events)
            starts = CounterMetricFamily(
                "torque_sched_starts", "Starts asked for, by the server's answer", labels=["answer"]
            )
            for kind, number in figures.starts.items():
                starts.add_metric([kind], number)
            yield starts
            waiting = GaugeMetricFamily("torque_sched_waiting_jobs", "Jobs that wait", labels=["reason"])
            for reason, number in figures.waiting.items():
                waiting.add_metric([reason], number)
            yield waiting
            totals = [sum(figures.cycle_s[: at + 1]) for at in range(len(figures.cycle_s))]
            bounds = [*map(str, _BUCKETS_S), "+Inf"]
            yield HistogramMetricFamily(
                "torque_sched_cycle_seconds", "Time of a cycle",
                buckets=list(zip(bounds, totals, strict=True)), sum_value=figures.cycle_sum_s,
            )  # fmt: skip
            yield CounterMetricFamily(
                "torque_sched_decide_seconds", "Time spent deciding", figures.decide_sum_s
            )

    return Collected()
