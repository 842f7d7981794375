"""What an application master and its launcher need of YARN: `native` and `nodes` implement it.

Calls raise the errors of `rpc_errors`, and take and give the values of `records` and `service_messages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from yarn_accel.adapters.hadoop_rpc.identifiers import ApplicationId, ContainerId, NodeId
from yarn_accel.adapters.hadoop_rpc.records import (
    ApplicationReport,
    ApplicationState,
    FinalStatus,
    LaunchContext,
    NodeReport,
    NodeState,
    NodeToken,
    ResourceRequest,
    YarnContainer,
    YarnResource,
)
from yarn_accel.adapters.hadoop_rpc.service_messages import (
    AllocateResponse,
    ApplicationSubmission,
    AttributeOperation,
    GetContainerStatusesResponse,
    GetNewApplicationResponse,
    RegisterResponse,
    StartContainersResponse,
    StopContainersResponse,
)


class ResourceManager(Protocol):
    """The ResourceManager as clients and operators see it."""

    async def new_application(self) -> GetNewApplicationResponse:
        """An id for a new application, and the largest container there is."""
        ...

    async def submit(self, submission: ApplicationSubmission) -> None:
        """Start an application whose id `new_application` gave."""
        ...

    async def report(self, application: ApplicationId) -> ApplicationReport:
        """The report of an application."""
        ...

    async def kill(self, application: ApplicationId, diagnostics: str = "") -> bool:
        """End an application; whether it is over already (ask again while not)."""
        ...

    async def nodes(self, states: Sequence[NodeState] = ()) -> tuple[NodeReport, ...]:
        """The nodes in these states; none named: all that are not gone."""
        ...

    async def applications(
        self, *, types: Sequence[str] = (), states: Sequence[ApplicationState] = (), tags: Sequence[str] = ()
    ) -> tuple[ApplicationReport, ...]:
        """Applications that meet all conditions."""
        ...

    async def update_node_resource(
        self, node: NodeId, resource: YarnResource, over_commit_timeout_ms: int = -1
    ) -> None:
        """Set the whole vector a node offers (operators only); -1: containers that no longer fit stay."""
        ...

    async def map_attributes(
        self, operation: AttributeOperation, attributes: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Change ``rm.yarn.io`` attributes: host -> name -> value (operators only)."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class ApplicationMaster(Protocol):
    """The ResourceManager as the master of one attempt sees it."""

    async def register(self, host: str, rpc_port: int, tracking_url: str) -> RegisterResponse:
        """Say that the master runs; again after `NotRegisteredError`.

        Raises:
            AlreadyRegisteredError: an earlier call was carried out, and its answer was lost.
            UnavailableError: nobody answered in time; call again.
        """
        ...

    async def allocate(
        self,
        ask: Sequence[ResourceRequest] = (),
        release: Sequence[ContainerId] = (),
        progress: float = 0.0,
    ) -> AllocateResponse:
        """One heartbeat.

        Raises:
            NotRegisteredError: the ResourceManager was restarted: register, then send all asks again.
            AttemptGoneError: the attempt is over.
            UnavailableError: nobody answered in time; nothing is lost, call again.
        """
        ...

    async def finish(self, status: FinalStatus, diagnostics: str = "", tracking_url: str = "") -> bool:
        """Say that the application is over; whether that is stored already (ask again while not)."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class NodeManager(Protocol):
    """All NodeManagers as a master sees them; tokens of nodes come with containers."""

    def learn(self, tokens: Sequence[NodeToken]) -> None:
        """Take tokens for nodes; a newer one replaces the older."""
        ...

    async def start(
        self, node: NodeId, launches: Sequence[tuple[YarnContainer, LaunchContext]]
    ) -> StartContainersResponse:
        """Start processes in containers of one node; never repeated by itself."""
        ...

    async def stop(self, node: NodeId, ids: Sequence[ContainerId]) -> StopContainersResponse:
        """Stop containers of one node."""
        ...

    async def statuses(self, node: NodeId, ids: Sequence[ContainerId]) -> GetContainerStatusesResponse:
        """The states of containers of one node."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
