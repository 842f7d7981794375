"""Makes the state document: of all nodes, or of those that a page shows.

It is built in steps, so that heartbeats are not delayed: 10,000 nodes take some hundred milliseconds, so
`_N_STEP` of them are built in one turn of the event loop; the last ones are some milliseconds newer than the
first. A page shows at most `MAX_DRAWN` nodes, whole racks with those in trouble first, and only these are
built for it; the others are counted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.application import Application
from yarn_accel.master.statistics import AgentStatistics

MAX_DRAWN = 1000
#: Nodes per step: some 4 ms.
_N_STEP = 100


@dataclass(frozen=True, slots=True)
class Query:
    """The part of the cluster to show: a node, a rack, or (both empty) everything."""

    node: str = ""
    rack: str = ""


class StatusDocuments:
    """Makes the state document, see `statistics`.

    Args:
        clock: the core's.
        about: who this application is.
        service: how the service itself is, at a time of the clock.
        tasks: what its task service is and does, see `LiveTaskService.shown`; None: there is none.
    """

    def __init__(
        self,
        core: Application,
        figures: AgentStatistics,
        clock: Callable[[], float],
        about: Mapping[str, Any],
        service: Callable[[float], Mapping[str, Any]],
        tasks: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        self._core = core
        self._statistics = figures
        self._clock = clock
        self._about = about
        self._service = service
        self._tasks = tasks

    async def whole(self) -> dict[str, Any]:
        """Of all nodes."""
        hosts = sorted(host for rack in self._core.summarize().racks.values() for host in rack)
        self._statistics.forget(frozenset(hosts), self._clock())
        return await self._document(hosts)

    async def part(self, node: str, rack: str) -> dict[str, Any]:
        """Of the nodes a page shows, and besides ``others``: [(rack, number of nodes)] it does not.

        Args:
            node: whose rack is shown; empty or not known: any.
            rack: that is shown; empty or not known: as many as fit, those with trouble first.
        """
        outline = self._core.summarize()
        hosts, others = choose(outline.racks, outline.troubled, Query(node, rack))
        return {**await self._document(hosts), "others": others}

    def now(self) -> dict[str, Any]:
        """Of all nodes, in one turn of the event loop: for small clusters and tests."""
        now_s = self._clock()
        snapshot, outline = self._core.snapshot(now_s), self._core.summarize()
        totals = self._statistics.totals(outline, now_s)
        state = self._statistics.state(snapshot, now_s, self._about, self._service(now_s), totals)
        return {**state, "tasks": self._tasks()}

    async def _document(self, hosts: list[str]) -> dict[str, Any]:
        nodes: dict[str, Any] = {}
        for first in range(0, len(hosts), _N_STEP):
            now_s = self._clock()
            node_snapshots = self._core.node_snapshots(now_s, hosts[first : first + _N_STEP])
            nodes.update(self._statistics.joined(node_snapshots, now_s))
            await asyncio.sleep(0)
        now_s = self._clock()
        totals = self._statistics.totals(self._core.summarize(), now_s)
        base = self._core.snapshot(now_s, ())
        document = self._statistics.state(base, now_s, self._about, self._service(now_s), totals)
        return {**document, "nodes": nodes, "tasks": self._tasks()}


def choose(
    racks: Mapping[str, Sequence[str]], troubled: Container[str], query: Query
) -> tuple[list[str], list[tuple[str, int]]]:
    """The nodes to show, and name and size of the racks that are left out.

    Args:
        racks: hosts by rack.
        troubled: racks to be shown first.
    """
    of_node = next((rack for rack, hosts in racks.items() if query.node in hosts), None)
    rack = of_node if of_node is not None else query.rack
    if rack in racks and (query.rack or of_node is not None):
        hosts, others = list(racks[rack][:MAX_DRAWN]), [name for name in racks if name != rack]
    else:
        hosts, others = _whole_racks(racks, troubled)
    return hosts, [(name, len(racks[name])) for name in sorted(others, key=natural)]


def _whole_racks(racks: Mapping[str, Sequence[str]], troubled: Container[str]) -> tuple[list[str], list[str]]:
    """Racks with trouble first, as many as can be shown, and the names of the others."""
    hosts: list[str] = []
    others: list[str] = []
    for rack in sorted(racks, key=lambda name: (name not in troubled, natural(name))):
        fits = len(hosts) + len(racks[rack]) <= MAX_DRAWN
        if fits or not hosts:
            hosts += racks[rack][: MAX_DRAWN - len(hosts)]
        else:
            others.append(rack)
    return hosts, others


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts names as people do: w2 before w10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return tuple((int(part), part) if part.isdecimal() and len(part) <= 18 else (-1, part) for part in parts)
