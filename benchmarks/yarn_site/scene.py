"""What is watched while something happens to a site: mappers, a job, and when each consequence was there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.yarn_site.caller import Caller
from benchmarks.yarn_site.job import RunningJob
from benchmarks.yarn_site.site import DEADLINE_S, Site
from yarn_accel.adapters.hadoop_rpc.records import NodeReport
from yarn_accel.errors import AccelError, ClusterError
from yarn_accel.master.inventory import attribute_of

__all__ = ["Condition", "Look", "Scene", "Strike", "calling", "scene_of", "watch"]

_PAUSE_S = 0.05


class Look:
    """The site at one moment; asked for only when a condition wants it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._state: dict[str, Any] | None = None
        self._reports: dict[str, NodeReport] | None = None

    @property
    def state(self) -> dict[str, Any]:
        """What the master says; see `Site.state`."""
        if self._state is None:
            self._state = self._site.state()
            self._state["seen_at"] = time.time()
        return self._state

    @property
    def reports(self) -> dict[str, NodeReport]:
        """What the ResourceManager says of each node; nothing while it is away."""
        if self._reports is None:
            try:
                self._reports = self._site.nodes()
            except AccelError:
                self._reports = {}
        return self._reports

    def node(self, host: str) -> dict[str, Any]:
        """The master's word on a node."""
        found: dict[str, Any] = self.state["nodes"].get(host, {})
        return found

    def container(self, host: str, role: str) -> str:
        """As `Site.container`."""
        held = self.node(host).get("places", {}).get(role, {}).get("containers", ())
        return str(held[0]["id"]) if len(held) == 1 else ""

    def published(self, host: str) -> str | None:
        """The server that the node's attribute names."""
        report = self.reports.get(host)
        return attribute_of(report, "accel-bind") if report is not None else None

    def noted(self, host: str, what: str, since: float) -> float:
        """When the master first noted something of a node after a time, Unix seconds; 0: it has not."""
        times = (
            self.state["seen_at"] - note["age_s"]
            for note in self.state.get("notes", ())
            if note["node"] == host and note["what"].startswith(what)
        )
        return min((at for at in times if at > since), default=0.0)


Condition = Callable[[Look], float]
"""When it became true, Unix seconds; 0: it is not yet."""


@dataclass(frozen=True)
class Scene:
    """A node without accelerator, its server, and who watches.

    Attributes:
        site: the site.
        client: the node without accelerator.
        server: the accelerator node it is bound to; never the one the master runs on.
        callers: a mapper on every node without accelerator.
        job: a streaming job under way; None: there is none.
    """

    site: Site
    client: str
    server: str
    callers: Mapping[str, Caller]
    job: RunningJob | None = None

    @property
    def caller(self) -> Caller:
        """The mapper on the client."""
        return self.callers[self.client]


@dataclass(frozen=True)
class Strike:
    """Something has happened.

    Attributes:
        at: when, Unix seconds.
        awaited: its consequences by name, each with what tells when it was there.
        heal: makes good what does not mend by itself.
    """

    at: float
    awaited: Mapping[str, Condition] = field(default_factory=dict)
    heal: Callable[[], None] = lambda: None


@contextmanager
def calling(site: Site) -> Iterator[dict[str, Caller]]:
    """A mapper on every node without accelerator that calls without end; each has had its first answer."""
    with ExitStack() as stack:
        callers = {host: stack.enter_context(site.caller(host)) for host in site.others}
        for host, caller in callers.items():
            site.until(f"a first answer on {host}", lambda caller=caller: caller.answers)  # type: ignore[misc]
        yield callers


def scene_of(site: Site, callers: Mapping[str, Caller], job: RunningJob | None = None) -> Scene:
    """The scene on a site that is whole, as its bindings are now."""
    master = site.master_node()
    bound = {host: str(site.bound(host)) for host in site.others}
    client = min(bound, key=lambda host: (bound[host] == master, host))
    return Scene(site, client, bound[client], callers, job)


def watch(site: Site, strike: Strike, limit_s: float = DEADLINE_S) -> dict[str, float]:
    """Wait for the consequences of a strike; seconds from it to each.

    Raises:
        ClusterError: one did not come; with the containers' logs.
    """
    until_s = time.monotonic() + limit_s
    found: dict[str, float] = {}
    while len(found) < len(strike.awaited):
        look = Look(site)
        for name, condition in strike.awaited.items():
            if name not in found and (at := condition(look)):
                found[name] = at - strike.at
        if time.monotonic() >= until_s:
            missing = ", ".join(sorted(strike.awaited.keys() - found.keys()))
            raise ClusterError(f"never: {missing}\n{site.logs()}")
        time.sleep(_PAUSE_S)
    return {name: found[name] for name in strike.awaited}
