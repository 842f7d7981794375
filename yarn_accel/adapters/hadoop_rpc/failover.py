"""Calls to a service that may run at several addresses and may be away for a while.

A server that is on standby or refuses the connection is passed over for the next address; after a whole round
without success the pause doubles, from `first_pause_s` to `longest_pause_s`, until `patience_s` is over.  A
call that had left when its connection broke is sent again only when its method may be repeated (`methods`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from yarn_accel.adapters.hadoop_rpc.addresses import Address
from yarn_accel.adapters.hadoop_rpc.framing import Identity
from yarn_accel.adapters.hadoop_rpc.methods import Method
from yarn_accel.adapters.hadoop_rpc.rpc_errors import BusyError, ConnectionLostError
from yarn_accel.adapters.hadoop_rpc.transport import RpcConnection, RpcSettings
from yarn_accel.errors import ConfigError, UnavailableError

logger = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call looks for a server that answers.

    Attributes:
        patience_s: no new try begins later than this; 0: every address once.
        first_pause_s: after the first round without success.
        longest_pause_s: the pause stops doubling there.
    """

    patience_s: float = 30.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 2.0


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
        self.n_connections = 0

    @property
    def address(self) -> Address:
        """Who is asked first at the moment."""
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
        patience_s = self._patience.patience_s if patience_s is None else patience_s
        deadline_s = self._clock() + patience_s
        pause_s, n_failed = self._patience.first_pause_s, 0
        while True:
            connection: RpcConnection | None = None
            try:
                connection = await self._connected()
                return await connection.call(method, request, timeout_s)
            except UnavailableError as error:
                if isinstance(error, ConnectionLostError) and error.was_sent and not method.is_repeatable:
                    raise
                await self._pass_over(connection, error)
                reason = error
            n_failed += 1
            if n_failed % len(self._addresses) and not isinstance(reason, BusyError):
                continue
            if self._clock() + pause_s > deadline_s:
                raise reason
            logger.info("%s: again in %.1f s: %s", method.name, pause_s, reason)
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, self._patience.longest_pause_s)

    async def close(self) -> None:
        """Close the connection; the next call opens a new one."""
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
                self.n_connections += 1
            return self._connection

    async def _pass_over(self, connection: RpcConnection | None, error: UnavailableError) -> None:
        """The next call goes to the next address, unless another call has seen to that meanwhile."""
        if isinstance(error, BusyError) or (connection is not None and connection is not self._connection):
            return
        self._at = (self._at + 1) % len(self._addresses)
        await self.close()
