"""Requests signed with a key that two sites share, and a memory of what was seen, against replay.

The signature is HMAC-SHA256 (RFC 2104) over method, path, sender, receiver, the body's SHA-256, a nonce
and the time. It is checked before the body is read; the body then must have the hash that was signed. A
nonce counts once; it is remembered for as long as its time would be accepted, so a request cannot be sent
a second time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

FROM = "X-Site-From"
TIME = "X-Site-Time"
NONCE = "X-Site-Nonce"
BODY = "X-Site-Body"
SIGNATURE = "X-Site-Signature"
_NONCE_LENGTH = 32
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a signed request is not believed, for the audit file; the sender is told less."""

    why: str


def body_hash(body: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(body).hexdigest()


def sign(
    key: bytes, method: str, path: str, *, sender: str, receiver: str, body: str, nonce: str, at_s: float
) -> dict[str, str]:
    """The headers of a signed request.

    Args:
        key: shared with the receiver.
        method: ``POST``.
        path: without query.
        sender: name of this site.
        receiver: name of the peer, so that a request to one cannot be shown to another.
        body: its hash, from :func:`body_hash`.
        nonce: 32 hexadecimal digits, never used before.
        at_s: seconds since the epoch.
    """
    time_text = f"{at_s:.3f}"
    signature = _signature(key, method, path, sender, receiver, body, nonce, time_text)
    return {FROM: sender, TIME: time_text, NONCE: nonce, BODY: body, SIGNATURE: signature}


def verify(
    key: bytes,
    headers: Mapping[str, str],
    method: str,
    path: str,
    *,
    receiver: str,
    now_s: float,
    seen: NonceMemory,
) -> Refusal | None:
    """None when the request is the sender's own, recent, and new; its nonce is used up with that."""
    nonce, time_text = headers.get(NONCE, ""), headers.get(TIME, "")
    if len(nonce) != _NONCE_LENGTH or not set(nonce) <= _HEX:
        return Refusal("no nonce of 32 hexadecimal digits")
    sender, body = headers.get(FROM, ""), headers.get(BODY, "")
    expected = _signature(key, method, path, sender, receiver, body, nonce, time_text)
    if not hmac.compare_digest(expected.encode(), headers.get(SIGNATURE, "").encode("utf-8", "replace")):
        return Refusal("wrong signature")
    try:
        at_s = float(time_text)
    except ValueError:
        return Refusal("no time")
    if not abs(now_s - at_s) <= seen.window_s:
        return Refusal(f"its time is {now_s - at_s:+.1f} s from ours, more than {seen.window_s:g} s")
    if at_s < seen.not_before_s:
        return Refusal("sent before this site was started")
    return seen.use(sender, nonce, now_s)


def _signature(key: bytes, *parts: str) -> str:
    # Each part with its length, so that no two different lists of parts give one text.
    text = "".join(
        f"{len(part.encode('utf-8', 'replace'))}:{part}" for part in ("torque-sched-site-1", *parts)
    )
    return hmac.new(key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class NonceMemory:
    """Nonces of requests that were accepted, of each sender apart, bounded.

    Args:
        window_s: a request's time may be so far from ours, in both directions.
        most: so many of one sender are remembered; beyond, its requests are refused until old ones go.
        not_before_s: older requests are refused: an earlier life of this process may have seen them.
    """

    def __init__(self, window_s: float = 30.0, most: int = 50_000, not_before_s: float = 0.0) -> None:
        self.window_s = window_s
        self.not_before_s = not_before_s
        self._most = most
        self._seen: dict[str, OrderedDict[str, float]] = {}

    def use(self, sender: str, nonce: str, now_s: float) -> Refusal | None:
        """Use a nonce up; a refusal when it was used before."""
        mine = self._seen.setdefault(sender, OrderedDict())
        while mine and next(iter(mine.values())) < now_s - 2 * self.window_s:
            mine.popitem(last=False)
        if nonce in mine:
            return Refusal("replayed: this nonce was used before")
        if len(mine) >= self._most:
            return Refusal("too many requests")
        mine[nonce] = now_s
        return None
