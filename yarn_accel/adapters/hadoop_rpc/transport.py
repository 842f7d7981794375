"""Calls to a Hadoop service over TCP: one connection, and the search for a server that answers.

`RpcConnection` is one connection on asyncio: connect, log in, calls side by side, give up in time.

`RpcService` calls a service that may run at several addresses and may be away for a while.  A server that is
on standby or refuses the connection is passed over for the next address.  One that hangs keeps its
connections: after `RpcSettings.ask_others_after_s` without an answer the other addresses are asked, too.
After a whole round without success the pause doubles, from `Patience.initial_backoff_s` to
`Patience.max_backoff_s`, until `Patience.total_s` is over.  A call that had left when its connection broke is
sent again only if its method may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from yarn_accel.adapters.hadoop_rpc.framing import (
    MAX_FRAME_BYTES,
    CallAnswered,
    CallFailed,
    Identity,
    LoggedIn,
    RpcClientProtocol,
)
from yarn_accel.adapters.hadoop_rpc.kerberos import Kerberos, Security
from yarn_accel.adapters.hadoop_rpc.methods import Method
from yarn_accel.adapters.hadoop_rpc.protobuf import decode_delimited, encode
from yarn_accel.adapters.hadoop_rpc.rpc_errors import (
    BusyError,
    ConnectionLostError,
    KdcUnavailableError,
    RemoteCallError,
)
from yarn_accel.errors import AccelError, ConfigError, RemoteProtocolError, UnavailableError

logger = logging.getLogger(__name__)
_CHUNK_BYTES = 1 << 18
#: Another server would not do better.
_SAME_SERVER = (BusyError, KdcUnavailableError)
Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str, default_port: int = 0) -> Address:
        """Read ``host:port``, ``[v6]:port``, or a host alone when there is a default port.

        Raises:
            ConfigError: something else.
        """
        host, colon, port = text.strip().rpartition(":")
        if not colon or port.endswith("]"):
            host, port = text.strip(), str(default_port)
        host = host.removeprefix("[").removesuffix("]")
        is_port = port.isascii() and port.isdigit() and 0 < int(port[:8]) < 65536
        if not is_port or not _is_host(host):
            raise ConfigError(f"{text[:200]!r} is no host:port")
        return Address(host, int(port))


def _is_host(text: str) -> bool:
    """Whether a resolver would take the text: not a URL, and no label of it empty or too long."""
    try:
        return bool(text.encode("idna")) and not set(text) & set("/ \t\r\n")
    except UnicodeError:
        return False


@dataclass(frozen=True, slots=True)
class RpcSettings:
    """Limits of one connection.

    Attributes:
        login_timeout_s: until the connection is open and the login complete.
        kdc_timeout_s: how much longer a login by Kerberos may take: a dead KDC is given up after 18 s.
        call_timeout_s: until the answer of one call; then the connection is given up.
        ask_others_after_s: without the answer of a call the service's other addresses are asked, too.
        max_frame_bytes: a longer answer closes the connection.
        hosts: names that this machine cannot resolve itself -> address.
        security: of the site.
    """

    login_timeout_s: float = 10.0
    kdc_timeout_s: float = 50.0
    call_timeout_s: float = 60.0
    ask_others_after_s: float = 10.0
    max_frame_bytes: int = MAX_FRAME_BYTES
    hosts: Mapping[str, str] = field(default_factory=dict)
    security: Security = field(default_factory=Security)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call looks for a server that answers.

    Attributes:
        total_s: no new try begins later than this; 0: every address once.
        initial_backoff_s: pause after the first round without success.
        max_backoff_s: the pause stops doubling there.
    """

    total_s: float = 30.0
    initial_backoff_s: float = 0.1
    max_backoff_s: float = 2.0


class RpcService:
    """One protocol of one service, wherever it runs at the moment; many calls may be open at once.

    Args:
        addresses: tried in this order, beginning with the one that answered last.
        protocol: full Java name.
        identity: asked before every connection, so that a renewed token is used from then on.
        clock, sleep: for tests.

    Raises:
        ConfigError: no address.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        protocol: str,
        identity: Callable[[], Identity],
        settings: RpcSettings | None = None,
        patience: Patience | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not addresses:
            raise ConfigError(f"no address for {protocol}")
        self._addresses = tuple(addresses)
        self._protocol = protocol
        self._identity = identity
        self._settings = RpcSettings() if settings is None else settings
        self._patience = Patience() if patience is None else patience
        self._clock, self._sleep = clock, sleep
        self._at = 0
        self._connection: RpcConnection | None = None
        self._connecting = asyncio.Lock()
        self._cancelled: set[asyncio.Task[Any]] = set()

    @property
    def address(self) -> Address:
        """The address that the next call goes to first."""
        return self._addresses[self._at]

    async def call(
        self,
        method: Method[Q, A],
        request: Q,
        *,
        timeout_s: float | None = None,
        patience_s: float | None = None,
    ) -> A:
        """Call a method wherever the service runs.

        Raises:
            ConnectionLostError: the call left and its connection broke, and it must not be repeated.
            UnavailableError: nobody took it within the patience; names the last reason.
            AuthenticationError: the identity is not taken.
            RemoteCallError: the server refuses.
        """
        patience_s = self._patience.total_s if patience_s is None else patience_s
        deadline_s = self._clock() + patience_s
        pause_s, n_failed = self._patience.initial_backoff_s, 0
        while True:
            connection: RpcConnection | None = None
            try:
                connection = await self._connected()
                return await self._answer(connection, method, request, timeout_s)
            except UnavailableError as error:
                if isinstance(error, ConnectionLostError) and error.was_sent and not method.is_repeatable:
                    raise
                await self._pass_over(connection, error)
                reason = error
            n_failed += 1
            if n_failed % len(self._addresses) and not isinstance(reason, _SAME_SERVER):
                continue
            if self._clock() + pause_s > deadline_s:
                raise reason
            logger.info("%s: again in %.1f s: %s", method.name, pause_s, reason)
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, self._patience.max_backoff_s)

    async def _answer(
        self, connection: RpcConnection, method: Method[Q, A], request: Q, timeout_s: float | None
    ) -> A:
        """The answer of the connected server, or of another one that is active while that one is silent."""
        if len(self._addresses) == 1 or not method.is_repeatable:
            return await connection.call(method, request, timeout_s)
        first = asyncio.create_task(connection.call(method, request, timeout_s))
        tasks = [first]
        try:
            while not (await asyncio.wait({first}, timeout=self._settings.ask_others_after_s))[0]:
                other = asyncio.create_task(self._ask_others(connection, method, request, timeout_s))
                tasks.append(other)
                await asyncio.wait({first, other}, return_when=asyncio.FIRST_COMPLETED)
                if other.done() and not isinstance(other.exception(), UnavailableError):
                    await connection.close()
                    return other.result()
            return first.result()
        finally:
            # Nobody waits for their ends: before Python 3.12 `asyncio.wait_for` may lose a cancellation, and
            # such a task goes on until its own time is over.
            for task in tasks:
                task.cancel()
                self._cancelled.add(task)
                task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._cancelled.discard(task)
        if not task.cancelled():
            task.exception()  # it counts no more

    async def _ask_others(
        self, silent: RpcConnection, method: Method[Q, A], request: Q, timeout_s: float | None
    ) -> A:
        """Call the other addresses; the one that answers takes the place of the silent one.

        Raises:
            UnavailableError: none of them is active.
            RemoteCallError: the active one refuses.
        """
        here = self._at
        for step in range(1, len(self._addresses)):
            at = (here + step) % len(self._addresses)
            opened: RpcConnection | None = None
            is_active = False
            try:
                opened = await RpcConnection.open(
                    self._addresses[at], self._protocol, self._identity(), self._settings
                )
                answer = await opened.call(method, request, timeout_s)
                is_active = True
                return answer
            except RemoteCallError:
                is_active = True
                raise
            except AccelError as error:
                logger.info("%s: silent; at %s: %s", method.name, self._addresses[at], error)
            finally:
                is_wanted = asyncio.current_task() not in self._cancelled
                if opened is not None and is_active and is_wanted and self._connection is silent:
                    self._at, self._connection = at, opened
                    logger.info("%s: %s is active now", method.name, self._addresses[at])
                elif opened is not None:
                    await opened.close()
        raise UnavailableError(f"{method.name}: no other address of this service is active")

    async def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        for task in self._cancelled:
            task.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> RpcConnection:
        async with self._connecting:
            if self._connection is None or not self._connection.is_usable:
                await self.close()
                self._connection = await RpcConnection.open(
                    self.address, self._protocol, self._identity(), self._settings
                )
            return self._connection

    async def _pass_over(self, connection: RpcConnection | None, error: UnavailableError) -> None:
        """The next call goes to the next address, unless another call has seen to that meanwhile."""
        if isinstance(error, _SAME_SERVER) or (connection is not None and connection is not self._connection):
            return
        self._at = (self._at + 1) % len(self._addresses)
        await self.close()


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
        framing = RpcClientProtocol(
            protocol, identity, str(address), settings.max_frame_bytes, security=settings.security
        )
        connection = cls(address, framing, settings)
        timeout_s = settings.login_timeout_s
        if isinstance(identity, Kerberos):
            timeout_s += settings.kdc_timeout_s
        try:
            await asyncio.wait_for(connection._connect(), timeout_s)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, UnicodeError) as error:
            await connection.close()
            # UnicodeError: a name that no resolver takes.
            reason = str(error) or f"nothing within {timeout_s:g} s"
            raise ConnectionLostError(f"no connection to {address}: {reason}", was_sent=False) from None
        except BaseException:
            await connection.close()
            raise
        connection._receiving = asyncio.create_task(connection._receive(), name=f"hadoop-rpc {address}")
        return connection

    @property
    def is_usable(self) -> bool:
        """Calls may be made."""
        return self._broken is None and self._protocol.is_open

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
            data = b""
            with contextlib.suppress(ConnectionError):
                data = await self._reader.read(_CHUNK_BYTES)
            if not data:
                raise ConnectionResetError("closed during the login")
            self._protocol.receive_data(data)
            next_event = self._protocol.next_event
            event = await asyncio.to_thread(next_event) if self._protocol.is_blocking else next_event()
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
        """Hand an event to the caller that waits for it, unless the caller gave up."""
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
