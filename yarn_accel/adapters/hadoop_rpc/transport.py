"""One connection to a Hadoop server on asyncio: connect, log in, calls side by side, give up in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from yarn_accel.adapters.hadoop_rpc.addresses import Address
from yarn_accel.adapters.hadoop_rpc.framing import (
    MAX_FRAME_BYTES,
    CallAnswered,
    CallFailed,
    Identity,
    LoggedIn,
    RpcClientProtocol,
)
from yarn_accel.adapters.hadoop_rpc.methods import Method
from yarn_accel.adapters.hadoop_rpc.protobuf import decode_delimited, encode
from yarn_accel.adapters.hadoop_rpc.rpc_errors import ConnectionLostError
from yarn_accel.errors import AccelError, RemoteProtocolError

logger = logging.getLogger(__name__)
_CHUNK_BYTES = 1 << 18

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class RpcSettings:
    """How patient a connection is.

    Attributes:
        connect_timeout_s: until the login is complete.
        call_timeout_s: until the answer of one call; then the connection is given up.
        max_frame_bytes: a longer answer closes the connection.
        hosts: names that this machine cannot resolve itself -> address.
    """

    connect_timeout_s: float = 10.0
    call_timeout_s: float = 60.0
    max_frame_bytes: int = MAX_FRAME_BYTES
    hosts: Mapping[str, str] = field(default_factory=dict)


class RpcConnection:
    """An open, logged-in connection. Get one from `open`; it is used until it breaks or is closed."""

    def __init__(self, address: Address, protocol: RpcClientProtocol, settings: RpcSettings) -> None:
        self._address = address
        self._protocol = protocol
        self._settings = settings
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._broken: AccelError | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._receiving: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, address: Address, protocol: str, identity: Identity, settings: RpcSettings | None = None
    ) -> RpcConnection:
        """Connect and log in.

        Raises:
            ConnectionLostError: nobody answers in time; nothing was sent.
            AuthenticationError: the server does not take the identity.
            StandbyError: the server is not the active one.
            RemoteProtocolError: this is no Hadoop RPC server.
        """
        settings = RpcSettings() if settings is None else settings
        framing = RpcClientProtocol(protocol, identity, str(address), settings.max_frame_bytes)
        connection = cls(address, framing, settings)
        try:
            await asyncio.wait_for(connection._connect(), settings.connect_timeout_s)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, UnicodeError) as error:
            await connection.close()
            # UnicodeError: a name that no resolver takes.
            reason = str(error) or f"nothing within {settings.connect_timeout_s:g} s"
            raise ConnectionLostError(f"no connection to {address}: {reason}", was_sent=False) from None
        except BaseException:
            await connection.close()
            raise
        connection._receiving = asyncio.create_task(connection._receive(), name=f"hadoop-rpc {address}")
        return connection

    @property
    def address(self) -> Address:
        """Whom it leads to."""
        return self._address

    @property
    def is_usable(self) -> bool:
        """Calls may be made."""
        return self._broken is None and self._protocol.is_open

    @property
    def n_waiting(self) -> int:
        """Calls without an answer yet."""
        return len(self._waiting)

    async def call(self, method: Method[Q, A], request: Q, timeout_s: float | None = None) -> A:
        """Call a method and wait for its answer.

        Raises:
            LocalProtocolError: the request cannot be written.
            RemoteCallError: the server refuses.
            ConnectionLostError: no answer; `was_sent` says whether the call may have been carried out.
            UnavailableError: the server is not the active one, or busy.
        """
        arguments = encode(request)
        if not self.is_usable:
            raise self._lost(was_sent=False)
        timeout_s = self._settings.call_timeout_s if timeout_s is None else timeout_s
        call_id = self._protocol.call(method.name, arguments)
        self._writer.write(self._protocol.data_to_send())
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer
        try:
            content = await asyncio.wait_for(self._exchange(answer), timeout_s)
        except asyncio.TimeoutError:
            self._break(ConnectionLostError(f"{self._address}: silent for {timeout_s:g} s", was_sent=True))
            raise ConnectionLostError(
                f"{self._address} did not answer {method.name} within {timeout_s:g} s", was_sent=True
            ) from None
        finally:
            self._waiting.pop(call_id, None)
        result, end = decode_delimited(method.answer, content)
        if end != len(content):
            raise RemoteProtocolError(f"{self._address}: something follows the answer to {method.name}")
        return result

    async def close(self) -> None:
        """Close; calls that wait end in `ConnectionLostError`. May be called again."""
        self._break(ConnectionLostError(f"{self._address}: closed here", was_sent=True))
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])
        writer = getattr(self, "_writer", None)
        if writer is not None:
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _connect(self) -> None:
        host = self._settings.hosts.get(self._address.host, self._address.host)
        self._reader, self._writer = await asyncio.open_connection(host, self._address.port)
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        event = next(iter(self._protocol.begin()), None)
        self._writer.write(self._protocol.data_to_send())
        while not isinstance(event, LoggedIn):
            data = await self._reader.read(_CHUNK_BYTES)
            if not data:
                raise ConnectionResetError("closed during the login")
            self._protocol.receive_data(data)
            event = self._protocol.next_event()
            self._writer.write(self._protocol.data_to_send())
        await self._writer.drain()

    async def _exchange(self, answer: asyncio.Future[bytes]) -> bytes:
        try:
            await self._writer.drain()
        except OSError as error:
            self._break(ConnectionLostError(f"{self._address}: {error}", was_sent=True))
        return await answer

    async def _receive(self) -> None:
        """Hand answers to those who wait, until the connection breaks."""
        reason: AccelError = ConnectionLostError(f"{self._address} closed the connection", was_sent=True)
        try:
            while data := await self._reader.read(_CHUNK_BYTES):
                self._protocol.receive_data(data)
                while (event := self._protocol.next_event()) is not None:
                    self._deliver(event)
        except AccelError as error:
            reason = error
        except OSError as error:
            reason = ConnectionLostError(f"{self._address}: {error}", was_sent=True)
        finally:
            self._break(reason)

    def _deliver(self, event: CallAnswered | CallFailed | LoggedIn) -> None:
        """Whoever no longer waits (cancelled) is passed over."""
        if isinstance(event, LoggedIn):
            return
        answer = self._waiting.get(event.call_id)
        if answer is None or answer.done():
            return
        if isinstance(event, CallFailed):
            answer.set_exception(event.error)
        else:
            answer.set_result(event.content)

    def _break(self, error: AccelError) -> None:
        if self._broken is not None:
            return
        self._broken = error
        if self._waiting:
            logger.info("%s: %d calls lost: %s", self._address, len(self._waiting), error)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._lost(was_sent=True))
        writer = getattr(self, "_writer", None)
        if writer is not None:
            writer.transport.abort()  # close() would wait for a peer that no longer reads

    def _lost(self, *, was_sent: bool) -> AccelError:
        if self._broken is None or isinstance(self._broken, ConnectionLostError):
            reason = self._broken.message if self._broken is not None else f"{self._address}: not open"
            return ConnectionLostError(reason, was_sent=was_sent)
        return self._broken
