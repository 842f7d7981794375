"""The ways to a server: Unix socket, TCP and TLS, chosen here, with one face for all of them.

A link moves bytes and knows no protocol.  With ``is_patient`` a call waits, in the kernel, until it can do
something; without, it returns at once.  A plain socket stays in blocking mode and says "do not wait" per
call: so the ordinary small request costs one system call each way and never a poll.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import socket
import struct
from typing import TYPE_CHECKING, Deque, List, Optional, Sequence, Tuple

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.vital import LOST_AFTER_S, ask_often, mute_s
from yarn_accel.errors import RemoteProtocolError, UnavailableError
from yarn_accel.wire import Buffer

if TYPE_CHECKING:
    import ssl

__all__ = ["CARRIERS", "Link", "PlainLink", "connect", "reason"]

#: Every carrier, best first; ``memfd`` is the Unix socket with shared memory for what is large.
CARRIERS = ("memfd", "unix", "tls", "tcp")
_START = "start it there with `yarn-accel pipeline serve`"
_TIMEVAL = struct.Struct("ll")
#: Twice as fast as the usual 208 KiB for large payloads (the kernel may allow less); TCP finds its own size.
_UNIX_BUFFER_BYTES = 4 * 1024 * 1024
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * 4)


class Link:
    """An open connection; see `PlainLink` and `tls.TlsLink`.

    Attributes:
        carrier: ``unix``, ``tcp`` or ``tls``.
        descriptors: file descriptors that came with the bytes, first come first.
    """

    def __init__(self, sock: socket.socket, carrier: str) -> None:
        self.carrier = carrier
        self.descriptors: Deque[int] = collections.deque()
        self._socket = sock
        self._poll = select.poll()
        self._interest = 0

    def set_patience(self, timeout_s: float) -> None:
        """How long a patient call waits before it raises `BlockingIOError`."""
        raise NotImplementedError

    def send(self, parts: Sequence[Buffer], is_patient: bool) -> int:
        """Send some of the bytes; how many. Raises `BlockingIOError` when none could be sent in time."""
        raise NotImplementedError

    def receive(self, views: Sequence[memoryview], is_patient: bool, may_bring: bool = False) -> int:
        """Receive into the views, one after the other; how many bytes, 0 when the peer has closed.

        Args:
            may_bring: descriptors may come along.

        Raises:
            BlockingIOError: nothing came in time.
        """
        raise NotImplementedError

    def wait(self, timeout_s: float, for_sending: bool) -> bool:
        """Wait until bytes can be received, or also sent; False when the time is over."""
        interest = select.POLLIN | select.POLLOUT if for_sending else select.POLLIN
        if interest != self._interest:
            self._poll.register(self._socket, interest)
            self._interest = interest
        return bool(self._poll.poll(timeout_s * 1000))

    def fileno(self) -> int:
        """The descriptor of the socket, to be waited for among others."""
        return self._socket.fileno()

    def mute_s(self) -> float:
        """For how long the node at the other end has not even acknowledged what it was sent; see `vital`."""
        return mute_s(self._socket)

    def close(self) -> None:
        """Close the socket and what nobody took of `descriptors`; harmless when closed already."""
        self._socket.close()
        while self.descriptors:
            os.close(self.descriptors.popleft())


class PlainLink(Link):
    """A Unix or TCP socket."""

    def set_patience(self, timeout_s: float) -> None:
        """See `Link`; the kernel keeps the time."""
        whole_s = int(timeout_s)
        value = _TIMEVAL.pack(whole_s, max(1, int((timeout_s - whole_s) * 1e6)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def send(self, parts: Sequence[Buffer], is_patient: bool) -> int:
        """See `Link`."""
        return self._socket.sendmsg(parts, (), 0 if is_patient else socket.MSG_DONTWAIT)

    def receive(self, views: Sequence[memoryview], is_patient: bool, may_bring: bool = False) -> int:
        """See `Link`."""
        flags = 0 if is_patient else socket.MSG_DONTWAIT
        if may_bring:
            return self._receive_descriptors(views, flags)
        if len(views) == 1:
            return self._socket.recv_into(views[0], 0, flags)
        return self._socket.recvmsg_into(views, 0, flags)[0]

    def _receive_descriptors(self, views: Sequence[memoryview], flags: int) -> int:
        n_bytes, ancillary, told, _ = self._socket.recvmsg_into(
            views, _ANCILLARY_BYTES, flags | socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.extend(
                    struct.unpack("{}i".format(len(data) // 4), data[: len(data) // 4 * 4])
                )
        if told & socket.MSG_CTRUNC:
            raise RemoteProtocolError("more descriptors at once than this protocol sends")
        return n_bytes


def connect(
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
    for carrier, family, address in _ways(endpoint, carriers, tls):
        try:
            return _open(carrier, family, address, timeout_s, lost_after_s, endpoint, tls)
        except OSError as error:
            failures.append("{}: {}".format(_written(address), reason(error)))
    why = "; ".join(failures) or "it has no address that this node can use"
    raise UnavailableError("no pipeline server answers as {} ({})".format(endpoint.name, why), cure=_START)


def _ways(
    endpoint: Endpoint, carriers: Sequence[str], tls: Optional[ssl.SSLContext]
) -> List[Tuple[str, int, object]]:
    ways: List[Tuple[str, int, object]] = []
    if endpoint.unix_path and ("unix" in carriers or "memfd" in carriers):
        ways.append(("unix", socket.AF_UNIX, endpoint.unix_path))
    carrier = "tls" if endpoint.tls or tls is not None else "tcp"
    if endpoint.host and endpoint.port and carrier in carriers:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        ways.append((carrier, family, (endpoint.host, endpoint.port)))
    return ways


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
            ask_often(sock, lost_after_s)
        if carrier == "tls":
            from yarn_accel.client.tls import speak_tls

            return speak_tls(sock, endpoint, tls)
        sock.setblocking(True)
        return PlainLink(sock, carrier)
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise


def _written(address: object) -> str:
    return "{}:{}".format(*address[:2]) if isinstance(address, tuple) else str(address)


def reason(error: OSError) -> str:
    """What went wrong with a socket, in a few words."""
    if isinstance(error, socket.timeout):
        return "no answer in time"
    if error.errno and type(error).__module__ == "builtins":
        return os.strerror(error.errno).lower()
    return str(error)
