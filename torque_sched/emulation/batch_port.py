"""The TCP port of the emulated pbs_server: connections that speak Torque's batch protocol.

As seen on real servers: one request at a time, and what arrives behind it in the same read is thrown away
without a word; bytes that are no request are thrown away, too, and 6.1 answers nothing to them; another
protocol is closed at once. A connection from a port below 1024 is root's; any other is nobody's before
trqauthd has vouched for it. 6.1 closes one that is idle for ``tcp_incoming_timeout`` seconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from torque_sched.batch.torque.protocol import (
    AuthenticateUser,
    Disconnect,
    ErrorCode,
    Reply,
    ReplyKind,
    Request,
    RequestDecoder,
    encode_reply,
)
from torque_sched.batch.torque.protocol.dis import Garbled, Incomplete, read_number
from torque_sched.emulation.batch_requests import Answered, names_of, read_async_modify, refusal, words_of
from torque_sched.emulation.faults import Fault, Faults
from torque_sched.emulation.world import World
from torque_sched.errors import ProtocolError, StartupError, UnknownRequestError

_PRIVILEGED = 1024
_LONGEST_NAME = 32
_HALF_A_REQUEST_S = 900.0
_IDLE_S = "600"
_DONE = encode_reply(Reply())
_MOST_BYTES = 1 << 16
"""Taken by one read."""
_MOST_IN_TURN = 16
"""Requests of one client before another one has its turn."""
_ENOUGH = 8
"""Bytes that hold the first number of a message."""
_PROTOCOLS = (2, 4)
Perform = Callable[[Request, str], Answered]
"""What the server answers to a request of a user, once it is done and committed."""


class BatchPort:
    """Listens on 127.0.0.1 alone.

    Args:
        directory: the state folder; the file ``port`` in it has the number.
        world: settings and server attributes.
        perform: does a request.
        finish: does what a request was granted, once its client has the answer.
        faults: orders for requests.
    """

    def __init__(
        self, directory: Path, world: World, perform: Perform, finish: Callable[[], None], faults: Faults
    ) -> None:
        self.world = world
        self.perform = perform
        self.finish = finish
        self.faults = faults
        self.connections: dict[int, _Connection] = {}
        """By the client's port."""
        self.trusted: set[int] = set()
        """Ports from which trqauthd connects now: they count as privileged."""
        self.port = 0
        self._file = directory / "port"
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Take connections from now on, at the same port as before a restart.

        Raises:
            StartupError: somebody else has that port.
        """
        before = 0
        with suppress(OSError, ValueError):
            before = int(self._file.read_text(encoding="ascii"))
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wanted = self.world.settings.port or before
        try:
            sock.bind(("127.0.0.1", wanted))
            sock.listen(512)
        except OSError as error:
            raise StartupError(f"port {wanted}: {error}", cure="end what listens there") from error
        self.port = int(sock.getsockname()[1])
        self._file.write_text(f"{self.port}\n", encoding="ascii")
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=sock)

    def stop(self) -> None:
        """Take none any more, and close those that are open."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections.values()):
            connection.close()

    def emulate_user(self, client_port: int, user: str) -> None:
        """Let a connection act as another user than the one it is authorised for; none: as that one."""
        connection = self.connections.get(client_port)
        if connection is not None and user:
            connection.acts_as = user

    @property
    def is_busy(self) -> bool:
        """Whether there are so many connections that every request is refused."""
        return len(self.connections) > self.world.settings.most_connections


class _Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, port: BatchPort) -> None:
        self._port = port
        self._decoder = RequestDecoder()
        self._buffer = bytearray(_MOST_BYTES)
        self._n_received = 0
        self._first = b""
        self._transport: asyncio.Transport | None = None
        self._client_port = 0
        self._fd = -1
        self._waiting: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_privileged = False
        self.user = ""
        """Authorised for it; nobody at first."""
        self.acts_as = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._fd = transport.get_extra_info("socket").fileno()
        self._client_port = int(transport.get_extra_info("peername")[1])
        self._is_privileged = self._client_port < _PRIVILEGED or self._client_port in self._port.trusted
        self._port.connections[self._client_port] = self
        self._port.world.connections.came()
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        if self._port.connections.get(self._client_port) is self:
            del self._port.connections[self._client_port]
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()

    def close(self) -> None:
        """Send what is written, and end."""
        if self._transport is not None:
            self._transport.close()

    def _watch(self) -> None:
        """Close it once nothing has come for so long; look again when that can be at the earliest."""
        world = self._port.world
        longest_s = float(world.server.get("tcp_incoming_timeout", _IDLE_S))
        if not self._decoder.is_between_messages or world.settings.is_old:
            longest_s = _HALF_A_REQUEST_S
        idle_s = self._loop.time() - self._last_s
        if idle_s >= longest_s and self._waiting is None:
            self.close()
            return
        left_s = longest_s - idle_s if self._waiting is None else longest_s
        self._timer = self._loop.call_later(left_s, self._watch)

    # -- requests

    def get_buffer(self, n_bytes: int) -> bytearray:
        """Where the next read's bytes go."""
        return self._buffer

    def buffer_updated(self, n_bytes: int) -> None:
        """Take what was read, and what came meanwhile: a turn of the event loop would cost more than that."""
        self._received(bytes(self._buffer[:n_bytes]))
        for _ in range(_MOST_IN_TURN):
            n_bytes = self._read_more()
            if not n_bytes:
                return
            self._received(bytes(self._buffer[:n_bytes]))

    def _read_more(self) -> int:
        """The bytes that are there now; none where they are not to be read yet, or never."""
        transport = self._transport
        assert transport is not None
        if not transport.is_reading() or transport.is_closing() or transport.get_write_buffer_size():
            return 0
        with suppress(OSError):
            return os.readv(self._fd, (self._buffer,))
        return 0

    def _received(self, data: bytes) -> None:
        """One read's bytes: the rest of a request, or a request and what is behind it."""
        self._last_s = self._loop.time()
        self._n_received += len(data)
        self._first = (self._first + data[:_ENOUGH])[:_ENOUGH]
        self._decoder.receive(data)
        try:
            request = self._decoder.next()
        except UnknownRequestError as error:
            self._unknown(error.number, data)
            return
        except ProtocolError:
            if _is_ours(self._first):
                self._not_understood(ErrorCode.NOT_DECODED, "Bad DIS based Request Protocol")
            else:
                self.close()
            return
        if request is None:
            return
        n_request = self._forget_rest()
        if len(request.user) > _LONGEST_NAME:
            self._not_understood(ErrorCode.NOT_DECODED, "Bad DIS based Request Protocol")
            return
        self._take(request, n_request)

    def _forget_rest(self) -> int:
        """Throw away what came behind a request; returns the bytes of the request."""
        n_bytes = self._n_received - self._decoder.discard()
        self._n_received, self._first = 0, b""
        return n_bytes

    def _unknown(self, number: int, data: bytes) -> None:
        request = read_async_modify(number, data)
        if request is None:
            self._not_understood(ErrorCode.UNKNOWN_REQUEST, "Unknown request")
            return
        self._forget_rest()
        if self._port.world.settings.is_old:
            self._take(request, len(data))
        elif self._may(request):
            # Seen on 6.1.3: two replies to one request, and nothing is modified.
            self._send(_DONE)
            self._send(_DONE)
        else:
            self._send(refusal(ErrorCode.NOT_AUTHORISED, "Invalid credential"))

    def _not_understood(self, code: int, text: str) -> None:
        """4.2 says so; 6.1 answers nothing, and goes on with the next request."""
        self._forget_rest()
        if self._port.world.settings.is_old:
            self._send(refusal(code, f"{text} MSG=cannot decode message"))

    def _take(self, request: Request, n_bytes: int) -> None:
        fault = self._port.faults.pick(names_of(request), words_of(request))
        if fault is not None and self._fails_before(fault, n_bytes):
            return
        if isinstance(request, Disconnect):
            self.close()
            return
        delay_s = fault.seconds if fault is not None and fault.kind == "slow" else 0.0
        if fault is not None and not fault.performs and (delay_s or fault.kind == "hang"):
            if delay_s:
                self._later(delay_s, lambda: self._do(request, n_bytes))
            return
        self._do(request, n_bytes, fault, delay_s)

    def _do(self, request: Request, n_bytes: int, fault: Fault | None = None, delay_s: float = 0.0) -> None:
        """Answer a request; what was granted is done when the answer is on its way."""
        answered = self._answer(request)
        data = answered.data
        if fault is not None and fault.kind == "exit":
            data = refusal(fault.number, fault.text)
        if fault is None or fault.kind != "hang":
            self._later(delay_s + answered.delay_s, lambda: self._finish(fault, n_bytes, data))
        self._port.finish()

    def _fails_before(self, fault: Fault, n_bytes: int) -> bool:
        """Whether a fault keeps the request from being done, and did its harm."""
        if fault.performs or fault.kind in ("slow", "hang", "partial", "twice"):
            return False
        if fault.kind == "exit":
            self._send(refusal(fault.number, fault.text))
        elif fault.kind == "gone" or fault.after < n_bytes:
            self.close()
        else:
            return False
        return True

    def _finish(self, fault: Fault | None, n_bytes: int, data: bytes) -> None:
        if fault is None or fault.kind in ("slow", "exit"):
            self._send(data)
        elif fault.kind == "twice":
            self._send(data)
            self._send(data)
        else:
            self._send(b"" if fault.kind == "gone" else fault.cut(n_bytes, data))
            self.close()

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Act now or after a while; until then nothing more is read."""
        if not delay_s:
            act()
            return
        assert self._transport is not None
        transport = self._transport
        transport.pause_reading()

        async def wait() -> None:
            await asyncio.sleep(delay_s)
            self._waiting = None
            self._last_s = self._loop.time()
            act()
            if not transport.is_closing():
                transport.resume_reading()

        self._waiting = self._loop.create_task(wait())

    def _send(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _may(self, request: Request) -> bool:
        return self._is_privileged or (self.user != "" and request.user == self.user)

    def _answer(self, request: Request) -> Answered:
        if self._port.is_busy:
            return Answered(refusal(ErrorCode.TOO_BUSY, "Server busy. Currently no available threads"))
        if isinstance(request, AuthenticateUser):
            return Answered(self._authenticate(request))
        if not self._may(request):
            return Answered(refusal(ErrorCode.NOT_AUTHORISED, "Invalid credential"))
        return self._port.perform(request, "root" if self._is_privileged else self.acts_as)

    def _authenticate(self, request: AuthenticateUser) -> bytes:
        """trqauthd vouches for another connection."""
        if not self._is_privileged:
            return refusal(ErrorCode.NOT_AUTHORISED, "Invalid credential")
        client = self._port.connections.get(request.port)
        if client is None:
            return encode_reply(Reply(ErrorCode.NO_SUCH_CONNECTION, kind=ReplyKind.NOTHING))
        client.user = client.acts_as = request.user
        return _DONE


def _is_ours(first: bytes) -> bool:
    """Whether the first number of a message is one of those that Torque's ports know."""
    try:
        return read_number(first, 0)[0] in _PROTOCOLS
    except (Garbled, Incomplete):
        return False
