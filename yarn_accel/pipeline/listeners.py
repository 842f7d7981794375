"""The addresses a server listens on."""

from __future__ import annotations

import functools
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from yarn_accel.errors import StartupError
from yarn_accel.pipeline.loop import READ

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.loop import EventLoop

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_HTTP_BACKLOG = 64
#: So many connections are accepted in one turn of the loop.
_AT_ONCE = 32
#: Larger than the usual default, so that a large payload needs fewer turns; the kernel caps it (wmem_max).
_BUFFER_BYTES = 4 * 1024 * 1024
#: Accepting failed for want of something (descriptors, memory): pause before the next try.
_PAUSE_S = 0.1


class Listeners:
    """Listening sockets.

    Args:
        config: says where to listen.

    Raises:
        StartupError: an address cannot be listened on.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self._sockets: dict[int, tuple[str, socket.socket]] = {}
        self._loop: EventLoop | None = None
        #: The TCP port; 0: none.
        self.port = 0
        if config.listen_host:
            kind = "tls" if config.tls_cert_file else "tcp"
            listener = _listen_tcp(config.listen_host, config.listen_port)
            self._sockets[listener.fileno()] = kind, listener
            self.port = listener.getsockname()[1]
        if config.unix_path:
            try:
                listener = _listen_unix(config.unix_path)
            except StartupError:
                self.close()
                raise
            self._sockets[listener.fileno()] = "unix", listener

    def start(self, loop: EventLoop, welcome: Callable[[socket.socket, str], None]) -> None:
        """Accept from now on; `welcome` gets each socket and its carrier, and must not raise."""
        self._loop = loop
        for fd, (_, listener) in self._sockets.items():
            listener.setblocking(False)
            loop.watch(fd, READ, functools.partial(self._accept, fd, welcome))

    def close(self) -> None:
        """Accept nothing more."""
        while self._sockets:
            fd, (kind, listener) = self._sockets.popitem()
            path = listener.getsockname() if kind == "unix" else ""
            if self._loop is not None:
                self._loop.forget(fd)
            listener.close()
            if path:
                Path(path).unlink(missing_ok=True)

    def _accept(self, fd: int, welcome: Callable[[socket.socket, str], None], _: int) -> None:
        kind, listener = self._sockets[fd]
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logger.warning("cannot accept a connection: %s", error)
                self._pause(fd, welcome)
                return
            try:
                _tune(sock, kind)
            except OSError:
                sock.close()
                continue
            welcome(sock, kind)

    def _pause(self, fd: int, welcome: Callable[[socket.socket, str], None]) -> None:
        """Something is short (descriptors, memory): leave the next ones in the kernel's queue for a while."""
        loop = self._loop
        assert loop is not None
        loop.forget(fd)

        def resume() -> None:
            if fd in self._sockets:
                loop.watch(fd, READ, functools.partial(self._accept, fd, welcome))

        loop.call_at(time.monotonic() + _PAUSE_S, resume)


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
    """Where `http.HttpServer` takes connections from; they wait until it starts.

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
