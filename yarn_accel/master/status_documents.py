"""Builds the state document in steps, so that heartbeats are not delayed.

10,000 nodes take some hundred milliseconds, so `_N_STEP` of them are built in one turn of the event loop; the
last ones are some milliseconds newer than the first.  A page shows at most a thousand nodes, and only these
are built for it; the others are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from yarn_accel.core.application import Application
from yarn_accel.master.statistics import AgentStatistics

#: Nodes per step: some 4 ms.
_N_STEP = 100


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
        from yarn_accel.master.page import Query, choose  # a page is what only people need

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
