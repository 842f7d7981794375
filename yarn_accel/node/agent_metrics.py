"""``/metrics`` for Prometheus and ``/healthz``, in the agent's own event loop; made only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import prometheus_client
from aiohttp import web
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from yarn_accel.adapters.metric_families import Vocabulary, value_at
from yarn_accel.errors import StartupError

PREFIX = "yarn_accel_node_"
_Snapshot = Mapping[str, Any]
_words = Vocabulary(PREFIX)
_gauge, _counter = _words.gauge, _words.counter

#: name -> (help, the keys that lead to the value)
_GAUGES = {
    "answer_age_seconds": ("age of the master's last word", ("answer_age_s",)),
    "silent_masters": ("1 while the master does not answer", ("is_master_silent",)),
    "slots": ("accelerated mappers this node may run at once", ("slots",)),
    "agent_resident_bytes": ("resident memory of the agent", ("agent", "rss_bytes")),
    "agent_cpu_ratio": ("share of one core the agent uses", ("agent", "cpu_share")),
    "network_receive_bytes_per_second": ("received", ("nic", "rx_bytes_per_s")),
    "network_transmit_bytes_per_second": ("sent", ("nic", "tx_bytes_per_s")),
    "disk_read_bytes_per_second": ("read from disks", ("disk", "read_bytes_per_s")),
    "disk_write_bytes_per_second": ("written to disks", ("disk", "write_bytes_per_s")),
    "disk_busy_ratio": ("share of time in which the busiest disk was at work", ("disk", "busy_share")),
    "counts_age_seconds": ("age of the cluster's counts for late binding", ("late_binding", "counts_age_s")),
    "server_in_flight_requests": ("requests in the local pipeline server", ("server", "in_flight")),
    "server_queued_requests": ("of those, waiting for a device", ("server", "queued")),
}
_DEVICE_GAUGES = {
    "device_temperature_celsius": ("temperature of a device", "temperature_c"),
    "device_memory_bytes": ("memory in use on a device", "memory_bytes"),
    "device_memory_total_bytes": ("memory of a device", "memory_total_bytes"),
    "device_utilisation_ratio": ("share of the last moment in which a kernel ran", "utilisation"),
}
_DEVICE_HEALTHS = ("ok", "hot", "failed", "lost", "silent")
_SERVER_HEALTHS = ("ok", "starting", "draining", "unhealthy", "unwatched", "silent", "gone", "none")


def families(snapshot: _Snapshot) -> Iterator[Metric]:
    """Every metric family that this snapshot has values for.

    Args:
        snapshot: what ``Agent.snapshot`` returned.
    """
    yield InfoMetricFamily(PREFIX + "agent", "who this is", {"node": str(snapshot.get("node", ""))})
    for name, (text, path) in _GAUGES.items():
        yield _gauge(name, text, (), [((), value_at(snapshot, path))])
    shares = [
        (tuple(key.split("_", 2)), value / 100) for key, value in (snapshot.get("pressure") or {}).items()
    ]
    yield _gauge("pressure_ratio", "share of time lost", ("resource", "kind", "window"), shares)
    for name, key, label in (("heartbeats", "heartbeats", "outcome"), ("questions", "questions", "outcome")):
        counted = [((outcome,), n) for outcome, n in (snapshot.get(key) or {}).items()]
        yield _counter(name, f"{name} by how they ended", (label,), counted)
    yield from _claims(snapshot.get("late_binding") or {})
    devices = snapshot.get("devices") or ()
    for name, (text, key) in _DEVICE_GAUGES.items():
        yield _gauge(
            name, text, ("device",), [((str(each.get("device")),), each.get(key)) for each in devices]
        )
    healths = [
        ((str(each.get("device")), health), each.get("health") == health)
        for each in devices
        for health in _DEVICE_HEALTHS
    ]
    yield _gauge("device_health", "1 at the device's health", ("device", "health"), healths)
    health = (snapshot.get("server") or {"health": "none"}).get("health")
    states = [((each,), each == health) for each in _SERVER_HEALTHS]
    yield _gauge("server_health", "1 at the health of the local pipeline server", ("health",), states)


def _claims(late_binding: _Snapshot) -> Iterator[Metric]:
    """Mappers that ask for a place, see `node.late_binding`."""
    states = [((state,), n) for state, n in (late_binding.get("claims") or {}).items()]
    yield _gauge("claims", "mappers that wait for a place or hold one", ("state",), states)
    for name, key, text in (
        ("claim_outcomes", "outcomes", "what was decided about claims, and how they ended"),
        ("claim_connections", "connections", "connections for claims by how they ended"),
    ):
        counted = [((outcome,), n) for outcome, n in (late_binding.get(key) or {}).items()]
        yield _counter(name, text, ("outcome",), counted)


class AgentMetricsServer(Collector):
    """The HTTP side; GET only, and no more than what `Agent.snapshot` says.

    Args:
        snapshot: see `families`.
        port: 0: any free one; known after `open`.
    """

    def __init__(self, snapshot: Callable[[], _Snapshot], host: str, port: int) -> None:
        self._snapshot = snapshot
        self._host = host
        self.port = port
        self._registry = prometheus_client.CollectorRegistry()
        self._runner: web.AppRunner | None = None

    def describe(self) -> list[Metric]:
        """Nothing, so that registering costs nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family of this moment."""
        yield from families(self._snapshot())

    async def open(self) -> None:
        """Listen.

        Raises:
            StartupError: the address cannot be listened on.
        """
        self._registry.register(self)
        application = web.Application(client_max_size=1024)
        application.router.add_get("/metrics", self._metrics, allow_head=False)
        application.router.add_get("/healthz", self._healthz, allow_head=False)
        self._runner = web.AppRunner(application, access_log=None, keepalive_timeout=5.0, max_line_size=4096)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port, backlog=16)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise StartupError(
                f"cannot listen on {self._host}:{self.port}: {(error.strerror or str(error)).lower()}",
                cure="choose another http_host or http_port",
            ) from None
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        text = prometheus_client.generate_latest(self._registry)
        return web.Response(body=text, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        snapshot = self._snapshot()
        problems = [str(each) for each in snapshot.get("problems") or ()]
        silence = (snapshot.get("master") or {}).get("silence")
        if snapshot.get("is_master_silent"):
            problems.append(silence or "the master was not asked yet")
        answer = {"ok": not problems, "problems": problems, "node": snapshot.get("node", "")}
        return web.json_response(answer, status=200 if answer["ok"] else 503)
