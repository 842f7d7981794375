"""The server's statistics in Prometheus' words: ``yarn_accel_pipeline_<noun>_<unit>[_total]``.

Labels are few-valued: tenant, operation, outcome, stage, queue, carrier, worker, device.  Which value comes
from where in ``PipelineServer.stats()`` is data; a part that is missing there gives no samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric

from yarn_accel.adapters.metric_families import Vocabulary

PREFIX = "yarn_accel_pipeline_"
_OUTCOMES = ("done", "rejected", "failed", "busy", "cancelled", "abandoned")
_Stats = Mapping[str, Any]
_words = Vocabulary(PREFIX)
_gauge, _counter = _words.gauge, _words.counter

#: name -> (help, key in the statistics)
_PLAIN_GAUGES = {
    "uptime_seconds": ("seconds since the start", "uptime_s"),
    "in_flight_requests": ("requests admitted and not answered", "in_flight"),
    "draining_servers": ("1 while it takes nothing new", "is_draining"),
    "reply_cache_bytes": ("bytes of recent replies kept", "reply_cache_bytes"),
}
_PLAIN_COUNTERS = {
    "requests": ("requests received", "requests"),
    "duplicate_requests": ("answered from the computation of another one with the same key", "duplicates"),
    "received_bytes": ("bytes of inputs, received or read", "bytes_in"),
    "sent_bytes": ("bytes of outputs, sent or written", "bytes_out"),
}
_TENANT_COUNTERS = {
    "tenant_requests": ("requests received, by tenant", "requests"),
    "tenant_received_bytes": ("bytes of inputs, by tenant", "bytes_in"),
    "tenant_sent_bytes": ("bytes of outputs, by tenant", "bytes_out"),
    "tenant_device_seconds": ("device-seconds really used, by tenant", "device_s"),
}
_WORKER_GAUGES = {
    "worker_resident_bytes": ("resident memory of a worker process", "rss_bytes"),
}
_WORKER_COUNTERS = {
    "worker_busy_seconds": ("seconds in which a worker computed", "busy_s"),
    "worker_jobs": ("jobs a worker has done", "n_jobs"),
}
_DEVICE_GAUGES = {
    "device_temperature_celsius": ("temperature of a device", "temperature_c"),
    "device_memory_bytes": ("memory in use on a device", "memory_bytes"),
    "device_other_memory_bytes": ("of that, in use by processes of others", "other_bytes"),
    "device_utilisation_ratio": ("share of the last moment in which a kernel ran", "utilisation"),
}


def families(stats: _Stats) -> Iterator[Metric]:
    """Every metric family that these statistics have values for.

    Args:
        stats: what ``PipelineServer.stats`` returned.
    """
    info = {"server": str(stats.get("server", "")), "protocol": str(stats.get("protocol_version", ""))}
    yield InfoMetricFamily(PREFIX + "server", "who this is", info)
    is_healthy = stats.get("health", {}).get("ok")
    yield _gauge("healthy_servers", "1 while nothing is wrong", (), [((), is_healthy)])
    for name, (text, key) in _PLAIN_GAUGES.items():
        yield _gauge(name, text, (), [((), stats.get(key))])
    for name, (text, key) in _PLAIN_COUNTERS.items():
        yield _counter(name, text, (), [((), stats.get(key))])
    yield from _traffic(stats)
    yield from _memory(stats)
    yield from _tenants(stats)
    yield from _workers(stats)
    yield from _latency(stats.get("latency", {}))


def _traffic(stats: _Stats) -> Iterator[Metric]:
    yield _counter(
        "answers",
        "requests that ended, by how",
        ("outcome",),
        [((name,), stats.get(name)) for name in _OUTCOMES],
    )
    per_operation = [
        ((operation, outcome), counts.get(outcome))
        for operation, counts in stats.get("operations", {}).items()
        for outcome in ("requests", *_OUTCOMES)
    ]
    yield _counter(
        "operation_requests",
        "requests by operation and how they ended",
        ("operation", "outcome"),
        per_operation,
    )
    seconds = [((name,), counts.get("compute_s")) for name, counts in stats.get("operations", {}).items()]
    yield _counter("operation_compute_seconds", "seconds of computing", ("operation",), seconds)
    connections = [
        ((how,), stats.get(key))
        for how, key in (("accepted", "connections"), ("refused", "refused"), ("broken", "broken"))
    ]
    yield _counter("connections", "connections by what became of them", ("fate",), connections)
    carriers = [(_carrier(label), n) for label, n in stats.get("open_connections", {}).items()]
    yield _gauge("open_connections", "connections open now", ("carrier", "checksum"), carriers)
    busy = [((stage,), value) for stage, value in stats.get("stage_busy", {}).items()]
    yield _counter(
        "stage_busy_seconds", "seconds in which a stage was at work, over its threads", ("stage",), busy
    )
    spent = [((stage,), value) for stage, value in stats.get("stage_seconds", {}).items()]
    yield _counter("stage_request_seconds", "seconds that requests spent, by stage", ("stage",), spent)


def _memory(stats: _Stats) -> Iterator[Metric]:
    pool = stats.get("pool", {})
    states = [
        ((state,), pool.get(key))
        for state, key in (("used", "used_bytes"), ("free", "free_bytes"), ("shared", "shared_bytes"))
    ]
    yield _gauge("pool_bytes", "memory of the pool, by state; shared is part of used", ("state",), states)
    yield _gauge("pool_peak_bytes", "most that was ever used", (), [((), pool.get("peak_bytes"))])
    yield _gauge("pool_bound_bytes", "what the pool never passes", (), [((), pool.get("bound_bytes"))])
    yield _gauge("pool_waiting_requests", "requests that wait for memory", (), [((), pool.get("waiting"))])
    queues = stats.get("queues", {})
    for name, key, text in (
        ("queue_bytes", "bytes", "bytes in a queue"),
        ("queue_peak_bytes", "peak_bytes", "most bytes that were ever in a queue"),
        ("queue_bound_bytes", "bound_bytes", "what a queue never passes"),
    ):
        yield _gauge(name, text, ("queue",), [((label,), queue.get(key)) for label, queue in queues.items()])


def _tenants(stats: _Stats) -> Iterator[Metric]:
    tenants = stats.get("tenants", {})
    for name, (text, key) in _TENANT_COUNTERS.items():
        yield _counter(name, text, ("tenant",), [((who,), each.get(key)) for who, each in tenants.items()])
    queued = [((who,), each.get("queued")) for who, each in tenants.items()]
    yield _gauge("tenant_queued_requests", "requests waiting for a device", ("tenant",), queued)


def _workers(stats: _Stats) -> Iterator[Metric]:
    found = _rows(stats, "workers")
    # Named by place: the numbers of workers grow with every replacement.  Standbys have none.
    workers = [
        ((str(worker.get("slot", at)), str(worker.get("device", ""))), worker)
        for at, worker in enumerate(found)
        if worker.get("worker", at) >= 0
    ]
    for name, (text, key) in _WORKER_GAUGES.items():
        yield _gauge(name, text, ("worker", "device"), [(labels, each.get(key)) for labels, each in workers])
    for name, (text, key) in _WORKER_COUNTERS.items():
        yield _counter(
            name, text, ("worker", "device"), [(labels, each.get(key)) for labels, each in workers]
        )
    states = [(str(each.get("device", "")), str(each.get("state", ""))) for each in found]
    counted = [((device, state), states.count((device, state))) for device, state in sorted(set(states))]
    yield _gauge("worker_processes", "worker processes by device and state", ("device", "state"), counted)
    devices = [((str(each.get("device", at)),), each) for at, each in enumerate(_rows(stats, "devices"))]
    for name, (text, key) in _DEVICE_GAUGES.items():
        yield _gauge(name, text, ("device",), [(labels, each.get(key)) for labels, each in devices])


def _latency(latency: _Stats) -> Iterator[Metric]:
    family = HistogramMetricFamily(
        PREFIX + "request_seconds", "from the arrival of a header to the answer", labels=("operation",)
    )
    bounds = [*(f"{bound:g}" for bound in latency.get("bounds_s", ())), "+Inf"]
    for operation, found in latency.get("operations", {}).items():
        cumulated = list(itertools.accumulate(found["counts"]))
        family.add_metric((operation,), list(zip(bounds, cumulated, strict=True)), found["sum_s"])
    yield family


def _rows(stats: _Stats, name: str) -> Sequence[Mapping[str, Any]]:
    found = stats.get(name)
    return found if isinstance(found, list | tuple) else ()


def _carrier(label: str) -> tuple[str, ...]:
    carrier, _, checksum = label.partition("/")
    return carrier, checksum or "none"
