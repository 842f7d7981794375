"""The agent's connection to the master; it discovers the master again after every failure."""

from __future__ import annotations

import asyncio
import logging

import aiohttp

from yarn_accel.adapters.signed_http import Signer, exchange
from yarn_accel.errors import AccelError, AuthenticationError, UnavailableError
from yarn_accel.node.heartbeat_response import HeartbeatResponse, parse_response
from yarn_accel.node.master_discovery import MasterDiscovery

__all__ = ["HEARTBEAT_PATH", "MasterClient"]

logger = logging.getLogger(__name__)

HEARTBEAT_PATH = "/v1/heartbeat"


class MasterClient:
    """Sends heartbeats; used from one event loop, one at a time.

    Args:
        node: this node's name.
        timeout_s: how long to wait for one answer.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        signer: Signer,
        discovery: MasterDiscovery,
        node: str,
        timeout_s: float,
    ) -> None:
        self._session = session
        self._signer = signer
        self._discovery = discovery
        self._node = node
        self._timeout_s = timeout_s
        self._urls: tuple[str, ...] = ()
        self._is_in_doubt = True
        #: The master that answered last; empty: none did yet.
        self.url = ""

    async def send(self, heartbeat: dict[str, object], last: HeartbeatResponse | None) -> HeartbeatResponse:
        """Send a heartbeat and return the answer.

        Args:
            last: the last answer; one of an earlier attempt of the same application is not believed.

        Raises:
            AuthenticationError: somebody is there, but we are not believed, or the answer is not to be.
            UnavailableError: no master is known, or none answers; the message says why.
        """
        failures = [await self._find()] if self._is_in_doubt else []
        kind: type[AccelError] = UnavailableError
        for url in self._urls:
            try:
                document = await exchange(
                    self._session,
                    self._signer,
                    "POST",
                    url,
                    HEARTBEAT_PATH,
                    heartbeat,
                    timeout_s=self._timeout_s,
                )
                response = parse_response(document, self._node)
                if response.is_older_than(last):
                    raise UnavailableError(f"{url} is attempt {response.attempt}, which is over")
            except AccelError as error:
                failures.append(str(error))
                kind = AuthenticationError if isinstance(error, AuthenticationError) else kind
                continue
            if url != self.url:
                logger.info("the master is %s", url)
            self.url, self._is_in_doubt = url, False
            return response
        self._is_in_doubt = True
        raise kind("; ".join(text for text in failures if text) or "no master is known")

    async def _find(self) -> str:
        """Renew the candidates; when that fails, say why and keep those there were."""
        try:
            self._urls = await asyncio.to_thread(self._discovery.find)
        except AccelError as error:
            return str(error)
        return ""
