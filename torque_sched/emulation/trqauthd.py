"""The emulated trqauthd: vouches for connections to the emulated server, and dies of what kills the real one.

A client connects to the server, tells trqauthd in one line which port it did that from, and reads one line.
User and process have to be those of the local socket's other end. For a process started with EMULATED_USER it
is that user who comes in, as with the emulated commands; the line and the headers have the real name.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from torque_sched.batch.torque.protocol import (
    ACTIVE_SERVER_QUESTION,
    MOST_LINE_BYTES,
    AuthenticateUser,
    Authorisation,
    AuthorisationAnswer,
    Disconnect,
    ErrorCode,
    ReplyDecoder,
    as_they_are,
    decode_authorisation,
    encode_answer,
    encode_request,
)
from torque_sched.batch.torque.protocol.dis import encode_string
from torque_sched.emulation.batch_port import BatchPort
from torque_sched.emulation.events import PrivilegedPorts
from torque_sched.emulation.faults import Faults
from torque_sched.emulation.local_socket import listen_at, name_of, other_end
from torque_sched.emulation.world import Settings
from torque_sched.errors import ProtocolError

_WRONG_USER = "trqauthd unable to authenticate. User or PID of calling process not found or does not match"
_FIVE_TRIES_S = 0.1
_RETRY_S = 0.5
_INTERNAL = AuthorisationAnswer(15013, "PBS server internal error")
_NO_SERVER = AuthorisationAnswer(15133, "Could not connect to batch server")
_UNREADABLE = AuthorisationAnswer(ErrorCode.UNREADABLE_AUTHORISATION, "Error reading data from socket")
_NOT_FOUND = AuthorisationAnswer(
    ErrorCode.NO_SUCH_CONNECTION,
    "Client connection not found. trqauthd unable to authorize user. Possible transient failure. "
    "Please try again",
)
_ADDRESS = "127.0.0.1"


class Trqauthd:
    """Listens at a local socket from :meth:`start` until :meth:`stop`, or until a wrong length ends it.

    Args:
        directory: the state folder; the socket in it is called ``trqauthd-unix``.
        batch: the server's port, which it vouches to.
        settings: of the cluster.
        faults: orders for ``trqauthd``.
    """

    def __init__(self, directory: Path, batch: BatchPort, settings: Settings, faults: Faults) -> None:
        self._directory = directory
        self._batch = batch
        self._settings = settings
        self._faults = faults
        self._ports = PrivilegedPorts()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Take connections from now on."""
        if self._server is None:
            sock = listen_at(self._directory, "trqauthd-unix", 0o777)
            self._server = await asyncio.start_unix_server(self._serve, sock=sock)

    def stop(self) -> None:
        """Take none any more: connections are refused, as where it is not started."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            line = await reader.read(MOST_LINE_BYTES + 1)
            fault = self._faults.pick(("trqauthd",), (line.decode("utf-8", "replace"),))
            if fault is not None and fault.kind == "hang":
                await reader.read()
            elif fault is None or fault.kind not in ("gone", "exit"):
                if fault is not None and fault.kind == "slow":
                    await asyncio.sleep(fault.seconds)
                answer = await self._answer(line, writer)
                writer.write(answer if fault is None else fault.cut(len(line), answer))
            elif fault.kind == "exit":
                writer.write(encode_answer(AuthorisationAnswer(fault.code, fault.text)))
        writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> bytes:
        if line == ACTIVE_SERVER_QUESTION:
            return encode_answer(AuthorisationAnswer(0, _ADDRESS, self._batch.port))
        try:
            asked = decode_authorisation(line)
        except ProtocolError:
            asked = None
        if asked is not None:
            return encode_answer(await self._vouch(asked, writer))
        if re.match(rb"1\|\d+\|", line) is None:
            return encode_answer(_UNREADABLE)
        if not self._settings.is_old:
            # Seen on 6.1.3: the length of a name that is wrong ends it, for everybody.
            self.stop()
        return encode_answer(_INTERNAL)

    async def _vouch(self, asked: Authorisation, writer: asyncio.StreamWriter) -> AuthorisationAnswer:
        pid, uid = other_end(writer)
        if pid != asked.pid or asked.user != name_of(uid):
            await asyncio.sleep(_FIVE_TRIES_S)
            return AuthorisationAnswer(ErrorCode.WRONG_USER, _WRONG_USER)
        if asked.server not in (self._settings.server, "localhost", _ADDRESS) or (
            asked.server_port != self._batch.port
        ):
            return _NO_SERVER
        until_s = time.monotonic() + self._settings.trqauthd_tries_s
        try:
            code = await self._ask(asked)
            while code == ErrorCode.NO_SUCH_CONNECTION and time.monotonic() < until_s:
                await asyncio.sleep(_RETRY_S)
                code = await self._ask(asked)
        except (OSError, ProtocolError):
            return _NO_SERVER
        if code == ErrorCode.DONE:
            self._batch.emulate_user(asked.client_port, _emulated_user(pid))
            return AuthorisationAnswer(0)
        return _NOT_FOUND if code == ErrorCode.NO_SUCH_CONNECTION else AuthorisationAnswer(code)

    async def _ask(self, asked: Authorisation) -> int:
        """Vouch to the server as the real one does, from a port of its own; the server's code."""
        sock = self._ports.socket()
        own_port = sock.getsockname()[1]
        self._batch.trusted.add(own_port)
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (_ADDRESS, self._batch.port))
            await loop.sock_sendall(sock, _as_it_counts(AuthenticateUser(asked.user, asked.client_port)))
            decoder = ReplyDecoder(as_they_are)
            while (reply := decoder.next()) is None:
                data = await loop.sock_recv(sock, 4096)
                if not data:
                    raise ConnectionResetError
                decoder.receive(data)
            await loop.sock_sendall(sock, _as_it_counts(Disconnect(asked.user)))
            return reply.code
        finally:
            sock.close()
            self._batch.trusted.discard(own_port)


def _as_it_counts(request: AuthenticateUser | Disconnect) -> bytes:
    """Seen on real ones: trqauthd writes the count of a single digit, too (``1+5alice``)."""
    user = encode_string(request.user)
    return encode_request(request).replace(user, (b"1" if user.startswith(b"+") else b"") + user, 1)


def _emulated_user(pid: int) -> str:
    """The user that a process was started to be, by EMULATED_USER; empty: who he is."""
    with suppress(OSError):
        for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if pair.startswith(b"EMULATED_USER="):
                return os.fsdecode(pair.partition(b"=")[2])
    return ""
