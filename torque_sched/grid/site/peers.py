"""The other sites: requests to them over HTTPS, messages between the engines, offers, and gossip on who is
alive.

Only authorised peers are asked, each request has a time limit, and each answer a bound. A peer that stalls,
lies or vanishes costs the time limit of one request; `LinkError` names the trouble.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from torque_sched.adapters.waiting import cancelled, within
from torque_sched.errors import DocumentError, ModelError, TorqueSchedError
from torque_sched.grid.handshake.blocks import SITE_WIRE, SiteMessage
from torque_sched.grid.membership import Member, Membership, MemberState
from torque_sched.grid.site.authentication import FROM, TIME, body_hash, client_context, read_shared_key, sign
from torque_sched.grid.site.config import PeerSettings, SiteConfig
from torque_sched.grid.site.hosting import Hosting
from torque_sched.grid.site.messages import (
    Engine,
    EngineAnswer,
    Gossip,
    GossipEntry,
    Message,
    Offer,
    Offered,
    PeerAnswer,
    read_message,
)
from torque_sched.grid.site.site_files import SiteStore

A = TypeVar("A", bound=PeerAnswer)


class LinkError(TorqueSchedError):
    """A peer could not be reached or did not answer as agreed; asking again may work."""

    transient = True


class RequestRefused(LinkError):
    """The peer answered that it will not; its words are in the message."""


@dataclass(slots=True)
class _Line:
    settings: PeerSettings
    context: ssl.SSLContext
    key: bytes | None
    skew_s: tuple[float, float] = (0.0, 0.0)
    """How far its clock is from ours, at least and at most, by the last answer."""
    n_failed: int = 0
    last_error: str = ""
    n_answers: int = 0


@dataclass
class Links:
    """Requests to the peers of `config`; one for each process.

    Raises:
        ConfigError: a certificate or a key cannot be used.
    """

    config: SiteConfig
    _lines: dict[str, _Line] = field(default_factory=dict)
    _session: aiohttp.ClientSession | None = None

    def __post_init__(self) -> None:
        for peer in self.config.peers:
            key = read_shared_key(Path(peer.shared_key)) if peer.shared_key else None
            self._lines[peer.name] = _Line(peer, client_context(self.config, peer), key)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def skew_s(self, peer: str) -> float:
        """How far a peer's clock is from ours at least, by its last answer; 0 when it may be equal."""
        low, high = self._lines[peer].skew_s
        return 0.0 if low <= 0.0 <= high else min(abs(low), abs(high))

    def last_error(self, peer: str) -> str:
        """Why the last request to a peer failed; empty when it did not."""
        return self._lines[peer].last_error

    def counts(self, peer: str) -> tuple[int, int]:
        """Requests answered and failed."""
        return self._lines[peer].n_answers, self._lines[peer].n_failed

    async def ask(self, peer: str, message: Message, answer: type[A]) -> A:
        """Send a message and read the answer.

        Raises:
            LinkError: no answer, or none that can be read.
            RequestRefused: the peer will not.
        """
        line = self._lines[peer]
        try:
            status, body = await within(self.config.timeout_s, self._exchange(line, message))
        except asyncio.TimeoutError:
            raise self._failed(line, f"no answer within {self.config.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(line, _error_text(error)) from None
        line.n_answers += 1
        line.last_error = ""
        if status != 200:
            words = body[:500].decode("utf-8", "replace").strip()
            raise RequestRefused(f"{peer} refuses {type(message).__name__}: {words or status}")
        try:
            read: A = read_message(body, answer)
        except DocumentError as error:
            raise self._failed(line, error.message) from None
        return read

    def _failed(self, line: _Line, words: str) -> LinkError:
        line.n_failed += 1
        line.last_error = words
        return LinkError(f"{line.settings.name} ({line.settings.address}:{line.settings.port}): {words}")

    async def _exchange(self, line: _Line, message: Message) -> tuple[int, bytes]:
        body = message.model_dump_json().encode()
        path = f"/v1/{type(message).__name__.lower()}"
        peer, now_s = line.settings, time.time()
        host = f"[{peer.address}]" if ":" in peer.address else peer.address
        headers = {FROM: self.config.name, TIME: f"{now_s:.3f}"}
        if line.key is not None:
            headers = sign(
                line.key, "POST", path, sender=self.config.name, receiver=peer.name, body=body_hash(body),
                nonce=secrets.token_hex(16), at_s=now_s,
            )  # fmt: skip
        async with self._open_session().post(
            f"https://{host}:{peer.port}{path}", data=body, headers=headers, ssl=line.context,
            server_hostname=peer.certificate_name or peer.name, allow_redirects=False,
        ) as response:  # fmt: skip
            data = await _bounded(response.content, self.config.max_body_bytes)
            _note_skew(line, response.headers.get(TIME, ""), now_s, time.time())
            return response.status, data

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=64, limit_per_host=8, ttl_dns_cache=60)
            self._session = aiohttp.ClientSession(
                connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
                max_line_size=8190, max_field_size=8190,
            )  # fmt: skip
        return self._session


async def _bounded(stream: aiohttp.StreamReader, most: int) -> bytes:
    parts: list[bytes] = []
    left = most
    async for part in stream.iter_chunked(1 << 16):
        left -= len(part)
        if left < 0:
            raise ValueError(f"an answer of more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def _note_skew(line: _Line, text: str, sent_s: float, received_s: float) -> None:
    try:
        there_s = float(text)
    except ValueError:
        return
    if there_s == there_s:  # no NaN
        line.skew_s = (there_s - received_s, there_s - sent_s)


def _error_text(error: BaseException) -> str:
    words = " ".join(str(error).split())[:300]
    return words or type(error).__name__


logger = logging.getLogger(__name__)
_SKEW_S = 1.0


class Reaching:
    """The way to every site, our own among them.

    Args:
        config: of this site.
        links: to the peers.
        membership: who is there.
        hosting: our own site.
    """

    def __init__(self, config: SiteConfig, links: Links, membership: Membership, hosting: Hosting) -> None:
        self._config, self._links, self._membership = config, links, membership
        self._hosting = hosting
        self.heard: Callable[[str, Any], None] = lambda site, message: None
        """Takes what a site tells of a block without being asked."""

    # -- out

    async def push(self, home: str, message: Any) -> None:
        """Tell a home what it did not ask for."""
        if home == self._config.name:
            self.heard(home, message)
        else:
            await self.tell(home, message)

    async def tell(self, site: str, message: Any) -> Any:
        """Send a message of the engine; the reply, None when there is none or the site was not reached."""
        try:
            if site == self._config.name:
                return await self._hosting.handle(site, message)
            if site not in self._config.peer_by_name:
                return None
            answer = await self._links.ask(site, Engine(message=SITE_WIRE.plain(message)), EngineAnswer)
            return None if answer.message is None else SITE_WIRE.value(answer.message)
        except (TorqueSchedError, ModelError) as error:
            logger.info("%s to %s: %s", type(message).__name__, site, error)
            return None

    async def offers(self, offer: Offer) -> dict[str, Offered]:
        """What every site that may be asked offers; those that do not answer are left out."""
        mine = self._config.name
        names = [
            peer.name for peer in self._config.peers
            if peer.sends and self._membership.is_reachable(peer.name)
        ]  # fmt: skip
        answers = await asyncio.gather(
            *(self._ask(name, offer) for name in names), self._own(offer), return_exceptions=False
        )
        found = dict(zip([*names, mine], answers, strict=True))
        return {name: offered for name, offered in found.items() if offered is not None}

    async def _ask(self, peer: str, offer: Offer) -> Offered | None:
        try:
            offered = await self._links.ask(peer, offer, Offered)
        except LinkError as error:
            logger.info("offer of %s: %s", peer, error)
            return None
        if self._links.skew_s(peer) > _SKEW_S:
            logger.warning("%s: its clock is %.1f s off: not asked", peer, self._links.skew_s(peer))
            return None
        return offered

    async def _own(self, offer: Offer) -> Offered | None:
        try:
            return await self.offered(self._config.name, offer)
        except TorqueSchedError as error:
            logger.info("our own offer: %s", error)
            return None

    # -- in

    async def taken(self, peer: str, asked: Engine) -> EngineAnswer:
        """A message of a peer's engine.

        Raises:
            DocumentError: it is none.
        """
        try:
            message = SITE_WIRE.value(asked.message)
        except ModelError as error:
            raise DocumentError(error.message) from None
        if isinstance(message, SiteMessage):
            self.heard(peer, message)
            return EngineAnswer()
        reply = await self._hosting.handle(peer, message)
        return EngineAnswer(message=None if reply is None else SITE_WIRE.plain(reply))

    async def offered(self, peer: str, offer: Offer) -> Offered:
        """What a peer's user could have here now."""
        return self._hosting.offer(peer, offer)


def offer_facts(asked: Offer, offered: Offered) -> Mapping[str, object]:
    """What the audit file tells of an offer."""
    free = [outlook[0][1] for outlook in offered.outlooks if outlook]
    return {**asked.model_dump(), "free": free, "why": offered.why}


def engine_facts(asked: Engine, answered: EngineAnswer) -> Mapping[str, object]:
    """What the audit file tells of a message and its answer; never the script."""
    said, answer = asked.message, answered.message or {}
    token = said.get("token")
    reason = answer.get("reason")
    return {
        "kind": said.get("kind"),
        "token": "/".join(str(token.get(key)) for key in ("home", "job", "attempt"))
        if isinstance(token, dict)
        else "",
        "user": said.get("user"),
        "told": answer.get("kind"),
        "state": answer.get("state", [None, None])[-1],
        "why": answer.get("why") or (reason[-1] if isinstance(reason, list) else None),
        "detail": answer.get("detail"),
    }


_FACT = "incarnation"


class Gossiping:
    """The membership of one site, alive.

    Args:
        config: of this site.
        links: to the peers.
        store: remembers the incarnation, so that it never goes back.
    """

    def __init__(self, config: SiteConfig, links: Links, store: SiteStore) -> None:
        self._config, self._links, self._store = config, links, store
        before = store.fact(_FACT)
        incarnation = (before if isinstance(before, int) else 0) + 1
        self.membership = Membership(
            config.name, config.peer_by_name, config.gossip.rules(), now_s=time.monotonic(),
            incarnation=incarnation,
        )  # fmt: skip
        store.set_fact(_FACT, incarnation)

    def member(self, peer: str) -> Member:
        """How a peer stands."""
        return self.membership.members[peer]

    async def answer(self, peer: str, message: Gossip) -> Gossip:
        """A peer asks."""
        self._heard(peer, message)
        return self._digest()

    async def run(self) -> None:
        """Until cancelled."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                for peer in self.membership.due(time.monotonic()):
                    task = asyncio.create_task(self._ask(peer))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                await asyncio.sleep(self._config.gossip.period_s)
        finally:
            await cancelled(*under_way)

    async def _ask(self, peer: str) -> None:
        try:
            self._heard(peer, await self._links.ask(peer, self._digest(), Gossip))
        except LinkError as error:
            before = self.member(peer).state
            self.membership.silent(peer, time.monotonic())
            if before is MemberState.ALIVE:
                logger.warning("site %s does not answer: %s", peer, error)

    def _digest(self) -> Gossip:
        return Gossip(claims=tuple(map(GossipEntry.of, self.membership.digest())))

    def _heard(self, peer: str, message: Gossip) -> None:
        before, mine = self.member(peer).state, self.membership.incarnation
        self.membership.heard(peer, (said.claim() for said in message.claims), time.monotonic())
        if before is not MemberState.ALIVE:
            logger.info("site %s is there", peer)
        if self.membership.incarnation != mine:
            self._store.set_fact(_FACT, self.membership.incarnation)
