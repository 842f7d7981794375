"""Every method this package calls: of which protocol, with which messages, and whether it may be repeated.

*Repeatable* means that carrying it out twice does no harm, so it may be sent again when a connection broke
before the answer came.  ``allocate`` is repeatable because a heartbeat with the number of the one before gets
the same answer again; starting a container is not, because the second time is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from yarn_accel.adapters.hadoop_rpc import service_messages as messages

APPLICATION_CLIENT = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
APPLICATION_MASTER = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB"
CONTAINER_MANAGEMENT = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB"
ADMINISTRATION = "org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocolPB"

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """One remote method; `Q` is the class of its request and `A` of its answer."""

    protocol: str
    name: str
    request: type[Q]
    answer: type[A]
    is_repeatable: bool


GET_NEW_APPLICATION = Method(
    APPLICATION_CLIENT,
    "getNewApplication",
    messages.GetNewApplicationRequest,
    messages.GetNewApplicationResponse,
    True,
)
SUBMIT_APPLICATION = Method(
    APPLICATION_CLIENT,
    "submitApplication",
    messages.SubmitApplicationRequest,
    messages.SubmitApplicationResponse,
    True,  # a known application id is not submitted twice
)
GET_APPLICATION_REPORT = Method(
    APPLICATION_CLIENT,
    "getApplicationReport",
    messages.GetApplicationReportRequest,
    messages.GetApplicationReportResponse,
    True,
)
KILL_APPLICATION = Method(
    APPLICATION_CLIENT,
    "forceKillApplication",
    messages.KillApplicationRequest,
    messages.KillApplicationResponse,
    True,
)
GET_CLUSTER_NODES = Method(
    APPLICATION_CLIENT,
    "getClusterNodes",
    messages.GetClusterNodesRequest,
    messages.GetClusterNodesResponse,
    True,
)
GET_APPLICATIONS = Method(
    APPLICATION_CLIENT,
    "getApplications",
    messages.GetApplicationsRequest,
    messages.GetApplicationsResponse,
    True,
)
REGISTER = Method(
    APPLICATION_MASTER,
    "registerApplicationMaster",
    messages.RegisterRequest,
    messages.RegisterResponse,
    True,  # the second time is refused, which says that the first was carried out
)
ALLOCATE = Method(APPLICATION_MASTER, "allocate", messages.AllocateRequest, messages.AllocateResponse, True)
FINISH = Method(
    APPLICATION_MASTER,
    "finishApplicationMaster",
    messages.FinishRequest,
    messages.FinishResponse,
    True,  # it is asked repeatedly anyway, until the end is stored
)
START_CONTAINERS = Method(
    CONTAINER_MANAGEMENT,
    "startContainers",
    messages.StartContainersRequest,
    messages.StartContainersResponse,
    False,
)
STOP_CONTAINERS = Method(
    CONTAINER_MANAGEMENT,
    "stopContainers",
    messages.StopContainersRequest,
    messages.StopContainersResponse,
    True,
)
GET_CONTAINER_STATUSES = Method(
    CONTAINER_MANAGEMENT,
    "getContainerStatuses",
    messages.GetContainerStatusesRequest,
    messages.GetContainerStatusesResponse,
    True,
)
UPDATE_NODE_RESOURCE = Method(
    ADMINISTRATION,
    "updateNodeResource",
    messages.UpdateNodeResourceRequest,
    messages.UpdateNodeResourceResponse,
    True,
)
MAP_ATTRIBUTES = Method(
    ADMINISTRATION,
    "mapAttributesToNodes",
    messages.MapAttributesRequest,
    messages.MapAttributesResponse,
    True,
)
ALL_METHODS: tuple[Method[Any, Any], ...] = (
    GET_NEW_APPLICATION,
    SUBMIT_APPLICATION,
    GET_APPLICATION_REPORT,
    KILL_APPLICATION,
    GET_CLUSTER_NODES,
    GET_APPLICATIONS,
    REGISTER,
    ALLOCATE,
    FINISH,
    START_CONTAINERS,
    STOP_CONTAINERS,
    GET_CONTAINER_STATUSES,
    UPDATE_NODE_RESOURCE,
    MAP_ATTRIBUTES,
)
