"""A node's connection to the master; it discovers the master again after every failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp

from yarn_accel.adapters.signed_http import MAX_BODY_BYTES, Signer, exchange
from yarn_accel.errors import AccelError, AuthenticationError, UnavailableError
from yarn_accel.node.heartbeat_response import HeartbeatResponse, parse_response
from yarn_accel.node.master_discovery import MasterDiscovery

logger = logging.getLogger(__name__)

HEARTBEAT_PATH = "/v1/heartbeat"
_Answer = TypeVar("_Answer")


class MasterConnection:
    """Sends documents; used from one event loop.

    Of two documents that are on their way at once, the earlier one may be refused as older than the other.

    Args:
        timeout_s: how long to wait for one answer.
        max_bytes: of an answer.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        signer: Signer,
        discovery: MasterDiscovery,
        timeout_s: float,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._session = session
        self._signer = signer
        self._discovery = discovery
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._urls: tuple[str, ...] = ()
        self._is_in_doubt = True
        self._n_answers = 0
        #: The master that answered last; empty: none did yet.
        self.url = ""

    async def post(
        self, path: str, document: dict[str, Any], parse: Callable[[Any, str], _Answer]
    ) -> _Answer:
        """Send a document and return the answer.

        Args:
            parse: reads an answer of the master at this address; raises where it is not to be believed.

        Raises:
            AuthenticationError: somebody is there, but we are not believed, or the answer is not to be.
            UnavailableError: no master is known, or none answers; the message says why.
        """
        failures = [await self._find()] if self._is_in_doubt else []
        kind: type[AccelError] = UnavailableError
        n_answers = self._n_answers
        for url in self._urls:
            try:
                answer = await exchange(
                    self._session,
                    self._signer,
                    "POST",
                    url,
                    path,
                    document,
                    timeout_s=self._timeout_s,
                    max_bytes=self._max_bytes,
                )
                response = parse(answer, url)
            except AccelError as error:
                failures.append(str(error))
                kind = AuthenticationError if isinstance(error, AuthenticationError) else kind
                continue
            if url != self.url:
                logger.info("the master is %s", url)
            self.url, self._is_in_doubt = url, False
            self._n_answers += 1
            return response
        # Who has answered another document meanwhile is there.
        self._is_in_doubt = self._n_answers == n_answers
        raise kind("; ".join(text for text in failures if text) or "no master is known")

    async def _find(self) -> str:
        """Renew the candidates; when that fails, say why and keep those there were."""
        try:
            self._urls = await asyncio.to_thread(self._discovery.find)
        except AccelError as error:
            return str(error)
        return ""


class MasterClient:
    """Sends an agent's heartbeats.

    Args:
        node: this node's name.
    """

    def __init__(self, connection: MasterConnection, node: str) -> None:
        self._connection = connection
        self._node = node

    @property
    def url(self) -> str:
        """The master that answered last; empty: none did yet."""
        return self._connection.url

    async def send(self, heartbeat: dict[str, Any], last: HeartbeatResponse | None) -> HeartbeatResponse:
        """Send a heartbeat and return the answer.

        Args:
            last: the last answer; one of an earlier attempt of the same application is not believed.

        Raises:
            AuthenticationError, UnavailableError: see `MasterConnection.post`.
        """

        def parse(document: Any, url: str) -> HeartbeatResponse:
            response = parse_response(document, self._node)
            if response.is_older_than(last):
                raise UnavailableError(f"{url} is attempt {response.attempt}, which is over")
            return response

        return await self._connection.post(HEARTBEAT_PATH, heartbeat, parse)
