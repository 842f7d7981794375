"""Opens the best link to a server that this node can have: Unix socket, TLS or TCP."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.links import Link, SocketLink, reason
from yarn_accel.client.liveness import LOST_AFTER_S, enable_keepalive
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.errors import UnavailableError

if TYPE_CHECKING:
    import ssl

#: Every carrier, best first; ``memfd`` is the Unix socket with shared memory for what is large.
CARRIERS = ("memfd", "unix", "tls", "tcp")
_START = "start it there with `yarn-accel pipeline serve`"
#: Twice as fast as the usual 208 KiB for large payloads (the kernel may allow less); TCP finds its own size.
_UNIX_BUFFER_BYTES = 4 * 1024 * 1024


def open_link(
    endpoint: Endpoint,
    timeout_s: float,
    lost_after_s: float = LOST_AFTER_S,
    *,
    carriers: Sequence[str] = CARRIERS,
    tls: Optional[ssl.SSLContext] = None,
) -> Link:
    """The best link to a server that this node can have.

    Args:
        timeout_s: limit for connecting; over a network `lost_after_s` is one too, since a node that is there
            accepts at once, however busy its server is.
        carriers: those that may be used.
        tls: how to speak TLS; made from the endpoint when that says so and none is given.

    Raises:
        UnavailableError: nobody there.
        AuthenticationError: the server's certificate is not accepted.
    """
    failures: List[str] = []
    for carrier, family, address in _addresses(endpoint, carriers, tls):
        try:
            return _open(carrier, family, address, timeout_s, lost_after_s, endpoint, tls)
        except OSError as error:
            reraise_from_signal(error)
            failures.append("{}: {}".format(_format_address(address), reason(error)))
    why = "; ".join(failures) or "it has no address that this node can use"
    raise UnavailableError("no pipeline server answers as {} ({})".format(endpoint.name, why), cure=_START)


def _addresses(
    endpoint: Endpoint, carriers: Sequence[str], tls: Optional[ssl.SSLContext]
) -> List[Tuple[str, int, object]]:
    addresses: List[Tuple[str, int, object]] = []
    if endpoint.unix_path and ("unix" in carriers or "memfd" in carriers):
        addresses.append(("unix", socket.AF_UNIX, endpoint.unix_path))
    carrier = "tls" if endpoint.tls or tls is not None else "tcp"
    if endpoint.host and endpoint.port and carrier in carriers:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        addresses.append((carrier, family, (endpoint.host, endpoint.port)))
    return addresses


def _open(
    carrier: str,
    family: int,
    address: object,
    timeout_s: float,
    lost_after_s: float,
    endpoint: Endpoint,
    tls: Optional[ssl.SSLContext],
) -> Link:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s if family == socket.AF_UNIX else min(timeout_s, lost_after_s))
        sock.connect(address)  # type: ignore[arg-type]
        sock.settimeout(timeout_s)
        if family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER_BYTES)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            enable_keepalive(sock, lost_after_s)
        if carrier == "tls":
            from yarn_accel.client.tls import start_tls

            return start_tls(sock, endpoint, tls)
        sock.setblocking(True)
        return SocketLink(sock, carrier)
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise


def _format_address(address: object) -> str:
    return "{}:{}".format(*address[:2]) if isinstance(address, tuple) else str(address)
