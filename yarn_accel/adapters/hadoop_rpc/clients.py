"""Hadoop's ResourceManager and NodeManagers, as clients, operators and application masters call them.

`ResourceManagerAddresses` reads from Hadoop's own properties where ResourceManagers answer.  Nothing else
reads the settings of high availability and of ``yarn.http.policy``.  Calls raise the errors of `rpc_errors`,
and take and give the values of `records` and `methods`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from yarn_accel.adapters.hadoop_rpc import methods
from yarn_accel.adapters.hadoop_rpc.framing import Identity
from yarn_accel.adapters.hadoop_rpc.records import (
    ApplicationId,
    ApplicationReport,
    ApplicationState,
    ContainerId,
    FinalStatus,
    LaunchContext,
    NodeAttribute,
    NodeId,
    NodeReport,
    NodeState,
    NodeToken,
    ResourceRequest,
    YarnContainer,
    YarnResource,
)
from yarn_accel.adapters.hadoop_rpc.rpc_errors import AttemptGoneError, NotRegisteredError, RemoteCallError
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.adapters.hadoop_rpc.transport import (
    Address,
    Patience,
    RpcService,
    RpcSettings,
)
from yarn_accel.errors import AuthenticationError, ConfigError, LocalProtocolError, RejectedError

logger = logging.getLogger(__name__)
Q = TypeVar("Q")
A = TypeVar("A")

_PREFIX = "yarn.resourcemanager."
_SERVICES = {
    "client": ("address", 8032),
    "scheduler": ("scheduler.address", 8030),
    "admin": ("admin.address", 8033),
}
_WEB = ("webapp.address", 8088)
_HTTPS_WEB = ("webapp.https.address", 8090)
#: A daemon's own address for "every interface of mine"; a client reaches the ResourceManager by its host.
_ANY = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ResourceManagerAddresses:
    """The services of every ResourceManager of one cluster, the configured order kept.

    Attributes:
        client: submit, report, kill.
        scheduler: for application masters.
        admin: for operators.
        web: pages and REST.
        is_https: the same over TLS alone (``yarn.http.policy``).
    """

    client: tuple[Address, ...]
    scheduler: tuple[Address, ...]
    admin: tuple[Address, ...]
    web: tuple[Address, ...] = ()
    is_https: bool = False

    @staticmethod
    def from_properties(properties: Mapping[str, str]) -> ResourceManagerAddresses:
        """Read ``yarn.resourcemanager.*`` as Hadoop does: ``.address`` of an id wins over ``.hostname``.

        Ids count where ``ha.enabled`` is true. Without any host it is ``localhost``, as Hadoop's default.

        Raises:
            ConfigError: an address cannot be read, or high availability is on without ids or hosts.
        """
        ids = [""]
        if properties.get(f"{_PREFIX}ha.enabled", "false").strip().lower() == "true":
            ids = [
                each.strip() for each in properties.get(f"{_PREFIX}ha.rm-ids", "").split(",") if each.strip()
            ]
            if not ids:
                raise ConfigError(f"{_PREFIX}ha.enabled is true, yet {_PREFIX}ha.rm-ids names none")
        # Hadoop reads any other value as HTTP_ONLY.
        is_https = properties.get("yarn.http.policy", "").strip().upper() == "HTTPS_ONLY"
        keys = {**_SERVICES, "web": _HTTPS_WEB if is_https else _WEB}
        found = {
            service: tuple(_address(properties, key, port, each) for each in ids)
            for service, (key, port) in keys.items()
        }
        return ResourceManagerAddresses(**found, is_https=is_https)


class ResourceManager:
    """The ResourceManager as clients and operators call it, as one user or with a delegation token.

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

    async def new_application(self) -> methods.GetNewApplicationResponse:
        """An id for a new application, and the largest container there is."""
        return await self._client.call(methods.GET_NEW_APPLICATION, methods.GetNewApplicationRequest())

    async def submit(self, submission: methods.ApplicationSubmission) -> None:
        """Start an application whose id `new_application` gave; tags in lower case, as Hadoop's own."""
        submission = replace(submission, tags=tuple(tag.lower() for tag in submission.tags))
        await self._client.call(methods.SUBMIT_APPLICATION, methods.SubmitApplicationRequest(submission))

    async def report(self, application: ApplicationId) -> ApplicationReport:
        """The report of an application."""
        request = methods.GetApplicationReportRequest(application)
        return (await self._client.call(methods.GET_APPLICATION_REPORT, request)).report

    async def kill(self, application: ApplicationId, diagnostics: str = "") -> bool:
        """End an application; whether it is over already (ask again while not)."""
        request = methods.KillApplicationRequest(application, diagnostics or None)
        return (await self._client.call(methods.KILL_APPLICATION, request)).is_completed

    async def nodes(self, states: Sequence[NodeState] = ()) -> tuple[NodeReport, ...]:
        """The nodes in these states; none named: all that are not gone."""
        request = methods.GetClusterNodesRequest(tuple(states))
        return (await self._client.call(methods.GET_CLUSTER_NODES, request)).reports

    async def has_node_attributes(self) -> bool:
        """Whether this YARN knows node attributes: Hadoop does since 3.2, a vendor's 3.1 does not."""
        request = methods.GetClusterNodeAttributesRequest()
        try:
            await self._client.call(methods.GET_CLUSTER_NODE_ATTRIBUTES, request)
        except RemoteCallError as error:
            if not error.exception_class.endswith(".RpcNoSuchMethodException"):
                raise
            return False
        return True

    async def applications(
        self, *, types: Sequence[str] = (), states: Sequence[ApplicationState] = (), tags: Sequence[str] = ()
    ) -> tuple[ApplicationReport, ...]:
        """Applications that meet all conditions; tags in lower case, as `submit` writes them."""
        request = methods.GetApplicationsRequest(
            tuple(types), tuple(states), tags=tuple(tag.lower() for tag in tags)
        )
        return (await self._client.call(methods.GET_APPLICATIONS, request)).reports

    async def update_node_resource(
        self, node: NodeId, resource: YarnResource, over_commit_timeout_ms: int = -1
    ) -> None:
        """Set the whole vector a node offers (operators only); -1: containers that no longer fit stay."""
        option = methods.ResourceOption(resource, over_commit_timeout_ms)
        request = methods.UpdateNodeResourceRequest((methods.NodeResource(node, option),))
        await self._admin.call(methods.UPDATE_NODE_RESOURCE, request)

    async def map_attributes(
        self, operation: methods.AttributeOperation, attributes: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Change ``rm.yarn.io`` attributes: host -> name -> value (operators only)."""
        nodes = tuple(
            methods.NodeAttributes(
                host, tuple(NodeAttribute.of(name, value) for name, value in named.items())
            )
            for host, named in attributes.items()
        )
        await self._admin.call(methods.MAP_ATTRIBUTES, methods.MapAttributesRequest(operation, nodes))

    async def delegation_token(self, renewer: str) -> Token:
        """A token that acts for the caller towards all ResourceManagers; errors as of the NameNode's."""
        request = methods.GetDelegationTokenRequest(renewer)
        return _given((await self._client.call(methods.GET_RM_DELEGATION_TOKEN, request)).token)

    async def cancel_token(self, token: Token) -> None:
        """End a token that `delegation_token` gave."""
        request = methods.CancelDelegationTokenRequest(token)
        await self._client.call(methods.CANCEL_RM_DELEGATION_TOKEN, request)

    async def renew_token(self, token: Token) -> float:
        """Prolong a token that names the caller as its renewer; when it now ends, Unix seconds."""
        request = methods.RenewDelegationTokenRequest(token)
        return (await self._client.call(methods.RENEW_RM_DELEGATION_TOKEN, request)).expires_ms / 1000

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
        await self._admin.close()


class NameNode:
    """The NameNode as `start` and the master call it: for tokens, as one Kerberos principal.

    Args:
        addresses: of the NameNode, or of all of a name service; see `hdfs_service`.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        identity: Identity,
        settings: RpcSettings | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._service = RpcService(addresses, methods.NAMENODE_CLIENT, lambda: identity, settings, patience)

    async def delegation_token(self, renewer: str) -> Token:
        """A token that acts for the caller until its longest life is over.

        Args:
            renewer: the principal that may prolong it.

        Raises:
            AuthenticationError: the NameNode gives none, such as where it has no Kerberos.
            RemoteCallError: it refuses.
        """
        request = methods.GetDelegationTokenRequest(renewer)
        return _given((await self._service.call(methods.GET_HDFS_DELEGATION_TOKEN, request)).token)

    async def cancel_token(self, token: Token) -> None:
        """End a token that `delegation_token` gave."""
        request = methods.CancelDelegationTokenRequest(token)
        await self._service.call(methods.CANCEL_HDFS_DELEGATION_TOKEN, request)

    async def renew_token(self, token: Token) -> float:
        """Prolong a token that names the caller as its renewer; when it now ends, Unix seconds."""
        request = methods.RenewDelegationTokenRequest(token)
        return (await self._service.call(methods.RENEW_HDFS_DELEGATION_TOKEN, request)).expires_ms / 1000

    async def close(self) -> None:
        """Close the connection."""
        await self._service.close()


def _given(token: Token | None) -> Token:
    if token is None:
        raise AuthenticationError("no delegation token is given: the server has no Kerberos")
    return token


@dataclass(frozen=True, slots=True)
class HdfsService:
    """Where one HDFS answers, and what a token for it is called.

    Attributes:
        name: the text that a token's `service` has, unless it is an address; ``ha-hdfs:NAME``, or empty.
        addresses: of its NameNodes.
    """

    name: str
    addresses: tuple[Address, ...]


_NAMENODE_PORT = 8020


def hdfs_service(properties: Mapping[str, str], uri: str) -> HdfsService:
    """The NameNodes of an HDFS, by a URI such as ``fs.defaultFS``.

    Raises:
        ConfigError: it is no ``hdfs`` URI, or a name service without addresses.
    """
    scheme, _, rest = uri.partition("://")
    authority = rest.partition("/")[0]
    if scheme != "hdfs" or not authority:
        raise ConfigError(f"{uri[:200]!r} is no hdfs URI with a NameNode or a name service")
    ids = [each.strip() for each in properties.get(f"dfs.ha.namenodes.{authority}", "").split(",")]
    if not any(ids):
        # One of several name services with a single NameNode each, or the NameNode itself.
        alone = properties.get(f"dfs.namenode.rpc-address.{authority}", "")
        return HdfsService("", (Address.parse(alone or authority, _NAMENODE_PORT),))
    keys = [f"dfs.namenode.rpc-address.{authority}.{each}" for each in ids if each]
    missing = [key for key in keys if not properties.get(key)]
    if missing:
        raise ConfigError(f"{missing[0]} is not set, and dfs.ha.namenodes.{authority} names it")
    return HdfsService(
        f"ha-hdfs:{authority}", tuple(Address.parse(properties[key], _NAMENODE_PORT) for key in keys)
    )


class ApplicationMaster:
    """The ResourceManager as the master of one attempt calls it; one heartbeat at a time.

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
        self._unanswered: methods.AllocateRequest | None = None
        self._untold: methods.AllocateResponse | None = None

    @property
    def token(self) -> Token:
        """The token that the next connection will log in with."""
        return self._token

    async def register(self, host: str, rpc_port: int, tracking_url: str) -> methods.RegisterResponse:
        """Say that the master runs; again after `NotRegisteredError`.  Heartbeats count from 0 again.

        Raises:
            AlreadyRegisteredError: an earlier call was carried out, and its answer was lost.
            UnavailableError: nobody answered in time; call again.
        """
        response = await self._service.call(
            methods.REGISTER, methods.RegisterRequest(host, rpc_port, tracking_url)
        )
        self._response_id = 0
        self._unanswered = self._untold = None
        return response

    async def allocate(
        self,
        ask: Sequence[ResourceRequest] = (),
        release: Sequence[ContainerId] = (),
        progress: float = 0.0,
    ) -> methods.AllocateResponse:
        """One heartbeat.

        Raises:
            NotRegisteredError: the ResourceManager was restarted: register, then send all asks again.
            AttemptGoneError: the attempt is over.
            UnavailableError: nobody answered in time; nothing is lost, call again.
        """
        if self._unanswered is not None:
            self._untold = _together(self._untold, await self._heartbeat(self._unanswered))
        request = methods.AllocateRequest(tuple(ask), tuple(release), self._response_id, progress)
        response = _together(self._untold, await self._heartbeat(request))
        self._untold = None
        return response

    async def finish(self, status: FinalStatus, diagnostics: str = "", tracking_url: str = "") -> bool:
        """Say that the application is over; whether that is stored already (ask again while not)."""
        request = methods.FinishRequest(diagnostics, tracking_url, status)
        return (await self._service.call(methods.FINISH, request)).is_unregistered

    async def close(self) -> None:
        """Close the connection."""
        await self._service.close()

    async def _heartbeat(self, request: methods.AllocateRequest) -> methods.AllocateResponse:
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
        if response.command is methods.MasterCommand.RESYNC:
            raise NotRegisteredError("", f"{address} orders to register again")
        if response.command is methods.MasterCommand.SHUTDOWN:
            raise AttemptGoneError("", f"{address} orders to end")
        return response


def _together(
    earlier: methods.AllocateResponse | None, later: methods.AllocateResponse
) -> methods.AllocateResponse:
    """Two answers as one: the events of both, the state of the later."""
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


class NodeManager:
    """All NodeManagers as one master calls them; the tokens of nodes come with containers.

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
        self._patience = Patience(total_s=3.0) if patience is None else patience
        self._max_idle = max_idle
        self._tokens: dict[NodeId, Token] = {}
        self._services: OrderedDict[NodeId, RpcService] = OrderedDict()
        self._n_calls: dict[NodeId, int] = {}

    def learn(self, tokens: Sequence[NodeToken]) -> None:
        """Take tokens for nodes; a newer one replaces the older and is used from the next connection on."""
        self._tokens.update((each.node, each.token) for each in tokens)

    async def start(
        self, node: NodeId, launches: Sequence[tuple[YarnContainer, LaunchContext]]
    ) -> methods.StartContainersResponse:
        """Start processes in containers of one node; never repeated by itself.

        Raises:
            AuthenticationError: a container has no token, or there is none for the node.
            ConnectionLostError: with `was_sent`: `statuses` tells whether they run.
        """
        requests = []
        for container, launch in launches:
            if container.token is None:
                raise AuthenticationError(f"{container.id} came without a token")
            requests.append(methods.StartContainerRequest(launch, container.token))
        return await self._call(
            node, methods.START_CONTAINERS, methods.StartContainersRequest(tuple(requests))
        )

    async def stop(self, node: NodeId, ids: Sequence[ContainerId]) -> methods.StopContainersResponse:
        """Stop containers of one node; errors as in `start`."""
        return await self._call(node, methods.STOP_CONTAINERS, methods.StopContainersRequest(tuple(ids)))

    async def statuses(
        self, node: NodeId, ids: Sequence[ContainerId]
    ) -> methods.GetContainerStatusesResponse:
        """The states of containers of one node; errors as in `start`."""
        request = methods.GetContainerStatusesRequest(tuple(ids))
        return await self._call(node, methods.GET_CONTAINER_STATUSES, request)

    async def close(self) -> None:
        """Close all connections."""
        services = list(self._services.values())
        self._services.clear()
        for service in services:
            await service.close()

    async def _call(self, node: NodeId, method: methods.Method[Q, A], request: Q) -> A:
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


def _address(properties: Mapping[str, str], key: str, port: int, rm_id: str) -> Address:
    suffix = f".{rm_id}" if rm_id else ""
    host = properties.get(f"{_PREFIX}hostname{suffix}", "" if rm_id else "localhost").strip()
    if host in _ANY:
        host = "localhost"
    written = properties.get(f"{_PREFIX}{key}{suffix}", "").strip()
    if "${" in written:  # the default is written with the host's key as a variable
        written = written.replace("${yarn.resourcemanager.hostname}", host)
    if not written and not host:
        raise ConfigError(f"{_PREFIX}{key}{suffix} and {_PREFIX}hostname{suffix} are not set")
    try:
        found = Address.parse(written or host, port)
    except ConfigError as error:
        raise ConfigError(f"{_PREFIX}{key if written else 'hostname'}{suffix}: {error.message}") from None
    return Address(host or "localhost", found.port) if found.host in _ANY else found
