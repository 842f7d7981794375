"""Sites with certificates and keys on loopback, for tests of the link between them."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.torque.conftest import closing
from torque_sched.grid.site.config import SiteConfig
from torque_sched.grid.site.messages import Gossip
from torque_sched.grid.site.peer_endpoint import PeerEndpoint, Route
from torque_sched.grid.site.peers import Links
from torque_sched.grid.site.reporting import Audit

_NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """A certificate of its own hand, and its key."""
    crt, key = folder / f"{name}.crt", folder / f"{name}.key"
    if not crt.exists():
        openssl(f"req -x509 -days 30 {_NEW_KEY}", folder, f"{name}.crt", name)
    return str(crt), str(key)


def make_signed_certificate(folder: Path, name: str) -> None:
    """A certificate of the hand of `authority`, and its key."""
    make_certificate(folder, "authority")
    openssl(f"req {_NEW_KEY}", folder, f"{name}.csr", name)
    signer = "-CA authority.crt -CAkey authority.key -CAcreateserial -copy_extensions copy -days 30"
    openssl(f"x509 -req -in {name}.csr {signer}", folder, f"{name}.crt")


def openssl(words: str, folder: Path, out: str, name: str = "") -> None:
    """Run it in a folder; with a name, for a new key of that name."""
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", f"{name}.key"]
    argv = ["openssl", *words.split(), *(subject if name else ()), "-out", out]
    subprocess.run(argv, check=True, capture_output=True, cwd=folder)
    if name:
        (folder / f"{name}.key").chmod(0o600)


def make_key(folder: Path, name: str) -> str:
    """A shared key."""
    path = folder / f"{name}.shared"
    if not path.exists():
        path.write_text(secrets.token_hex(32))
        path.chmod(0o600)
    return str(path)


def links_of(config: SiteConfig) -> AbstractAsyncContextManager[Links]:
    """Links that are closed."""
    return closing(Links(config))


def config_of(folder: Path, name: str, port: int, peers: dict[str, Any], **more: Any) -> SiteConfig:
    """Settings of a site; `peers`: name -> its port, or its settings."""
    crt, key = make_certificate(folder, name)
    listed = []
    for peer, said in peers.items():
        values = said if isinstance(said, dict) else {"port": said}
        certificate = make_certificate(folder, peer)[0]
        listed.append({"name": peer, "address": "127.0.0.1", "certificate": certificate, **values})
    own = {"name": name, "listen": "127.0.0.1", "port": port, "certificate": crt, "key": key}
    return SiteConfig(**own, peers=listed, **{"timeout_s": 3.0, **more})


def echo_route(heard: list[tuple[str, Any]]) -> dict[str, Route]:
    """Notes who said what and answers the same."""

    async def echo(peer: str, message: Gossip) -> Gossip:
        heard.append((peer, message))
        return message

    return {"gossip": Route(Gossip, echo, lambda message, answer: {"n": len(message.claims)})}


@asynccontextmanager
async def listening(config: SiteConfig, routes: dict[str, Route], audit: Path) -> AsyncIterator[PeerEndpoint]:
    """A gate that listens."""
    book = Audit(audit)
    gate = PeerEndpoint(config, routes, book)
    await gate.start()
    try:
        yield gate
    finally:
        await gate.stop()
        book.close()
