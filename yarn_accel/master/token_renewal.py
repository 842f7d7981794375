"""The master's part of an application that lives for weeks: new tokens, by a keytab.

The tokens that `yarn-accel start` brought end for good after 7 days, by default.  Before that a master with a
keytab asks the NameNode and the ResourceManager for new ones, and prolongs them itself from then on:

1. The master's own token file gets them, and each container that starts from now on.
2. A file in the application's folder in HDFS gets them.  That folder and the file are readable by the
   application's user alone, and HDFS encrypts what it carries (`start` refuses a keytab where it does not).
   Containers that run look there (`launch.token_follower`), and replace their own token files.

Nothing depends on a message that may be lost: what could not be done is done at the next step.  An attempt
after the first asks for new tokens at once, as nobody prolongs those of its predecessor any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc import (
    Kerberos,
    RemoteCallError,
    ResourceManager,
    RpcSettings,
    TokenEndedError,
    TokenFile,
    write_token_file,
)
from yarn_accel.adapters.hadoop_rpc.tokens import owner_of, replace_tokens, under_names
from yarn_accel.client.token_file import TOKEN_FILE_VARIABLE
from yarn_accel.core.token_renewal import TokenTimes, look_interval_s
from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.hadoop.delegation import ApplicationTokens, cancel, delegate, prolong
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.master.config import MasterConfig
from yarn_accel.master.credentials import MasterCredentials

logger = logging.getLogger(__name__)

#: The clock may jump, and a machine may be suspended: the times are looked at so often at least.
_LONGEST_PAUSE_S = 60.0
_LEAST_PAUSE_S = 0.2
_RETRY_S = 30.0
_CANCEL_S = 3.0
#: So long a new attempt waits for its tokens; YARN waits for its first heartbeat for ten minutes.
_BEGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class KeytabLogin:
    """The master's own login to NameNode and ResourceManager.

    Attributes:
        site: where these answer, and whom they must prove to be.
        kerberos: whose keytab.
        settings: of the connections.
        token_file: the master's own, by which its HDFS client logs in.
        hdfs_servers: further HDFS that the application uses.
    """

    site: SiteSettings
    kerberos: Kerberos
    settings: RpcSettings
    token_file: Path
    hdfs_servers: tuple[str, ...] = ()

    @staticmethod
    def of(config: MasterConfig, settings: RpcSettings, environ: Mapping[str, str]) -> KeytabLogin:
        """The login with the keytab that the settings name.

        Raises:
            ConfigError: the keytab is not there, or a property has a value that Hadoop does not know.
        """
        keytab = Path(config.keytab).absolute()
        if not keytab.is_file():
            raise ConfigError(f"keytab {keytab}: it is not on this node")
        with contextlib.suppress(OSError):  # A NodeManager writes it so that its owner may execute it.
            keytab.chmod(0o400)
        site = SiteSettings(Path(), config.hadoop, client_hosts=config.hosts)
        return KeytabLogin(
            site,
            Kerberos(config.principal, str(keytab)),
            replace(settings, security=site.security()),
            Path(environ[TOKEN_FILE_VARIABLE]),
            config.hdfs_servers,
        )


class TokenRenewal:
    """Keeps the application's tokens alive.

    Args:
        manager: logs in by the same keytab.
        credentials: of the master; they get the new tokens.
        publish: writes a token file where running containers look; may block.
        clock: Unix seconds.

    Attributes:
        problem: why the tokens could not be renewed; empty: they are.
    """

    def __init__(
        self,
        login: KeytabLogin,
        manager: ResourceManager,
        credentials: MasterCredentials,
        publish: Callable[[bytes], None],
        *,
        is_first_attempt: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._login = login
        self._manager = manager
        self._credentials = credentials
        self._publish = publish
        self._clock = clock
        self._own: ApplicationTokens | None = None
        self._former: ApplicationTokens | None = None
        self._unpublished = b""
        self._times = self._times_of_start() if is_first_attempt else None
        self._usable = asyncio.Event()
        self.problem = ""

    @property
    def ends_s(self) -> float:
        """When the tokens end unless they are renewed before, Unix seconds; 0: not known."""
        return self._times.expires_s if self._times is not None else 0.0

    async def begin(self) -> None:
        """Do what is due before any container is started, which gets the tokens there are then; not for long.

        An attempt after the first comes with the tokens of the start, which may have ended.
        """
        with contextlib.suppress(AccelError, OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.step(), _BEGIN_S)

    async def until_usable(self) -> None:
        """Wait until the master's HDFS client can log in: tokens of a start may have ended long ago."""
        await self._usable.wait()

    async def work(self) -> None:
        """Renew for ever."""
        while True:
            try:
                await self.step()
                self.problem = ""
            except (AccelError, OSError) as error:
                if str(error) != self.problem:
                    logger.warning("the application's tokens are not renewed: %s", error)
                self.problem = str(error)
            if self._clock() < self.ends_s:
                self._usable.set()
            await asyncio.sleep(self._pause_s())

    async def step(self) -> None:
        """Do what is due now.

        Raises:
            AccelError: a service does not answer or refuses; the next step tries again.
            OSError: the master's token file cannot be replaced.
        """
        now_s = self._clock()
        if self._times is None or self._times.need_new(now_s):
            await self._ask_for_new()
        elif now_s >= self._times.act_at_s:
            await self._prolong(self._times)
        if self._unpublished:
            await asyncio.to_thread(self._publish, self._unpublished)
            self._unpublished = b""

    async def finish(self) -> None:
        """End the tokens that the master asked for: the application is over."""
        login = self._login
        for given in (self._own, self._former):  # older ones have expired: nobody prolongs them
            if given is None:
                continue
            with contextlib.suppress(AccelError, asyncio.TimeoutError):
                ending = cancel(self._manager, login.kerberos, login.settings, given)
                for problem in await asyncio.wait_for(ending, _CANCEL_S):
                    logger.info("%s", problem)

    def _times_of_start(self) -> TokenTimes | None:
        """Until when the first tokens are good; None: not known, as nobody prolongs one of them."""
        owners = [owner_of(each) for each in self._credentials.hdfs.values()]
        if not owners or not all(each.renewer for each in owners):
            return None
        issued_s, ends_s = (
            min(times) for times in zip(*((each.issued_s, each.ends_s) for each in owners), strict=True)
        )
        return TokenTimes.prolonged_by_others(issued_s, ends_s)

    async def _ask_for_new(self) -> None:
        login = self._login
        given = await delegate(
            login.site,
            self._manager,
            login.kerberos,
            login.settings,
            login.kerberos.principal,
            login.hdfs_servers,
        )
        # Prolonging them at once is the only way to learn how long they live without.
        expires_s = await self._prolonged(given)
        newer = TokenFile(under_names(given.tokens, given.names))
        replace_tokens(login.token_file, newer)
        self._credentials.take(given.tokens, given.names)
        self._own, self._former, self._unpublished = given, self._own, write_token_file(newer)
        self._times = TokenTimes(given.issued_s, given.ends_s, given.issued_s, given.ends_s).prolonged(
            self._clock(), expires_s
        )
        logger.info("new tokens; they live %.0f s", given.ends_s - given.issued_s)

    async def _prolong(self, times: TokenTimes) -> None:
        try:
            expires_s = await self._prolonged(self._own) if self._own is not None else 0.0
        except (TokenEndedError, RemoteCallError) as error:
            logger.warning("the tokens cannot be prolonged, so new ones are asked for: %s", error)
            expires_s = 0.0
        if expires_s <= times.expires_s:
            await self._ask_for_new()
            return
        self._times = times.prolonged(self._clock(), expires_s)

    async def _prolonged(self, given: ApplicationTokens) -> float:
        login = self._login
        return await prolong(self._manager, login.kerberos, login.settings, given)

    def _pause_s(self) -> float:
        if self._times is None:
            return _RETRY_S
        if self.problem:
            return min(_RETRY_S, look_interval_s(self._times.expires_s - self._times.prolonged_s))
        return min(_LONGEST_PAUSE_S, max(_LEAST_PAUSE_S, self._times.act_at_s - self._clock()))
