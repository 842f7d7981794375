"""Proof of who a peer is: key files, requests signed with a shared key, and TLS certificates.

A key file is read only when nobody else could have read or changed it. A signature is HMAC-SHA256 (RFC 2104)
over method, path, sender, receiver, the body's SHA-256, a nonce and the time. It is checked before the body
is read; the body then must have the hash that was signed. A nonce counts once and is remembered for as long
as its time would be accepted, so a request cannot be sent a second time.

A pinned certificate is trusted as it is, whoever signed it; with a `ca`, any it signed. TLS does not decide
which peer connects: `Identities` compares the certificate shown with the settings of each peer.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import stat
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torque_sched.errors import ConfigError
from torque_sched.grid.site.config import PeerSettings, SiteConfig

KEY_BYTES = 32
"""A shared key has at least so many bytes: no less than the digest it goes into."""
_LARGEST_BYTES = 4096


def check_private(path: Path) -> None:
    """Refuse a file that others may read or that is not ours.

    Raises:
        ConfigError: names the file and the cure.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", cure="name the file of the key") from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is no file", cure="name the file of the key")
    if status.st_uid not in {0, os.geteuid()}:
        raise ConfigError(f"{path} belongs to uid {status.st_uid}", cure=f"chown {os.geteuid()} {path}")
    if status.st_mode & 0o077:
        raise ConfigError(
            f"{path} can be read or changed by others (mode {status.st_mode & 0o777:04o})",
            cure=f"chmod 0600 {path}",
        )


def read_shared_key(path: Path) -> bytes:
    """The key in a file: 64 or more hexadecimal digits, as ``openssl rand -hex 32`` writes them.

    Raises:
        ConfigError: no such key; the key itself is in no message.
    """
    check_private(path)
    cure = f"openssl rand -hex {KEY_BYTES} > {path}; chmod 0600 {path}"
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES)
        key = bytes.fromhex(text.decode("ascii").strip())
    except (OSError, ValueError):
        raise ConfigError(f"{path}: not a key in hexadecimal digits", cure=cure) from None
    if len(key) < KEY_BYTES:
        raise ConfigError(f"{path}: a key of {len(key)} bytes is too short", cure=cure)
    return key


FROM = "X-Site-From"
TIME = "X-Site-Time"
NONCE = "X-Site-Nonce"
BODY = "X-Site-Body"
SIGNATURE = "X-Site-Signature"
_NONCE_LENGTH = 32
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a signed request is not believed, for the audit file; the sender learns less."""

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


def server_context(config: SiteConfig) -> ssl.SSLContext:
    """For our listener: a client certificate is demanded, unless some peers sign with a shared key instead.

    Raises:
        ConfigError: a file is missing, wrong, or its key can be read by others.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, config)
    # Trusted is only who shows a certificate to us: one that another peer signed proves nothing here.
    with_certificate = [peer for peer in config.peers if not peer.shared_key]
    _trust(context, config, with_certificate)
    has_keys = len(with_certificate) < len(config.peers)
    context.verify_mode = ssl.CERT_OPTIONAL if has_keys else ssl.CERT_REQUIRED
    return context


def client_context(config: SiteConfig, peer: PeerSettings) -> ssl.SSLContext:
    """For requests to one peer: only its own certificate will do.

    Raises:
        ConfigError: as `server_context`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A pinned certificate says who it is; of those a CA signed, the name decides.
    context.check_hostname = not peer.certificate
    context.verify_mode = ssl.CERT_REQUIRED
    if not peer.shared_key:
        _load_own(context, config)
    _trust(context, config, (peer,))
    return context


def _load_own(context: ssl.SSLContext, config: SiteConfig) -> None:
    check_private(Path(config.key))
    try:
        context.load_cert_chain(config.certificate, config.key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"certificate {config.certificate} with key {config.key}: {error}",
            cure="both as PEM files, the key without a pass phrase and belonging to the certificate",
        ) from None


def _trust(context: ssl.SSLContext, config: SiteConfig, peers: Iterable[PeerSettings]) -> None:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    files = {peer.certificate for peer in peers if peer.certificate}
    if any(not peer.certificate for peer in peers):
        files.add(config.ca)
    for path in sorted(files):
        try:
            context.load_verify_locations(cafile=path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"certificate {path}: {error}", cure="a certificate as PEM file") from None


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    digest: str
    """SHA-256 of the pinned certificate; empty: the name counts."""
    dns_name: str


class Identities:
    """Tells which peer a certificate belongs to.

    Raises:
        ConfigError: a pinned certificate cannot be read.
    """

    def __init__(self, config: SiteConfig) -> None:
        self._known = tuple(
            _Known(
                peer.name,
                _digest_of(Path(peer.certificate)) if peer.certificate else "",
                peer.certificate_name or peer.name,
            )
            for peer in config.peers
            if not peer.shared_key
        )

    def peer_of(self, der: bytes | None, described: Any) -> str | None:
        """The peer that shows this certificate, None when it is nobody's.

        Args:
            der: the certificate TLS has verified; None when none was shown.
            described: the same as `SSLSocket.getpeercert` tells it.
        """
        if der is None:
            return None
        digest = hashlib.sha256(der).hexdigest()
        names = [text for kind, text in (described or {}).get("subjectAltName", ()) if kind == "DNS"]
        found = None
        for known in self._known:
            is_pinned = bool(known.digest) and hmac.compare_digest(known.digest, digest)
            if is_pinned or (not known.digest and known.dns_name in names):
                found = known.name
        return found


def _digest_of(path: Path) -> str:
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(_first_certificate(path))).hexdigest()
    except (OSError, ValueError) as error:
        raise ConfigError(f"certificate {path}: {error}", cure="a certificate as PEM file") from None


def _first_certificate(path: Path) -> str:
    text = path.read_text(encoding="ascii")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    start = text.find(begin)
    stop = text.find(end, start)
    if start < 0 or stop < 0:
        raise ValueError("no certificate in it")
    return text[start : stop + len(end)] + "\n"
