"""`ResourceManager` and `ApplicationMaster` over Hadoop's RPC; `nodes` implements `NodeManager`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from yarn_accel.adapters.hadoop_rpc import methods
from yarn_accel.adapters.hadoop_rpc.addresses import Address, ResourceManagerAddresses
from yarn_accel.adapters.hadoop_rpc.failover import Patience, RpcService
from yarn_accel.adapters.hadoop_rpc.framing import Identity
from yarn_accel.adapters.hadoop_rpc.header_messages import Token
from yarn_accel.adapters.hadoop_rpc.identifiers import ApplicationId, ContainerId, NodeId
from yarn_accel.adapters.hadoop_rpc.records import (
    ApplicationReport,
    ApplicationState,
    FinalStatus,
    NodeAttribute,
    NodeReport,
    NodeState,
    ResourceRequest,
    YarnResource,
)
from yarn_accel.adapters.hadoop_rpc.rpc_errors import AttemptGoneError, NotRegisteredError
from yarn_accel.adapters.hadoop_rpc.service_messages import (
    AllocateRequest,
    AllocateResponse,
    ApplicationSubmission,
    AttributeOperation,
    FinishRequest,
    GetApplicationReportRequest,
    GetApplicationsRequest,
    GetClusterNodesRequest,
    GetNewApplicationRequest,
    GetNewApplicationResponse,
    KillApplicationRequest,
    MapAttributesRequest,
    MasterCommand,
    NodeAttributes,
    NodeResource,
    RegisterRequest,
    RegisterResponse,
    ResourceOption,
    SubmitApplicationRequest,
    UpdateNodeResourceRequest,
)
from yarn_accel.adapters.hadoop_rpc.transport import RpcSettings
from yarn_accel.errors import AuthenticationError, LocalProtocolError, RejectedError

logger = logging.getLogger(__name__)


class NativeResourceManager:
    """Clients' and operators' view of the ResourceManager, as one user or with a delegation token.

    Args:
        addresses: `ResourceManagerAddresses.from_properties` reads them from a configuration.
        identity: `User` on a cluster with simple authentication, else a token.
    """

    def __init__(
        self,
        addresses: ResourceManagerAddresses,
        identity: Identity,
        settings: RpcSettings | None = None,
        patience: Patience | None = None,
    ) -> None:
        def service(where: Sequence[Address], protocol: str) -> RpcService:
            return RpcService(where, protocol, lambda: identity, settings, patience)

        self._client = service(addresses.client, methods.APPLICATION_CLIENT)
        self._admin = service(addresses.admin, methods.ADMINISTRATION)

    async def new_application(self) -> GetNewApplicationResponse:
        """An id for a new application, and the largest container there is."""
        return await self._client.call(methods.GET_NEW_APPLICATION, GetNewApplicationRequest())

    async def submit(self, submission: ApplicationSubmission) -> None:
        """Start an application whose id `new_application` gave; tags in lower case, as Hadoop's own."""
        submission = replace(submission, tags=tuple(tag.lower() for tag in submission.tags))
        await self._client.call(methods.SUBMIT_APPLICATION, SubmitApplicationRequest(submission))

    async def report(self, application: ApplicationId) -> ApplicationReport:
        """The report of an application."""
        request = GetApplicationReportRequest(application)
        return (await self._client.call(methods.GET_APPLICATION_REPORT, request)).report

    async def kill(self, application: ApplicationId, diagnostics: str = "") -> bool:
        """End an application; whether it is over already (ask again while not)."""
        request = KillApplicationRequest(application, diagnostics or None)
        return (await self._client.call(methods.KILL_APPLICATION, request)).is_completed

    async def nodes(self, states: Sequence[NodeState] = ()) -> tuple[NodeReport, ...]:
        """The nodes in these states; none named: all that are not gone."""
        request = GetClusterNodesRequest(tuple(states))
        return (await self._client.call(methods.GET_CLUSTER_NODES, request)).reports

    async def applications(
        self, *, types: Sequence[str] = (), states: Sequence[ApplicationState] = (), tags: Sequence[str] = ()
    ) -> tuple[ApplicationReport, ...]:
        """Applications that meet all conditions; tags in lower case, as `submit` writes them."""
        request = GetApplicationsRequest(tuple(types), tuple(states), tags=tuple(tag.lower() for tag in tags))
        return (await self._client.call(methods.GET_APPLICATIONS, request)).reports

    async def update_node_resource(
        self, node: NodeId, resource: YarnResource, over_commit_timeout_ms: int = -1
    ) -> None:
        """Set the whole vector a node offers (operators only); -1: containers that no longer fit stay."""
        option = ResourceOption(resource, over_commit_timeout_ms)
        request = UpdateNodeResourceRequest((NodeResource(node, option),))
        await self._admin.call(methods.UPDATE_NODE_RESOURCE, request)

    async def map_attributes(
        self, operation: AttributeOperation, attributes: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Change ``rm.yarn.io`` attributes: host -> name -> value (operators only)."""
        nodes = tuple(
            NodeAttributes(host, tuple(NodeAttribute.of(name, value) for name, value in named.items()))
            for host, named in attributes.items()
        )
        await self._admin.call(methods.MAP_ATTRIBUTES, MapAttributesRequest(operation, nodes))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
        await self._admin.close()


class NativeApplicationMaster:
    """The ResourceManager as the master of one attempt sees it; one heartbeat at a time.

    A heartbeat that nobody answered in time is kept and sent first at the next one, unchanged: the
    ResourceManager may have carried it out, and gives the same answer for the same number again.  Its
    answer is kept, too, until the new one is there: containers and the tokens of nodes come once.

    Args:
        token: the attempt's ``YARN_AM_RM_TOKEN``; a renewed one that a heartbeat brings replaces it.
    """

    def __init__(
        self,
        addresses: ResourceManagerAddresses,
        token: Token,
        settings: RpcSettings | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._token = token
        self._service = RpcService(
            addresses.scheduler,
            methods.APPLICATION_MASTER,
            lambda: self._token,
            settings,
            patience,
        )
        self._response_id = 0
        self._unanswered: AllocateRequest | None = None
        self._untold: AllocateResponse | None = None

    @property
    def token(self) -> Token:
        """The token that the next connection will log in with."""
        return self._token

    async def register(self, host: str, rpc_port: int, tracking_url: str) -> RegisterResponse:
        """Say that the master runs; again after `NotRegisteredError`. Heartbeats count from 0 again."""
        response = await self._service.call(methods.REGISTER, RegisterRequest(host, rpc_port, tracking_url))
        self._response_id = 0
        self._unanswered = self._untold = None
        return response

    async def allocate(
        self,
        ask: Sequence[ResourceRequest] = (),
        release: Sequence[ContainerId] = (),
        progress: float = 0.0,
    ) -> AllocateResponse:
        """One heartbeat; errors as in `backend.ApplicationMaster`."""
        if self._unanswered is not None:
            self._untold = _together(self._untold, await self._heartbeat(self._unanswered))
        request = AllocateRequest(tuple(ask), tuple(release), self._response_id, progress)
        response = _together(self._untold, await self._heartbeat(request))
        self._untold = None
        return response

    async def finish(self, status: FinalStatus, diagnostics: str = "", tracking_url: str = "") -> bool:
        """Say that the application is over; whether that is stored already (ask again while not)."""
        request = FinishRequest(diagnostics, tracking_url, status)
        return (await self._service.call(methods.FINISH, request)).is_unregistered

    async def close(self) -> None:
        """Close the connection."""
        await self._service.close()

    async def _heartbeat(self, request: AllocateRequest) -> AllocateResponse:
        self._unanswered = request
        try:
            response = await self._service.call(methods.ALLOCATE, request)
        except (RejectedError, LocalProtocolError, AuthenticationError):
            self._unanswered = None  # it was surely not carried out, and would only be refused again
            raise
        self._unanswered = None
        self._response_id = response.response_id
        if response.am_rm_token is not None and response.am_rm_token != self._token:
            logger.info("a renewed %s came with heartbeat %d", self._token.kind, response.response_id)
            self._token = response.am_rm_token
        address = str(self._service.address)
        if response.command is MasterCommand.RESYNC:
            raise NotRegisteredError("", f"{address} orders to register again")
        if response.command is MasterCommand.SHUTDOWN:
            raise AttemptGoneError("", f"{address} orders to end")
        return response


def _together(earlier: AllocateResponse | None, later: AllocateResponse) -> AllocateResponse:
    """Two answers as one: what happened of both, the state of the later."""
    if earlier is None:
        return later
    return replace(
        later,
        allocated=earlier.allocated + later.allocated,
        completed=earlier.completed + later.completed,
        updated_nodes=earlier.updated_nodes + later.updated_nodes,
        node_tokens=earlier.node_tokens + later.node_tokens,
        previous_containers=earlier.previous_containers + later.previous_containers,
    )
