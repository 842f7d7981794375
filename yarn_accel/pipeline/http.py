"""The server's state over HTTP: ``/healthz``, ``/metrics`` for Prometheus, ``/stats.json`` for programs.

An event loop of its own, in a thread; loaded after the first answer, since it is a quarter of the server's
start. The server is asked for its ``stats()`` at most once per `STATS_AGE_S` and never twice at a time, and
is waited for `STATS_TIMEOUT_S` at most: however many scrapers come, the server feels one call, and if it does
not answer any more, ``/healthz`` still does: 503. Connections are bounded in number and in age, requests in
size, and only GET is answered.

Metrics are named ``yarn_accel_pipeline_<noun>_<unit>[_total]``. Their labels are few-valued: tenant,
operation, outcome, stage, queue, carrier, worker, device. Which value comes from where in
``PipelineServer.stats()`` is data; a part that is missing there gives no samples.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import prometheus_client
from aiohttp import web
from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from yarn_accel.adapters.metric_families import Vocabulary
from yarn_accel.pipeline.workers.protocol import plain

logger = logging.getLogger(__name__)

STATS_AGE_S = 0.25
STATS_TIMEOUT_S = 1.0
MAX_CONNECTIONS = 64
_MAX_AGE_S = 30.0
_MAX_LINE_BYTES = 4096
_MAX_BODY_BYTES = 1024
_END_S = 5.0
_CLOSING_S = 0.01
_Stats = Mapping[str, Any]


class StatsCollector(Collector):
    """The server's statistics as metric families; register it in a registry.

    Args:
        stats: returns the dictionary of ``PipelineServer.stats``.
    """

    def __init__(self, stats: Callable[[], _Stats]) -> None:
        self._stats = stats

    def describe(self) -> list[prometheus_client.Metric]:
        """Nothing, so that registering does not ask the server."""
        return []

    def collect(self) -> Iterator[prometheus_client.Metric]:
        """Every family of this moment."""
        yield from families(self._stats())


class HttpServer:
    """The HTTP server; ``start``, ``port``, ``close``.

    Args:
        stats: returns the dictionary of ``PipelineServer.stats``; called from threads of this class.
        listener: where connections come from, see `listeners.listen_http`; closed by `close`.
    """

    def __init__(self, stats: Callable[[], _Stats], listener: socket.socket) -> None:
        self._stats = stats
        self._listener = listener
        self.port = int(listener.getsockname()[1])
        self._registry = prometheus_client.CollectorRegistry()
        self._latest: _Stats = {}
        self._until_s = 0.0
        self._asking: asyncio.Future[_Stats] | None = None
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._registry.register(StatsCollector(lambda: self._latest))
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end the thread; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join(timeout=_END_S)
        self._listener.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            logger.exception("nothing is answered over HTTP any more")
        finally:
            self._loop.run_until_complete(_end_tasks())
            self._loop.close()

    async def _serve(self) -> None:
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        for path, answer in (
            ("/healthz", self._healthz),
            ("/metrics", self._metrics),
            ("/stats.json", self._stats_json),
        ):
            application.router.add_get(path, answer, allow_head=False)
        runner = web.AppRunner(
            application, access_log=None, max_line_size=_MAX_LINE_BYTES, shutdown_timeout=1.0
        )
        await runner.setup()
        assert runner.server is not None
        connections = _Connections(runner.server)
        listening = await self._loop.create_server(lambda: _Connection(connections), sock=self._listener)
        await self._is_over.wait()
        # asyncio cannot finish accepting a connection on a server that is closed: first it accepts no more.
        self._loop.remove_reader(self._listener)
        await connections.end()
        listening.close()
        await runner.cleanup()

    # Pages

    async def _healthz(self, _: web.Request) -> web.Response:
        try:
            stats = await self._refreshed()
        except Exception as error:  # noqa: BLE001 -- whatever breaks in there, who asks gets an answer
            return _health(False, [f"the server gives no statistics: {_reason(error)}"])
        health = stats.get("health", {})
        is_ok, problems = bool(health.get("ok", False)), [str(each) for each in health.get("problems", ())]
        if stats.get("is_draining"):
            is_ok, problems = False, [*problems, "draining: the server takes nothing new"]
        return _health(is_ok, problems, server=stats.get("server", ""))

    async def _metrics(self, _: web.Request) -> web.Response:
        try:
            await self._refreshed()
        except Exception as error:  # noqa: BLE001 -- as above
            return _missing(error)
        text = prometheus_client.generate_latest(self._registry)
        headers = {"Content-Type": prometheus_client.CONTENT_TYPE_LATEST}
        return _closing(web.Response(body=text, headers=headers))

    async def _stats_json(self, _: web.Request) -> web.Response:
        try:
            stats = await self._refreshed()
        except Exception as error:  # noqa: BLE001 -- as above
            return _missing(error)
        return _closing(web.json_response(text=json.dumps(plain(stats))))

    async def _refreshed(self) -> _Stats:
        """The statistics, at most `STATS_AGE_S` old; TimeoutError when the server does not give them."""
        if time.monotonic() < self._until_s:
            return self._latest
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
        return await asyncio.wait_for(asyncio.shield(self._asking), STATS_TIMEOUT_S)

    async def _ask(self) -> _Stats:
        """Ask the server, whoever still waits for the answer."""
        stats = await asyncio.to_thread(self._stats)
        self._latest, self._until_s = stats, time.monotonic() + STATS_AGE_S
        return stats


class _Connections:
    """The open connections, from the moment they have a transport until that is closed."""

    def __init__(self, make_handler: Callable[[], Any]) -> None:
        self.make_handler = make_handler
        self.transports: set[asyncio.Transport] = set()
        self.is_over = False

    async def end(self) -> None:
        """Close all of them, and those that are just being accepted."""
        self.is_over = True
        await asyncio.sleep(_CLOSING_S)
        while self.transports:
            for transport in self.transports:
                transport.abort()
            await asyncio.sleep(_CLOSING_S)


class _Connection(asyncio.Protocol):
    """One connection: closed at once above the limit, and when it is too old; else aiohttp's."""

    def __init__(self, connections: _Connections) -> None:
        self._connections = connections
        self._handler: Any = None
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Let aiohttp have it, if there is a place."""
        connections = self._connections
        is_refused = connections.is_over or len(connections.transports) >= MAX_CONNECTIONS
        self._transport = transport
        connections.transports.add(transport)
        if is_refused:
            transport.abort()
            return
        self._handler = connections.make_handler()
        self._timer = asyncio.get_running_loop().call_later(_MAX_AGE_S, transport.abort)
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._connections.transports.discard(self._transport)
        if self._timer is not None:
            self._timer.cancel()
        if self._handler is not None:
            self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`, as the next three."""
        if self._handler is not None:
            self._handler.data_received(data)

    def eof_received(self) -> None:
        """The client sends nothing more."""
        if self._handler is not None:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self._handler.resume_writing()


async def _end_tasks() -> None:
    """End what is still under way, such as a connection that is just being accepted."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(_CLOSING_S)


def _health(is_ok: bool, problems: list[str], **more: Any) -> web.Response:
    status = 200 if is_ok else 503
    return _closing(web.json_response({"ok": is_ok, "problems": problems, **more}, status=status))


def _missing(error: Exception) -> web.Response:
    return _closing(web.Response(text=f"no statistics: {_reason(error)}\n", status=503))


def _closing(response: web.Response) -> web.Response:
    """One request per connection: who comes seldom needs no more."""
    response.force_close()
    return response


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return f"no answer within {STATS_TIMEOUT_S:g} s"
    return f"{type(error).__name__}: {error}"


PREFIX = "yarn_accel_pipeline_"
_OUTCOMES = ("done", "rejected", "failed", "busy", "cancelled", "abandoned")
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
    "tenant_core_seconds": ("core-seconds of requests that were answered, by tenant", "core_s"),
    "tenant_gpu_seconds": ("GPU-seconds of requests that were answered, by tenant", "gpu_s"),
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
        for state, key in (
            ("used", "used_bytes"),
            ("free", "free_bytes"),
            ("shared", "shared_bytes"),
            ("leaked", "leaked_bytes"),
        )
    ]
    text = "memory of the pool, by state; shared and leaked (to processes that do not end) are part of used"
    yield _gauge("pool_bytes", text, ("state",), states)
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
