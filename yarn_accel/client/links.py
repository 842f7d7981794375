"""The addresses to a server: Unix socket, TCP and TLS, chosen here, with one face for all of them.

A link moves bytes and knows no protocol.  With ``is_blocking`` a call waits, in the kernel, until it can do
something; without, it returns at once.  A plain socket stays in blocking mode and says "do not wait" per
call: so the ordinary small request costs one system call each way and never a poll.
"""

from __future__ import annotations

import collections
import os
import select
import socket
import struct
from typing import TYPE_CHECKING, Deque, Sequence

from yarn_accel.client.liveness import unacknowledged_s
from yarn_accel.errors import RemoteProtocolError
from yarn_accel.wire import Buffer

if TYPE_CHECKING:
    pass

_TIMEVAL = struct.Struct("ll")
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * 4)


class Link:
    """An open connection; see `SocketLink` and `tls.TlsLink`.

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

    def set_timeout(self, timeout_s: float) -> None:
        """Seconds that a blocking call waits before it raises `BlockingIOError`."""
        raise NotImplementedError

    def send(self, parts: Sequence[Buffer], is_blocking: bool) -> int:
        """Send some of the bytes; how many. Raises `BlockingIOError` when none could be sent in time."""
        raise NotImplementedError

    def receive(
        self, views: Sequence[memoryview], is_blocking: bool, may_carry_descriptors: bool = False
    ) -> int:
        """Receive into the views, one after the other; how many bytes, 0 when the peer has closed.

        Args:
            may_carry_descriptors: descriptors may come along.

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

    def unacknowledged_s(self) -> float:
        """Seconds for which the node at the other end has acknowledged nothing; see `liveness`."""
        return unacknowledged_s(self._socket)

    def close(self) -> None:
        """Close the socket and what nobody took of `descriptors`; harmless when closed already."""
        self._socket.close()
        while self.descriptors:
            os.close(self.descriptors.popleft())


class SocketLink(Link):
    """A Unix or TCP socket."""

    def set_timeout(self, timeout_s: float) -> None:
        """See `Link`; the kernel keeps the time."""
        whole_s = int(timeout_s)
        value = _TIMEVAL.pack(whole_s, max(1, int((timeout_s - whole_s) * 1e6)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def send(self, parts: Sequence[Buffer], is_blocking: bool) -> int:
        """See `Link`."""
        return self._socket.sendmsg(parts, (), 0 if is_blocking else socket.MSG_DONTWAIT)

    def receive(
        self, views: Sequence[memoryview], is_blocking: bool, may_carry_descriptors: bool = False
    ) -> int:
        """See `Link`."""
        flags = 0 if is_blocking else socket.MSG_DONTWAIT
        if may_carry_descriptors:
            return self._receive_descriptors(views, flags)
        if len(views) == 1:
            return self._socket.recv_into(views[0], 0, flags)
        return self._socket.recvmsg_into(views, 0, flags)[0]

    def _receive_descriptors(self, views: Sequence[memoryview], flags: int) -> int:
        n_bytes, ancillary, reported, _ = self._socket.recvmsg_into(
            views, _ANCILLARY_BYTES, flags | socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.extend(
                    struct.unpack("{}i".format(len(data) // 4), data[: len(data) // 4 * 4])
                )
        if reported & socket.MSG_CTRUNC:
            raise RemoteProtocolError("more descriptors at once than this protocol sends")
        return n_bytes


def reason(error: OSError) -> str:
    """What went wrong with a socket, in a few words."""
    if isinstance(error, socket.timeout):
        return "no answer in time"
    if error.errno and type(error).__module__ == "builtins":
        return os.strerror(error.errno).lower()
    return str(error)
