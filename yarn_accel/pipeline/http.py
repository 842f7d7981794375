"""What can be looked at over HTTP: ``/healthz``, ``/metrics`` for Prometheus, ``/stats.json`` for programs.

An event loop of its own, in a thread; loaded after the first answer, since it is a quarter of the server's
start.  The server is asked for its ``stats()`` at most once per `CACHE_S` and never twice at a time, and is
waited for `STATS_TIMEOUT_S` at most: however many scrapers come, the server feels one call, and if it does
not answer any more, ``/healthz`` still does: 503.  Connections are bounded in number and in age, requests in
size, and only GET is answered.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import prometheus_client
from aiohttp import web
from prometheus_client.registry import Collector

from yarn_accel.pipeline.arrays import plain
from yarn_accel.pipeline.metrics import families

logger = logging.getLogger(__name__)

CACHE_S = 0.25
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
        """The statistics, at most `CACHE_S` old; TimeoutError when the server does not give them."""
        if time.monotonic() < self._until_s:
            return self._latest
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
        return await asyncio.wait_for(asyncio.shield(self._asking), STATS_TIMEOUT_S)

    async def _ask(self) -> _Stats:
        """Ask the server, whoever still waits for the answer."""
        stats = await asyncio.to_thread(self._stats)
        self._latest, self._until_s = stats, time.monotonic() + CACHE_S
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
