"""TLS of a site: its own certificate, and whose it believes.

A pinned certificate is trusted as it is, whoever signed it; with a `ca`, any it signed. Which peer speaks is
not left to TLS: `Identities` compares the certificate shown with what the settings say of each peer.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torque_sched.errors import ConfigError
from torque_sched.site.config import PeerSettings, SiteConfig
from torque_sched.site.secret_files import check_private


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
