"""Starts, stops and queries containers at their NodeManagers: one call at a time each, many nodes at once.

A node that does not answer delays its own calls only.  The core repeats commands without a result, so nothing
is retried here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from yarn_accel.adapters.hadoop_rpc import (
    ConnectionLostError,
    ContainerId,
    NodeId,
    NodeManager,
    error_of_exception,
)
from yarn_accel.adapters.hadoop_rpc.records import ContainerState, ExitStatus, LaunchContext, YarnContainer
from yarn_accel.core.application.events import (
    ContainerCompleted,
    ContainerStarted,
    ContainerStartFailed,
    Event,
)
from yarn_accel.errors import AccelError

logger = logging.getLogger(__name__)

_Job = Callable[[], Awaitable[object]]


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
        self._queues: dict[NodeId, deque[_Job]] = {}
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

    def _add(self, node: NodeId, job: _Job) -> None:
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
