"""Executes the core's commands by handing each to the component for that part of YARN; nothing blocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from yarn_accel.adapters.hadoop_rpc import ContainerId, NodeId
from yarn_accel.adapters.hadoop_rpc.records import FinalStatus
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.master.credentials import MasterCredentials
from yarn_accel.master.inventory import Inventory
from yarn_accel.master.launch_plan import LaunchPlan
from yarn_accel.master.node_managers import NodeManagerCalls
from yarn_accel.master.operator_commands import OperatorCommands
from yarn_accel.master.scheduler_link import SchedulerLink

logger = logging.getLogger(__name__)


class CommandExecutor:
    """One method per kind of command.

    Args:
        tell: takes events; from within a command only through the event loop.
        clock: the core's.
        retries: see `RoleLaunch.context`.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        credentials: MasterCredentials,
        inventory: Inventory,
        link: SchedulerLink,
        containers: NodeManagerCalls,
        operator: OperatorCommands,
        tell: Callable[[ev.Event], None],
        clock: Callable[[], float],
        retries: int,
    ) -> None:
        self._plan = plan
        self._credentials = credentials
        self._inventory = inventory
        self._link = link
        self._containers = containers
        self._operator = operator
        self._tell = tell
        self._clock = clock
        self._retries = retries
        self._alarm: asyncio.TimerHandle | None = None
        #: The first bindings of this attempt are made: until then no response says that there is no server.
        self.has_published = False
        self._entries: dict[type, Callable[[Any], None]] = {
            cmd.Register: lambda _: link.register(),
            cmd.RequestContainer: link.ask,
            cmd.CancelRequest: link.unask,
            cmd.LaunchContainer: self._launch,
            cmd.StopContainer: self._stop,
            cmd.ReleaseContainer: lambda order: link.release(ContainerId.parse(order.container.id)),
            cmd.QueryContainer: self._check,
            cmd.PublishBindings: self._publish,
            cmd.SetSlots: operator.set_slots,
            cmd.SetTimer: self._wake_at,
            cmd.Unregister: lambda order: link.finish(FinalStatus[order.status]),
        }

    def carry_out(self, commands: Iterable[cmd.Command]) -> None:
        """Execute all of them, in this order."""
        for command in commands:
            self._entries[type(command)](command)

    def close(self) -> None:
        """Cancel the timer."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _launch(self, order: cmd.LaunchContainer) -> None:
        container = self._link.containers.get(order.container.id)
        if container is None or container.token is None:
            # For example one of an earlier attempt, which alone had its token.
            failed = ev.ContainerStartFailed(order.container.id, "it came without a token", self._clock())
            asyncio.get_running_loop().call_soon(self._tell, failed)
            return
        launch = self._plan.launches[order.role]
        secrets = self._credentials.of_container(order.role, order.container.node)
        self._containers.start(container, launch.context(secrets, self._retries))

    def _stop(self, order: cmd.StopContainer) -> None:
        node = self._node(order.container)
        if node is not None:
            self._containers.stop(node, ContainerId.parse(order.container.id))

    def _check(self, order: cmd.QueryContainer) -> None:
        node = self._node(order.container)
        if node is not None:
            self._containers.check(node, ContainerId.parse(order.container.id))

    def _publish(self, order: cmd.PublishBindings) -> None:
        self.has_published = True
        self._operator.publish(order)

    def _node(self, container: ev.ContainerRef) -> NodeId | None:
        known = self._link.containers.get(container.id)
        return known.node if known is not None else self._inventory.node_id(container.node)

    def _wake_at(self, order: cmd.SetTimer) -> None:
        self.close()
        loop = asyncio.get_running_loop()
        delay_s = max(0.0, order.at_s - self._clock())
        self._alarm = loop.call_later(delay_s, lambda: self._tell(ev.TimerFired(self._clock())))
