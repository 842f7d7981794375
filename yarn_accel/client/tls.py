"""TLS to a pipeline server; imported only when it is spoken, since not every Python has the ssl module."""

from __future__ import annotations

import socket
import ssl
from typing import Optional, Sequence

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.links import Link
from yarn_accel.errors import AuthenticationError
from yarn_accel.wire import Buffer

_PIECE_BYTES = 256 * 1024


def start_tls(sock: socket.socket, endpoint: Endpoint, context: Optional[ssl.SSLContext]) -> Link:
    """Shake hands on a connected socket.

    Args:
        context: how to speak; None: the server must show a certificate of ``endpoint.ca_file``, or of an
            authority this machine trusts when that is empty.

    Raises:
        AuthenticationError: the server's certificate is not accepted.
        OSError: it has no TLS, or not in time.
    """
    try:
        own = context or ssl.create_default_context(cafile=endpoint.ca_file or None)
        return TlsLink(own.wrap_socket(sock, server_hostname=endpoint.host))
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            "{}: its certificate is not accepted: {}".format(endpoint.name, error.verify_message),
            cure="name the authority that signed it (ca_file), and the host as in the certificate",
        ) from None


class TlsLink(Link):
    """A TCP socket with TLS; the session of the ssl module never blocks, `wait` does."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock, "tls")
        self._tls = sock
        self._timeout_s = 0.0
        sock.setblocking(False)

    def set_timeout(self, timeout_s: float) -> None:
        """See `Link`."""
        self._timeout_s = timeout_s

    def send(self, parts: Sequence[Buffer], is_blocking: bool) -> int:
        """See `Link`; at most one part, and of that one piece."""
        piece = memoryview(parts[0])[:_PIECE_BYTES]
        while True:
            try:
                return self._tls.send(piece)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                self._wait_for_tls(error, is_blocking)

    def receive(
        self, views: Sequence[memoryview], is_blocking: bool, may_carry_descriptors: bool = False
    ) -> int:
        """See `Link`; into the first view only."""
        while True:
            try:
                return self._tls.recv_into(views[0])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                self._wait_for_tls(error, is_blocking)

    def wait(self, timeout_s: float, for_sending: bool) -> bool:
        """See `Link`."""
        return self._tls.pending() > 0 or super().wait(timeout_s, for_sending)

    def _wait_for_tls(self, error: ssl.SSLError, is_blocking: bool) -> None:
        for_sending = isinstance(error, ssl.SSLWantWriteError)
        if not is_blocking or not Link.wait(self, self._timeout_s, for_sending):
            raise BlockingIOError
