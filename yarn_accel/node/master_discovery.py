"""Finds the master: its address is fixed in the settings, or YARN knows it, as each attempt has another one.

A discovery returns candidates, best first.  The signature of its response proves that one is the master.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any, Protocol

from yarn_accel.adapters.rest import get_json, listed_applications, newest_first, running_path
from yarn_accel.errors import AccelError, RejectedError, UnavailableError
from yarn_accel.node.config import MasterSettings

_MAX_CANDIDATES = 8
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]{0,254}|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})\Z")
_OVER = ("FINISHED", "FAILED", "KILLED")


class MasterDiscovery(Protocol):
    """Finds the master; may block for some seconds."""

    def find(self) -> tuple[str, ...]:
        """Base URLs, such as ``http://10.0.0.5:8500``, best first; at least one.

        Raises:
            UnavailableError: nobody knows now.
        """


class FixedDiscovery:
    """The address stands in the settings."""

    def __init__(self, url: str) -> None:
        self._url = url

    def find(self) -> tuple[str, ...]:
        """See `MasterDiscovery`."""
        return (self._url,)


class NoDiscovery:
    """No master is configured: the agent serves this node alone."""

    def find(self) -> tuple[str, ...]:
        """See `MasterDiscovery`."""
        raise UnavailableError("no master is configured", cure="set rm_urls or master_url")


class RestDiscovery:
    """Asks the ResourceManagers, one after the other, over their REST interface.

    The master registers its control address as host and RPC port, which an application report shows as
    ``amRPCAddress`` as long as that attempt runs.

    Args:
        rm_urls: such as ``http://rm:8088``; a standby is passed over.
        application_id: the master's application; empty: running ones of ``application_type``.
        get: `get_json`.
    """

    def __init__(
        self,
        rm_urls: Sequence[str],
        application_id: str,
        application_type: str,
        timeout_s: float,
        get: Callable[..., Any] = get_json,
    ) -> None:
        self._rm_urls = list(rm_urls)
        self._timeout_s = timeout_s
        self._get = get
        one = f"/ws/v1/cluster/apps/{application_id}"
        self._path = one if application_id else running_path(application_type)
        self._what = application_id or f"an application of type {application_type}"

    def find(self) -> tuple[str, ...]:
        """See `MasterDiscovery`."""
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


def discovery_for(config: MasterSettings) -> MasterDiscovery:
    """The finder these settings ask for."""
    if config.master_url:
        return FixedDiscovery(config.master_url)
    if config.rm_urls:
        return RestDiscovery(config.rm_urls, config.application_id, config.application_type, config.timeout_s)
    return NoDiscovery()


def _address(report: dict[str, Any]) -> tuple[str, ...]:
    match = _ADDRESS.match(str(report.get("amRPCAddress", "")))
    is_running = report.get("state", "RUNNING") == "RUNNING"
    if match is None or not is_running or not 0 < int(match["port"]) <= 65535:
        return ()
    return (f"http://{match['host']}:{int(match['port'])}",)
