"""Signed HTTP requests and responses: they prove their sender, their receiver, and that they are fresh.

A request carries its sender, its time and a nonce, and HMAC-SHA256 over

    ``yarn-accel-1, request, method, path, sender, time, nonce, sha256(body)``

with the sender's own key.  That key is derived from the master's secret and the sender's name
(`sender_key`): a stolen key of a node signs for that node only, and the master keeps no table of keys.
The response carries HMAC-SHA256 over ``yarn-accel-1, answer, method, path, status, nonce, sha256(body)``
with the same key, which binds it to this one request.

Against replays, the receiver requires that a sender's times increase and lie within a window around its own
clock.  That takes one number per sender (`RequestVerifier`).  A sender sends one request after the other; a
program that needs several at once uses several names.

Nothing is encrypted: these messages contain no secret.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from yarn_accel.errors import AuthenticationError, RejectedError, RemoteProtocolError, UnavailableError

if TYPE_CHECKING:
    # A master that starts signs nothing before it has registered, and aiohttp is half of all it loads.
    import aiohttp
    from aiohttp import web

SENDER = "X-Accel-Sender"
TIME = "X-Accel-Time"
NONCE = "X-Accel-Nonce"
SIGNATURE = "X-Accel-Signature"

MAX_BODY_BYTES = 256 * 1024
#: Begins the `RequestVerifier`'s reason for a request that was signed with another key than its sender's.
WRONG_KEY = "the signature is not one of"
#: How long an answer may take to arrive.
_TIMEOUT_S = 2.0
#: How long a body may take to arrive.
_BODY_S = 5.0
#: Nobody is known before his body was read, so of those that are longer so many are read at once.
_SHORT_BYTES, _MAX_LONG = 64 * 1024, 16
_SCHEME = "yarn-accel-1"
_MIN_KEY_BYTES = 16
_SENDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,255}\Z")
_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_TIME_US = re.compile(r"[0-9]{1,17}\Z")
_HEX = re.compile(r"[0-9a-f]{64}\Z")


def sender_key(secret: bytes, sender: str) -> bytes:
    """The key of one sender, such as ``agent:w1``; 32 bytes.

    Raises:
        AuthenticationError: the secret is too short, or the name has forbidden characters.
    """
    if len(secret) < _MIN_KEY_BYTES:
        raise AuthenticationError(f"the secret has {len(secret)} bytes, at least {_MIN_KEY_BYTES} are needed")
    _check_sender(sender)
    return hmac.new(secret, f"{_SCHEME}\nsender\n{sender}".encode(), hashlib.sha256).digest()


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A signed request: the headers to send along, and the nonce that the answer must refer to."""

    method: str
    path: str
    nonce: str
    headers: Mapping[str, str]


class Signer:
    """Signs the requests of one sender.

    Args:
        key: the sender's key, from `sender_key`.
        sender: its name.
    """

    def __init__(self, key: bytes, sender: str) -> None:
        if len(key) < _MIN_KEY_BYTES:
            raise AuthenticationError(f"the key has {len(key)} bytes, at least {_MIN_KEY_BYTES} are needed")
        _check_sender(sender)
        self.key = key
        self.sender = sender
        self._last_us = 0

    def sign(self, method: str, path: str, body: bytes, *, now_s: float, nonce: str = "") -> SignedRequest:
        """Headers for a request.

        Args:
            path: as it will stand in the request line, with the query.
            now_s: Unix time; two requests never carry the same, also when this clock goes backwards a little.
            nonce: 32 hexadecimal digits; default: fresh ones.
        """
        nonce = nonce or secrets.token_hex(16)
        self._last_us = max(int(now_s * 1e6), self._last_us + 1)
        time_us = str(self._last_us)
        signature = _mac(self.key, "request", method, path, self.sender, time_us, nonce, _digest(body))
        headers = {SENDER: self.sender, TIME: time_us, NONCE: nonce, SIGNATURE: signature}
        return SignedRequest(method, path, nonce, headers)


@dataclass(frozen=True, slots=True)
class VerifiedRequest:
    """A request that is genuine, fresh and new, and the key that the answer is signed with."""

    sender: str
    method: str
    path: str
    nonce: str
    key: bytes = field(repr=False)


class RequestVerifier:
    """Accepts requests that are genuine, fresh and new.

    Args:
        key_of: the key of a sender (`sender_key` with the secret); raises `AuthenticationError` for a sender
            that has none.
        max_clock_skew_s: how far the sender's clock may be off.
        not_before_s: Unix time; older requests are refused. A new attempt passes its own start, as it cannot
            know what its predecessor has received already.
        max_senders: how many are remembered; it takes a key to be one of them.
    """

    def __init__(
        self,
        key_of: Callable[[str], bytes],
        *,
        max_clock_skew_s: float = 60.0,
        not_before_s: float = 0.0,
        max_senders: int = 100_000,
    ) -> None:
        self._key_of = key_of
        self._max_skew_us = int(max_clock_skew_s * 1e6)
        self._not_before_us = int(not_before_s * 1e6)
        self._max_senders = max_senders
        #: The newest time of each sender, in the order in which they were received.
        self._newest_us: OrderedDict[str, int] = OrderedDict()

    def verify(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, now_s: float
    ) -> VerifiedRequest:
        """Check one request.

        Raises:
            AuthenticationError: not signed, wrongly signed, too old, from the future, or seen before.
        """
        sender, time_us, nonce, signature = (
            headers.get(name, "") for name in (SENDER, TIME, NONCE, SIGNATURE)
        )
        _check_sender(sender)
        if not (_TIME_US.match(time_us) and _NONCE.match(nonce) and _HEX.match(signature)):
            raise AuthenticationError("a signed request is expected here")
        key = self._key_of(sender)
        if not hmac.compare_digest(
            _mac(key, "request", method, path, sender, time_us, nonce, _digest(body)), signature
        ):
            raise AuthenticationError(f"{WRONG_KEY} {sender}")
        self._check_time(sender, int(time_us), int(now_s * 1e6))
        return VerifiedRequest(sender, method, path, nonce, key)

    def _check_time(self, sender: str, sent_us: int, now_us: int) -> None:
        off_us = sent_us - now_us
        if abs(off_us) > self._max_skew_us:
            raise AuthenticationError(
                f"the clocks of {sender} and of this master differ by {off_us / 1e6:+.1f} s",
                cure="keep the clocks of the cluster together (NTP)",
            )
        if sent_us < self._not_before_us:
            raise AuthenticationError("the request is older than this master")
        if sent_us <= self._newest_us.get(sender, -1):
            raise AuthenticationError(f"this request of {sender}, or a later one, was received before")
        self._forget(now_us)
        if sender not in self._newest_us and len(self._newest_us) >= self._max_senders:
            raise AuthenticationError(f"{self._max_senders} senders are known already")
        self._newest_us[sender] = sent_us
        self._newest_us.move_to_end(sender)

    def _forget(self, now_us: int) -> None:
        """Drop senders whose next request cannot be a replay, as the window refuses that anyway."""
        while self._newest_us:
            sender, sent_us = next(iter(self._newest_us.items()))
            if sent_us >= now_us - self._max_skew_us:
                return
            del self._newest_us[sender]


def sign_response(verified: VerifiedRequest, status: int, body: bytes) -> dict[str, str]:
    """Headers for the answer to an admitted request."""
    parts = (verified.method, verified.path, str(status), verified.nonce, _digest(body))
    return {SIGNATURE: _mac(verified.key, "answer", *parts)}


def check_response(
    key: bytes, sent: SignedRequest, status: int, headers: Mapping[str, str], body: bytes
) -> None:
    """Check that an answer is genuine and belongs to this request.

    Raises:
        AuthenticationError: it does not.
    """
    expected = _mac(key, "answer", sent.method, sent.path, str(status), sent.nonce, _digest(body))
    if not hmac.compare_digest(expected.encode(), headers.get(SIGNATURE, "").encode()):
        raise AuthenticationError("the answer is not signed by the master, or belongs to another request")


def decode_json(raw: bytes, who: str) -> Any:
    """A JSON document from somebody who may send anything.

    Raises:
        RemoteProtocolError: it is none, or one nested without end, or has numbers that are none.
    """
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{who} did not send JSON: {error}") from None


# ---- with aiohttp


async def exchange(
    session: aiohttp.ClientSession,
    signer: Signer,
    method: str,
    base_url: str,
    path: str,
    document: object = None,
    *,
    timeout_s: float = _TIMEOUT_S,
    max_bytes: int = MAX_BODY_BYTES,
    clock: Callable[[], float] = time.time,
) -> Any:
    """Send a signed request with JSON, and return the JSON of the answer when that is genuine.

    Args:
        base_url: scheme, host and port, such as ``http://10.0.0.5:8500``.
        path: from the slash on.
        document: the body; None: no body.

    Raises:
        UnavailableError: nobody answers in time, or with a status 5xx.
        AuthenticationError: we are refused, or the answer is not genuine.
        RejectedError: the other end refuses the content, with its own code.
        RemoteProtocolError: the answer is too long, or is not JSON.
    """
    body = b"" if document is None else json.dumps(document, allow_nan=False).encode()
    sent = signer.sign(method, path, body, now_s=clock())
    own = {"Content-Type": "application/json", **sent.headers}
    url = base_url.rstrip("/") + path
    status, headers, raw = await _request(session, method, url, body, own, timeout_s, max_bytes)
    if raw is None:
        raise RemoteProtocolError(f"{url} sent more than {max_bytes} bytes")
    if SIGNATURE not in headers:
        raise _unsigned(url, status, raw)
    check_response(signer.key, sent, status, headers, raw)
    found = decode_json(raw, url)
    if status != 200:
        raise _refused(url, status, found)
    return found


async def _request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout_s: float,
    max_bytes: int,
) -> tuple[int, Mapping[str, str], bytes | None]:
    """Status, headers and body of the answer; no body when it is too long."""
    import aiohttp

    limit = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.request(
            method, url, data=body, headers=headers, allow_redirects=False, timeout=limit
        ) as answer:
            status, found = answer.status, answer.headers.copy()
            return status, found, await _read_bounded(answer.content, max_bytes)
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
        why = f"no answer within {timeout_s:g} s" if isinstance(error, asyncio.TimeoutError) else str(error)
        raise UnavailableError(f"{url}: {why or type(error).__name__}") from None


#: Gets the sender's name and the decoded document (None without a body); returns the document to answer.
Handler = Callable[[str, Any], Awaitable[Any]]


def guarded(
    verifier: RequestVerifier,
    handler: Handler,
    *,
    max_bytes: int = MAX_BODY_BYTES,
    clock: Callable[[], float] = time.time,
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """An aiohttp handler that only admits signed requests and signs what ``handler`` answers.

    ``handler`` may raise `RejectedError` (400, with its code) and `UnavailableError` (503). Who is not
    admitted gets 401 with the reason, unsigned.
    """
    from aiohttp import web

    long_bodies = asyncio.Semaphore(_MAX_LONG)

    async def read(request: web.Request, n_bytes: int) -> bytes | None:
        if n_bytes <= _SHORT_BYTES:
            return await _read_bounded(request.content, max_bytes)
        async with long_bodies:
            return await _read_bounded(request.content, max_bytes)

    async def handle(request: web.Request) -> web.Response:
        n_bytes = request.content_length
        if n_bytes is None and request.can_read_body:
            return web.Response(status=411, text="how long is the body? Content-Length is missing\n")
        if (n_bytes or 0) > max_bytes:
            return web.Response(status=413, text=f"more than {max_bytes} bytes\n")
        reading = read(request, n_bytes or 0)
        is_there = request.content.is_eof() and (n_bytes or 0) <= _SHORT_BYTES
        try:
            # What is there already is read at once; a timer and a task would cost as much as all else here.
            body = await (reading if is_there else asyncio.wait_for(reading, _BODY_S))
        except asyncio.TimeoutError:
            return web.Response(status=408, text=f"no body within {_BODY_S:g} s\n")
        if body is None:
            return web.Response(status=413, text=f"more than {max_bytes} bytes\n")
        try:
            verified = verifier.verify(request.method, request.raw_path, request.headers, body, now_s=clock())
        except AuthenticationError as error:
            return web.Response(status=401, text=f"{error}\n")
        status, document = await _answer(handler, verified.sender, body)
        raw = json.dumps(document, allow_nan=False).encode()
        headers = sign_response(verified, status, raw)
        return web.Response(status=status, body=raw, headers=headers, content_type="application/json")

    return handle


async def _answer(handler: Handler, sender: str, body: bytes) -> tuple[int, Any]:
    try:
        return 200, await handler(sender, decode_json(body, sender) if body else None)
    except RejectedError as error:
        return 400, {"code": error.code, "message": str(error)}
    except RemoteProtocolError as error:
        return 400, {"code": "not-json", "message": str(error)}
    except UnavailableError as error:
        return 503, {"code": "unavailable", "message": str(error)}


async def _read_bounded(stream: aiohttp.StreamReader, max_bytes: int) -> bytes | None:
    """The whole body, or None as soon as it is too long."""
    parts: list[bytes] = []
    n_bytes = 0
    async for part in stream.iter_any():
        n_bytes += len(part)
        if n_bytes > max_bytes:
            return None
        parts.append(part)
    return b"".join(parts)


def _unsigned(url: str, status: int, raw: bytes) -> Exception:
    text = " ".join(raw[:300].decode("utf-8", "replace").split())
    if status >= 500:
        return UnavailableError(f"{url} answers {status}: {text}")
    return AuthenticationError(f"{url} answers {status}, unsigned: {text}")


def _refused(url: str, status: int, found: Any) -> Exception:
    message = str(found.get("message", "")) if isinstance(found, dict) else str(found)
    if status >= 500:
        return UnavailableError(f"{url} answers {status}: {message}")
    code = str(found.get("code", "")) if isinstance(found, dict) else ""
    return RejectedError(code or f"http-{status}", f"{url}: {message}")


# ---- the arithmetic


def _mac(key: bytes, *parts: str) -> str:
    return hmac.new(key, "\n".join((_SCHEME, *parts)).encode(), hashlib.sha256).hexdigest()


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _check_sender(sender: str) -> None:
    if not _SENDER.match(sender):
        raise AuthenticationError("the sender's name is missing or has characters that a name has not")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")
