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

__all__ = ["CACHE_S", "MAX_CONNECTIONS", "STATS_TIMEOUT_S", "HttpServer", "StatsCollector"]

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
        handlers, loop = runner.server, self._loop
        #: Those that live, and those whose transport comes in the next turn of the loop.
        living: set[Any] = set()
        accepted: set[Any] = set()

        def connected() -> asyncio.Protocol:
            living.difference_update(
                [each for each in living if each.transport is None and each not in accepted]
            )
            if len(living) >= MAX_CONNECTIONS:
                return _Refused()
            handler: Any = handlers()
            living.add(handler)
            accepted.add(handler)
            loop.call_soon(loop.call_soon, accepted.discard, handler)
            loop.call_later(_MAX_AGE_S, _end, handler)
            return handler  # type: ignore[no-any-return]

        listening = await loop.create_server(connected, sock=self._listener)
        await self._is_over.wait()
        listening.close()
        await runner.cleanup()
        # What was just accepted has a transport in the next turn of the loop, and none in the one after.
        await asyncio.sleep(_CLOSING_S)
        for handler in living:
            _end(handler)
        await asyncio.sleep(_CLOSING_S)

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
            self._asking = asyncio.ensure_future(asyncio.to_thread(self._stats))
        stats = await asyncio.wait_for(asyncio.shield(self._asking), STATS_TIMEOUT_S)
        self._latest, self._until_s = stats, time.monotonic() + CACHE_S
        return stats


class _Refused(asyncio.Protocol):
    """A connection above the limit."""

    def connection_made(self, transport: Any) -> None:
        """Close it at once."""
        transport.abort()


async def _end_tasks() -> None:
    """End what is still under way, such as a connection that is just being accepted."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(_CLOSING_S)


def _end(handler: Any) -> None:
    """End a connection that is still there."""
    if handler.transport is not None:
        handler.transport.abort()


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
