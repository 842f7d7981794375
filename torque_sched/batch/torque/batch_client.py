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
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from torque_sched.adapters.answer_socket import peer_uid
from torque_sched.adapters.waiting import within
from torque_sched.batch.torque.protocol import (
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
    encode_reply,
    encode_request,
)
from torque_sched.errors import AnswerLostError, ProtocolError, ServerConnectionError

T = TypeVar("T")
DEFAULT_PORT = 15001
TRQAUTHD_SOCKET = Path("/tmp/trqauthd-unix")
CONNECT_S = 15.0
"""Until the connection is an operator's; trqauthd takes 6.5 s to say that the server does not know it."""
_TRUSTED = frozenset({0})
_CHUNK_BYTES = 1 << 18
_SHORT_BYTES = 1 << 12
_SOON_MS = 2
"""A reply that comes so soon, as to an order, is waited for without a turn of the event loop: that turn costs
more than the reply. Nothing else of this process runs meanwhile."""
_TURN_S = 0.005
"""Whatever is asked, the event loop has its turn so often."""
_DONE: Final[Reply[Any]] = Reply()
_DONE_BYTES = encode_reply(_DONE)
"""What nearly every order is answered: known without being decoded."""
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


@dataclass(frozen=True, slots=True)
class BatchAnswer(Generic[T]):
    """A reply and its bytes; ``read_s`` is the time in which we read them."""

    reply: Reply[T]
    data: bytes
    read_s: float = 0.0


class BatchClient:
    """Asks pbs_server; connects when first asked, and anew after any doubt.

    Args:
        place: where the server is.
    """

    def __init__(self, place: ServerPlace) -> None:
        self._place = place
        self._open: _OpenConnection | None = None
        self._lock = asyncio.Lock()
        self._turn_s = 0.0
        self.user = _user()

    async def ask(
        self,
        request: Request,
        decoder: Callable[[], ReplyDecoder[T]],
        timeout_s: float,
        *,
        repeats: bool = False,
    ) -> BatchAnswer[T]:
        """Send one request and wait for its reply.

        Args:
            request: what to ask.
            decoder: makes one for the reply.
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
            if self._open is not None and self._open.is_quiet:
                with suppress(OSError):
                    self._open.socket.send(encode_request(Disconnect(self.user)))
            self._drop()

    async def _ask(
        self, request: Request, decoder: Callable[[], ReplyDecoder[T]], timeout_s: float
    ) -> BatchAnswer[T]:
        if time.monotonic() - self._turn_s > _TURN_S:
            await asyncio.sleep(0)
            self._turn_s = time.monotonic()
        connection = self._open
        if connection is None or not connection.is_quiet:
            connection = await self._connected()
        try:
            answer = await _exchange(connection, encode_request(request), decoder, timeout_s)
        except BaseException:
            self._drop()
            raise
        if answer.reply.code == ErrorCode.NOT_AUTHORISED:
            self._drop()
            words = f"{answer.reply.text.strip()} ({answer.reply.code})"
            raise ServerConnectionError(
                f"pbs_server does not take requests of {self.user}: {words}",
                cure="is trqauthd running on this host?",
            )
        return answer

    def _drop(self) -> None:
        if self._open is not None:
            self._open.socket.close()
            self._open = None

    async def _connected(self) -> _OpenConnection:
        self._drop()
        try:
            await within(CONNECT_S, self._connect())
        except asyncio.TimeoutError as error:
            raise _unreachable(f"pbs_server or trqauthd did not answer in {CONNECT_S:g} s") from error
        except ProtocolError as error:
            raise _unreachable(f"trqauthd: {error.message}") from error
        except OSError as error:
            raise _unreachable(f"could not connect to server: {error.strerror or error}") from error
        assert self._open is not None
        return self._open

    async def _connect(self) -> None:
        """Make the connection; kept here, it is not lost where the wait for it is cancelled meanwhile."""
        try:
            active = await _ask_trqauthd(self._place.trqauthd, ACTIVE_SERVER_QUESTION, has_port=True)
        except (FileNotFoundError, ConnectionRefusedError):
            if os.geteuid():
                raise ServerConnectionError(
                    f"no trqauthd at {self._place.trqauthd}",
                    cure="start trqauthd, or set trqauthd_socket to where its socket is",
                ) from None
            self._open = _OpenConnection(await _reach(self._place.host, self._place.port, privileged=True))
            return
        host, port = active.text, active.port or DEFAULT_PORT
        connection = await _reach(host, port)
        try:
            await self._authorise(connection, host, port)
        except BaseException:
            connection.close()
            raise
        self._open = _OpenConnection(connection)

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


class _OpenConnection:
    """An open connection to the server."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._arrival = select.poll()
        self._arrival.register(connection, select.POLLIN)

    @property
    def is_quiet(self) -> bool:
        """Whether it is still open, and nothing came that was not asked for."""
        return not self._arrival.poll(0)

    def send(self, data: bytes) -> int:
        """Send as much as goes without waiting; returns how many bytes that is."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    def what_comes_soon(self) -> bytes | None:
        """The first bytes of a reply, empty for the end of the connection; None: not so soon."""
        return self.socket.recv(_SHORT_BYTES) if self._arrival.poll(_SOON_MS) else None


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
    connection: _OpenConnection, data: bytes, decoder: Callable[[], ReplyDecoder[T]], timeout_s: float
) -> BatchAnswer[T]:
    """Send and receive on an open connection; whatever is raised, it must not be used again."""
    try:
        n_sent = connection.send(data)
        first = connection.what_comes_soon() if n_sent == len(data) else None
    except OSError as error:
        raise _ended(False, False, timeout_s) from error
    if first == _DONE_BYTES:
        return BatchAnswer(_DONE, first)
    return await _finish(connection.socket, data[n_sent:], first, decoder(), timeout_s)


async def _finish(
    connection: socket.socket, unsent: bytes, first: bytes | None, decoder: ReplyDecoder[T], timeout_s: float
) -> BatchAnswer[T]:
    """The rest of an exchange, of which some bytes came or none yet."""
    loop = asyncio.get_running_loop()
    read_s = 0.0
    chunks: list[bytes] = []
    expired: list[bool] = []
    # A timer that ends the connection is cheaper than a task around the wait: this runs thousands of times.
    timer = loop.call_later(timeout_s, _expire, connection, expired)
    try:
        if unsent:
            await loop.sock_sendall(connection, unsent)
        reply, chunk = None, first
        while reply is None:
            if chunk is None:
                chunk = await loop.sock_recv(connection, _CHUNK_BYTES)
            if not chunk:
                raise _ended(bool(chunks), bool(expired), timeout_s)
            chunks.append(chunk)
            arrived_s = time.monotonic()
            decoder.receive(chunk)
            reply, chunk = decoder.next(), None
            read_s += time.monotonic() - arrived_s
    except OSError as error:
        raise _ended(bool(chunks), bool(expired), timeout_s) from error
    except ProtocolError as error:
        raise AnswerLostError(f"pbs_server's reply is garbled: {error.message}", cure=error.cure) from error
    finally:
        timer.cancel()
    if not decoder.is_between_messages:
        raise AnswerLostError("pbs_server sent more than one reply", cure="which it belongs to is unknown")
    return BatchAnswer(reply, b"".join(chunks), read_s)


def _expire(connection: socket.socket, expired: list[bool]) -> None:
    expired.append(True)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _ended(has_begun: bool, is_expired: bool, timeout_s: float) -> AnswerLostError:
    cure = "is the server hanging? whether the request took effect is unknown"
    if is_expired:
        return AnswerLostError(f"no reply of pbs_server within {timeout_s:g} s", cure=cure)
    if has_begun:
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
            chunk = await loop.sock_recv(connection, 4096)
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
