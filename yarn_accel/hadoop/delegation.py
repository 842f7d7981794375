"""The tokens that an application gets on a cluster with Kerberos, from the ticket of who starts it.

YARN localizes its files and its master uses HDFS by an HDFS delegation token; the master asks the
ResourceManager by one of its own.  Each further HDFS that settings name gives a token, too, as MapReduce's
clients ask those of ``mapreduce.job.hdfs-servers``.  The ResourceManager prolongs all until their longest
life is over (7 days by default), and cancels them when the application ends; not those of an HDFS whose host
`EXCLUDED_PROPERTY` names, as it may not log in there.  `cancel` ends those of an
application that never came to run.  A master that has a keytab asks for new ones itself, and prolongs them
with `prolong`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from yarn_accel.adapters.hadoop_rpc import Address, Kerberos, RpcSettings, Token
from yarn_accel.adapters.hadoop_rpc.clients import HdfsService, NameNode, ResourceManager, hdfs_service
from yarn_accel.adapters.hadoop_rpc.tokens import owner_of
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND
from yarn_accel.errors import AccelError, UnavailableError
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.uris import split_authority

#: Hosts or name services whose tokens the ResourceManager leaves alone.
EXCLUDED_PROPERTY = "mapreduce.job.hdfs-servers.token-renewal.exclude"
_RENEW_INTERVAL = "dfs.namenode.delegation.token.renew-interval"
_DAY_MS = 86_400_000
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
        excluded: the services whose tokens nobody prolongs, see `EXCLUDED_PROPERTY`.
    """

    tokens: Mapping[str, Token] = field(default_factory=dict)
    ends_s: float = 0.0
    issued_s: float = 0.0
    services: Mapping[str, HdfsService] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    excluded: Sequence[str] = ()


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
        renewer: the principal that prolongs all of them; default: the ResourceManager's, which prolongs none
            of `EXCLUDED_PROPERTY`.
        hdfs_servers: further HDFS than that of ``fs.defaultFS``, each as ``hdfs://AUTHORITY``.

    Raises:
        AuthenticationError: a login failed, or no token is given.
        UnavailableError: a service does not answer, or its name cannot be resolved.
        ConfigError: the configuration does not say where a NameNode is.
    """
    services, names, excluded = await asyncio.to_thread(_hdfs_services, site, hdfs_servers)
    excluded = () if renewer else excluded
    renewer = renewer or renewer_of(site)
    addresses = site.resourcemanagers().client
    rm_service = ",".join(_service_of(site, each) for each in addresses)
    rm_token = await manager.delegation_token(renewer)
    tokens = {rm_service: replace(rm_token, service=rm_service)}
    given = ApplicationTokens(tokens, services=services, names=names, excluded=excluded)
    try:
        for service, hdfs in services.items():
            async with _namenode(hdfs, kerberos, settings) as namenode:
                # The ResourceManager passes over a token without a renewer.
                token = await namenode.delegation_token("" if service in excluded else renewer)
                tokens[service] = replace(token, service=service)
    except BaseException:
        await cancel(manager, kerberos, settings, given)
        raise
    owners = {service: owner_of(tokens[service]) for service in services}
    # The interval is the other NameNode's own, which its clients do not learn: taken to be as here.
    interval = site.properties.get(_RENEW_INTERVAL, "").strip()
    interval_s = (int(interval) if interval.isdecimal() else _DAY_MS) / 1000
    ends_s = [each.ends_s for each in owners.values()]
    return replace(
        given,
        ends_s=min([*ends_s, *(owners[service].issued_s + interval_s for service in excluded)]),
        issued_s=min(each.issued_s for each in owners.values()),
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
) -> tuple[dict[str, HdfsService], dict[str, str], tuple[str, ...]]:
    """Every HDFS by the name of its tokens, that of ``fs.defaultFS`` first; its names in URIs; the excluded.

    Asks the system for addresses.
    """
    services: dict[str, HdfsService] = {}
    names: dict[str, str] = {}
    excluded: dict[str, None] = {}
    hosts = site.properties.get(EXCLUDED_PROPERTY, "").replace(",", " ").split()
    for uri in (site.properties.get("fs.defaultFS", ""), *hdfs_servers):
        hdfs = hdfs_service(site.properties, uri)
        service = hdfs.name or _service_of(site, hdfs.addresses[0])
        services.setdefault(service, hdfs)
        if split_authority(uri.partition("://")[2].partition("/")[0])[0] in hosts:
            excluded[service] = None
        if not hdfs.name:
            names[str(hdfs.addresses[0]).lower()] = service
    return services, {name: of for name, of in names.items() if name != of}, tuple(excluded)


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
