"""``/metrics`` for Prometheus and ``/healthz`` for whoever restarts servers, over HTTP.

An aiohttp application in a thread of its own.  It asks the server for its ``stats()`` in one more thread, at
most once per `CACHE_S` and never twice at a time, and waits `STATS_TIMEOUT_S` at most: however many scrapers
come, the server feels one call, and if the server does not answer any more, ``/healthz`` still does: 503.
Connections are bounded in number and in age, requests have no body, and only GET is answered.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import prometheus_client
from aiohttp import web
from prometheus_client.registry import Collector

from yarn_accel.errors import StartupError
from yarn_accel.pipeline.metrics import families

__all__ = ["CACHE_S", "MAX_CONNECTIONS", "STATS_TIMEOUT_S", "Observer", "StatsCollector"]

logger = logging.getLogger(__name__)

CACHE_S = 0.25
STATS_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 64
_MAX_AGE_S = 30.0
_START_TIMEOUT_S = 10.0
_SETTLE_S = 0.02


class StatsCollector(Collector):
    """The server's statistics as metric families; register it in a registry.

    Args:
        stats: returns the dictionary of ``PipelineServer.stats``.
    """

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats

    def describe(self) -> list[prometheus_client.Metric]:
        """Nothing, so that registering does not ask the server."""
        return []

    def collect(self) -> Iterator[prometheus_client.Metric]:
        """Every family of this moment."""
        yield from families(self._stats())


class Observer:
    """The HTTP server; ``start``, ``port``, ``close``.

    Args:
        stats: returns the dictionary of ``PipelineServer.stats``; called from a thread of this class.
        host: the address to listen on.
        port: the TCP port; 0: any free one.
        registry: where the collector is registered and what ``/metrics`` shows; default: one of its own.
    """

    def __init__(
        self,
        stats: Callable[[], Mapping[str, Any]],
        host: str,
        port: int,
        registry: prometheus_client.CollectorRegistry | None = None,
    ) -> None:
        self._host = host
        self.port = port
        self._cache = _Cached(stats)
        self._registry = registry or prometheus_client.CollectorRegistry()
        self._collector = StatsCollector(self._cache.latest)
        self._registry.register(self._collector)
        self._loop = asyncio.new_event_loop()
        self._runner = threading.Thread(target=self._run, name="observe", daemon=True)
        self._started: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._stop = asyncio.Event()

    def start(self) -> None:
        """Listen; `port` is known afterwards.

        Raises:
            StartupError: the address cannot be listened on.
        """
        self._runner.start()
        try:
            self.port = self._started.result(_START_TIMEOUT_S)
        except OSError as error:
            raise StartupError(
                f"cannot listen on {self._host}:{self.port}: {(error.strerror or str(error)).lower()}",
                cure="choose another http_host or http_port",
            ) from None

    def close(self) -> None:
        """Stop listening and end the thread; a second call does nothing."""
        if self._runner.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._runner.join(timeout=5.0)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            if self._started.done():
                logger.exception("the HTTP server ended")
            else:
                self._started.set_exception(error)
        finally:
            self._registry.unregister(self._collector)
            self._cache.close()
            self._loop.close()

    async def _serve(self) -> None:
        application = web.Application(client_max_size=1024)
        application.router.add_get("/metrics", self._metrics, allow_head=False)
        application.router.add_get("/healthz", self._healthz, allow_head=False)
        runner = web.AppRunner(application, access_log=None, keepalive_timeout=5.0, max_line_size=4096)
        await runner.setup()
        assert runner.server is not None
        try:
            door = await self._loop.create_server(
                _Door(self._loop, runner.server), self._host, self.port, backlog=MAX_CONNECTIONS
            )
            self._started.set_result(door.sockets[0].getsockname()[1])
            await self._stop.wait()
            # A listener that closes while asyncio (3.11) accepts leaks that connection: first let it finish.
            for listener in door.sockets:
                self._loop.remove_reader(listener.fileno())
            await asyncio.sleep(_SETTLE_S)
            door.close()
        finally:
            await runner.cleanup()
            await asyncio.sleep(_SETTLE_S)

    async def _metrics(self, _: web.Request) -> web.Response:
        try:
            await self._cache.refresh(self._loop)
        except Exception as error:  # noqa: BLE001 -- whatever breaks in there, the scraper gets an answer
            return web.Response(status=503, text=f"no statistics: {_told(error)}\n")
        text = prometheus_client.generate_latest(self._registry)
        return web.Response(body=text, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        try:
            stats = await self._cache.refresh(self._loop)
        except Exception as error:  # noqa: BLE001 -- as above
            problems = [f"the server gives no statistics: {_told(error)}"]
            return web.json_response({"ok": False, "problems": problems}, status=503)
        health = stats.get("health", {})
        is_ok, problems = bool(health.get("ok", False)), [str(each) for each in health.get("problems", ())]
        if stats.get("is_draining"):
            is_ok, problems = False, [*problems, "draining: the server takes nothing new"]
        answer = {"ok": is_ok, "problems": problems, "server": stats.get("server", "")}
        return web.json_response(answer, status=200 if is_ok else 503)


class _Cached:
    """The statistics, asked for in one thread and kept a moment."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats
        self._asking: asyncio.Future[Mapping[str, Any]] | None = None
        self._latest: Mapping[str, Any] = {}
        self._until_s = 0.0

    def latest(self) -> Mapping[str, Any]:
        return self._latest

    async def refresh(self, loop: asyncio.AbstractEventLoop) -> Mapping[str, Any]:
        """The statistics, at most `CACHE_S` old; TimeoutError when the server does not give them."""
        if time.monotonic() < self._until_s:
            return self._latest
        if self._asking is None or self._asking.done():
            self._asking = loop.create_future()
            # A daemon thread and no pool: one that hangs in the server must not hold up the exit.
            threading.Thread(
                target=self._ask, args=(loop, self._asking), name="observe-stats", daemon=True
            ).start()
        return await asyncio.wait_for(asyncio.shield(self._asking), STATS_TIMEOUT_S)

    def close(self) -> None:
        """Nobody waits any more."""
        self._asking = None

    def _ask(self, loop: asyncio.AbstractEventLoop, asking: asyncio.Future[Mapping[str, Any]]) -> None:
        try:
            stats = self._stats()
        except Exception as error:  # noqa: BLE001 -- handed to whoever asked
            self._tell(loop, asking.set_exception, error)
        else:
            self._latest, self._until_s = stats, time.monotonic() + CACHE_S
            self._tell(loop, asking.set_result, stats)

    def _tell(self, loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], value: Any) -> None:
        try:
            loop.call_soon_threadsafe(function, value)
        except RuntimeError:
            logger.debug("the statistics came after the end")


class _Door:
    """Makes the protocol of a new connection, and ends connections that are too many or too old."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: web.Server) -> None:
        self._loop = loop
        self._server = server
        self._made_s: dict[Any, float] = {}

    def __call__(self) -> asyncio.Protocol:
        now_s = self._loop.time()
        connected = set(self._server.connections)
        # asyncio makes the protocols of a whole backlog before it connects the first.
        self._made_s = {
            handler: made_s
            for handler, made_s in self._made_s.items()
            if handler in connected or now_s < made_s + _SETTLE_S
        }
        if len(self._made_s) >= MAX_CONNECTIONS:
            return _Refusal()
        handler = self._server()
        self._made_s[handler] = now_s
        self._loop.call_later(_MAX_AGE_S, handler.force_close)
        return handler


class _Refusal(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return f"no answer within {STATS_TIMEOUT_S:g} s"
    return f"{type(error).__name__}: {error}"
