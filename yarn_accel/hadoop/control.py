"""Signed requests to the ApplicationMaster, and what `start` retains for them on the user's machine.

`RetainedApplication` is one application's folder with the secret that signs its control requests.  `Control`
is a connection to the master; when the master moves, the ResourceManager says where it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import aiohttp

from yarn_accel.adapters.credentials import create_master_secret, read_master_secret
from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.adapters.hadoop_rpc.clients import ResourceManager
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport
from yarn_accel.adapters.signed_http import Signer, exchange, sender_key
from yarn_accel.errors import (
    AuthenticationError,
    ConfigError,
    RejectedError,
    RemoteProtocolError,
    StartupError,
    UnavailableError,
)
from yarn_accel.hadoop.rm_client import RmClient, find_running, one_of
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.uris import authority_of, hdfs_roots

_N = TypeVar("_N", str, float, list[Any])

_SECRET = "control-secret"
_NOTES = "start.json"
_VERSION = 1
_CURE = "set XDG_STATE_HOME to a folder you can write"


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of this user's state: under XDG_STATE_HOME or ~/.local/state."""
    environ = os.environ if environ is None else environ
    home = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(home).absolute() / "cluster-accel"


@dataclass(frozen=True, slots=True)
class RetainedApplication:
    """One application's folder (0700).

    Attributes:
        application: its id.
        folder: where the secret (0600) and the notes lie.
    """

    application: str
    folder: Path

    @staticmethod
    def of(application: str, environ: Mapping[str, str] | None = None) -> RetainedApplication:
        """The folder of an application, there or not."""
        return RetainedApplication(application, state_dir(environ) / "applications" / application)

    def create(self, staging_uri: str, ends_s: float = 0.0, hdfs_servers: Sequence[str] = ()) -> bytes:
        """Make the folder and a fresh secret of 32 bytes; to be called before the application exists.

        Args:
            ends_s: when its tokens end for good, in seconds since the epoch; 0: never.
            hdfs_servers: every HDFS it has a token for, as ``hdfs://AUTHORITY``; none: it needs none.

        Raises:
            StartupError: the folder cannot be written.
            ConfigError: there is a secret for this application already.
        """
        try:
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            notes = {"version": _VERSION, "staging_uri": staging_uri, "ends_s": ends_s}
            notes["hdfs_servers"] = list(hdfs_servers)
            write_atomic(self.folder / _NOTES, json.dumps(notes))
        except OSError as error:
            raise StartupError(f"{self.folder}: {error.strerror}", cure=_CURE) from None
        create_master_secret(self.folder / _SECRET)
        return self.secret()

    def secret(self) -> bytes:
        """The secret that signs control requests.

        Raises:
            AuthenticationError: it is not on this machine.
            ConfigError: others may read it, or it is damaged.
        """
        path = self.folder / _SECRET
        if not _may_be_there(path):
            raise AuthenticationError(
                f"the control secret of {self.application} is not here ({path})",
                cure="work as the user and on the machine that ran `yarn-accel start`, or copy the file; an "
                "administrator of YARN can end it all the same: yarn-accel stop --force",
            )
        return read_master_secret(path, "the control secret", "")

    def staging_uri(self) -> str:
        """The application's folder in the cluster's storage; empty when that is not known here.

        Raises:
            ConfigError: the notes are damaged.
        """
        return str(self._noted("staging_uri", ""))

    def ends_s(self) -> float:
        """When the application's tokens end for good, in seconds since the epoch; 0: never, or not known.

        Raises:
            ConfigError: the notes are damaged.
        """
        return float(self._noted("ends_s", 0.0))

    def check_hdfs(self, values: object) -> None:
        """Refuse a document with a URI of an HDFS that the application has no token for.

        Raises:
            ConfigError: names the HDFS and the cure; or the notes are damaged.
        """
        known = {authority_of(str(each)) for each in self._noted("hdfs_servers", [])}
        missing = [each for each in hdfs_roots(values) if authority_of(each) not in known]
        if known and missing:
            cure = f"`kerberos: {{hdfs_servers: [{missing[0]}]}}`"
            raise ConfigError(
                f"{missing[0]}: {self.application} has no token for this HDFS, so its tasks could not use it",
                cure=f"start the application with {cure} in its settings",
            )

    def _noted(self, key: str, otherwise: _N) -> _N:
        path = self.folder / _NOTES
        try:
            value = json.loads(path.read_text(encoding="utf-8")).get(key, otherwise)
            if not isinstance(value, type(otherwise)):
                raise ValueError(f"{key} is no {type(otherwise).__name__}")
            return value
        except FileNotFoundError:
            return otherwise
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path} is damaged: {error}") from None

    def remove(self) -> None:
        """Delete the folder, if it exists."""
        shutil.rmtree(self.folder, ignore_errors=True)


def retained_applications(environ: Mapping[str, str] | None = None) -> tuple[RetainedApplication, ...]:
    """All that is retained on this machine, the oldest application first.

    Raises:
        StartupError: the folder cannot be read.
    """
    folder = state_dir(environ) / "applications"
    try:
        names = sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise StartupError(f"{folder}: {error.strerror}", cure=_CURE) from None
    return tuple(RetainedApplication(name, folder / name) for name in names)


def own_master_secret(environ: Mapping[str, str] | None = None) -> Path:
    """The pipeline servers' master secret where the site names none: this user's, made when first needed.

    Raises:
        StartupError: its folder cannot be made.
        ConfigError: it cannot be written.
    """
    path = state_dir(environ) / "master-secret"
    if _may_be_there(path):
        return path
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"{path.parent}: {error.strerror}", cure=_CURE) from None
    try:
        create_master_secret(path)
    except ConfigError:
        # Another start may have made it meanwhile.
        if not _may_be_there(path):
            raise
    return path


def _may_be_there(path: Path) -> bool:
    """Whether a file exists, or may exist in a folder that we cannot read: opening it names the reason."""
    try:
        return path.exists()
    except OSError:
        return True


# ---- requests

_PATH = "/v1/control/"
#: A new attempt of the master registers within seconds.
_PATIENCE_S = 15.0
#: For callers that wait for an end: a ResourceManager is started again, or another one takes over.
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
        secret: of this application, see `RetainedApplication`.
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
            # The caller asked the master for something; the address of the master is no part of its refusal.
            raise RejectedError(error.code, error.message.removeprefix(f"{url}{_PATH}{verb}: ")) from None
        if not isinstance(answer, dict):
            raise RemoteProtocolError(f"{url} did not answer with an object")
        return answer

    async def report(self) -> ApplicationReport:
        """The ResourceManager's report of the application."""
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
