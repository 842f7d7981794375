"""Serves the state over HTTP: ``/`` (the tracking page), ``/v1/state``, ``/metrics`` and ``/healthz``.

Read-only. `PageAccess` admits YARN's web proxy, which the ResourceManager runs and which authenticates its
users, and this machine; other clients get the address of the proxy.

The state is made at most once per `CACHE_S`, and one page at a time is rendered in a thread, so that
heartbeats are not delayed.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from yarn_accel.errors import AccelError
from yarn_accel.master.page import page, text_page
from yarn_accel.master.plugin import MasterPlugin
from yarn_accel.master.status_documents import Query, StatusDocuments
from yarn_accel.report.pages import POLICY

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


class PageAccess:
    """The clients that may see the page: some hosts, and this machine over its loopback addresses.

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
    documents: StatusDocuments,
    visitors: PageAccess,
    explain: Callable[[str], str] | None = None,
    plugin: MasterPlugin | None = None,
) -> None:
    """Make the application answer what is listed at the top.

    Args:
        documents: makes the state document.
        explain: `Application.explain`.
        plugin: adds parts to page and metrics.
    """
    views = _Views(documents, explain or (lambda node: ""), plugin or MasterPlugin())
    for path, handler in (
        ("/", views.page),
        ("/v1/state", views.state),
        ("/metrics", views.metrics),
        ("/healthz", views.healthz),
    ):
        app.router.add_get(path, _for_visitors(visitors, handler, views), allow_head=False)


class _Views:
    """The handlers, and the states they share: that of all nodes, and that of each page asked for."""

    def __init__(
        self, documents: StatusDocuments, explain: Callable[[str], str], plugin: MasterPlugin
    ) -> None:
        self._documents = documents
        self._explain = explain
        self._plugin = plugin
        self._kept: dict[Query, tuple[_State, float]] = {}
        self._pages: dict[Query, tuple[_State, str]] = {}
        self._texts: dict[str, tuple[Any, float]] = {}
        self._making = asyncio.Lock()
        self._writing = asyncio.Lock()

    async def latest(self, query: Query) -> _State:
        """The state of what is to be shown, at most `CACHE_S` old; one that takes long lives longer."""
        loop = asyncio.get_running_loop()
        async with self._making:
            state, until_s = self._kept.get(query, ({}, float("-inf")))
            began_s = loop.time()
            if began_s >= until_s:
                self._tidy(began_s)
                state = await self._documents.part(query.node, query.rack)
                self._kept[query] = state, _keep_until_s(began_s, loop.time())
        return state

    async def _text(self, name: str, write: Callable[[_State], Any]) -> Any:
        """All nodes in the words of `write`, as old as `latest`; the state itself is dropped at once.

        It is hundreds of thousands of values without cycles.  The collector would walk over them, and over
        all else there is, and hold everything up for 200 ms with 10,000 nodes: it rests meanwhile.
        """
        loop = asyncio.get_running_loop()
        async with self._making:
            text, until_s = self._texts.get(name, (None, float("-inf")))
            began_s = loop.time()
            if began_s < until_s:
                return text
            was_on = gc.isenabled()
            gc.disable()
            try:
                text = await asyncio.to_thread(write, await self._documents.whole())
            finally:
                if was_on:
                    gc.enable()
            self._texts[name] = text, _keep_until_s(began_s, loop.time())
        return text

    def _tidy(self, now_s: float) -> None:
        for query in [query for query, (_, until_s) in self._kept.items() if now_s >= until_s]:
            del self._kept[query]
            self._pages.pop(query, None)

    async def page(self, request: web.Request) -> web.Response:
        query = Query(request.query.get("node", "")[:255], request.query.get("rack", "")[:255])
        state = await self.latest(query)
        explanation = self._explained(query.node)
        async with self._writing:
            made_of, text = self._pages.get(query, ({}, ""))
            if made_of is not state:
                text = await asyncio.to_thread(self._page, state, query, explanation)
                self._pages[query] = state, text
        return _html(text, 200)

    def _page(self, state: _State, query: Query, explanation: str) -> str:
        return page(state, query, explanation, self._plugin.sections(state["tasks"], state["at"]))

    async def state(self, _: web.Request) -> web.Response:
        text = await self._text("state", as_json)
        return web.Response(text=text, content_type="application/json", headers=_HEADERS)

    async def metrics(self, _: web.Request) -> web.Response:
        # Not before somebody wants them: they cost the ApplicationMaster memory.
        from yarn_accel.adapters.metric_families import CONTENT_TYPE, exposition
        from yarn_accel.master.metrics import families

        def write(state: _State) -> Any:
            return exposition(chain(families(state), self._plugin.families(state["tasks"])))

        text = await self._text("metrics", write)
        return web.Response(body=text, headers={**_HEADERS, "Content-Type": CONTENT_TYPE})

    async def healthz(self, _: web.Request) -> web.Response:
        state = await self.latest(Query())
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


def _keep_until_s(began_s: float, now_s: float) -> float:
    return now_s + max(CACHE_S, (now_s - began_s) * _REST)


def _for_visitors(visitors: PageAccess, handler: _Handler, views: _Views) -> _Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        if await visitors.admits(request.remote):
            return await handler(request)
        # No redirection: a proxy that comes from an address we do not know would be sent around for ever.
        url = (await views.latest(Query()))["about"].get("proxy_url")
        words = f"Look at {url} instead." if url else "Look at it through YARN's web proxy instead."
        why = f"This page answers YARN's web proxy only, and you come from {request.remote}."
        return _html(text_page("Not here", why, words), 403)

    return answer


def as_json(state: _State) -> str:
    """Written node by node: while the C encoder writes, no other thread runs."""
    head = json.dumps({key: value for key, value in state.items() if key != "nodes"}, allow_nan=False)
    nodes = ", ".join(
        f"{json.dumps(host)}: {json.dumps(node, allow_nan=False)}" for host, node in state["nodes"].items()
    )
    return f'{head[:-1]}, "nodes": {{{nodes}}}}}'


def _html(text: str, status: int) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def _address(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
