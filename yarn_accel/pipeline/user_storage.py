"""Storage as the user of a session: by the HDFS tokens of the user's job, and with nothing to fall back on.

The native HDFS client takes no user and no token.  Each time it connects to a name service it looks for a
token with that service's name, in the file that ``HADOOP_TOKEN_FILE_LOCATION`` names.  So each job's tokens
get name services of their own here, with random names and the addresses of the real NameNodes.  No request
can name one: a session's store knows the site's services alone (`storage.HdfsServices`).

A job may have a token for each of several services.  Each is proved, and found to count no more, on its own:
a NameNode that is away, or that refuses its token, closes its own service to the session and no other.

Without a token the native client would take the Kerberos identity of its process.  This process has none
(`drop_kerberos`), and its own token stands under a random name, too.

The tokens lie in memory (`_TokenMemory`) and in no file, so nothing of them is left of a killed process.

HDFS looks at a token when somebody logs in, and an open connection outlives it.  So connections are closed
with their last session, and `UserStorage.find_ended` logs in anew to find tokens that count no more.  These
logins are our own: the native client is content with a server that asks for none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import logging
import os
import resource
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from yarn_accel.adapters.hadoop_rpc import Address, Token, TokenFile, read_token_file, write_token_file
from yarn_accel.adapters.hadoop_rpc.clients import hdfs_service
from yarn_accel.adapters.hadoop_rpc.kerberos import AUTHENTICATION_KEY, Kerberos, Security
from yarn_accel.adapters.hadoop_rpc.methods import NAMENODE_CLIENT
from yarn_accel.adapters.hadoop_rpc.tokens import read_identifier
from yarn_accel.adapters.hadoop_rpc.transport import RpcConnection, RpcSettings
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND, TOKEN_FILE_VARIABLE
from yarn_accel.errors import (
    AccelError,
    AuthenticationError,
    ConfigError,
    RemoteProtocolError,
    StartupError,
    StorageError,
    UnavailableError,
)
from yarn_accel.hadoop.site import read_site
from yarn_accel.storage import HdfsServices, Store
from yarn_accel.uris import authority_of, shown

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.wire import HdfsToken

logger = logging.getLogger(__name__)

#: The Kerberos library takes these for a cache and a keytab, and finds neither.
_NO_KERBEROS = {"KRB5CCNAME": "FILE:/nonexistent", "KRB5_CLIENT_KTNAME": "FILE:/nonexistent"}
#: Makes the native client act for another user than the token's.
_PROXY_VARIABLE = "HADOOP_PROXY_USER"
#: Threads of each native client; it takes one per processor by default.
_THREADS_VARIABLE, _N_THREADS = "TOKIO_WORKER_THREADS", 2
#: The native client passes over a token that ends sooner.
_LEAST_LIFE_S = 60.0
_MAX_PASSWORD_BYTES = 256
#: Jobs whose tokens are held at once; each has a connection to every service it uses.
_MAX_CREDENTIALS = 1000
_TOKEN_CURE = "submit the job with this HDFS among its file systems (mapreduce.job.hdfs-servers)"
#: Stands for the storage of a session that has ended.
_CLOSED = Store()
_CLOSED.close()


@dataclass(frozen=True, slots=True)
class SiteService:
    """One HDFS of the site.

    Attributes:
        authority: what URIs call it, as `uris.authority_of` writes it.
        name: what tokens for it are called, ``ha-hdfs:NAME``; empty: by its address.
        addresses: of its NameNodes.
        provider: the class by which Java clients choose among them; empty: the usual one.
    """

    authority: str
    name: str
    addresses: tuple[Address, ...]
    provider: str = ""

    @property
    def authorities(self) -> tuple[str, ...]:
        """Its names in URIs."""
        return self.authority, *(authority_of(str(each)) for each in self.addresses)

    def token_names(self) -> frozenset[str]:
        """All names that a token for this service may have, lower case; asks the system for addresses."""
        found = {self.name.lower()} if self.name else set()
        for address in self.addresses:
            found.add(str(address).lower())
            try:
                for *_, (ip, *_rest) in socket.getaddrinfo(address.host, address.port, socket.AF_INET):
                    found.add(f"{ip}:{address.port}")
            except OSError as error:
                logger.warning("%s cannot be resolved: %s", address.host, error)
        return frozenset(found)


def site_services(
    properties: Mapping[str, str], default_fs: str, hdfs_servers: Iterable[str] = ()
) -> tuple[SiteService, ...]:
    """The HDFS services of a site, the default one first.

    Args:
        properties: of Hadoop's settings.
        default_fs: what ``hdfs:///`` means.
        hdfs_servers: others than those of the properties, as ``hdfs://AUTHORITY``.

    Raises:
        ConfigError: the default is no HDFS, or a name service has no addresses.
    """
    default = _site_service(properties, default_fs.removeprefix("hdfs://").rstrip("/"))
    found = {default.authority: default}
    for name in properties.get("dfs.nameservices", "").replace(",", " ").split():
        keys = (f"dfs.ha.namenodes.{name}", f"dfs.namenode.rpc-address.{name}")
        if any(properties.get(key) for key in keys):
            service = _site_service(properties, name)
            found.setdefault(service.authority, service)
    for uri in hdfs_servers:
        service = _site_service(properties, uri.removeprefix("hdfs://").rstrip("/"))
        known = {address for each in found.values() for address in each.addresses}
        if known.isdisjoint(service.addresses):
            found[service.authority] = service
    return tuple(found.values())


def _site_service(properties: Mapping[str, str], authority: str) -> SiteService:
    found = hdfs_service(properties, f"hdfs://{authority}")
    provider = properties.get(f"dfs.client.failover.proxy.provider.{authority}", "")
    return SiteService(authority_of(authority), found.name, found.addresses, provider)


class UserSession:
    """The right of one session to storage as its user, from `UserStorage.open` until `UserStorage.close`.

    Attributes:
        principal: the user, such as ``alice@EXAMPLE.COM``.
        store: reads and writes as the user.
        end: why no token counts any more; None: one may count.
        credential: the tokens of its job.
    """

    def __init__(self, credential: _Credential) -> None:
        self.principal = credential.principal
        self.store = credential.store
        self.end: AccelError | None = None
        self.credential = credential

    def __repr__(self) -> str:
        return f"UserSession({self.principal!r})"


class _Given(NamedTuple):
    """The tokens that a session shows, as far as they can be judged without HDFS.

    Attributes:
        ends_s: when each ends for good, in seconds since the epoch.
    """

    principal: str
    ends_s: Mapping[SiteService, float]
    tokens: Mapping[SiteService, HdfsToken]


class _Credential:
    """The tokens of one job, which its sessions share, and the services that they open now.

    Args:
        given: the tokens.
        services: of the site.
        conf_dir: see `UserStorage`.

    Attributes:
        tokens: under the names that the native client knows.
        open_services: that HDFS takes the token of; `store` uses these alone.
        sessions: whose they are.
        end: why they count no more: no further session gets them; None: they may count.
        login: ends with the first login.
    """

    def __init__(self, given: _Given, services: Sequence[SiteService], conf_dir: str) -> None:
        self.key = _key_of(given)
        self.principal = given.principal
        self.ends_s = given.ends_s
        self.sessions: set[UserSession] = set()
        self.end: AccelError | None = None
        self.login: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.open_services: tuple[SiteService, ...] = ()
        self._names = {service: _random_name() for service in given.tokens}
        self.tokens = {
            service: _renamed_token(token, self._names[service]) for service, token in given.tokens.items()
        }
        self._urls: dict[str, str] = {}
        self._refusals: dict[str, StorageError] = {}
        self._faults: dict[SiteService, AccelError] = {}
        self._default = services[0]
        options = _renamed(services, self._names).options
        self.store = Store(conf_dir, services=HdfsServices(self._urls, options, refusals=self._refusals))
        for service in services:
            if service not in self.tokens:
                missing = f"the job has no token for hdfs://{service.authority}"
                self._say(service, StorageError(missing, cure=_TOKEN_CURE))

    def __repr__(self) -> str:
        return f"_Credential({self.principal!r})"

    @property
    def unrefused(self) -> tuple[SiteService, ...]:
        """The services whose tokens may count."""
        return tuple(
            each for each in self.tokens if not isinstance(self._faults.get(each), AuthenticationError)
        )

    def url_of(self, service: SiteService) -> str:
        """The URL of the native client for a service."""
        return f"hdfs://{self._names[service]}"

    def is_over(self, service: SiteService) -> bool:
        """Whether the life of this token is over, whatever HDFS says."""
        return self.ends_s[service] <= time.time() + _LEAST_LIFE_S

    def admit(self, service: SiteService) -> None:
        """HDFS takes this token."""
        self._faults.pop(service, None)
        if service not in self.open_services:
            self.open_services += (service,)
        self._urls.update(_urls(service, self._names[service], is_default=service is self._default))

    def shut(self, service: SiteService, error: AccelError) -> None:
        """This token opens nothing: HDFS refuses it, or has not said yet; then it may be admitted later."""
        self._faults.pop(service, None)  # the newest are last
        self._faults[service] = error
        self.open_services = tuple(each for each in self.open_services if each is not service)
        for authority in _urls(service, "", is_default=service is self._default):
            self._urls.pop(authority, None)
        self._say(
            service, StorageError(error.message, cure=error.cure, transient=isinstance(error, StorageError))
        )

    def fault(self, first: type[AccelError]) -> AccelError:
        """Why no service is open: the newest error of class `first`, or the newest if there is none."""
        newest = list(reversed(self._faults.values()))
        return next((each for each in newest if isinstance(each, first)), newest[0])

    def _say(self, service: SiteService, why: StorageError) -> None:
        for authority in _urls(service, "", is_default=service is self._default):
            self._refusals[authority] = why


class UserStorage:
    """The storage of all users of one server; safe to use from several threads.

    Args:
        services: of the site, the default one first.
        conf_dir: folder with core-site.xml and hdfs-site.xml; empty: there is none.
        own_token_file: the server's own tokens; empty: it has none.
        environ: of this process: the native client and the Kerberos library read it.
        follow_symlinks: of the server's own store, see `Store`.
        settings: of logins that prove tokens.

    Attributes:
        own_store: reads and writes as the server itself; no session gets it.
        hdfs: each HDFS of the site, as ``hdfs://AUTHORITY``.
    """

    def __init__(
        self,
        services: Sequence[SiteService],
        conf_dir: str = "",
        own_token_file: str = "",
        environ: MutableMapping[str, str] = os.environ,
        *,
        follow_symlinks: bool = False,
        settings: RpcSettings | None = None,
    ) -> None:
        self._settings = RpcSettings() if settings is None else settings
        self._services = tuple(services)
        names = (each.name.removeprefix("ha-hdfs:") or each.authority for each in services)
        self.hdfs = tuple(f"hdfs://{name}" for name in names)
        self._conf_dir = conf_dir
        self._lock = threading.Lock()
        self._names: dict[SiteService, frozenset[str]] = {}
        self._credentials: dict[bytes, _Credential] = {}
        self._logins: dict[bytes, _Credential] = {}
        self._memory = _TokenMemory()
        self._own = _OwnTokens(own_token_file)
        self._own_urls = {each: _random_name() for each in self._services}
        own_services = _renamed(self._services, self._own_urls, allows_files=True)
        self.own_store = Store(conf_dir, services=own_services, follow_symlinks=follow_symlinks)
        environ[TOKEN_FILE_VARIABLE] = self._memory.path
        environ.setdefault(_THREADS_VARIABLE, str(_N_THREADS))
        self._environ = environ
        self._read_own_tokens()
        self._write_tokens()

    @classmethod
    def of(cls, config: PipelineConfig, environ: MutableMapping[str, str] = os.environ) -> UserStorage:
        """The storage of a server, before it has threads; gives up the Kerberos identity of this process.

        Raises:
            ConfigError: the settings of Hadoop name no HDFS, or have no Kerberos.
            StartupError: this process keeps a Kerberos identity.
        """
        conf_dir = config.hdfs_conf_dir or environ.get("HADOOP_CONF_DIR", "")
        properties = read_site(Path(conf_dir)) if conf_dir else {}
        if properties.get(AUTHENTICATION_KEY, "").strip().lower() != "kerberos":
            raise ConfigError(
                f"{AUTHENTICATION_KEY} in {conf_dir or 'no folder'} is not kerberos: HDFS believes any name"
            )
        default_fs = config.default_fs or properties.get("fs.defaultFS", "")
        services = site_services(properties, default_fs, config.hdfs_servers)
        drop_kerberos(environ)
        own_token_file = environ.get(TOKEN_FILE_VARIABLE, "")
        return cls(
            services,
            conf_dir,
            own_token_file,
            environ,
            follow_symlinks=config.follow_symlinks,
            settings=RpcSettings(security=Security.from_properties(properties)),
        )

    def open(self, tokens: Sequence[HdfsToken]) -> UserSession:
        """Log in to HDFS with the tokens of a job, once for all its sessions at a time; may wait for it.

        The session has the services that take their tokens, at least one; `find_ended` tries those again that
        did not answer.

        Args:
            tokens: all of one owner; those for other file systems than the site's are not used.

        Raises:
            AuthenticationError: a token is none, or belongs to somebody else; or none counts.
            StorageError: HDFS does not answer.
        """
        given = _judged(tokens, self._names_of_services())
        fresh = _Credential(given, self._services, self._conf_dir)
        with self._lock:
            credential = self._credentials.get(fresh.key)
            if credential is not None and credential.end is None:
                return _session_of(credential)
            under_way = self._logins.get(fresh.key)
            if under_way is None:
                if len(self._credentials) + len(self._logins) >= _MAX_CREDENTIALS:
                    raise StorageError(
                        f"the tokens of {_MAX_CREDENTIALS} jobs are in use here already", transient=True
                    )
                self._logins[fresh.key] = fresh
        if under_way is None:
            return self._log_in(fresh)
        under_way.login.result()  # its error is ours
        return self.open(tokens)

    def _log_in(self, credential: _Credential) -> UserSession:
        try:
            self._prove_all(credential, set())
            self._write_tokens()
            for service in credential.open_services:
                try:
                    credential.store.exists(f"hdfs://{service.authority}/")
                except StorageError as error:
                    self._shut(credential, service, error)
            if not credential.open_services:
                raise credential.fault(StorageError)  # trying again may help
        except BaseException as failure:
            with self._lock:
                del self._logins[credential.key]
            credential.store.close()
            self._write_tokens()
            credential.login.set_exception(failure)
            raise
        with self._lock:
            del self._logins[credential.key]
            self._credentials[credential.key] = credential
            session = _session_of(credential)
        credential.login.set_result(None)
        return session

    def close(self, session: UserSession) -> None:
        """End a session; the last one of a job ends the job's connections, and its tokens are forgotten."""
        with self._lock:
            credential = session.credential
            if session not in credential.sessions:
                return
            credential.sessions.discard(session)
            session.store = _CLOSED
            if credential.sessions:
                return
            if self._credentials.get(credential.key) is credential:
                del self._credentials[credential.key]
        credential.store.close()
        self._write_tokens()

    def find_ended(self) -> Sequence[UserSession]:
        """The sessions whose tokens count no more; may wait for HDFS, which is asked once for each job.

        Their `end` says why.  A token stays while HDFS does not answer; one that was not proved yet is tried
        again.
        """
        self._read_own_tokens()
        self._write_tokens()
        with self._lock:
            credentials = list(self._credentials.values())
        found = []
        silent: set[SiteService] = set()
        for credential in credentials:
            if credential.end is None:
                self._prove_all(credential, silent)
            with self._lock:
                if not credential.open_services:
                    credential.end = credential.end or credential.fault(AuthenticationError)
                sessions = list(credential.sessions) if credential.end is not None else []
            for session in sessions:
                session.end = credential.end
            found += sessions
        self._write_tokens()
        return found

    def close_all(self) -> None:
        """End all sessions and the server's own storage, and forget all tokens."""
        with self._lock:
            stores = [self.own_store, *(each.store for each in self._credentials.values())]
            self._credentials.clear()
        for store in stores:
            store.close()
        if self._environ.get(TOKEN_FILE_VARIABLE) == self._memory.path:
            del self._environ[TOKEN_FILE_VARIABLE]
        self._memory.close()

    def _prove_all(self, credential: _Credential, silent: set[SiteService]) -> None:
        """Find which of a job's tokens count now, by a login to each service.

        The native client is not asked: it goes on without a login where a server in the NameNode's place
        asks for none.

        Args:
            silent: services that are not asked, as they have not answered; those that do not now are added.
        """
        services = [each for each in credential.unrefused if each not in silent or credential.is_over(each)]

        async def log_in() -> list[AccelError | None]:
            return await asyncio.gather(*(self._refusal(credential, each) for each in services))

        for service, error in zip(services, asyncio.run(log_in()), strict=True):
            if error is None:
                with self._lock:
                    credential.admit(service)
                continue
            if not isinstance(error, AuthenticationError):
                silent.add(service)
                if service in credential.open_services:
                    logger.warning("whether the token of %s still counts: %s", credential.principal, error)
                    continue
            self._shut(credential, service, error)

    def _shut(self, credential: _Credential, service: SiteService, error: AccelError) -> None:
        logger.warning("%s cannot use %s: %s", credential.principal, service.authority, error.message)
        with self._lock:
            credential.shut(service, error)
        credential.store.disconnect(credential.url_of(service))

    async def _refusal(self, credential: _Credential, service: SiteService) -> AccelError | None:
        """Why a job's token opens a service not now; None: it does."""
        principal = credential.principal
        if credential.is_over(service):
            return _ended(principal, credential.ends_s[service])
        try:
            await _prove(service, credential.tokens[service], self._settings)
        except AuthenticationError as error:
            message = f"hdfs://{service.authority} does not accept the token of {principal}: {error.message}"
            return AuthenticationError(message, cure=error.cure)
        except AccelError as error:
            return StorageError(
                f"hdfs://{service.authority} does not answer: {error.message}",
                cure="check that the NameNode is up",
                transient=error.transient,
            )
        return None

    def _names_of_services(self) -> dict[SiteService, frozenset[str]]:
        """The names of tokens by service; a host that cannot be resolved is asked for again."""
        found = {}
        for service in self._services:
            names = self._names.get(service)
            if names is None:
                names = service.token_names()
                if len(names) > len(service.addresses):
                    self._names[service] = names
            found[service] = names
        return found

    def _read_own_tokens(self) -> None:
        self._own.read()
        names = self._names_of_services()
        self._own.renamed = tuple(
            Token(token.identifier, token.password, token.kind, f"ha-hdfs:{self._own_urls[service]}")
            for token in self._own.tokens
            for service in self._services
            if token.service.lower() in names[service]
        )

    def _write_tokens(self) -> None:
        with self._lock:
            held = [*self._credentials.values(), *self._logins.values()]
            used = [each.tokens[service] for each in held for service in each.open_services]
            self._memory.write([*self._own.renamed, *used])


def drop_kerberos(environ: MutableMapping[str, str]) -> None:
    """Give up the Kerberos identity of this process for good: its tickets, keytab and user to act for.

    A core dump would keep the tokens of users on a disk, so none is written any more.

    Raises:
        StartupError: there is an identity all the same.
    """
    environ.update(_NO_KERBEROS)
    environ.pop(_PROXY_VARIABLE, None)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        ticket = Kerberos().ticket()
    except AccelError:
        return
    raise StartupError(
        f"this process has the Kerberos identity {ticket.principal}, which requests could fall back on",
        cure="look at default_ccache_name and default_client_keytab_name in krb5.conf",
    )


class _TokenMemory:
    """A token file that lies in memory alone, and ends with this process, however that ends.

    Attributes:
        path: what the native client opens; it always shows one whole version.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("tokens", os.MFD_CLOEXEC)
        self.path = f"/proc/self/fd/{self._fd}"

    def write(self, tokens: Iterable[Token]) -> None:
        """Put these in the place of all others."""
        if self._fd < 0:
            return
        content = write_token_file(TokenFile({each.service: each for each in tokens}))
        new = os.memfd_create("tokens", os.MFD_CLOEXEC)
        try:
            with open(new, "wb", closefd=False) as stream:
                stream.write(content)
            # Whoever opens the path sees the old memory or the new one; the old one ends.
            os.dup2(new, self._fd, inheritable=False)
        finally:
            os.close(new)

    def close(self) -> None:
        """Forget them all."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _OwnTokens:
    """The HDFS tokens of the server itself, read again when their file has been replaced.

    Attributes:
        tokens: as the file has them.
        renamed: as the native client finds them.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute() if path else None
        self._stamp: tuple[int, int, int] | None = None
        self.tokens: tuple[Token, ...] = ()
        self.renamed: tuple[Token, ...] = ()

    def read(self) -> None:
        """Read the file if it has changed."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp == self._stamp:
                return
            content = read_token_file(self._path.read_bytes())
        except (OSError, RemoteProtocolError) as error:
            logger.warning("%s: the server's own tokens cannot be read: %s", self._path, error)
            return
        self._stamp = stamp
        self.tokens = tuple(each for each in content.tokens.values() if each.kind == HDFS_DELEGATION_KIND)


def _judged(tokens: Sequence[HdfsToken], names: Mapping[SiteService, frozenset[str]]) -> _Given:
    """The owner of tokens, and the one that is used for each service.

    Raises:
        AuthenticationError: they cannot be used.
    """
    owners: set[str] = set()
    used: dict[SiteService, HdfsToken] = {}
    ends_s: dict[SiteService, float] = {}
    for token in tokens:
        try:
            owner = read_identifier(token.identifier)
        except RemoteProtocolError as error:
            raise AuthenticationError(f"this is no HDFS token: {error}") from None
        if not 0 < len(token.password) <= _MAX_PASSWORD_BYTES:
            raise AuthenticationError(f"a token's password has {len(token.password)} bytes")
        owners.add(owner.principal)
        for service, known in names.items():
            if token.service.lower() in known and owner.ends_s > ends_s.get(service, 0.0):
                used[service], ends_s[service] = token, owner.ends_s
    if len(owners) != 1:
        listed = ", ".join(shown(each) for each in sorted(owners)) or "none is there"
        raise AuthenticationError(f"HDFS tokens must be of one owner: {listed}")
    principal = owners.pop()
    name, at, realm = principal.rpartition("@")
    if not (name and at and realm):
        raise AuthenticationError(
            f"the owner {shown(principal)!r} of the HDFS token has no realm",
            cure="get the token by Kerberos: one that a proxy asked for may name its user without a realm",
        )
    if not used:
        there = ", ".join(sorted({shown(each.service) or "no service" for each in tokens}))
        here = ", ".join(sorted({each.name or str(each.addresses[0]) for each in names}))
        raise AuthenticationError(
            f"the HDFS tokens of {shown(principal)} are for {there}, and this server reads and writes {here}",
            cure=_TOKEN_CURE,
        )
    if (last_s := max(ends_s.values())) <= time.time() + _LEAST_LIFE_S:
        raise _ended(principal, last_s)
    return _Given(principal, ends_s, used)


def _ended(principal: str, ends_s: float) -> AuthenticationError:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ends_s))
    return AuthenticationError(
        f"the HDFS token of {shown(principal)} ends at {when}, and is not used in its last minute",
        cure="submit the job again: the life of a token is the site's, 7 days by default",
    )


def _key_of(given: _Given) -> bytes:
    """A key that no other tokens have, passwords included."""
    digest = hashlib.sha256()
    for service, token in sorted(given.tokens.items(), key=lambda each: each[0].authority):
        for part in (service.authority.encode(), token.identifier, token.password):
            digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()


def _session_of(credential: _Credential) -> UserSession:
    session = UserSession(credential)
    credential.sessions.add(session)
    return session


async def _prove(service: SiteService, token: Token, settings: RpcSettings) -> None:
    """Log in with a token to the NameNode of a service that is active; each proves to know the token.

    Raises:
        AuthenticationError: it does not take the token, or asks for none.
        UnavailableError: none answers.
    """
    reason = UnavailableError(f"{service.authority} has no NameNode")
    for address in service.addresses:
        try:
            connection = await RpcConnection.open(address, NAMENODE_CLIENT, token, settings)
        except UnavailableError as error:
            reason = error
            continue
        await connection.close()
        return
    raise reason


def _random_name() -> str:
    return f"u-{secrets.token_hex(16)}"


def _renamed_token(token: HdfsToken, name: str) -> Token:
    return Token(token.identifier, token.password, HDFS_DELEGATION_KIND, f"ha-hdfs:{name}")


def _urls(service: SiteService, name: str, *, is_default: bool) -> dict[str, str]:
    """The URL of the native client by that name, for each authority that URIs may call a service."""
    return dict.fromkeys((*service.authorities, *([""] if is_default else [])), f"hdfs://{name}")


def _renamed(
    site: Sequence[SiteService], names: Mapping[SiteService, str], *, allows_files: bool = False
) -> HdfsServices:
    """The site's services under other names; those without one cannot be used."""
    urls, options = {}, {AUTHENTICATION_KEY: "kerberos"}
    for service, name in names.items():
        urls.update(_urls(service, name, is_default=service is site[0]))
        ids = [f"nn{number}" for number in range(len(service.addresses))]
        options[f"dfs.ha.namenodes.{name}"] = ",".join(ids)
        for each, address in zip(ids, service.addresses, strict=True):
            options[f"dfs.namenode.rpc-address.{name}.{each}"] = str(address)
        if service.provider:
            options[f"dfs.client.failover.proxy.provider.{name}"] = service.provider
    return HdfsServices(urls, options, allows_files)
