"""Prometheus metric families from plain values, for all services that publish metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
#: The values of the labels, and a number, a bool, or None for "not known": no sample then.
Sample = tuple[tuple[str, ...], Any]


class Vocabulary:
    """Makes families whose names begin with the same prefix, such as ``yarn_accel_master_``."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def gauge(self, name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
        """A family of values that go up and down."""
        return _filled(GaugeMetricFamily(self._prefix + name, text, labels=labels), samples)

    def counter(self, name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
        """A family of values that only grow; ``_total`` is added to its name."""
        return _filled(CounterMetricFamily(self._prefix + name, text, labels=labels), samples)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def exposition(families: Iterable[Metric]) -> bytes:
    """The families as text of `CONTENT_TYPE`."""
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return prometheus_client.generate_latest(registry)


def value_at(values: Any, path: Sequence[str]) -> Any:
    """The value below these keys in mappings of mappings; None where one of them is missing."""
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def _filled(family: Any, samples: Iterable[Sample]) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, float(value))
    filled: Metric = family
    return filled
