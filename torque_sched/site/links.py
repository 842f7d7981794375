"""Our requests to peers: HTTPS, authorised peers only, a time limit and a bound on every answer.

A peer that stalls, lies or vanishes costs the time limit of one request, and `LinkError` says what it was.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp

from torque_sched.adapters.waiting import within
from torque_sched.errors import DocumentError, TorqueSchedError
from torque_sched.site.config import PeerSettings, SiteConfig
from torque_sched.site.messages import Answer, Message, read_message
from torque_sched.site.secret_files import read_shared_key
from torque_sched.site.signing import FROM, TIME, body_hash, sign
from torque_sched.site.tls import client_context

A = TypeVar("A", bound=Answer)


class LinkError(TorqueSchedError):
    """A peer could not be reached or did not answer as agreed; asking again may work."""

    transient = True


class Refused(LinkError):
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
            Refused: the peer will not.
        """
        line = self._lines[peer]
        try:
            status, body = await within(self.config.timeout_s, self._exchange(line, message))
        except asyncio.TimeoutError:
            raise self._failed(line, f"no answer within {self.config.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(line, _told(error)) from None
        line.n_answers += 1
        line.last_error = ""
        if status != 200:
            words = body[:500].decode("utf-8", "replace").strip()
            raise Refused(f"{peer} refuses {type(message).__name__}: {words or status}")
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
    room = most
    async for part in stream.iter_chunked(1 << 16):
        room -= len(part)
        if room < 0:
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


def _told(error: BaseException) -> str:
    words = " ".join(str(error).split())[:300]
    return words or type(error).__name__
