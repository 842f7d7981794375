"""The tokens that an application gets on a cluster with Kerberos, from the ticket of who starts it.

YARN localizes its files and its master uses HDFS by an HDFS delegation token; the master asks the
ResourceManager by one of its own.  Each further HDFS that settings name gives a token, too, as MapReduce's
clients ask those of ``mapreduce.job.hdfs-servers``.  The ResourceManager prolongs all until their longest
life is over (7 days by default), and cancels them when the application ends.  `cancel` ends those of an
application that never came to run.  A master that has a keytab asks for new ones itself, and prolongs them
with `prolong`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace

from yarn_accel.adapters.hadoop_rpc import Address, Kerberos, RpcSettings, Token
from yarn_accel.adapters.hadoop_rpc.clients import HdfsService, NameNode, ResourceManager, hdfs_service
from yarn_accel.adapters.hadoop_rpc.tokens import owner_of
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND
from yarn_accel.errors import AccelError, UnavailableError
from yarn_accel.hadoop.site import SiteSettings

_RM_PRINCIPAL = "yarn.resourcemanager.principal"
#: The ResourceManager's usual short name, where a configuration has a pattern of its principals alone.
_USUAL_RENEWER = "yarn"
#: A start that failed waits no longer for a service that may be the reason.
_CANCEL_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class ApplicationTokens:
    """The tokens of an application.

    Attributes:
        tokens: by their aliases.
        ends_s: when the first of them ends for good, in seconds since the epoch; 0: none ends.
        issued_s: when the first of them was given, likewise.
        services: where the HDFS of a token answers, by the token's service.
        names: ``host:port`` in URIs -> the service of the token for that NameNode, where these differ.
    """

    tokens: Mapping[str, Token] = field(default_factory=dict)
    ends_s: float = 0.0
    issued_s: float = 0.0
    services: Mapping[str, HdfsService] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


async def delegate(
    site: SiteSettings,
    manager: ResourceManager,
    kerberos: Kerberos,
    settings: RpcSettings,
    renewer: str = "",
    hdfs_servers: Iterable[str] = (),
) -> ApplicationTokens:
    """Ask NameNodes and ResourceManager for the tokens of one application.

    Args:
        renewer: the principal that prolongs them; default: the ResourceManager's.
        hdfs_servers: further HDFS than that of ``fs.defaultFS``, each as ``hdfs://AUTHORITY``.

    Raises:
        AuthenticationError: a login failed, or no token is given.
        UnavailableError: a service does not answer, or its name cannot be resolved.
        ConfigError: the configuration does not say where a NameNode is.
    """
    renewer = renewer or renewer_of(site)
    services, names = await asyncio.to_thread(_hdfs_services, site, hdfs_servers)
    addresses = site.resourcemanagers().client
    rm_service = ",".join(_service_of(site, each) for each in addresses)
    rm_token = await manager.delegation_token(renewer)
    tokens = {rm_service: replace(rm_token, service=rm_service)}
    given = ApplicationTokens(tokens, services=services, names=names)
    try:
        for service, hdfs in services.items():
            async with _namenode(hdfs, kerberos, settings) as namenode:
                tokens[service] = replace(await namenode.delegation_token(renewer), service=service)
    except BaseException:
        await cancel(manager, kerberos, settings, given)
        raise
    owners = [owner_of(tokens[service]) for service in services]
    return replace(
        given,
        ends_s=min(each.ends_s for each in owners),
        issued_s=min(each.issued_s for each in owners),
    )


async def prolong(
    manager: ResourceManager, kerberos: Kerberos, settings: RpcSettings, given: ApplicationTokens
) -> float:
    """Prolong tokens whose renewer is the caller; when the first of them now ends, Unix seconds.

    Raises:
        AuthenticationError: a login failed, or a token has ended already.
        RemoteCallError: the caller is not their renewer.
        UnavailableError: a service does not answer.
    """
    expires_s = []
    for token in given.tokens.values():
        async with _issuer_of(token, manager, kerberos, settings, given) as issuer:
            expires_s.append(await issuer.renew_token(token))
    return min(expires_s)


async def cancel(
    manager: ResourceManager, kerberos: Kerberos, settings: RpcSettings, given: ApplicationTokens
) -> tuple[str, ...]:
    """End the tokens of an application that never came to run; a line for each that could not be ended."""
    problems = []
    for token in given.tokens.values():
        async with _issuer_of(token, manager, kerberos, settings, given) as issuer:
            try:
                await asyncio.wait_for(issuer.cancel_token(token), _CANCEL_WAIT_S)
            except (AccelError, asyncio.TimeoutError) as error:
                why = str(error) or f"no answer within {_CANCEL_WAIT_S:g} s"
                problems.append(
                    f"the {token.kind} of this start could not be cancelled, and ends when it expires, "
                    f"if not before: {why}"
                )
    return tuple(problems)


@contextlib.asynccontextmanager
async def _issuer_of(
    token: Token,
    manager: ResourceManager,
    kerberos: Kerberos,
    settings: RpcSettings,
    given: ApplicationTokens,
) -> AsyncIterator[NameNode | ResourceManager]:
    """Who gave one of the tokens."""
    if token.kind != HDFS_DELEGATION_KIND:
        yield manager
        return
    async with _namenode(given.services[token.service], kerberos, settings) as namenode:
        yield namenode


@contextlib.asynccontextmanager
async def _namenode(hdfs: HdfsService, kerberos: Kerberos, settings: RpcSettings) -> AsyncIterator[NameNode]:
    namenode = NameNode(hdfs.addresses, kerberos, settings)
    try:
        yield namenode
    finally:
        await namenode.close()


def _hdfs_services(
    site: SiteSettings, hdfs_servers: Iterable[str]
) -> tuple[dict[str, HdfsService], dict[str, str]]:
    """Every HDFS by the name of its tokens, that of ``fs.defaultFS`` first, and its names in URIs.

    Asks the system for addresses.
    """
    services: dict[str, HdfsService] = {}
    names: dict[str, str] = {}
    for uri in (site.properties.get("fs.defaultFS", ""), *hdfs_servers):
        hdfs = hdfs_service(site.properties, uri)
        service = hdfs.name or _service_of(site, hdfs.addresses[0])
        services.setdefault(service, hdfs)
        if not hdfs.name:
            names[str(hdfs.addresses[0]).lower()] = service
    return services, {name: service for name, service in names.items() if name != service}


def renewer_of(site: SiteSettings) -> str:
    """Who prolongs the tokens: the ResourceManager's principal."""
    principal = site.properties.get(_RM_PRINCIPAL, "").strip()
    return principal.replace("_HOST", site.resourcemanagers().client[0].host) or _USUAL_RENEWER


def ending(ends_s: float) -> str:
    """Until when an application lives, as a sentence; empty where nothing ends it."""
    if not ends_s:
        return ""
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(ends_s))
    return f"lives until {when} at most: its HDFS token ends then"


def renewing(ends_s: float) -> str:
    """How an application lives whose master renews its tokens, as a sentence; empty where it does not.

    Args:
        ends_s: when the present ones end, Unix seconds; 0: not known, or there are none.
    """
    if not ends_s:
        return ""
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(ends_s))
    return f"renews its tokens by keytab: the present ones are good until {when}"


#: The properties that `delegate` and `prolong` read, and the beginnings of others: a master gets these alone.
_KEYS = (
    "fs.defaultFS",
    "hadoop.security.authentication",
    "hadoop.security.token.service.use_ip",
    "hadoop.rpc.protection",
)
_PREFIXES = (
    "dfs.ha.namenodes.",
    "dfs.namenode.rpc-address.",
    "dfs.namenode.kerberos.principal",
    "yarn.resourcemanager.address",
    "yarn.resourcemanager.ha.",
    "yarn.resourcemanager.hostname",
    "yarn.resourcemanager.principal",
)


def properties_of_master(site: SiteSettings) -> dict[str, str]:
    """The properties by which a master with a keytab asks for tokens."""
    return {key: value for key, value in site.properties.items() if key in _KEYS or key.startswith(_PREFIXES)}


def _service_of(site: SiteSettings, address: Address) -> str:
    """The name of a service in a token, as Hadoop's own clients write it: by its IP address by default."""
    if site.properties.get("hadoop.security.token.service.use_ip", "true").strip().lower() == "false":
        return str(address)
    try:
        return f"{socket.gethostbyname(site.resolve(address.host))}:{address.port}"
    except OSError as error:
        raise UnavailableError(f"{address.host} cannot be resolved: {error}") from None
