"""Every method this package calls: its protocol, its request and answer, and whether it may be repeated.

The names of requests and answers are Hadoop's without ``Proto``.  *Repeatable* means that carrying a call out
twice does no harm, so it may be sent again when a connection broke before the answer came.  ``allocate`` is
repeatable because a heartbeat with the number of the one before gets the same answer again; starting a
container is not, because the second time is an error.
"""

# ruff: noqa: RUF009 - `enum` and `message` declare fields, as dataclasses.field does
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from yarn_accel.adapters.hadoop_rpc.protobuf import (
    boolean,
    enum,
    float32,
    int32,
    int64,
    message,
    string,
    uint64,
)
from yarn_accel.adapters.hadoop_rpc.records import (
    ApplicationId,
    ApplicationReport,
    ApplicationState,
    ContainerId,
    ContainerStatus,
    FinalStatus,
    LaunchContext,
    NodeAttribute,
    NodeId,
    NodeReport,
    NodeState,
    NodeToken,
    Priority,
    ResourceRequest,
    ResourceType,
    YarnContainer,
    YarnResource,
)
from yarn_accel.adapters.hadoop_rpc.tokens import Token


class MasterCommand(IntEnum):
    """An order of the ResourceManager to an application master; absent nearly always."""

    RESYNC = 1
    SHUTDOWN = 2


class AttributeOperation(IntEnum):
    """How node attributes change: all of a node replaced, or some added, or some removed."""

    REPLACE = 1
    ADD = 2
    REMOVE = 3


# ---- the client's protocol


@dataclass(frozen=True, slots=True)
class GetNewApplicationRequest:
    """Ask for an application id."""


@dataclass(frozen=True, slots=True)
class GetNewApplicationResponse:
    """An id and the largest container there is."""

    application: ApplicationId = message(1, ApplicationId, required=True, name="application_id")
    maximum: YarnResource | None = message(2, YarnResource, name="maximumCapability")


@dataclass(frozen=True, slots=True)
class ApplicationSubmission:
    """Everything about a new application.

    Attributes:
        max_attempts: how often its master may run; 0 means the cluster's own limit.
        attempt_failures_validity_ms: failures older than that do not count; -1: all count.
        keep_containers: containers of a dead attempt live on and are given to the next.
    """

    application: ApplicationId = message(1, ApplicationId, required=True, name="application_id")
    name: str = string(2, "", name="application_name")
    queue: str = string(3, "default")
    priority: Priority | None = message(4, Priority)
    launch: LaunchContext = message(5, LaunchContext, required=True, name="am_container_spec")
    is_unmanaged: bool | None = boolean(7, name="unmanaged_am")
    max_attempts: int = int32(8, 0, name="maxAppAttempts")
    resource: YarnResource = message(9, YarnResource, required=True)
    type: str = string(10, "YARN", name="applicationType")
    keep_containers: bool = boolean(11, False, name="keep_containers_across_application_attempts")
    tags: tuple[str, ...] = string(12, repeated=True, name="applicationTags")
    attempt_failures_validity_ms: int = int64(13, -1, name="attempt_failures_validity_interval")
    label: str | None = string(16, name="node_label_expression")


@dataclass(frozen=True, slots=True)
class SubmitApplicationRequest:
    """Start an application."""

    submission: ApplicationSubmission = message(
        1, ApplicationSubmission, required=True, name="application_submission_context"
    )


@dataclass(frozen=True, slots=True)
class SubmitApplicationResponse:
    """It is known; `GetApplicationReportRequest` tells more."""


@dataclass(frozen=True, slots=True)
class GetApplicationReportRequest:
    """Ask for the report of an application."""

    application: ApplicationId = message(1, ApplicationId, required=True, name="application_id")


@dataclass(frozen=True, slots=True)
class GetApplicationReportResponse:
    """The report."""

    report: ApplicationReport = message(1, ApplicationReport, required=True, name="application_report")


@dataclass(frozen=True, slots=True)
class KillApplicationRequest:
    """End an application."""

    application: ApplicationId = message(1, ApplicationId, required=True, name="application_id")
    diagnostics: str | None = string(2)


@dataclass(frozen=True, slots=True)
class KillApplicationResponse:
    """Whether it is over already; ask again while not."""

    is_completed: bool = boolean(1, False, name="is_kill_completed")


@dataclass(frozen=True, slots=True)
class GetClusterNodesRequest:
    """Ask for nodes in these states; none named: all that are not gone."""

    states: tuple[NodeState, ...] = enum(1, NodeState, repeated=True, name="nodeStates")


@dataclass(frozen=True, slots=True)
class GetClusterNodesResponse:
    """The nodes."""

    reports: tuple[NodeReport, ...] = message(1, NodeReport, repeated=True, name="nodeReports")


@dataclass(frozen=True, slots=True)
class GetClusterNodeAttributesRequest:
    """Ask which attributes nodes have."""


@dataclass(frozen=True, slots=True)
class GetClusterNodeAttributesResponse:
    """They are passed over: that there is an answer is what counts."""


@dataclass(frozen=True, slots=True)
class GetApplicationsRequest:
    """Ask for applications; an empty condition does not restrict."""

    types: tuple[str, ...] = string(1, repeated=True, name="application_types")
    states: tuple[ApplicationState, ...] = enum(2, ApplicationState, repeated=True, name="application_states")
    users: tuple[str, ...] = string(3, repeated=True)
    queues: tuple[str, ...] = string(4, repeated=True)
    tags: tuple[str, ...] = string(10, repeated=True, name="applicationTags")
    name: str | None = string(12)


@dataclass(frozen=True, slots=True)
class GetApplicationsResponse:
    """The applications."""

    reports: tuple[ApplicationReport, ...] = message(1, ApplicationReport, repeated=True, name="applications")


# ---- the application master's protocol


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """Tell the ResourceManager that this attempt's master runs, and where its page is."""

    host: str = string(1, "")
    rpc_port: int = int32(2, -1)
    tracking_url: str = string(3, "")


@dataclass(frozen=True, slots=True)
class RegisterResponse:
    """The limits of the cluster, and the containers and tokens that earlier attempts left."""

    maximum: YarnResource | None = message(1, YarnResource, name="maximumCapability")
    previous_containers: tuple[YarnContainer, ...] = message(
        4, YarnContainer, repeated=True, name="containers_from_previous_attempts"
    )
    queue: str = string(5, "")
    node_tokens: tuple[NodeToken, ...] = message(
        6, NodeToken, repeated=True, name="nm_tokens_from_previous_attempts"
    )
    resource_types: tuple[ResourceType, ...] = message(9, ResourceType, repeated=True)

    def __repr__(self) -> str:
        return f"RegisterResponse(queue={self.queue!r}, {len(self.previous_containers)} previous containers)"


@dataclass(frozen=True, slots=True)
class AllocateRequest:
    """A master's heartbeat: what it asks for and gives back. `response_id` is that of the last answer."""

    ask: tuple[ResourceRequest, ...] = message(1, ResourceRequest, repeated=True)
    release: tuple[ContainerId, ...] = message(2, ContainerId, repeated=True)
    response_id: int = int32(4, 0)
    progress: float = float32(5, 0.0)
    tracking_url: str | None = string(11)


@dataclass(frozen=True, slots=True)
class PreemptionContainer:
    """A container that may be preempted."""

    id: ContainerId = message(1, ContainerId, required=True)


@dataclass(frozen=True, slots=True)
class StrictPreemptionContract:
    """Containers that end soon, whatever is done."""

    containers: tuple[PreemptionContainer, ...] = message(
        1, PreemptionContainer, repeated=True, name="container"
    )


@dataclass(frozen=True, slots=True)
class PreemptionContract:
    """Containers that end soon unless as much is given back otherwise; CapacityScheduler's kind."""

    containers: tuple[PreemptionContainer, ...] = message(
        2, PreemptionContainer, repeated=True, name="container"
    )


@dataclass(frozen=True, slots=True)
class PreemptionMessage:
    """The containers that the ResourceManager is about to take away."""

    strict: StrictPreemptionContract | None = message(1, StrictPreemptionContract, name="strictContract")
    negotiable: PreemptionContract | None = message(2, PreemptionContract, name="contract")

    @property
    def containers(self) -> tuple[ContainerId, ...]:
        """All containers it names."""
        contracts = (self.strict, self.negotiable)
        return tuple(each.id for contract in contracts if contract for each in contract.containers)


@dataclass(frozen=True, slots=True)
class AllocateResponse:
    """The events since the last heartbeat.

    Attributes:
        command: None nearly always. The proto's enum begins with RESYNC, so reading an absent field as its
            default would order a resync at every heartbeat.
    """

    command: MasterCommand | None = enum(1, MasterCommand, name="a_m_command")
    response_id: int = int32(2, 0)
    allocated: tuple[YarnContainer, ...] = message(
        3, YarnContainer, repeated=True, name="allocated_containers"
    )
    completed: tuple[ContainerStatus, ...] = message(
        4, ContainerStatus, repeated=True, name="completed_container_statuses"
    )
    updated_nodes: tuple[NodeReport, ...] = message(6, NodeReport, repeated=True)
    n_nodes: int | None = int32(7, name="num_cluster_nodes")
    preemption: PreemptionMessage | None = message(8, PreemptionMessage, name="preempt")
    node_tokens: tuple[NodeToken, ...] = message(9, NodeToken, repeated=True, name="nm_tokens")
    am_rm_token: Token | None = message(12, Token)
    previous_containers: tuple[YarnContainer, ...] = message(
        17, YarnContainer, repeated=True, name="containers_from_previous_attempts"
    )


@dataclass(frozen=True, slots=True)
class FinishRequest:
    """The application is over."""

    diagnostics: str = string(1, "")
    tracking_url: str = string(2, "")
    final_status: FinalStatus = enum(3, FinalStatus, FinalStatus.SUCCEEDED, name="final_application_status")


@dataclass(frozen=True, slots=True)
class FinishResponse:
    """Whether the ResourceManager has stored the end; ask again while not."""

    is_unregistered: bool = boolean(1, False, name="isUnregistered")


# ---- the NodeManager's protocol


@dataclass(frozen=True, slots=True)
class StartContainerRequest:
    """Start a process in a container that the ResourceManager gave."""

    launch: LaunchContext = message(1, LaunchContext, required=True, name="container_launch_context")
    token: Token = message(2, Token, required=True, name="container_token")


@dataclass(frozen=True, slots=True)
class StartContainersRequest:
    """Start several on one node."""

    requests: tuple[StartContainerRequest, ...] = message(
        1, StartContainerRequest, repeated=True, name="start_container_request"
    )


@dataclass(frozen=True, slots=True)
class SerializedException:
    """A Java exception as data."""

    message: str = string(1, "")
    class_name: str = string(3, "")


@dataclass(frozen=True, slots=True)
class ContainerException:
    """The reason why one container was not started, stopped or found."""

    id: ContainerId = message(1, ContainerId, required=True, name="container_id")
    exception: SerializedException | None = message(2, SerializedException)


@dataclass(frozen=True, slots=True)
class StartContainersResponse:
    """Which were started."""

    succeeded: tuple[ContainerId, ...] = message(2, ContainerId, repeated=True, name="succeeded_requests")
    failed: tuple[ContainerException, ...] = message(
        3, ContainerException, repeated=True, name="failed_requests"
    )


@dataclass(frozen=True, slots=True)
class StopContainersRequest:
    """Stop several on one node."""

    ids: tuple[ContainerId, ...] = message(1, ContainerId, repeated=True, name="container_id")


@dataclass(frozen=True, slots=True)
class StopContainersResponse:
    """Which were stopped."""

    succeeded: tuple[ContainerId, ...] = message(1, ContainerId, repeated=True, name="succeeded_requests")
    failed: tuple[ContainerException, ...] = message(
        2, ContainerException, repeated=True, name="failed_requests"
    )


@dataclass(frozen=True, slots=True)
class GetContainerStatusesRequest:
    """Ask for the states of several on one node."""

    ids: tuple[ContainerId, ...] = message(1, ContainerId, repeated=True, name="container_id")


@dataclass(frozen=True, slots=True)
class GetContainerStatusesResponse:
    """The states of containers."""

    statuses: tuple[ContainerStatus, ...] = message(1, ContainerStatus, repeated=True, name="status")
    failed: tuple[ContainerException, ...] = message(
        2, ContainerException, repeated=True, name="failed_requests"
    )


# ---- the operator's protocol


@dataclass(frozen=True, slots=True)
class ResourceOption:
    """A node's new resource, and how long containers that no longer fit may stay: -1 for ever, else ms."""

    resource: YarnResource = message(1, YarnResource, required=True)
    over_commit_timeout_ms: int = int32(2, -1, name="over_commit_timeout")


@dataclass(frozen=True, slots=True)
class NodeResource:
    """Which node gets which resource."""

    node: NodeId = message(1, NodeId, required=True, name="node_id")
    option: ResourceOption = message(2, ResourceOption, required=True, name="resource_option")


@dataclass(frozen=True, slots=True)
class UpdateNodeResourceRequest:
    """Set what nodes offer: whole vectors, a type that is not named becomes 0."""

    nodes: tuple[NodeResource, ...] = message(1, NodeResource, repeated=True, name="node_resource_map")


@dataclass(frozen=True, slots=True)
class UpdateNodeResourceResponse:
    """Done."""


@dataclass(frozen=True, slots=True)
class NodeAttributes:
    """Attributes of one host (without its port)."""

    host: str = string(1, "", name="node")
    attributes: tuple[NodeAttribute, ...] = message(2, NodeAttribute, repeated=True, name="nodeAttributes")


@dataclass(frozen=True, slots=True)
class MapAttributesRequest:
    """Change attributes of nodes."""

    operation: AttributeOperation = enum(1, AttributeOperation, AttributeOperation.REPLACE)
    nodes: tuple[NodeAttributes, ...] = message(2, NodeAttributes, repeated=True, name="nodeToAttributes")
    fail_on_unknown_nodes: bool = boolean(3, False, name="failOnUnknownNodes")


@dataclass(frozen=True, slots=True)
class MapAttributesResponse:
    """Done."""


@dataclass(frozen=True, slots=True)
class GetDelegationTokenRequest:
    """Ask for a token that acts for the caller, renewed by a service that is named."""

    renewer: str = string(1, "", required=True)


@dataclass(frozen=True, slots=True)
class GetDelegationTokenResponse:
    """The token, its service empty; none where the server has no Kerberos."""

    token: Token | None = message(1, Token)


@dataclass(frozen=True, slots=True)
class CancelDelegationTokenRequest:
    """End a token before its time."""

    token: Token = message(1, Token, required=True)


@dataclass(frozen=True, slots=True)
class CancelDelegationTokenResponse:
    """No login takes it any more."""


@dataclass(frozen=True, slots=True)
class RenewDelegationTokenRequest:
    """Prolong a token, as the renewer that it names."""

    token: Token = message(1, Token, required=True)


@dataclass(frozen=True, slots=True)
class RenewDelegationTokenResponse:
    """When the token now ends, unless it is prolonged again; milliseconds since the epoch."""

    expires_ms: int = uint64(1, 0, required=True, name="newExpiryTime")


@dataclass(frozen=True, slots=True)
class GetFileInfoRequest:
    """Ask the active NameNode for a file."""

    path: str = string(1, "", required=True, name="src")


@dataclass(frozen=True, slots=True)
class GetFileInfoResponse:
    """The caller may look there; nobody needs the file's status here."""


APPLICATION_CLIENT = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
APPLICATION_MASTER = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB"
CONTAINER_MANAGEMENT = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB"
ADMINISTRATION = "org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocolPB"
NAMENODE_CLIENT = "org.apache.hadoop.hdfs.protocol.ClientProtocol"
_RM_PRINCIPAL = "yarn.resourcemanager.principal"
#: Protocol that takes Kerberos logins -> the configuration's key for the principal of its servers.
SERVER_PRINCIPALS: Mapping[str, str] = {
    APPLICATION_CLIENT: _RM_PRINCIPAL,
    ADMINISTRATION: _RM_PRINCIPAL,
    NAMENODE_CLIENT: "dfs.namenode.kerberos.principal",
}
Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """One remote method; `Q` is the class of its request and `A` of its answer."""

    protocol: str
    name: str
    request: type[Q]
    answer: type[A]
    is_repeatable: bool = True


GET_NEW_APPLICATION = Method(
    APPLICATION_CLIENT, "getNewApplication", GetNewApplicationRequest, GetNewApplicationResponse
)
SUBMIT_APPLICATION = Method(
    APPLICATION_CLIENT, "submitApplication", SubmitApplicationRequest, SubmitApplicationResponse
)  # a known application id is not submitted twice
GET_APPLICATION_REPORT = Method(
    APPLICATION_CLIENT, "getApplicationReport", GetApplicationReportRequest, GetApplicationReportResponse
)
KILL_APPLICATION = Method(
    APPLICATION_CLIENT, "forceKillApplication", KillApplicationRequest, KillApplicationResponse
)
GET_CLUSTER_NODES = Method(
    APPLICATION_CLIENT, "getClusterNodes", GetClusterNodesRequest, GetClusterNodesResponse
)
GET_CLUSTER_NODE_ATTRIBUTES = Method(
    APPLICATION_CLIENT,
    "getClusterNodeAttributes",
    GetClusterNodeAttributesRequest,
    GetClusterNodeAttributesResponse,
)
GET_APPLICATIONS = Method(
    APPLICATION_CLIENT, "getApplications", GetApplicationsRequest, GetApplicationsResponse
)
GET_RM_DELEGATION_TOKEN = Method(
    APPLICATION_CLIENT, "getDelegationToken", GetDelegationTokenRequest, GetDelegationTokenResponse
)
GET_HDFS_DELEGATION_TOKEN = Method(
    NAMENODE_CLIENT, "getDelegationToken", GetDelegationTokenRequest, GetDelegationTokenResponse
)
GET_FILE_INFO = Method(NAMENODE_CLIENT, "getFileInfo", GetFileInfoRequest, GetFileInfoResponse)
CANCEL_RM_DELEGATION_TOKEN = Method(
    APPLICATION_CLIENT, "cancelDelegationToken", CancelDelegationTokenRequest, CancelDelegationTokenResponse
)
CANCEL_HDFS_DELEGATION_TOKEN = Method(
    NAMENODE_CLIENT, "cancelDelegationToken", CancelDelegationTokenRequest, CancelDelegationTokenResponse
)
RENEW_RM_DELEGATION_TOKEN = Method(
    APPLICATION_CLIENT, "renewDelegationToken", RenewDelegationTokenRequest, RenewDelegationTokenResponse
)
RENEW_HDFS_DELEGATION_TOKEN = Method(
    NAMENODE_CLIENT, "renewDelegationToken", RenewDelegationTokenRequest, RenewDelegationTokenResponse
)
REGISTER = Method(
    APPLICATION_MASTER, "registerApplicationMaster", RegisterRequest, RegisterResponse
)  # the second time is refused, which says that the first was carried out
ALLOCATE = Method(APPLICATION_MASTER, "allocate", AllocateRequest, AllocateResponse)
FINISH = Method(
    APPLICATION_MASTER, "finishApplicationMaster", FinishRequest, FinishResponse
)  # it is asked repeatedly anyway, until the end is stored
START_CONTAINERS = Method(
    CONTAINER_MANAGEMENT, "startContainers", StartContainersRequest, StartContainersResponse, False
)
STOP_CONTAINERS = Method(
    CONTAINER_MANAGEMENT, "stopContainers", StopContainersRequest, StopContainersResponse
)
GET_CONTAINER_STATUSES = Method(
    CONTAINER_MANAGEMENT, "getContainerStatuses", GetContainerStatusesRequest, GetContainerStatusesResponse
)
UPDATE_NODE_RESOURCE = Method(
    ADMINISTRATION, "updateNodeResource", UpdateNodeResourceRequest, UpdateNodeResourceResponse
)
MAP_ATTRIBUTES = Method(ADMINISTRATION, "mapAttributesToNodes", MapAttributesRequest, MapAttributesResponse)
