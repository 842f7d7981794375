"""``/metrics`` for Prometheus, ``/stats.json`` for agents, ``/healthz`` for supervisors, over HTTP.

The standard library's HTTP, which ``prometheus_client`` loads anyway: an asynchronous framework would be a
quarter of the server's start.  One thread accepts, one more answers each connection.  The server is asked for
its ``stats()`` at most once per `CACHE_S` and never twice at a time, and is waited for `STATS_TIMEOUT_S` at
most: however many scrapers come, the server feels one call, and if it does not answer any more, ``/healthz``
still does: 503.  Connections are bounded in number and in age, requests in size, and only GET is answered.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

import prometheus_client
from prometheus_client.registry import Collector

from yarn_accel.pipeline.metrics import families

__all__ = ["CACHE_S", "MAX_CONNECTIONS", "STATS_TIMEOUT_S", "Observer", "StatsCollector"]

logger = logging.getLogger(__name__)

CACHE_S = 0.25
STATS_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 64
_MAX_AGE_S = 30.0
_MAX_HEAD_BYTES = 8192
#: What is read of a body before it is refused: closing with more unread could cost the client the answer.
_MAX_BODY_BYTES = 1024
_PAUSE_S = 0.1
_END_S = 5.0


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
        listener: where connections come from, see `listeners.listen_http`; closed by `close`.
        registry: where the collector is registered and what ``/metrics`` shows; default: one of its own.
    """

    def __init__(
        self,
        stats: Callable[[], Mapping[str, Any]],
        listener: socket.socket,
        registry: prometheus_client.CollectorRegistry | None = None,
    ) -> None:
        self._listener = listener
        self.port = int(listener.getsockname()[1])
        self.cache = _Cached(stats)
        self.registry = registry or prometheus_client.CollectorRegistry()
        self._collector = StatsCollector(self.cache.latest)
        self.registry.register(self._collector)
        self._runner = threading.Thread(target=self._run, name="observe", daemon=True)
        self._room = threading.Semaphore(MAX_CONNECTIONS)
        self._is_closed = False

    def start(self) -> None:
        """Answer from now on."""
        self._runner.start()

    def close(self) -> None:
        """Stop listening and end the thread; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        if self._runner.is_alive():
            self._runner.join(timeout=_END_S)
        self._listener.close()
        self.registry.unregister(self._collector)

    def _run(self) -> None:
        while not self._is_closed:
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if not self._is_closed:
                    logger.warning("a connection could not be accepted: %s", error)
                    time.sleep(_PAUSE_S)
                continue
            self._serve(sock, address)

    def _serve(self, sock: socket.socket, address: Any) -> None:
        """Give a connection a thread of its own, or end it at once."""
        if not self._room.acquire(blocking=False):
            sock.close()
            return
        try:
            threading.Thread(
                target=self._answer, args=(sock, address), name="observe-one", daemon=True
            ).start()
        except RuntimeError as error:
            logger.warning("a connection could not be served: %s", error)
            self._room.release()
            sock.close()

    def _answer(self, sock: socket.socket, address: Any) -> None:
        try:
            with sock:
                _Conversation(sock, address, self)  # type: ignore[arg-type]
        except OSError as error:
            logger.debug("a connection was lost: %s", error)
        except Exception:
            logger.exception("a request broke the server's own code")
        finally:
            self._room.release()


class _Conversation(BaseHTTPRequestHandler):
    """One request and its answer."""

    server: Observer  # type: ignore[assignment]
    server_version, sys_version = "yarn-accel", ""

    def handle(self) -> None:
        """Read the head within its bounds, then go on as usual."""
        self._until_s = time.monotonic() + _MAX_AGE_S
        raw = b""
        while b"\r\n\r\n" not in raw and len(raw) < _MAX_HEAD_BYTES:
            piece = self._receive()
            if not piece:
                return
            raw += piece
        head, _, self._body = raw.partition(b"\r\n\r\n")
        self.rfile = io.BufferedReader(io.BytesIO(head + b"\r\n\r\n"))
        self.close_connection = True
        self.handle_one_request()

    def _receive(self) -> bytes:
        self.connection.settimeout(max(self._until_s - time.monotonic(), 0.001))
        received: bytes = self.connection.recv(4096)
        return received

    def do_GET(self) -> None:
        """Answer one of our pages."""
        pages = {"/metrics": self._metrics, "/stats.json": self._stats, "/healthz": self._healthz}
        page = pages.get(self.path.partition("?")[0])
        if page is None:
            self.send_error(404)
        else:
            page()

    def _refuse(self) -> None:
        length = self.headers.get("Content-Length", "")
        n_bytes = min(int(length), _MAX_BODY_BYTES) if length.isdecimal() else 0
        while len(self._body) < n_bytes and (piece := self._receive()):
            self._body += piece
        self.send_error(405)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = _refuse

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody wants to read of every scrape."""

    def _refreshed(self) -> Mapping[str, Any] | None:
        """The statistics; None: there are none, and the client got a 503."""
        try:
            return self.server.cache.refresh()
        except Exception as error:  # noqa: BLE001 -- whatever breaks in there, the scraper gets an answer
            self._send(503, "text/plain; charset=utf-8", f"no statistics: {_told(error)}\n".encode())
            return None

    def _metrics(self) -> None:
        if self._refreshed() is not None:
            text = prometheus_client.generate_latest(self.server.registry)
            self._send(200, prometheus_client.CONTENT_TYPE_LATEST, text)

    def _stats(self) -> None:
        stats = self._refreshed()
        if stats is not None:
            self._send(200, "application/json; charset=utf-8", json.dumps(stats, default=str).encode())

    def _healthz(self) -> None:
        try:
            stats = self.server.cache.refresh()
        except Exception as error:  # noqa: BLE001 -- as above
            self._say(False, [f"the server gives no statistics: {_told(error)}"])
            return
        health = stats.get("health", {})
        is_ok, problems = bool(health.get("ok", False)), [str(each) for each in health.get("problems", ())]
        if stats.get("is_draining"):
            is_ok, problems = False, [*problems, "draining: the server takes nothing new"]
        self._say(is_ok, problems, server=stats.get("server", ""))

    def _say(self, is_ok: bool, problems: list[str], **more: Any) -> None:
        text = json.dumps({"ok": is_ok, "problems": problems, **more})
        self._send(200 if is_ok else 503, "application/json; charset=utf-8", text.encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.connection.settimeout(max(self._until_s - time.monotonic(), 0.001))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Cached:
    """The statistics, asked for in one thread and kept a moment."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats
        self._lock = threading.Lock()
        self._asking: concurrent.futures.Future[Mapping[str, Any]] | None = None
        self._latest: Mapping[str, Any] = {}
        self._until_s = 0.0

    def latest(self) -> Mapping[str, Any]:
        return self._latest

    def refresh(self) -> Mapping[str, Any]:
        """The statistics, at most `CACHE_S` old; TimeoutError when the server does not give them."""
        with self._lock:
            if time.monotonic() < self._until_s:
                return self._latest
            asking = self._asking
            if asking is None or asking.done():
                asking = self._asking = concurrent.futures.Future()
                # A daemon thread and no pool: one that hangs in the server must not hold up the exit.
                threading.Thread(target=self._ask, args=(asking,), name="observe-stats", daemon=True).start()
        return asking.result(STATS_TIMEOUT_S)

    def _ask(self, asking: concurrent.futures.Future[Mapping[str, Any]]) -> None:
        try:
            stats = self._stats()
        except Exception as error:  # noqa: BLE001 -- handed to whoever asked
            asking.set_exception(error)
        else:
            self._latest, self._until_s = stats, time.monotonic() + CACHE_S
            asking.set_result(stats)


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError | concurrent.futures.TimeoutError):
        return f"no answer within {STATS_TIMEOUT_S:g} s"
    return f"{type(error).__name__}: {error}"
