"""The addresses a server listens on."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from yarn_accel.errors import StartupError

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig

__all__ = ["Listeners", "listen_http"]

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_HTTP_BACKLOG = 64
#: Larger than the usual default, so that a large payload needs fewer turns; the kernel caps it (wmem_max).
_BUFFER_BYTES = 4 * 1024 * 1024
#: Accepting failed for want of something (descriptors, memory): pause before the next try.
_PAUSE_S = 0.1


class Listeners:
    """Listening sockets, and a thread for each that accepts.

    Args:
        config: says where to listen.

    Raises:
        StartupError: an address cannot be listened on.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self._sockets: list[tuple[str, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        #: The TCP port; 0: none.
        self.port = 0
        if config.listen_host:
            carrier = "tls" if config.tls_cert_file else "tcp"
            listener = _listen_tcp(config.listen_host, config.listen_port)
            self._sockets.append((carrier, listener))
            self.port = listener.getsockname()[1]
        if config.unix_path:
            try:
                self._sockets.append(("unix", _listen_unix(config.unix_path)))
            except StartupError:
                self.close()
                raise

    def start(self, welcome: Callable[[socket.socket, str], None]) -> None:
        """Accept from now on; `welcome` gets each socket and its carrier, and must not raise."""
        for carrier, listener in self._sockets:
            thread = threading.Thread(
                target=self._accept_loop,
                args=(carrier, listener, welcome),
                name=f"accept-{carrier}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Accept nothing more."""
        self._closing.set()
        for carrier, listener in self._sockets:
            if listener.fileno() < 0:
                continue
            path = listener.getsockname() if carrier == "unix" else ""
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            if path:
                Path(path).unlink(missing_ok=True)
        for thread in self._threads:
            thread.join(timeout=5.0)

    def _accept_loop(
        self, carrier: str, listener: socket.socket, welcome: Callable[[socket.socket, str], None]
    ) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if listener.fileno() < 0 or self._closing.is_set():
                    return
                logger.warning("cannot accept a connection: %s", error)
                self._closing.wait(_PAUSE_S)
                continue
            try:
                _tune(sock, carrier)
            except OSError:
                sock.close()
                continue
            welcome(sock, carrier)


def _tune(sock: socket.socket, carrier: str) -> None:
    if carrier == "unix":
        # TCP sizes its buffers itself, and better; a Unix socket has only what it is given.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _listen_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}",
            cure="choose another listen_host or listen_port, or stop what listens there (ss -ltnp)",
        ) from None
    return listener


def _listen_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        # Containers run as other users; who may use the server is decided by the credential.
        Path(path).chmod(0o666)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {path}: {(error.strerror or str(error)).lower()}",
            cure="choose another unix_path",
        ) from None
    return listener


def _remove_stale(path: str) -> None:
    """Remove the socket that a killed server left; one that still answers stays."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            Path(path).unlink(missing_ok=True)


def listen_http(host: str, port: int) -> socket.socket:
    """Where `observe.Observer` takes connections from; they wait until it starts.

    Args:
        port: 0: any free one.

    Raises:
        StartupError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_HTTP_BACKLOG)
    except OSError as error:
        # The library names the address after the reason, too.
        reason = (error.strerror or str(error)).split(" (")[0].lower()
        raise StartupError(
            f"cannot listen on {host}:{port}: {reason}", cure="choose another http_host or http_port"
        ) from None
