"""The applications that run now, by the ResourceManager's web service, and which of them a job is to use."""

from __future__ import annotations

import re
from typing import Any

from yarn_accel.adapters.rest import get_json, listed_applications, newest_first, running_path
from yarn_accel.client.agent_folders import VARIABLE, ApplicationName
from yarn_accel.errors import AccelError, UnavailableError
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.users import user_name

#: What YARN lists our applications as; agents that systemd runs look for it too.
APPLICATION_TYPE = "yarn-accel"
_TIMEOUT_S = 5.0
#: What Hadoop's options take as the value of a variable.
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
