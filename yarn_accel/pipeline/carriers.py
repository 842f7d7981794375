"""What carries the bytes of a connection: a socket, or TLS over one; neither ever waits.

Shared memory is a carrier too, of payloads only: a message names the segment they lie in (`wire.Placement`),
and its descriptor travels with `Carrier.send`.
"""

from __future__ import annotations

import contextlib
import socket
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yarn_accel.wire import Buffer

#: A payload on its way in wakes the server when so much of it has come.
_WAKE_BYTES = 512 * 1024


class Carrier:
    """The bytes of one connection.

    Attributes:
        kind: ``tcp``, ``tls`` or ``unix``.
        fd: the descriptor to be watched.
        has_received: whether bytes are at hand that no descriptor tells of.
        has_unsent: whether bytes that `send` has taken are still to be flushed.
    """

    kind = ""
    fd = -1
    has_received = False
    has_unsent = False

    def receive_into(self, view: memoryview) -> int:
        """Receive into `view`; 0: the peer closed its side.

        Raises:
            BlockingIOError: nothing is there now.
            OSError: the connection is lost.
        """
        raise NotImplementedError

    def send(self, parts: Sequence[Buffer], fd: int = -1) -> int:
        """Send some of these parts; how many bytes were taken.

        Args:
            parts: sent one after the other.
            fd: a descriptor that travels with the first byte; -1: none.

        Raises:
            BlockingIOError: nothing more goes now.
            OSError: the connection is lost.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Send what `send` has taken; raises what it raises."""

    def expect(self, n_bytes: int) -> None:
        """So many bytes of a payload are to come: do not wake for less than a good part of them."""

    def shutdown(self, how: int) -> None:
        """Shut one side of the socket down, or both."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the socket."""
        raise NotImplementedError


class SocketCarrier(Carrier):
    """A TCP or Unix socket.

    Args:
        sock: the accepted socket.
        kind: ``tcp`` or ``unix``.
    """

    def __init__(self, sock: socket.socket, kind: str) -> None:
        sock.setblocking(False)
        self.kind = kind
        self.fd = sock.fileno()
        self.receive_into = sock.recv_into  # type: ignore[method-assign,assignment]
        self._sock = sock
        self._wakes_at = 1

    def send(self, parts: Sequence[Buffer], fd: int = -1) -> int:
        """Send some of these parts; see `Carrier.send`."""
        if fd >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))]
            return self._sock.sendmsg(parts, rights)
        if len(parts) == 1:
            return self._sock.send(parts[0])
        return self._sock.sendmsg(parts)

    def expect(self, n_bytes: int) -> None:
        """Have the kernel gather a good part of a payload first."""
        if self.kind != "tcp":
            return
        wakes_at = max(1, min(n_bytes, _WAKE_BYTES))
        if wakes_at != self._wakes_at:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)
            self._wakes_at = wakes_at

    def shutdown(self, how: int) -> None:
        """Shut one side of the socket down, or both."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()
