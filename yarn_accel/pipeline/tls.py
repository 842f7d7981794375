"""TLS as a stream that one thread may read from while another writes.

An `ssl.SSLSocket` may not be used by two threads at once.  Here the record layer works on memory, under a
lock that is never held while the socket is waited for.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from yarn_accel.errors import StartupError

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.wire import Buffer

__all__ = ["TlsStream", "server_context"]

_RECEIVE_BYTES = 256 * 1024
_SEND_BYTES = 256 * 1024


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


class TlsStream:
    """An accepted socket with TLS over it; the handshake happens with the first bytes received.

    Args:
        sock: the socket, blocking, perhaps with time-outs.
        context: the server's certificate and what it asks of clients.
        handshake_timeout_s: how long the handshake may take.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, handshake_timeout_s: float) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._due_s = time.monotonic() + handshake_timeout_s
        self._is_open = False

    @property
    def pending(self) -> bool:
        """Whether something received waits to be read."""
        return bool(self._incoming.pending or (self._is_open and self._tls.pending()))

    def recv_into(self, view: memoryview | bytearray, n_bytes: int = 0, flags: int = 0) -> int:
        """Receive into `view`; 0: the peer closed its side.

        Raises:
            OSError: among them BlockingIOError after the socket's time-out, and `ssl.SSLError`.
        """
        while not self._is_open:
            self._shake_hands()
        while True:
            with self._lock:
                try:
                    return self._tls.read(len(view), view)  # type: ignore[return-value]
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0
            if not self._receive():
                return 0
            self._flush()

    def sendmsg(self, parts: Sequence[Buffer], ancillary: Any = (), flags: int = 0) -> int:
        """Send some of `parts`; returns how many bytes were taken, all of which have gone."""
        part = next((memoryview(part) for part in parts if len(part)), memoryview(b""))[:_SEND_BYTES]
        with self._lock:
            n_bytes = self._tls.write(part) if len(part) else 0
        self._flush()
        return n_bytes

    def sendall(self, data: Buffer) -> None:
        """Send everything."""
        view = memoryview(data)
        while len(view):
            view = view[self.sendmsg([view]) :]

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._sock.fileno()

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Set an option of the socket."""
        self._sock.setsockopt(level, option, value)

    def shutdown(self, how: int) -> None:
        """Shut the socket down."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _shake_hands(self) -> None:
        with self._lock:
            try:
                self._tls.do_handshake()
                self._is_open = True
            except ssl.SSLWantReadError:
                pass
        self._flush()
        if not self._is_open:
            if time.monotonic() > self._due_s:
                raise TimeoutError("the TLS handshake took too long")
            if not self._receive():
                raise ConnectionResetError("the peer closed the connection in the TLS handshake")

    def _receive(self) -> bool:
        n_bytes = self._sock.recv_into(self._buffer)
        if n_bytes:
            with self._lock:
                self._incoming.write(memoryview(self._buffer)[:n_bytes])
        return n_bytes > 0

    def _flush(self) -> None:
        """Send what TLS has to say, in order."""
        with self._sending:
            while True:
                with self._lock:
                    data = self._outgoing.read(_SEND_BYTES * 2)
                if not data:
                    return
                self._sock.sendall(data)
