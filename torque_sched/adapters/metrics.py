"""Figures for Prometheus: counted here, read over HTTP; names begin with ``torque_sched_``."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torque_sched.errors import StartupError
from torque_sched.extras import install_command

_LATE_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86400.0)
"""Bounds of how late, or how early, promised jobs start."""
_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)
_PHASE_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, *_BUCKETS_S)


class Spans:
    """How often a span was how long."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = tuple(bounds_s)
        self._counts = [0] * (len(self._bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, span_s: float) -> None:
        """One more."""
        self.sum_s += span_s
        self._counts[bisect.bisect_left(self._bounds_s, span_s)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus wants them: up to each bound."""
        totals = [float(total) for total in itertools.accumulate(self._counts)]
        return list(zip([*map(str, self._bounds_s), "+Inf"], totals, strict=True))


class Figures:
    """Counts what cycles did; costs nothing worth measuring, so it always counts."""

    def __init__(self) -> None:
        self.n_cycles = 0
        self.n_failures = 0
        self.n_events = 0
        self.n_journal_dropped = 0
        self.starts: dict[str, int] = {}
        """Answers of qrun by kind."""
        self.decisions: Mapping[str, int] = {}
        """Of the last cycle, by kind."""
        self.waiting: Mapping[str, int] = {}
        """Jobs of the last cycle that wait, by reason."""
        self.cycle_s = Spans(_BUCKETS_S)
        self.phases_s: dict[str, Spans] = {}
        """Of the parts of cycles, by name."""
        self.n_promises = 0
        """Waiting jobs of the last cycle that have a promise."""
        self.promise_changes: dict[str, int] = {}
        """By kind: made, better, withdrawn, or why they were broken."""
        self.late_s = {which: Spans(_LATE_S) for which in ("first", "last")}
        """How much later than promised jobs started; 0 when not later."""
        self.prediction_errors: Mapping[str, tuple[float, float, bool]] = {}
        """By figure: mean error, that of the last jobs, and whether it has drifted."""
        self.early_s = {which: Spans(_LATE_S) for which in ("first", "last")}
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
        self.decide_sum_s += decide_s
        self.cycle_s.add(total_s)
        for kind, number in starts.items():
            self.starts[kind] = self.starts.get(kind, 0) + number
        self.decisions, self.waiting = dict(decisions), dict(waiting)

    def phases(self, took_s: Mapping[str, float]) -> None:
        """How long each part of a cycle took."""
        for name, each_s in took_s.items():
            self.phases_s.setdefault(name, Spans(_PHASE_BUCKETS_S)).add(each_s)

    def promised(
        self, n_promises: int, changes: Mapping[str, int], errors_s: Iterable[tuple[float, float]]
    ) -> None:
        """What a cycle did to promises.

        Args:
            n_promises: waiting jobs that have one.
            changes: by kind.
            errors_s: of jobs that started: actual start less the first, and less the last promise.
        """
        self.n_promises = n_promises
        for kind, number in changes.items():
            self.promise_changes[kind] = self.promise_changes.get(kind, 0) + number
        for errors in errors_s:
            for which, error_s in zip(("first", "last"), errors, strict=True):
                self.late_s[which].add(max(0.0, error_s))
                self.early_s[which].add(max(0.0, -error_s))

    def failure(self) -> None:
        """A cycle got no snapshot."""
        self.n_failures += 1


def serve_figures(figures: Figures, address: str, port: int) -> Callable[[], None]:
    """Answer ``GET /metrics`` until the returned function is called.

    Raises:
        StartupError: the library is not installed, or the port is taken.
    """
    return serve_metrics(lambda: _collector(figures), address, port, "metrics.port")


def serve_metrics(collector: Callable[[], Any], address: str, port: int, setting: str) -> Callable[[], None]:
    """Answer ``GET /metrics`` until the returned function is called.

    Args:
        collector: makes the ``prometheus_client`` collector; called once the library is there.
        address: to listen on.
        port: to listen on.
        setting: the key that asks for it, for the message.

    Raises:
        StartupError: the library is not installed, or the port is taken.
    """
    try:
        import prometheus_client
    except ImportError:
        raise StartupError(
            f"{setting} is set, but prometheus-client is not installed",
            cure=install_command("prometheus_client"),
        ) from None
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(collector())
    try:
        server, thread = prometheus_client.start_http_server(port, address, registry)
    except OSError as error:
        raise StartupError(
            f"metrics on {address}:{port}: {error.strerror}", cure=f"set another {setting}"
        ) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)

    return stop


def _collector(figures: Figures) -> Any:
    from prometheus_client.registry import Collector

    class Collected(Collector):
        def collect(self) -> Any:
            yield from _cycles(figures)
            yield from _guaranteed(figures)
            yield from _predictions(figures)

    return Collected()


def _cycles(figures: Figures) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    yield CounterMetricFamily("torque_sched_cycles", "Cycles with a snapshot", figures.n_cycles)
    yield CounterMetricFamily(
        "torque_sched_snapshot_failures", "Cycles that got no snapshot", figures.n_failures
    )
    yield CounterMetricFamily("torque_sched_events", "Events heard", figures.n_events)
    yield CounterMetricFamily(
        "torque_sched_journal_dropped", "Cycles left out of the journal", figures.n_journal_dropped
    )
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
    yield HistogramMetricFamily(
        "torque_sched_cycle_seconds", "Time of a cycle",
        buckets=figures.cycle_s.buckets(), sum_value=figures.cycle_s.sum_s,
    )  # fmt: skip
    phases = HistogramMetricFamily(
        "torque_sched_cycle_phase_seconds", "Time of a part of a cycle", labels=["phase"]
    )
    for name, spans in figures.phases_s.items():
        phases.add_metric([name], buckets=spans.buckets(), sum_value=spans.sum_s)
    yield phases
    yield CounterMetricFamily("torque_sched_decide_seconds", "Time spent deciding", figures.decide_sum_s)


def _guaranteed(figures: Figures) -> Any:
    """Guaranteed starts: how many, how they changed, and how far actual starts were from them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    yield GaugeMetricFamily(
        "torque_sched_guaranteed_starts", "Waiting jobs with a guaranteed start", figures.n_promises
    )
    changes = CounterMetricFamily(
        "torque_sched_guaranteed_start_changes",
        "Guaranteed starts made, improved, broken, by kind",
        labels=["kind"],
    )
    for kind, number in figures.promise_changes.items():
        changes.add_metric([kind], number)
    yield changes
    for name, words, spans in (
        ("late", "Actual start after the guaranteed one", figures.late_s),
        ("early", "Actual start before the guaranteed one", figures.early_s),
    ):
        family = HistogramMetricFamily(
            f"torque_sched_guaranteed_start_{name}_seconds", words, labels=["which"]
        )
        for which, each in spans.items():
            family.add_metric([which], buckets=each.buckets(), sum_value=each.sum_s)
        yield family


def _predictions(figures: Figures) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    error = GaugeMetricFamily(
        "torque_sched_prediction_error", "Mean error of predictions, as in report", labels=["figure", "of"]
    )
    drift = GaugeMetricFamily(
        "torque_sched_prediction_drift", "1: the last predictions were twice as wrong", labels=["figure"]
    )
    for figure, (mean, recent, has_drifted) in figures.prediction_errors.items():
        error.add_metric([figure, "all"], mean)
        error.add_metric([figure, "last"], recent)
        drift.add_metric([figure], float(has_drifted))
    yield error
    yield drift
