"""How the processes of a node reach the master: discover it, send signed documents, back off.

The master's address is fixed in the settings, or YARN knows it, as each attempt has another one. A discovery
returns candidates, best first; the signature of a response proves that one is the master. A connection
discovers the master again after every failure.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

from yarn_accel.adapters.rest import get_json, listed_applications, newest_first, running_path
from yarn_accel.adapters.signed_http import MAX_BODY_BYTES, Signer, exchange
from yarn_accel.client.token_file import TOKEN_FILE_VARIABLE
from yarn_accel.errors import AccelError, AuthenticationError, RejectedError, UnavailableError
from yarn_accel.node.config import MasterSettings

if TYPE_CHECKING:
    from yarn_accel.adapters.hadoop_rpc import Token
    from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport

logger = logging.getLogger(__name__)

_MAX_CANDIDATES = 8
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]{0,254}|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})\Z")
_OVER = ("FINISHED", "FAILED", "KILLED")


class MasterDiscovery:
    """Finds the master: a fixed address, else an application report of YARN.

    The master registers its control address as host and RPC port, which an application report shows as
    ``amRPCAddress`` as long as that attempt runs. The ResourceManagers are asked one after the other over
    their REST interface; a standby is passed over. With Kerberos REST wants a ticket, which no container has:
    they are asked by RPC, with the token in the container's credentials, which does not travel.

    Args:
        config: the address, or the ResourceManagers and the application or its type.
        get: `get_json`.
    """

    def __init__(self, config: MasterSettings, get: Callable[..., Any] = get_json) -> None:
        self._url = config.master_url
        self._rm_urls = list(config.rm_urls)
        self._rm_addresses = config.rm_addresses
        self._application, self._type = config.application_id, config.application_type
        self._timeout_s = config.timeout_s
        self._get = get
        application, kind = config.application_id, config.application_type
        self._path = f"/ws/v1/cluster/apps/{application}" if application else running_path(kind)
        self._what = application or f"an application of type {kind}"

    def find(self) -> tuple[str, ...]:
        """Base URLs, such as ``http://10.0.0.5:8500``, best first; may block for some seconds.

        Raises:
            UnavailableError: no master is configured, or no ResourceManager knows one now.
        """
        if self._url:
            return (self._url,)
        if self._rm_addresses:
            return master_urls(asyncio.run(self._ask_by_rpc(_own_token())), self._what)
        if not self._rm_urls:
            raise UnavailableError("no master is configured", cure="set rm_urls or master_url")
        failures = []
        for url in tuple(self._rm_urls):
            try:
                document = self._get(url + self._path, timeout_s=self._timeout_s)
            except RejectedError as error:
                if error.code != "http-404":
                    failures.append(str(error))
                    continue
                raise UnavailableError(f"{url} knows no {self._what}") from None
            except (AccelError, HTTPException) as error:
                failures.append(f"{url}: {error}" if isinstance(error, HTTPException) else str(error))
                continue
            if not isinstance(document, dict) or not ({"app", "apps"} & document.keys()):
                failures.append(f"{url} sent no application report (a standby?)")
                continue
            # The one that answered is the active one: asked first the next time.
            self._rm_urls.remove(url)
            self._rm_urls.insert(0, url)
            return master_urls(document, self._what)
        raise UnavailableError("no ResourceManager answers: " + "; ".join(failures))

    async def _ask_by_rpc(self, token: Token) -> dict[str, Any]:
        """The same as REST's answer, as far as `master_urls` reads it."""
        from yarn_accel.adapters import hadoop_rpc

        addresses = tuple(hadoop_rpc.Address.parse(each) for each in self._rm_addresses)
        manager = hadoop_rpc.ResourceManager(
            hadoop_rpc.ResourceManagerAddresses(addresses, addresses, addresses),
            token,
            hadoop_rpc.RpcSettings(self._timeout_s, call_timeout_s=self._timeout_s),
            hadoop_rpc.Patience(total_s=0.0),
        )
        try:
            if self._application:
                reports = [await manager.report(hadoop_rpc.ApplicationId.parse(self._application))]
            else:
                running = [hadoop_rpc.records.ApplicationState.RUNNING]
                reports = list(await manager.applications(types=[self._type], states=running))
        except hadoop_rpc.ApplicationGoneError:
            raise UnavailableError(f"the ResourceManager knows no {self._what}") from None
        finally:
            await manager.close()
        return {"apps": {"app": [_as_rest(each) for each in reports]}}


def _own_token() -> Token:
    from yarn_accel.adapters.hadoop_rpc import read_token_file
    from yarn_accel.adapters.hadoop_rpc.tokens import RM_DELEGATION_KIND

    place = os.environ.get(TOKEN_FILE_VARIABLE, "")
    try:
        return read_token_file(Path(place).read_bytes()).of_kind(RM_DELEGATION_KIND)
    except OSError as error:
        raise UnavailableError(f"{TOKEN_FILE_VARIABLE} ({place}): {error.strerror}") from None


def _as_rest(report: ApplicationReport) -> dict[str, Any]:
    return {
        "id": str(report.id),
        "startedTime": report.start_ms,
        "state": report.state.name if report.state is not None else "?",
        "amRPCAddress": f"{report.host}:{report.rpc_port}",
    }


def master_urls(document: Any, what: str = "the application") -> tuple[str, ...]:
    """The masters named by an application report, or by a list of them, newest first.

    Raises:
        UnavailableError: none that runs and has an address; the message says which and why.
    """
    one = document.get("app")
    listed = [one] if isinstance(one, dict) else listed_applications(document)
    if not listed:
        raise UnavailableError(f"{what} does not run", cure="start it with `yarn-accel start`")
    reports = newest_first(listed)
    found = [url for report in reports for url in _address(report)]
    if not found:
        states = ", ".join(sorted({str(report.get("state", "?"))[:40] for report in reports}))
        over = any(report.get("state") in _OVER for report in reports)
        raise UnavailableError(
            f"{what} is {states}, without a master's address",
            cure="start it again with `yarn-accel start`" if over else "",
        )
    return tuple(dict.fromkeys(found))[:_MAX_CANDIDATES]


def _address(report: dict[str, Any]) -> tuple[str, ...]:
    match = _ADDRESS.match(str(report.get("amRPCAddress", "")))
    is_running = report.get("state", "RUNNING") == "RUNNING"
    if match is None or not is_running or not 0 < int(match["port"]) <= 65535:
        return ()
    return (f"http://{match['host']}:{int(match['port'])}",)


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
            parse: parses the answer of the master at an address; raises if it must be refused.

        Raises:
            AuthenticationError: the master refuses our signature, or its own is wrong.
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
        # A master that has answered another document meanwhile is there.
        self._is_in_doubt = self._n_answers == n_answers
        raise kind("; ".join(text for text in failures if text) or "no master is known")

    async def _find(self) -> str:
        """Renew the candidates; returns why that failed, and keeps the old ones then."""
        try:
            self._urls = await asyncio.to_thread(self._discovery.find)
        except AccelError as error:
            return str(error)
        return ""


_JITTER = 0.1


class HeartbeatInterval:
    """Counts failures; no clock and no randomness of its own.

    Args:
        interval_s: the pause while all is well.
        max_backoff_s: the longest pause while the master is away.
        random: uniform in 0 to 1; spreads the heartbeats of nodes that lost the master together.
    """

    def __init__(self, interval_s: float, max_backoff_s: float, random: Callable[[], float]) -> None:
        self.interval_s = interval_s
        self.n_failures = 0
        self._max_backoff_s = max_backoff_s
        self._random = random

    def succeeded(self, interval_s: float = 0.0) -> None:
        """The master answered, and wants this interval from now on (0: no change)."""
        self.n_failures = 0
        if interval_s:
            self.interval_s = interval_s

    def failed(self) -> None:
        """The master did not answer, or its answer was refused."""
        self.n_failures += 1

    def next_wait_s(self) -> float:
        """The interval, give or take a tenth; after n failures 2^(n-1) intervals, less up to a half."""
        if not self.n_failures:
            return self.interval_s * (1 + _JITTER * (2 * self._random() - 1))
        longest_s = max(self._max_backoff_s, self.interval_s)
        backoff_s = min(longest_s, self.interval_s * 2.0 ** min(self.n_failures - 1, 30))
        return backoff_s * (1 - self._random() / 2)
