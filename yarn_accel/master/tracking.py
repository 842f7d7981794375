"""What can be looked at over HTTP: ``/`` (the tracking page), ``/v1/state``, ``/metrics`` and ``/healthz``.

Read-only, and answered only to `Visitors`: YARN's web proxy, which the resource manager runs and which knows
who its users are, and this machine itself.  Everybody else is told where to look instead.  The state is made
at most once per `CACHE_S`, and one page at a time is written, in a thread: heartbeats do not wait for people.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from yarn_accel.errors import AccelError
from yarn_accel.master.look import POLICY
from yarn_accel.master.page import Query, page, text_page

__all__ = ["CACHE_S", "RESOLVE_AGAIN_S", "Visitors", "add_routes"]

logger = logging.getLogger(__name__)

CACHE_S = 0.5
RESOLVE_AGAIN_S = 60.0
#: Making the state of a large cluster may take this part of the time, at most.
_REST = 20.0
_State = Mapping[str, Any]
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Visitors:
    """Who may look: some hosts, and this machine over its loopback addresses.

    Args:
        hosts: names, addresses, or URLs of them; names are resolved again every `RESOLVE_AGAIN_S`, for
            resource managers move.  A name that cannot be resolved keeps the addresses it had.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = tuple(urlsplit(host).hostname or "" if "//" in host else host for host in hosts)
        self._addresses: dict[str, frozenset[_Address]] = {}
        self._until_s = float("-inf")
        self._resolving = asyncio.Lock()

    async def admits(self, remote: str | None) -> bool:
        """Whether the one who connects from this address may look."""
        address = _address(remote or "")
        if address is None:
            return False
        if address.is_loopback:
            return True
        await self._resolve()
        return any(address in found for found in self._addresses.values())

    async def _resolve(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._resolving:
            if loop.time() < self._until_s:
                return
            for host in self._hosts:
                try:
                    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                except OSError as error:
                    logger.warning("%s: %s", host, error)
                    continue
                addresses = (_address(str(each[4][0])) for each in found)
                self._addresses[host] = frozenset(each for each in addresses if each is not None)
            self._until_s = loop.time() + RESOLVE_AGAIN_S


def add_routes(
    app: web.Application,
    state: Callable[[], _State],
    visitors: Visitors,
    explain: Callable[[str], str] | None = None,
) -> None:
    """Make the application answer what is listed at the top.

    Args:
        state: makes the state document, see `figures`; called in the event loop's thread.
        explain: `Application.explain`.
    """
    views = _Views(state, explain or (lambda node: ""))
    for path, handler in (
        ("/", views.page),
        ("/v1/state", views.state),
        ("/metrics", views.metrics),
        ("/healthz", views.healthz),
    ):
        app.router.add_get(path, _for_visitors(visitors, handler, views), allow_head=False)


class _Views:
    """The handlers, and the state they share."""

    def __init__(self, state: Callable[[], _State], explain: Callable[[str], str]) -> None:
        self._make_state = state
        self._explain = explain
        self._state: _State = {}
        self._pages: dict[Query, str] = {}
        self._until_s = float("-inf")
        self._writing = asyncio.Lock()

    def latest(self) -> _State:
        """The state, at most `CACHE_S` old; that of a large cluster lives longer."""
        began_s = asyncio.get_running_loop().time()
        if began_s >= self._until_s:
            self._state, self._pages = self._make_state(), {}
            now_s = asyncio.get_running_loop().time()
            self._until_s = now_s + max(CACHE_S, (now_s - began_s) * _REST)
        return self._state

    async def page(self, request: web.Request) -> web.Response:
        state, pages = self.latest(), self._pages
        query = Query(request.query.get("node", "")[:255], request.query.get("rack", "")[:255])
        explanation = self._explained(query.node)
        async with self._writing:
            if query not in pages:
                pages[query] = await asyncio.to_thread(page, state, query, explanation)
        return _html(pages[query], 200)

    async def state(self, _: web.Request) -> web.Response:
        state = self.latest()
        text = await self._write(lambda: json.dumps(state, allow_nan=False))
        return web.Response(text=text, content_type="application/json", headers=_HEADERS)

    async def metrics(self, _: web.Request) -> web.Response:
        # Not before somebody wants them: they cost the ApplicationMaster memory.
        from yarn_accel.adapters.metric_families import CONTENT_TYPE, exposition
        from yarn_accel.master.metrics import families

        state = self.latest()
        text = await self._write(lambda: exposition(families(state)))
        return web.Response(body=text, headers={**_HEADERS, "Content-Type": CONTENT_TYPE})

    async def healthz(self, _: web.Request) -> web.Response:
        state = self.latest()
        problems = [str(each) for each in state["service"].get("problems", ())]
        if not state["is_registered"]:
            problems.append("the resource manager does not know us")
        answer = {"ok": not problems, "problems": problems, "attempt": state["attempt"]}
        return web.json_response(answer, status=503 if problems else 200, headers=_HEADERS)

    def _explained(self, node: str) -> str:
        try:
            return self._explain(node) if node else ""
        except AccelError as error:
            return str(error)

    async def _write(self, write: Callable[[], Any]) -> Any:
        async with self._writing:
            return await asyncio.to_thread(write)


def _for_visitors(visitors: Visitors, handler: _Handler, views: _Views) -> _Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        if await visitors.admits(request.remote):
            return await handler(request)
        # No redirection: a proxy that comes from an address we do not know would be sent around for ever.
        url = views.latest()["about"].get("proxy_url")
        words = f"Look at {url} instead." if url else "Look at it through YARN's web proxy instead."
        why = f"This page answers YARN's web proxy only, and you come from {request.remote}."
        return _html(text_page("Not here", why, words), 403)

    return answer


def _html(text: str, status: int) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def _address(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
