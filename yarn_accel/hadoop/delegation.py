"""The tokens that an application gets on a cluster with Kerberos, from the ticket of who starts it.

YARN localizes its files and its master uses HDFS by an HDFS delegation token; the master asks the
ResourceManager by one of its own.  The ResourceManager prolongs both until their longest life is over (7 days
by default), and cancels them when the application ends.  `cancel` ends those of an application that never
came to run.  A master that has a keytab asks for new ones itself, and prolongs them with `prolong`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

from yarn_accel.adapters.hadoop_rpc import Address, Kerberos, RpcSettings, Token
from yarn_accel.adapters.hadoop_rpc.clients import NameNode, ResourceManager, hdfs_service
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
        issued_s: when they were given, likewise.
    """

    tokens: Mapping[str, Token] = field(default_factory=dict)
    ends_s: float = 0.0
    issued_s: float = 0.0


async def delegate(
    site: SiteSettings,
    manager: ResourceManager,
    kerberos: Kerberos,
    settings: RpcSettings,
    renewer: str = "",
) -> ApplicationTokens:
    """Ask NameNode and ResourceManager for the tokens of one application.

    Args:
        renewer: the principal that prolongs them; default: the ResourceManager's.

    Raises:
        AuthenticationError: a login failed, or no token is given.
        UnavailableError: a service does not answer, or its name cannot be resolved.
        ConfigError: the configuration does not say where the NameNode is.
    """
    renewer = renewer or renewer_of(site)
    hdfs = hdfs_service(site.properties, site.properties.get("fs.defaultFS", ""))
    service = hdfs.name or _service_of(site, hdfs.addresses[0])
    addresses = site.resourcemanagers().client
    rm_service = ",".join(_service_of(site, each) for each in addresses)
    rm_token = await manager.delegation_token(renewer)
    try:
        async with _namenode(site, kerberos, settings) as namenode:
            token = await namenode.delegation_token(renewer)
    except BaseException:
        with contextlib.suppress(AccelError, asyncio.TimeoutError):
            await asyncio.wait_for(manager.cancel_token(rm_token), _CANCEL_WAIT_S)
        raise
    owner = owner_of(token)
    return ApplicationTokens(
        {service: replace(token, service=service), rm_service: replace(rm_token, service=rm_service)},
        owner.ends_s,
        owner.issued_s,
    )


async def prolong(
    site: SiteSettings,
    manager: ResourceManager,
    kerberos: Kerberos,
    settings: RpcSettings,
    given: ApplicationTokens,
) -> float:
    """Prolong tokens whose renewer is the caller; when the first of them now ends, Unix seconds.

    Raises:
        AuthenticationError: a login failed, or a token has ended already.
        RemoteCallError: the caller is not their renewer.
        UnavailableError: a service does not answer.
    """
    async with _namenode(site, kerberos, settings) as namenode:
        return min(
            [
                await (namenode if each.kind == HDFS_DELEGATION_KIND else manager).renew_token(each)
                for each in given.tokens.values()
            ]
        )


async def cancel(
    site: SiteSettings,
    manager: ResourceManager,
    kerberos: Kerberos,
    settings: RpcSettings,
    given: ApplicationTokens,
) -> tuple[str, ...]:
    """End the tokens of an application that never came to run; a line for each that could not be ended."""
    problems = []
    async with _namenode(site, kerberos, settings) as namenode:
        for token in given.tokens.values():
            service = namenode if token.kind == HDFS_DELEGATION_KIND else manager
            try:
                await asyncio.wait_for(service.cancel_token(token), _CANCEL_WAIT_S)
            except (AccelError, asyncio.TimeoutError) as error:
                why = str(error) or f"no answer within {_CANCEL_WAIT_S:g} s"
                problems.append(
                    f"the {token.kind} of this start could not be cancelled, and ends when it expires, "
                    f"if not before: {why}"
                )
    return tuple(problems)


@contextlib.asynccontextmanager
async def _namenode(site: SiteSettings, kerberos: Kerberos, settings: RpcSettings) -> AsyncIterator[NameNode]:
    hdfs = hdfs_service(site.properties, site.properties.get("fs.defaultFS", ""))
    namenode = NameNode(hdfs.addresses, kerberos, settings)
    try:
        yield namenode
    finally:
        await namenode.close()


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
