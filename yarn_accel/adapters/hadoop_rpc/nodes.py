"""NodeManagers over Hadoop's RPC: a token for each node, and only so many connections kept open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

from yarn_accel.adapters.hadoop_rpc import methods
from yarn_accel.adapters.hadoop_rpc.addresses import Address
from yarn_accel.adapters.hadoop_rpc.failover import Patience, RpcService
from yarn_accel.adapters.hadoop_rpc.header_messages import Token
from yarn_accel.adapters.hadoop_rpc.identifiers import ContainerId, NodeId
from yarn_accel.adapters.hadoop_rpc.methods import Method
from yarn_accel.adapters.hadoop_rpc.records import LaunchContext, NodeToken, YarnContainer
from yarn_accel.adapters.hadoop_rpc.service_messages import (
    GetContainerStatusesRequest,
    GetContainerStatusesResponse,
    StartContainerRequest,
    StartContainersRequest,
    StartContainersResponse,
    StopContainersRequest,
    StopContainersResponse,
)
from yarn_accel.adapters.hadoop_rpc.transport import RpcSettings
from yarn_accel.errors import AuthenticationError

Q = TypeVar("Q")
A = TypeVar("A")


class NativeNodeManager:
    """All NodeManagers as one master sees them.

    Args:
        max_idle: connections without a call in progress that are kept; the one unused longest is closed
        first.
    """

    def __init__(
        self,
        settings: RpcSettings | None = None,
        patience: Patience | None = None,
        max_idle: int = 64,
    ) -> None:
        self._settings = settings
        self._patience = Patience(patience_s=3.0) if patience is None else patience
        self._max_idle = max_idle
        self._tokens: dict[NodeId, Token] = {}
        self._services: OrderedDict[NodeId, RpcService] = OrderedDict()
        self._n_calls: dict[NodeId, int] = {}

    def learn(self, tokens: Sequence[NodeToken]) -> None:
        """Take tokens for nodes; a newer one replaces the older and is used from the next connection on."""
        self._tokens.update((each.node, each.token) for each in tokens)

    async def start(
        self, node: NodeId, launches: Sequence[tuple[YarnContainer, LaunchContext]]
    ) -> StartContainersResponse:
        """Start processes in containers of one node; never repeated by itself.

        Raises:
            AuthenticationError: a container has no token, or there is none for the node.
            ConnectionLostError: with `was_sent`: `statuses` tells whether they run.
        """
        requests = []
        for container, launch in launches:
            if container.token is None:
                raise AuthenticationError(f"{container.id} came without a token")
            requests.append(StartContainerRequest(launch, container.token))
        return await self._call(node, methods.START_CONTAINERS, StartContainersRequest(tuple(requests)))

    async def stop(self, node: NodeId, ids: Sequence[ContainerId]) -> StopContainersResponse:
        """Stop containers of one node; errors as in `start`."""
        return await self._call(node, methods.STOP_CONTAINERS, StopContainersRequest(tuple(ids)))

    async def statuses(self, node: NodeId, ids: Sequence[ContainerId]) -> GetContainerStatusesResponse:
        """The states of containers of one node; errors as in `start`."""
        request = GetContainerStatusesRequest(tuple(ids))
        return await self._call(node, methods.GET_CONTAINER_STATUSES, request)

    async def close(self) -> None:
        """Close all connections."""
        services = list(self._services.values())
        self._services.clear()
        for service in services:
            await service.close()

    async def _call(self, node: NodeId, method: Method[Q, A], request: Q) -> A:
        service = self._service(node)
        self._n_calls[node] = self._n_calls.get(node, 0) + 1
        try:
            return await service.call(method, request)
        finally:
            self._n_calls[node] -= 1
            if not self._n_calls[node]:
                del self._n_calls[node]
            await self._close_idle()

    def _service(self, node: NodeId) -> RpcService:
        service = self._services.get(node)
        if service is None:
            service = RpcService(
                [Address(node.host, node.port)],
                methods.CONTAINER_MANAGEMENT,
                lambda: self._token(node),
                self._settings,
                self._patience,
            )
            self._services[node] = service
        self._services.move_to_end(node)
        return service

    def _token(self, node: NodeId) -> Token:
        token = self._tokens.get(node)
        if token is None:
            raise AuthenticationError(
                f"no token for {node}", cure="pass node_tokens of every answer to learn(), also of register"
            )
        return token

    async def _close_idle(self) -> None:
        idle = [node for node in self._services if node not in self._n_calls]
        for node in idle[: max(0, len(idle) - self._max_idle)]:
            await self._services.pop(node).close()
