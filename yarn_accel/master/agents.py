"""Receives the agents' heartbeats and answers them: the core's only source of the servers' status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from yarn_accel.core.application import Application, NodeAssignment
from yarn_accel.core.application.events import Event, NodesReported
from yarn_accel.core.tasks.server_gpus import ServingServers
from yarn_accel.errors import UnavailableError
from yarn_accel.master.config import MasterConfig
from yarn_accel.master.heartbeats import (
    ServerStatus,
    load_of,
    parse_heartbeat,
    response_document,
    status_events,
)
from yarn_accel.master.inventory import Inventory
from yarn_accel.master.late_binding import LateBindingReports
from yarn_accel.master.statistics import AgentStatistics
from yarn_accel.node.loads import ServerLoad

#: The longest time in which an agent finds a new master.
_YOUNG_S = 10.0


class Agents:
    """All agents.

    Args:
        figures: statistics of heartbeats, for people.
        tell: takes the events of a heartbeat.
        clock: of events.
        application, attempt: ours, for the responses.
        is_settled: the first bindings are made. A later attempt collects reports first, and some agents
            report late: until then no response says that there is no server, and agents keep the last one.
        late_binding: answers the agents' part of late binding.
    """

    def __init__(
        self,
        config: MasterConfig,
        core: Application,
        inventory: Inventory,
        figures: AgentStatistics,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
        application: str,
        attempt: int,
        is_settled: Callable[[], bool],
        late_binding: LateBindingReports,
    ) -> None:
        self._interval_s = config.agent_interval_s
        self._mappers_per_worker = config.mappers_per_worker
        self._weights = config.device_weights
        self._choice = config.choice
        self._core = core
        self._inventory = inventory
        self._tell = tell
        self._clock = clock
        self._application, self._attempt = application, attempt
        self._is_settled = is_settled
        self._late_binding = late_binding
        self._young_until_s = core.awake_s(clock()) + (_YOUNG_S if attempt > 1 else 0.0)
        self._statistics = figures
        self._servers: dict[str, ServerStatus | None] = {}
        self._loads: dict[str, ServerLoad | None] = {}
        self._n_devices: dict[str, int] = {}
        self.n_heard = 0

    async def heartbeat(self, sender: str, document: Any) -> Any:
        """Apply a heartbeat; returns the response.

        Raises:
            RejectedError: it is none.
            UnavailableError: nothing is bound yet.
        """
        heartbeat = parse_heartbeat(sender, document, self._application)
        now_s = self._clock()
        self.n_heard += 1
        self._statistics.heard(heartbeat.node, document, now_s)
        view = self._inventory.devices(heartbeat.node, heartbeat.has_device)
        if view is not None:
            self._tell(NodesReported((view,), now_s))
        before = self._servers.get(heartbeat.node)
        self._servers[heartbeat.node] = heartbeat.server
        self._loads[heartbeat.node] = load_of(heartbeat, self._weights)
        self._n_devices[heartbeat.node] = len(heartbeat.devices)
        for event in status_events(heartbeat, before, now_s, self._weights, self._mappers_per_worker):
            self._tell(event)
        assignment = self.assignment(heartbeat.node)
        if assignment is None:
            raise UnavailableError("nothing is bound yet in this attempt")
        response = response_document(
            assignment,
            heartbeat.node,
            self.rack,
            interval_s=self._interval_s,
            application=self._application,
            attempt=self._attempt,
            policy=self._choice,
            loads=self._loads,
        )
        return {**response, **self._late_binding.answer(heartbeat.node, document, now_s)}

    def assignment(self, node: str) -> NodeAssignment | None:
        """The servers of a node; None: not known yet, see `is_settled`."""
        if not self._is_settled():
            return None
        assignment = self._core.assignment(node)
        is_young = self._core.awake_s(self._clock()) < self._young_until_s
        return None if is_young and not assignment.servers else assignment

    def serving(self) -> ServingServers:
        """The pipeline servers that serve, their GPUs, and which one each node asks first.

        A server without GPUs counts as many as it computes at once.
        """
        n_gpus = {
            node: min(self._n_devices[node] or server.n_workers, server.n_workers)
            for node, server in self._servers.items()
            if server is not None and server.is_healthy
        }
        first = {node: self._core.assignment(node).servers[:1] for node in self._servers}
        server_of = {node: found[0][0] for node, found in first.items() if found and found[0][0] in n_gpus}
        return ServingServers(n_gpus, server_of)

    def rack(self, node: str) -> str | None:
        """The rack of a node."""
        return self._inventory.rack(node)

    def forget(self) -> None:
        """Drop the status of nodes that are gone."""
        for node in [node for node in self._servers if node not in self._inventory]:
            del self._servers[node], self._loads[node], self._n_devices[node]
