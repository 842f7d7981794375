"""Access to a cluster from the user's machine: its ResourceManager, its storage, our applications.

Commands ask the ResourceManager by RPC.  `tracking_pages` and `mapper_environment` ask its web service, which
tells a job the applications that it can use; with Kerberos they ask by RPC, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from yarn_accel.adapters.hadoop_rpc import (
    ApplicationId,
    ConnectionLostError,
    Kerberos,
    Patience,
    ResourceManager,
    ResourceManagerAddresses,
    RpcSettings,
    User,
)
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, ApplicationState
from yarn_accel.adapters.rest import get_json, listed_applications, newest_first, running_path
from yarn_accel.client.agent_folders import VARIABLE, ApplicationName
from yarn_accel.client.job_user import USER_VARIABLE
from yarn_accel.errors import AccelError, ConfigError, UnavailableError
from yarn_accel.hadoop.delegation import ApplicationTokens, cancel, delegate
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.storage import Store
from yarn_accel.uris import split_uri
from yarn_accel.users import user_name

_RM_PATIENCE_S = 15.0
_POLL_S = 0.1
_KILL_WAIT_S = 60.0
_STAGING_FOLDER = ".yarn-accel"
_LIVE = tuple(state for state in ApplicationState if not state.is_final)


@dataclass(frozen=True, slots=True)
class RmClient:
    """The addresses of one cluster and the user who calls it.

    Attributes:
        site: its configuration.
        user: the user name that we state to YARN, which does not check it with ``simple`` authentication;
            with Kerberos the first part of the principal.
        addresses: of its ResourceManagers.
        kerberos: whose ticket; None: ``simple`` authentication.
    """

    site: SiteSettings
    user: str
    addresses: ResourceManagerAddresses
    kerberos: Kerberos | None = None

    @staticmethod
    def load(environ: Mapping[str, str] | None = None) -> RmClient:
        """Read ``HADOOP_CONF_DIR``.

        Raises:
            StartupError: it is not set, or not there.
            ConfigError: a file in it is wrong.
            KerberosError: the cluster has Kerberos, and there is no ticket; names the trouble and its cure.
        """
        environ = os.environ if environ is None else environ
        return RmClient.of(SiteSettings.read(environ), environ)

    @staticmethod
    def of(site: SiteSettings, environ: Mapping[str, str] | None = None) -> RmClient:
        """The same for a configuration that has been read.

        Raises:
            KerberosError: the cluster has Kerberos, and there is no ticket; names the trouble and its cure.
        """
        environ = os.environ if environ is None else environ
        if not site.security().is_kerberos:
            return RmClient(site, user_name(environ), site.resourcemanagers())
        kerberos = Kerberos()
        user = re.split("[/@]", kerberos.ticket().principal)[0]
        return RmClient(site, user, site.resourcemanagers(), kerberos)

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[ResourceManager]:
        """A connection to whichever ResourceManager is active.

        Raises:
            UnavailableError: inside the block: none answers.
        """
        identity = self.kerberos or User(self.user)
        manager = ResourceManager(self.addresses, identity, self._settings(), Patience(_RM_PATIENCE_S))
        try:
            yield manager
        except ConnectionLostError as error:
            raise UnavailableError(
                f"no ResourceManager answers: {error.message}",
                cure="look whether it runs, and at yarn.resourcemanager.hostname or .address in "
                f"{self.site.conf_dir / 'yarn-site.xml'}",
            ) from None
        finally:
            await manager.close()

    async def tokens(self, manager: ResourceManager, hdfs_servers: Iterable[str] = ()) -> ApplicationTokens:
        """The tokens of a new application; none where the cluster has no Kerberos.

        Args:
            hdfs_servers: further HDFS that it uses, as ``hdfs://AUTHORITY``.

        Raises:
            AuthenticationError: a login failed, or no token is given.
            UnavailableError: a service does not answer.
        """
        if self.kerberos is None:
            return ApplicationTokens()
        return await delegate(self.site, manager, self.kerberos, self._settings(), hdfs_servers=hdfs_servers)

    async def cancel(self, manager: ResourceManager, given: ApplicationTokens) -> tuple[str, ...]:
        """End the tokens of an application that never came to run; a line for each that goes on."""
        if self.kerberos is None:
            return ()
        return await cancel(manager, self.kerberos, self._settings(), given)

    def _settings(self) -> RpcSettings:
        return RpcSettings(hosts=self.site.client_hosts, security=self.site.security())

    def store(self) -> Store:
        """The cluster's storage."""
        return Store(self.site.conf_dir)

    def staging_uri(self, configured: str = "") -> str:
        """The folder for everything we upload; by default in the user's home.

        Raises:
            ConfigError: a relative one, or the cluster has no default file system.
        """
        root = self.site.properties.get("fs.defaultFS", "").rstrip("/")
        if not configured and not root.startswith("hdfs://"):
            raise ConfigError(
                f"{self.site.conf_dir / 'core-site.xml'}: fs.defaultFS is {root or 'not set'}",
                cure="let it name the cluster's HDFS, or set `environment: {staging_uri: ...}`",
            )
        uri = configured or f"{root}/user/{self.user}/{_STAGING_FOLDER}"
        split_uri(uri)
        return uri.rstrip("/")

    def url_of(self, report: ApplicationReport) -> str:
        """Where the master of an application answers: ``http://host:port``.

        Raises:
            UnavailableError: it has not registered yet, or not again yet.
        """
        if report.rpc_port <= 0 or not report.host or report.host == "N/A":
            state = report.state.name if report.state is not None else "unknown"
            raise UnavailableError(
                f"the master of {report.id} does not run at the moment (state {state})",
                cure="YARN starts it again by itself; see `yarn application -status`",
            )
        return f"http://{self.site.resolve(report.host)}:{report.rpc_port}"

    def page_of(self, report: ApplicationReport) -> str:
        """Web address of an application's page."""
        return self.reachable(report.tracking_url)

    def reachable(self, url: str) -> str:
        """A web address with the host's address where this machine does not know its name."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if host not in self.site.client_hosts:
            return url
        port = f":{parts.port}" if parts.port else ""
        return parts._replace(netloc=f"{self.site.resolve(host)}{port}").geturl()


def site_user(site: SiteSettings) -> str:
    """The name under which HDFS and YARN know the caller: with Kerberos that of the ticket.

    Raises:
        KerberosError: the cluster has Kerberos, and there is no ticket; names the trouble and its cure.
    """
    return RmClient.of(site).user


async def find_running(manager: ResourceManager, name: str = "") -> tuple[ApplicationReport, ...]:
    """Our applications that are not over, in the order in which YARN accepted them.

    Ids do not tell that order: YARN gives an id out before its application is submitted.

    Args:
        name: only those of this name.
    """
    reports = await manager.applications(types=[APPLICATION_TYPE], states=_LIVE)
    live = (report for report in reports if report.state is None or not report.state.is_final)
    named = (each for each in live if not name or each.name == name)
    return tuple(sorted(named, key=lambda each: (each.start_ms, each.id)))


async def kill(
    manager: ResourceManager, application: ApplicationId, why: str, wait_s: float = _KILL_WAIT_S
) -> None:
    """Kill an application through YARN and wait until it is over.

    Raises:
        UnavailableError: it is not over after `wait_s`.
    """
    until_s = time.monotonic() + wait_s
    is_over = await manager.kill(application, why)
    while not is_over:
        if time.monotonic() >= until_s:
            raise UnavailableError(f"YARN has not ended {application} after {wait_s:g} s", cure="try again")
        await asyncio.sleep(_POLL_S)
        is_over = await manager.kill(application, why)


def one_of(reports: Iterable[ApplicationReport], application: str = "", user: str = "") -> ApplicationReport:
    """The application with that id or name, else the only one, else the only one of the user.

    Raises:
        UnavailableError: there is none.
        ConfigError: there are several and none was named.
    """
    found = list(reports)
    if application:
        found = [report for report in found if application in (str(report.id), report.name)]
    if len(found) > 1:
        found = [report for report in found if report.user == user] or found
    if not found:
        what = application or f"no application of type {APPLICATION_TYPE}"
        raise UnavailableError(
            f"{what} does not run" if application else f"{what} runs", cure="yarn-accel start"
        )
    if len(found) > 1:
        listed = ", ".join(f"{report.id} ({report.name}, {report.user})" for report in found)
        raise ConfigError(f"several applications run: {listed}", cure="say which: --application ID")
    return found[0]


# ---- by the web service

#: The type of our applications in YARN's lists; agents that systemd runs look for it too.
APPLICATION_TYPE = "yarn-accel"
_TIMEOUT_S = 5.0
#: A text that Hadoop's options take as the value of a variable.
_PLAIN = re.compile(r"[A-Za-z0-9._-]+\Z")


def tracking_pages(site: SiteSettings, application_type: str) -> tuple[str, ...]:
    """The pages of the running applications of a type, through the ResourceManager's proxy, newest first.

    They stay the same over the attempts of an application.  With Kerberos that proxy wants a ticket, which no
    mapper has: these are then the masters' own addresses, of their present attempts.  None where no
    ResourceManager answers.
    """
    return tuple(page for _, page in _running(site, application_type) if page)


def mapper_environment(site: SiteSettings, wanted: str = "") -> dict[str, str]:
    """Variables by which mappers of a job find the servers of their application.

    ``ACCEL_MASTER`` has the pages of the application that is wanted; where none is, of those that this user
    started; where there are none of these either, of all. Where others run beside it, ``ACCEL_APPLICATION``
    names it. With Kerberos ``ACCEL_SERVICE_USER`` is the user who started it: the ResourceManager knows that.

    Args:
        wanted: a name or an id; empty: any.

    Raises:
        UnavailableError: what is wanted does not run.
    """
    running = _running(site, APPLICATION_TYPE)
    chosen = [each for each in running if wanted in (each[0].id, each[0].name)]
    if wanted and not chosen:
        listed = ", ".join(f"{each.name} ({each.id}, of {each.user})" for each, _ in running) or "none"
        raise UnavailableError(
            f"no application {wanted} runs; running: {listed}", cure="start it with `yarn-accel start`"
        )
    if not wanted:
        user = RmClient.of(site).user
        chosen = [each for each in running if each[0].user == user] or running
    environment = {}
    if pages := [page for _, page in chosen if page]:
        environment["ACCEL_MASTER"] = ",".join(pages)
    if 0 < len(chosen) < len(running):
        first = chosen[0][0]
        environment[VARIABLE] = first.name if _PLAIN.match(first.name) else first.id
    users = {each.user for each, _ in chosen}
    if len(users) == 1 and site.security().is_kerberos:
        environment[USER_VARIABLE] = users.pop()
    return environment


def _running(site: SiteSettings, application_type: str) -> list[tuple[ApplicationName, str]]:
    """The running applications, newest first, each with its page where it has one."""
    if site.security().is_kerberos:  # its web service wants a ticket, too, and RPC takes one
        rm_client = RmClient.of(site)
        with contextlib.suppress(UnavailableError):
            return asyncio.run(_running_by_rpc(rm_client, application_type))
        return []
    for web in site.resourcemanager_webs():
        try:
            answer = get_json(f"{web}{running_path(application_type)}", timeout_s=_TIMEOUT_S)
        except AccelError:
            continue
        return [(_name(each), _page(each)) for each in newest_first(listed_applications(answer))]
    return []


async def _running_by_rpc(rm_client: RmClient, application_type: str) -> list[tuple[ApplicationName, str]]:
    async with rm_client.manager() as manager:
        reports = await manager.applications(types=[application_type], states=[ApplicationState.RUNNING])
    ordered = sorted(reports, key=lambda each: each.start_ms, reverse=True)
    return [
        (
            ApplicationName(str(each.id), each.name, each.user),
            f"http://{each.host}:{each.rpc_port}" if each.rpc_port > 0 and each.host != "N/A" else "",
        )
        for each in ordered
    ]


def _name(report: dict[str, Any]) -> ApplicationName:
    return ApplicationName(*(str(report.get(key) or "") for key in ("id", "name", "user")))


def _page(report: dict[str, Any]) -> str:
    page = str(report.get("trackingUrl") or "")
    return page if page.startswith(("http://", "https://")) else ""
