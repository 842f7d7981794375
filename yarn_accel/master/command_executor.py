"""Executes the core's commands: those for containers at their NodeManagers, others at the component for them.

Nothing blocks. Calls to one NodeManager are made one at a time, to many NodeManagers at once; a node that
does not answer delays its own calls only. The core repeats commands without a result, so nothing is retried
here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from yarn_accel.adapters.hadoop_rpc import (
    ConnectionLostError,
    ContainerId,
    NodeId,
    NodeManager,
    error_of_exception,
)
from yarn_accel.adapters.hadoop_rpc.records import (
    ContainerState,
    ExitStatus,
    FinalStatus,
    LaunchContext,
    YarnContainer,
)
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.core.application.events import (
    ContainerCompleted,
    ContainerStarted,
    ContainerStartFailed,
    Event,
)
from yarn_accel.errors import AccelError
from yarn_accel.master.credentials import MasterCredentials
from yarn_accel.master.environment import LaunchPlan
from yarn_accel.master.inventory import Inventory
from yarn_accel.master.operator_commands import OperatorCommands
from yarn_accel.master.scheduler_link import SchedulerLink

logger = logging.getLogger(__name__)

_Call = Callable[[], Awaitable[object]]


class CommandExecutor:
    """One method per kind of command.

    Args:
        tell: takes events; from within a command only through the event loop.
        clock: the core's.
        retries: see `LaunchSpec.context`.
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


class NodeManagerCalls:
    """Calls to NodeManagers.

    Args:
        tell: takes the events that come of them.
        clock: of events.
        max_nodes: nodes that are called at once.
    """

    def __init__(
        self,
        nodes: NodeManager,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
        max_nodes: int = 32,
    ) -> None:
        self._nodes = nodes
        self._tell = tell
        self._clock = clock
        self._slots_free = asyncio.Semaphore(max_nodes)
        self._queues: dict[NodeId, deque[_Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.n_calls = self.n_failed = 0

    def start(self, container: YarnContainer, launch: LaunchContext) -> None:
        """Start the program; results in `ContainerStarted` or `ContainerStartFailed`."""
        self._add(container.node, lambda: self._start(container, launch))

    def stop(self, node: NodeId, container: ContainerId) -> None:
        """Tell the NodeManager to stop it; the ResourceManager reports its end."""
        self._add(node, lambda: self._stop(node, container))

    def check(self, node: NodeId, container: ContainerId) -> None:
        """Results in `ContainerStarted` or `ContainerCompleted`; in nothing when the node does not answer."""
        self._add(node, lambda: self._check(node, container))

    async def close(self) -> None:
        """Cancel running calls."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, node: NodeId, job: _Call) -> None:
        queue = self._queues.get(node)
        if queue is not None:
            queue.append(job)
            return
        self._queues[node] = deque([job])
        task = asyncio.create_task(self._drain(node), name=f"calls to {node}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, node: NodeId) -> None:
        queue = self._queues[node]
        try:
            while queue:
                async with self._slots_free:
                    self.n_calls += 1
                    await queue.popleft()()
        finally:
            del self._queues[node]

    async def _start(self, container: YarnContainer, launch: LaunchContext) -> None:
        try:
            answer = await self._nodes.start(container.node, [(container, launch)])
        except ConnectionLostError as error:
            if not error.was_sent or not await self._check(container.node, container.id):
                self._failed(container.id, str(error))
            return
        except AccelError as error:
            self._failed(container.id, str(error))
            return
        if container.id in answer.succeeded:
            logger.info("%s started on %s", container.id, container.node)
            self._tell(ContainerStarted(str(container.id), self._clock()))
            return
        reasons = [each.exception for each in answer.failed if each.id == container.id]
        reason = error_of_exception(reasons[0] if reasons else None, str(container.node))
        self._failed(container.id, str(reason))

    def _failed(self, container: ContainerId, why: str) -> None:
        self.n_failed += 1
        logger.warning("%s was not started: %s", container, why)
        self._tell(ContainerStartFailed(str(container), why, self._clock()))

    async def _stop(self, node: NodeId, container: ContainerId) -> None:
        try:
            answer = await self._nodes.stop(node, [container])
        except AccelError as error:
            self.n_failed += 1
            logger.info("%s could not be stopped: %s", container, error)
            return
        for each in answer.failed:
            logger.info("%s: %s", container, error_of_exception(each.exception, str(node)))

    async def _check(self, node: NodeId, container: ContainerId) -> bool:
        """Whether the NodeManager knows it and says that it is there."""
        try:
            answer = await self._nodes.statuses(node, [container])
        except AccelError as error:
            self.n_failed += 1
            logger.info("%s: its node does not say how it fares: %s", container, error)
            return False
        status = next((each for each in answer.statuses if each.id == container), None)
        if status is None:
            reason = "unknown to its NodeManager"
            self._tell(ContainerCompleted(str(container), ExitStatus.ABORTED, reason, self._clock()))
            return False
        if status.state is ContainerState.COMPLETE:
            self._tell(
                ContainerCompleted(str(container), status.exit_status, status.diagnostics, self._clock())
            )
            return False
        self._tell(ContainerStarted(str(container), self._clock()))
        return True
