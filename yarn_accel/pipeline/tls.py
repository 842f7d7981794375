"""TLS as a carrier that never waits: the record layer works on memory, and what it says goes when it can."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

from yarn_accel.errors import StartupError
from yarn_accel.pipeline.carriers import Carrier

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.wire import Buffer

_RECEIVE_BYTES = 256 * 1024
_SEND_BYTES = 256 * 1024
#: Ciphertext that waits for the socket; while there is more, nothing is encrypted.
_MOST_UNSENT_BYTES = 2 * _SEND_BYTES
#: One for all connections: it holds nothing between two calls.
_received = bytearray(_RECEIVE_BYTES)


def server_context(config: PipelineConfig) -> ssl.SSLContext | None:
    """What the configuration says about TLS; None: nothing.

    Raises:
        StartupError: a certificate or key cannot be used.
    """
    if not config.tls_cert_file:
        return None
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
        if config.tls_client_ca_file:
            context.load_verify_locations(config.tls_client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f"TLS cannot be used: {error}",
            cure="see tls_cert_file, tls_key_file and tls_client_ca_file",
        ) from None
    return context


class TlsCarrier(Carrier):
    """TLS over an accepted socket; the handshake happens with the first bytes received.

    Args:
        sock: the socket.
        context: the server's certificate and what it asks of clients.
    """

    kind = "tls"

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        sock.setblocking(False)
        self.fd = sock.fileno()
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = memoryview(b"")
        self._is_open = False

    def receive_into(self, view: memoryview) -> int:
        """Receive into `view`; see `Carrier.receive_into`; also raises `ssl.SSLError`."""
        while not self._is_open:
            self._shake_hands()
        while True:
            try:
                n_bytes: int = self._tls.read(len(view), view)  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                self.has_received = False
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0
            else:
                self.has_received = True
                return n_bytes
            if not self._receive():
                return 0
            self._flush_gently()

    def send(self, parts: Sequence[Buffer], fd: int = -1) -> int:
        """Encrypt some of these parts and send what goes; see `Carrier.send`."""
        if len(self._unsent) + self._outgoing.pending >= _MOST_UNSENT_BYTES:
            self.flush()
        part = next((memoryview(part) for part in parts if len(part)), memoryview(b""))[:_SEND_BYTES]
        n_bytes = self._tls.write(part) if len(part) else 0
        self._flush_gently()
        return n_bytes

    def flush(self) -> None:
        """Send the ciphertext that waits; see `Carrier.flush`."""
        try:
            while True:
                if not len(self._unsent):
                    self._unsent = memoryview(self._outgoing.read())
                if not len(self._unsent):
                    return
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        finally:
            self.has_unsent = bool(len(self._unsent) or self._outgoing.pending)

    def shutdown(self, how: int) -> None:
        """Shut one side of the socket down, or both."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
            self._is_open = True
        except ssl.SSLWantReadError:
            pass
        self._flush_gently()
        if not self._is_open and not self._receive():
            raise ConnectionResetError("the peer closed the connection in the TLS handshake")

    def _receive(self) -> bool:
        n_bytes = self._sock.recv_into(_received)
        if n_bytes:
            self._incoming.write(memoryview(_received)[:n_bytes])
        return n_bytes > 0

    def _flush_gently(self) -> None:
        """Send what goes now; the rest waits."""
        with contextlib.suppress(BlockingIOError):
            self.flush()
