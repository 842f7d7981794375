"""Access to a cluster from the user's machine: its ResourceManager, its storage, our applications.

Commands ask the ResourceManager by RPC.  `tracking_pages` and `mapper_environment` ask its web service, which
tells a job the applications that it can use.
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
    Patience,
    ResourceManager,
    ResourceManagerAddresses,
    RpcSettings,
    User,
)
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, ApplicationState
from yarn_accel.adapters.rest import get_json, listed_applications, newest_first, running_path
from yarn_accel.client.agent_folders import VARIABLE, ApplicationName
from yarn_accel.errors import AccelError, ConfigError, UnavailableError
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
        user: the user name that we state to YARN, which does not check it with ``simple`` authentication.
        addresses: of its ResourceManagers.
    """

    site: SiteSettings
    user: str
    addresses: ResourceManagerAddresses

    @staticmethod
    def load(environ: Mapping[str, str] | None = None) -> RmClient:
        """Read ``HADOOP_CONF_DIR``.

        Raises:
            StartupError: it is not set, or not there.
            ConfigError: a file in it is wrong.
        """
        environ = os.environ if environ is None else environ
        site = SiteSettings.read(environ)
        return RmClient(site, user_name(environ), site.resourcemanagers())

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[ResourceManager]:
        """A connection to whichever ResourceManager is active.

        Raises:
            UnavailableError: inside the block: none answers.
        """
        settings = RpcSettings(hosts=self.site.client_hosts)
        manager = ResourceManager(self.addresses, User(self.user), settings, Patience(_RM_PATIENCE_S))
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
        """Web address of an application's page, with an address where this machine knows no name."""
        parts = urlsplit(report.tracking_url)
        host = parts.hostname or ""
        if host not in self.site.client_hosts:
            return report.tracking_url
        port = f":{parts.port}" if parts.port else ""
        return parts._replace(netloc=f"{self.site.resolve(host)}{port}").geturl()


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

    They stay the same over the attempts of an application.  None where no ResourceManager answers.
    """
    return tuple(page for _, page in _running(site, application_type) if page)


def mapper_environment(site: SiteSettings, wanted: str = "") -> dict[str, str]:
    """Variables by which mappers of a job find the servers of their application.

    ``ACCEL_MASTER`` has the pages of the application that is wanted; where none is, of those that this user
    started; where there are none of these either, of all. Where others run beside it, ``ACCEL_APPLICATION``
    names it.

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
        user = user_name()
        chosen = [each for each in running if each[0].user == user] or running
    environment = {}
    if pages := [page for _, page in chosen if page]:
        environment["ACCEL_MASTER"] = ",".join(pages)
    if 0 < len(chosen) < len(running):
        first = chosen[0][0]
        environment[VARIABLE] = first.name if _PLAIN.match(first.name) else first.id
    return environment


def _running(site: SiteSettings, application_type: str) -> list[tuple[ApplicationName, str]]:
    """The running applications, newest first, each with its page where it has one."""
    for web in site.resourcemanager_webs():
        try:
            answer = get_json(f"{web}{running_path(application_type)}", timeout_s=_TIMEOUT_S)
        except AccelError:
            continue
        return [(_name(each), _page(each)) for each in newest_first(listed_applications(answer))]
    return []


def _name(report: dict[str, Any]) -> ApplicationName:
    return ApplicationName(*(str(report.get(key) or "") for key in ("id", "name", "user")))


def _page(report: dict[str, Any]) -> str:
    page = str(report.get("trackingUrl") or "")
    return page if page.startswith(("http://", "https://")) else ""
