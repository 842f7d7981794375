"""The endpoint for peers: HTTPS, the sender is proved before a body is read, all is bounded and audited.

A request is refused as early as can be: TLS without a certificate we know, a request without a proved sender,
a body that is longer than allowed, JSON with any other keys than the message's. Who is refused learns little,
the audit file says why.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from torque_sched.adapters.waiting import within
from torque_sched.errors import DocumentError, StartupError, TorqueSchedError
from torque_sched.grid.site.authentication import (
    BODY,
    FROM,
    TIME,
    Identities,
    NonceMemory,
    Refusal,
    body_hash,
    read_shared_key,
    server_context,
    verify,
)
from torque_sched.grid.site.config import SiteConfig
from torque_sched.grid.site.messages import Message, PeerAnswer, read_message
from torque_sched.grid.site.reporting import Audit

Handler = Callable[[str, Any], Coroutine[Any, Any, PeerAnswer]]
"""Takes the proved peer and its message."""
_AT_ONCE = 16
"""Requests of one peer answered at the same time."""
_CONNECTION_S = 300.0
_STOP_S = 0.3
"""For each of aiohttp's two waits for requests under way."""
_PROOF_S = 10.0
"""A connection on which nobody has proved who he is by then is cut."""


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of message.

    Attributes:
        kind: what is read.
        handler: answers it.
        facts: what the audit file tells of it and its answer; None: it is only written when refused.
    """

    kind: type[Message]
    handler: Handler
    facts: Callable[[Any, Any], Mapping[str, object]] | None


class _Refuse(Exception):
    """Leave with this status; `why` is for the audit, `reply` for the sender."""

    def __init__(self, status: int, why: str, reply: str = "") -> None:
        super().__init__(why)
        self.status, self.why, self.reply = status, why, reply


@dataclass
class PeerEndpoint:
    """The listener of one site.

    Raises:
        ConfigError: a certificate or a key cannot be used.
    """

    config: SiteConfig
    routes: Mapping[str, Route]
    audit: Audit
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Requests by peer, kind and outcome."""
    port: int = 0
    _runner: web.ServerRunner | None = None
    _server: asyncio.Server | None = None
    _busy: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._context = server_context(self.config)
        self._identities = Identities(self.config)
        self._keys = {
            peer.name: read_shared_key(Path(peer.shared_key)) for peer in self.config.peers if peer.shared_key
        }
        self._seen = NonceMemory(self.config.clock_tolerance_s, not_before_s=time.time())

    async def start(self) -> None:
        """Listen.

        Raises:
            StartupError: the address or port cannot be had.
        """
        server = web.Server(self._handle, auto_decompress=False, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=_STOP_S)
        await self._runner.setup()
        self._guard = guard = _Guard(server, self.config.max_connections)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                guard.protocol, self.config.listen, self.config.port, ssl=self._context, backlog=64,
                ssl_handshake_timeout=_PROOF_S, reuse_address=True,
            )  # fmt: skip
        except OSError as error:
            raise StartupError(
                f"{self.config.listen}:{self.config.port}: {error.strerror or error}",
                cure="set another `listen` or `port`, or end who has it",
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening; requests under way are given a moment."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    # -- one request

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        address = request.remote or ""
        kind = request.path.removeprefix("/v1/")
        peer = ""
        try:
            peer = self._who(request)
            self._guard.proved(request.transport)
            if self._busy[peer] >= _AT_ONCE:
                raise _Refuse(429, "too many requests at once", "too many requests at once")
            self._busy[peer] += 1
            try:
                return await self._answer(request, peer, kind, address)
            finally:
                self._busy[peer] -= 1
        except _Refuse as refuse:
            self.counts[peer or "?", kind if kind in self.routes else "?", "refused"] += 1
            self.audit.write(peer, address, kind[:60], f"refused: {refuse.why}", status=refuse.status)
            return self._response(refuse.status, refuse.reply.encode())

    def _who(self, request: web.BaseRequest) -> str:
        """The peer that proved to be the sender; nothing of the body is read.

        Raises:
            _Refuse: nobody did.
        """
        claimed = request.headers.get(FROM, "")
        if claimed in self._keys:
            refusal: Refusal | None = verify(
                self._keys[claimed], request.headers, request.method, request.path,
                receiver=self.config.name, now_s=time.time(), seen=self._seen,
            )  # fmt: skip
            if refusal is None:
                return claimed
            raise _Refuse(401, f"as {claimed}: {refusal.why}", "not authorised")
        tls = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        der = tls.getpeercert(binary_form=True) if tls is not None else None
        peer = self._identities.peer_of(der, tls.getpeercert() if tls is not None else None)
        if peer is None:
            shown = "no certificate" if der is None else "a certificate of nobody we know"
            raise _Refuse(401, f"{shown}, as {claimed[:60]!r}", "not authorised")
        if claimed != peer:
            raise _Refuse(401, f"{peer} calls itself {claimed[:60]!r}", "not authorised")
        return peer

    async def _answer(
        self, request: web.BaseRequest, peer: str, kind: str, address: str
    ) -> web.StreamResponse:
        route = self.routes.get(kind)
        if route is None or request.method != "POST" or request.query_string:
            raise _Refuse(404, "no such request", f"known: {', '.join(sorted(self.routes))}")
        body = await self._body(request, signed=peer in self._keys)
        try:
            message = read_message(body, route.kind)
        except DocumentError as error:
            raise _Refuse(400, error.message, error.message) from None
        try:
            answer = await within(self.config.timeout_s, route.handler(peer, message))
        except asyncio.TimeoutError:
            raise _Refuse(503, "no answer of ours in time", "busy, ask again") from None
        except TorqueSchedError as error:
            status = 503 if error.transient else 403
            raise _Refuse(status, error.message, error.message[:400]) from None
        self.counts[peer, kind, "answered"] += 1
        if route.facts is not None:
            self.audit.write(peer, address, kind, "answered", **route.facts(message, answer))
        return self._response(200, answer.model_dump_json().encode())

    async def _body(self, request: web.BaseRequest, *, signed: bool) -> bytes:
        most = self.config.max_body_bytes
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise _Refuse(415, "a compressed body", "send the body as it is")
        if request.content_length is None or request.content_length > most:
            raise _Refuse(413, f"a body of {request.content_length} bytes", f"at most {most} bytes")
        try:
            body = await within(self.config.timeout_s, request.content.readexactly(request.content_length))
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
            raise _Refuse(408, "the body did not come", "the body did not come in time") from None
        if signed and not hmac.compare_digest(body_hash(body), request.headers.get(BODY, "")):
            raise _Refuse(401, "the body is not the one that was signed", "not authorised")
        return body

    def _response(self, status: int, body: bytes) -> web.Response:
        headers = {TIME: f"{time.time():.3f}", "Content-Type": "application/json"}
        return web.Response(status=status, body=body, headers=headers)


class _Guard:
    """Bounds connections: their number, how long one may last, and how long without proof of who it is."""

    def __init__(self, server: web.Server, most: int) -> None:
        self._server, self._most = server, most
        self._whole: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}
        self._unproved: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}

    def protocol(self) -> asyncio.Protocol:
        """For a new connection, after its TLS handshake."""
        return _Guarded(self, self._server())

    def opened(self, transport: asyncio.Transport) -> None:
        """Count it, and cut it when there are too many."""
        loop = asyncio.get_running_loop()
        self._whole[transport] = loop.call_later(_CONNECTION_S, transport.abort)
        self._unproved[transport] = loop.call_later(_PROOF_S, transport.abort)
        if len(self._whole) > self._most:
            transport.abort()

    def proved(self, transport: asyncio.BaseTransport | None) -> None:
        """A peer has shown who it is."""
        timer = self._unproved.pop(transport, None) if transport is not None else None
        if timer is not None:
            timer.cancel()

    def closed(self, transport: asyncio.Transport) -> None:
        """It is gone."""
        self.proved(transport)
        timer = self._whole.pop(transport, None)
        if timer is not None:
            timer.cancel()


class _Guarded(asyncio.Protocol):
    """Tells the guard of a connection and passes everything on to aiohttp's own protocol."""

    def __init__(self, guard: _Guard, inner: asyncio.Protocol) -> None:
        self._guard, self._inner = guard, inner
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        self._guard.opened(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._guard.closed(self._transport)
        self._inner.connection_lost(exc)
