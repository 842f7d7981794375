"""Signed requests to the ApplicationMaster, found again through the ResourceManager when it moves."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import aiohttp

from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.adapters.hadoop_rpc.clients import ResourceManager
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport
from yarn_accel.adapters.signed_http import Signer, exchange, sender_key
from yarn_accel.errors import AuthenticationError, RejectedError, RemoteProtocolError, UnavailableError
from yarn_accel.hadoop.retained import RetainedApplication
from yarn_accel.hadoop.rm_client import RmClient, find_running, one_of

_PATH = "/v1/control/"
#: A new attempt of the master registers within seconds.
_PATIENCE_S = 15.0
#: Of who waits for the end of what runs: a ResourceManager is started again, or another one takes over.
WAIT_PATIENCE_S = 600.0
_PAUSE_S = 0.5
_TIMEOUT_S = 5.0
#: In the `RequestVerifier`'s refusal of a request that was signed before the master started.
_TOO_EARLY = "older than this master"
_MAX_BYTES = 64 * 1024 * 1024


class Control:
    """A connection to the master of one application; use it with ``async with``.

    Args:
        rm_client: the cluster.
        manager: says where the master is now.
        application: its id.
        secret: of this application, see `kept`.
        patience_s: how long a master that does not answer is asked again; every order may be given twice.
    """

    def __init__(
        self,
        rm_client: RmClient,
        manager: ResourceManager,
        application: ApplicationId,
        secret: bytes,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._gateway = rm_client
        self._manager = manager
        self._application = application
        # A name of its own for each of us: the times of one sender's requests must grow.
        sender = f"control:{secrets.token_hex(8)}"
        self._signer = Signer(sender_key(secret, sender), sender)
        self._patience_s = patience_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Control:
        self._session = aiohttp.ClientSession(trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(
        self, verb: str, document: dict[str, Any] | None = None, *, patience_s: float | None = None
    ) -> dict[str, Any]:
        """Send one request and return the response.

        Args:
            patience_s: other than that of all requests.

        Raises:
            UnavailableError: no master answers, or the application is over.
            AuthenticationError: the secret is not its.
            RejectedError: it refuses, with its reason.
        """
        until_s = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        while True:
            try:
                return await self._ask_once(verb, document or {})
            except AuthenticationError as error:
                # The master began a moment ago, or its clock is a little ahead of ours.
                if _TOO_EARLY not in error.message or time.monotonic() >= until_s:
                    raise
            except UnavailableError as error:
                if time.monotonic() >= until_s or await self._is_over():
                    raise UnavailableError(
                        error.message,
                        cure="YARN starts a lost master again by itself; see `yarn application -status "
                        f"{self._application}` and its logs",
                    ) from None
            await asyncio.sleep(_PAUSE_S)

    async def _ask_once(self, verb: str, document: dict[str, Any]) -> dict[str, Any]:
        assert self._session is not None, "use it with `async with`"
        url = self._gateway.url_of(await self.report())
        try:
            answer = await exchange(
                self._session,
                self._signer,
                "POST",
                url,
                _PATH + verb,
                document,
                timeout_s=_TIMEOUT_S,
                max_bytes=_MAX_BYTES,
            )
        except RejectedError as error:
            # Where the master answers is of no interest to who asked it for something.
            raise RejectedError(error.code, error.message.removeprefix(f"{url}{_PATH}{verb}: ")) from None
        if not isinstance(answer, dict):
            raise RemoteProtocolError(f"{url} did not answer with an object")
        return answer

    async def report(self) -> ApplicationReport:
        """What the ResourceManager says of the application."""
        return await self._manager.report(self._application)

    async def _is_over(self) -> bool:
        try:
            state = (await self.report()).state
        except UnavailableError:  # nobody knows
            return False
        return state is not None and state.is_final


async def with_control(
    rm_client: RmClient, application: str, work: Callable[[ApplicationReport, Control], Awaitable[Any]]
) -> Any:
    """Do some work with the one running application, or the one that is named."""
    async with rm_client.manager() as manager:
        found = one_of(await find_running(manager), application, rm_client.user)
        secret = RetainedApplication.of(str(found.id)).secret()
        async with Control(rm_client, manager, found.id, secret) as control:
            return await work(found, control)


async def asked(
    rm_client: RmClient, application: str, verb: str, document: dict[str, Any] | None = None
) -> tuple[ApplicationReport, dict[str, Any]]:
    """An application, and its master's answer to one verb."""

    async def ask(found: ApplicationReport, control: Control) -> tuple[ApplicationReport, dict[str, Any]]:
        return found, await control.ask(verb, document)

    answered: tuple[ApplicationReport, dict[str, Any]] = await with_control(rm_client, application, ask)
    return answered
