"""One connection to pbs_server, over Torque's own batch protocol: one request, one reply, then the next.

The connection is an operator's by trqauthd's word. Where there is none and this process is root's, a port
below 1024 is its right. After a time-out, an error or a stray byte the connection is dropped: a late reply
would be taken for that of the next request.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torque_sched.adapters.answer_socket import peer_uid
from torque_sched.core.batch_protocol import (
    ACTIVE_SERVER_QUESTION,
    Authorisation,
    AuthorisationAnswer,
    Disconnect,
    ErrorCode,
    Reply,
    ReplyDecoder,
    Request,
    decode_answer,
    encode_authorisation,
    encode_request,
)
from torque_sched.errors import AnswerLostError, ProtocolError, ServerConnectionError

__all__ = ["DEFAULT_PORT", "TRQAUTHD_SOCKET", "BatchClient", "ServerPlace"]

T = TypeVar("T")
DEFAULT_PORT = 15001
TRQAUTHD_SOCKET = Path("/tmp/trqauthd-unix")
TRQAUTHD_S = 9.0
"""trqauthd takes 6.5 s to say that the server does not know a connection."""
CONNECT_S = 10.0
_TRUSTED = frozenset({0})
_CHUNK_BYTES = 1 << 18
_PRIVILEGED = range(1023, 511, -1)


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where pbs_server and trqauthd are.

    Attributes:
        trqauthd: its socket; trqauthd knows the server's name and port.
        host: of the server; used where this process is root's and there is no trqauthd.
        port: of the server, in the same case.
    """

    trqauthd: Path = TRQAUTHD_SOCKET
    host: str = "localhost"
    port: int = DEFAULT_PORT


class BatchClient:
    """Asks pbs_server; connects when first asked, and anew after any doubt.

    Args:
        place: where the server is.
    """

    def __init__(self, place: ServerPlace) -> None:
        self._place = place
        self._socket: socket.socket | None = None
        self._lock = asyncio.Lock()
        self.user = _user()

    async def ask(
        self,
        request: Request,
        decoder: ReplyDecoder[T],
        timeout_s: float,
        *,
        repeats: bool = False,
    ) -> tuple[Reply[T], bytes]:
        """Send one request and wait for its reply; returns it with its bytes.

        Args:
            request: what to ask.
            decoder: a new one.
            timeout_s: until the reply is complete.
            repeats: asked again once, over a new connection, where the old one ends without a byte. Only for
                what changes nothing.

        Raises:
            ServerConnectionError: nothing was sent, or the server does not take this user's requests.
            AnswerLostError: sent, and whether it took effect is unknown.
        """
        async with self._lock:
            try:
                return await self._ask(request, decoder, timeout_s)
            except _EndedError as error:
                if not repeats:
                    raise AnswerLostError(error.message, cure=error.cure) from error
            return await self._ask(request, decoder, timeout_s)

    async def close(self) -> None:
        """Leave the server in good order."""
        async with self._lock:
            if self._socket is not None and self._is_quiet(self._socket):
                with suppress(OSError):
                    self._socket.send(encode_request(Disconnect(self.user)))
            self._drop()

    def drop(self) -> None:
        """Close the connection at once."""
        self._drop()

    async def _ask(
        self, request: Request, decoder: ReplyDecoder[T], timeout_s: float
    ) -> tuple[Reply[T], bytes]:
        connection = await self._connected()
        try:
            reply, data = await _exchange(connection, encode_request(request), decoder, timeout_s)
        except BaseException:
            self._drop()
            raise
        if reply.code == ErrorCode.NOT_AUTHORISED:
            self._drop()
            raise ServerConnectionError(
                f"pbs_server does not take requests of {self.user}: {reply.text.strip()} ({reply.code})",
                cure="is trqauthd running on this host?",
            )
        return reply, data

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _is_quiet(connection: socket.socket) -> bool:
        """Whether the connection is open, and nothing came that was not asked for."""
        try:
            connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def _connected(self) -> socket.socket:
        if self._socket is not None and not self._is_quiet(self._socket):
            self._drop()
        if self._socket is None:
            try:
                self._socket = await asyncio.wait_for(self._connect(), CONNECT_S + TRQAUTHD_S)
            except asyncio.TimeoutError as error:
                raise _unreachable(f"pbs_server or trqauthd did not answer in {CONNECT_S + TRQAUTHD_S:g} s"
                                   ) from error  # fmt: skip
            except ProtocolError as error:
                raise _unreachable(f"trqauthd: {error.message}") from error
            except OSError as error:
                raise _unreachable(f"could not connect to server: {error.strerror or error}") from error
        return self._socket

    async def _connect(self) -> socket.socket:
        try:
            active = await _ask_trqauthd(self._place.trqauthd, ACTIVE_SERVER_QUESTION, has_port=True)
        except (FileNotFoundError, ConnectionRefusedError):
            if os.geteuid():
                raise ServerConnectionError(
                    f"no trqauthd at {self._place.trqauthd}",
                    cure="start trqauthd, or set trqauthd_socket to where its socket is",
                ) from None
            return await _reach(self._place.host, self._place.port, privileged=True)
        host, port = active.text, active.port or DEFAULT_PORT
        connection = await _reach(host, port)
        try:
            await self._authorise(connection, host, port)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _authorise(self, connection: socket.socket, host: str, port: int) -> None:
        line = encode_authorisation(
            Authorisation(host, port, self.user, os.getpid(), connection.getsockname()[1])
        )
        answer = await _ask_trqauthd(self._place.trqauthd, line)
        if answer.code:
            raise ServerConnectionError(
                f"trqauthd refused {self.user}: {answer.text} ({answer.code})",
                cure="does another Torque command work for this user?",
            )


class _EndedError(AnswerLostError):
    """The connection ended before the first byte of a reply."""


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _unreachable(what: str) -> ServerConnectionError:
    return ServerConnectionError(what, cure="is pbs_server running, and trqauthd on this host?")


async def _exchange(
    connection: socket.socket, data: bytes, decoder: ReplyDecoder[T], timeout_s: float
) -> tuple[Reply[T], bytes]:
    """Send and receive on an open connection; whatever is raised, it must not be used again."""
    loop = asyncio.get_running_loop()
    chunks: list[bytes] = []
    expired: list[bool] = []
    # A timer that ends the connection is cheaper than a task around the wait: this runs thousands of times.
    timer = loop.call_later(timeout_s, _expire, connection, expired)
    try:
        await loop.sock_sendall(connection, data)
        reply = None
        while reply is None:
            chunk = await loop.sock_recv(connection, _CHUNK_BYTES)
            if not chunk:
                raise _ended(chunks, expired, timeout_s)
            chunks.append(chunk)
            decoder.receive(chunk)
            reply = decoder.next()
    except OSError as error:
        raise _ended(chunks, expired, timeout_s) from error
    except ProtocolError as error:
        raise AnswerLostError(f"pbs_server's reply is garbled: {error.message}", cure=error.cure) from error
    finally:
        timer.cancel()
    if not decoder.is_between_messages:
        raise AnswerLostError("pbs_server sent more than one reply", cure="which it belongs to is unknown")
    return reply, b"".join(chunks)


def _expire(connection: socket.socket, expired: list[bool]) -> None:
    expired.append(True)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _ended(chunks: list[bytes], expired: list[bool], timeout_s: float) -> AnswerLostError:
    cure = "is the server hanging? whether the request took effect is unknown"
    if expired:
        return AnswerLostError(f"no reply of pbs_server within {timeout_s:g} s", cure=cure)
    if chunks:
        return AnswerLostError("pbs_server's reply breaks off", cure=cure)
    return _EndedError("pbs_server closed the connection without a reply", cure=cure)


async def _reach(host: str, port: int, *, privileged: bool = False) -> socket.socket:
    """A connection to the server.

    Raises:
        OSError: there is none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    last: OSError = OSError(errno.EHOSTUNREACH, f"{host} has no address")
    for family, kind, protocol, _, address in found:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if privileged:
                _bind_privileged(connection)
            await loop.sock_connect(connection, address)
            return connection
        except OSError as error:
            connection.close()
            last = error
        except BaseException:
            connection.close()
            raise
    raise last


def _bind_privileged(connection: socket.socket) -> None:
    for port in _PRIVILEGED:
        try:
            connection.bind(("", port))
            return
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, "no port below 1024 is free")


async def _ask_trqauthd(path: Path, line: bytes, *, has_port: bool = False) -> AuthorisationAnswer:
    """One question to trqauthd, which closes after its answer.

    Raises:
        OSError: it is not there. ProtocolError: it answers something else. ServerConnectionError: the socket
            is that of another user's process, or no whole answer came.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        place = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            # Whatever the length of its path, of which a socket's address takes 107 bytes.
            await loop.sock_connect(connection, f"/proc/self/fd/{place}/{path.name}")
        finally:
            os.close(place)
        _check_owner(connection, path)
        await loop.sock_sendall(connection, line)
        data = b""
        while True:
            chunk = await asyncio.wait_for(loop.sock_recv(connection, 4096), TRQAUTHD_S)
            data += chunk
            answer = decode_answer(data, has_port=has_port)
            if answer is not None:
                return answer
            if not chunk:
                raise _unreachable("trqauthd closed without an answer")


def _check_owner(connection: socket.socket, path: Path) -> None:
    """Anybody may make a socket in a folder for all; only root's trqauthd, or our own, is believed."""
    uid = peer_uid(connection)
    if uid not in _TRUSTED and uid != os.geteuid():
        raise ServerConnectionError(
            f"{path} is served by user {uid}, not by root", cure="remove it and start trqauthd"
        )
