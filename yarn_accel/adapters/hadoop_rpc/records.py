"""YARN's records: names, resources, containers, nodes, launch contexts, application reports.

Each class is both a message (`protobuf`) and a value.  Memory is in MiB, as on the wire.

The names of applications, attempts and containers are also the text that Hadoop prints.  A container's number
carries the *epoch* of the ResourceManager (how often it was restarted) above bit 40; the text shows it as
``e02`` where it is not zero: ``container_e02_1763700000000_0001_01_000003``.
"""

# ruff: noqa: RUF009 - `enum` and `message` declare fields, as dataclasses.field does
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from yarn_accel.adapters.hadoop_rpc.protobuf import (
    binary,
    boolean,
    enum,
    float32,
    int32,
    int64,
    message,
    string,
)
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import ConfigError, StorageError
from yarn_accel.uris import split_authority, split_uri

_EPOCH_SHIFT = 40
_APPLICATION = re.compile(r"application_(\d{1,19})_(\d{1,10})", re.ASCII)
_ATTEMPT = re.compile(r"appattempt_(\d{1,19})_(\d{1,10})_(\d{1,10})", re.ASCII)
_CONTAINER = re.compile(r"container_(?:e(\d{1,7})_)?(\d{1,19})_(\d{1,10})_(\d{1,10})_(\d{1,13})", re.ASCII)
_MAX_INT32, _MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True, slots=True, order=True)
class ApplicationId:
    """One application of one life of a cluster: ``application_1763700000000_0001``.

    Attributes:
        cluster_timestamp: when the ResourceManager first started, in milliseconds.
        number: counted from 1.
    """

    cluster_timestamp: int = int64(2, 0, required=True)
    number: int = int32(1, 0, required=True, name="id")

    def __str__(self) -> str:
        return f"application_{self.cluster_timestamp}_{self.number:04d}"

    @staticmethod
    def parse(text: str) -> ApplicationId:
        """Read what `str` writes.

        Raises:
            ConfigError: something else.
        """
        timestamp, number = _numbers(_APPLICATION, text, "application id")
        return ApplicationId(timestamp, number)


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One run of an application's master: ``appattempt_1763700000000_0001_000002``."""

    application: ApplicationId = message(1, ApplicationId, required=True, name="application_id")
    number: int = int32(2, 0, required=True, name="attemptId")

    def __str__(self) -> str:
        application = self.application
        return f"appattempt_{application.cluster_timestamp}_{application.number:04d}_{self.number:06d}"

    @staticmethod
    def parse(text: str) -> AttemptId:
        """Read what `str` writes.

        Raises:
            ConfigError: something else.
        """
        timestamp, application, number = _numbers(_ATTEMPT, text, "attempt id")
        return AttemptId(ApplicationId(timestamp, application), number)


@dataclass(frozen=True, slots=True, order=True)
class ContainerId:
    """One container; `number` holds the epoch above bit 40."""

    attempt: AttemptId = message(2, AttemptId, required=True, name="app_attempt_id")
    number: int = int64(3, 0, required=True, name="id")

    @property
    def epoch(self) -> int:
        """How often the ResourceManager had been restarted when it gave this container."""
        return self.number >> _EPOCH_SHIFT

    def __str__(self) -> str:
        application = self.attempt.application
        epoch = f"e{self.epoch:02d}_" if self.epoch > 0 else ""
        number = self.number & ((1 << _EPOCH_SHIFT) - 1)
        return (
            f"container_{epoch}{application.cluster_timestamp}_{application.number:04d}"
            f"_{self.attempt.number:02d}_{number:06d}"
        )

    @staticmethod
    def parse(text: str) -> ContainerId:
        """Read what `str` writes, and what CONTAINER_ID in a container's environment says.

        Raises:
            ConfigError: something else.
        """
        epoch, timestamp, application, attempt, number = _numbers(_CONTAINER, text, "container id")
        number |= epoch << _EPOCH_SHIFT
        if number > _MAX_INT64:
            raise ConfigError(f"{text[:80]!r} is no container id")
        return ContainerId(AttemptId(ApplicationId(timestamp, application), attempt), number)


@dataclass(frozen=True, slots=True, order=True)
class NodeId:
    """A NodeManager: the name it registered with and its RPC port."""

    host: str = string(1, "", required=True)
    port: int = int32(2, 0, required=True)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _numbers(form: re.Pattern[str], text: str, what: str) -> list[int]:
    found = form.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text[:80]!r} is no {what}")
    numbers = [int(group or 0) for group in found.groups()]
    timestamps, counts = numbers[-len(numbers) : 2], numbers[2:4]
    if max(timestamps) > _MAX_INT64 or max(counts, default=0) > _MAX_INT32:
        raise ConfigError(f"{text[:80]!r} is no {what}")
    return numbers


ANY_HOST = "*"
_MEMORY, _VCORES = "memory-mb", "vcores"


class ResourceTypeKind(IntEnum):
    """The kinds of resources."""

    COUNTABLE = 0


class ContainerState(IntEnum):
    """The state of a container, as its NodeManager sees it."""

    NEW = 1
    RUNNING = 2
    COMPLETE = 3


class ApplicationState(IntEnum):
    """The state of an application, as the ResourceManager sees it."""

    NEW = 1
    NEW_SAVING = 2
    SUBMITTED = 3
    ACCEPTED = 4
    RUNNING = 5
    FINISHED = 6
    FAILED = 7
    KILLED = 8

    @property
    def is_final(self) -> bool:
        """Nothing follows."""
        return self >= ApplicationState.FINISHED


class FinalStatus(IntEnum):
    """The outcome that an application reports of itself."""

    UNDEFINED = 0
    SUCCEEDED = 1
    FAILED = 2
    KILLED = 3
    ENDED = 4


class NodeState(IntEnum):
    """The state of a NodeManager, as the ResourceManager sees it."""

    NEW = 1
    RUNNING = 2
    UNHEALTHY = 3
    DECOMMISSIONED = 4
    LOST = 5
    REBOOTED = 6
    DECOMMISSIONING = 7
    SHUTDOWN = 8

    @property
    def is_usable(self) -> bool:
        """New containers may start there."""
        return self in (NodeState.NEW, NodeState.RUNNING)


class LocalResourceType(IntEnum):
    """How a NodeManager prepares a file before the container starts."""

    ARCHIVE = 1
    FILE = 2
    PATTERN = 3


class LocalResourceVisibility(IntEnum):
    """Who shares the copy on a node."""

    PUBLIC = 1
    PRIVATE = 2
    APPLICATION = 3


class RetryPolicy(IntEnum):
    """When a NodeManager starts a container's process again by itself.

    It never does after exit codes 137 and 143 (killed), so an out-of-memory kill always reaches the master.
    """

    NEVER_RETRY = 0
    RETRY_ON_ALL_ERRORS = 1
    RETRY_ON_SPECIFIC_ERROR_CODES = 2


class NodeAttributeType(IntEnum):
    """The type of a node attribute's value."""

    STRING = 1


class ExitStatus(IntEnum):
    """Exit statuses of containers that are not their process's exit code."""

    INVALID = -1000
    ABORTED = -100
    DISKS_FAILED = -101
    PREEMPTED = -102
    KILLED_EXCEEDED_VMEM = -103
    KILLED_EXCEEDED_PMEM = -104
    KILLED_BY_APPMASTER = -105
    KILLED_BY_RESOURCEMANAGER = -106
    KILLED_AFTER_APP_COMPLETION = -107
    KILLED_BY_CONTAINER_SCHEDULER = -108
    KILLED_FOR_EXCESS_LOGS = -109


# ---- resources


@dataclass(frozen=True, slots=True)
class NamedText:
    """A text by its name."""

    key: str = string(1, "")
    value: str = string(2, "")


@dataclass(frozen=True, slots=True)
class ResourceAmount:
    """An amount of one resource, in the resource's configured units unless it names others."""

    key: str = string(1, "", required=True)
    value: int = int64(2, 0)
    units: str | None = string(3)
    kind: ResourceTypeKind | None = enum(4, ResourceTypeKind, name="type")


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A resource that a cluster counts."""

    name: str = string(1, "", required=True)
    units: str | None = string(2)
    kind: ResourceTypeKind | None = enum(3, ResourceTypeKind, name="type")


@dataclass(frozen=True, slots=True)
class YarnResource:
    """An amount of every resource a cluster counts.

    Attributes:
        memory_mib: memory.
        vcores: virtual cores.
        amounts: entries by name; servers repeat memory and cores there.
    """

    memory_mib: int = int64(1, 0, name="memory")
    vcores: int = int32(2, 0, name="virtual_cores")
    amounts: tuple[ResourceAmount, ...] = message(3, ResourceAmount, repeated=True, name="resource_value_map")

    @staticmethod
    def of(memory_mib: int, vcores: int, other: Mapping[str, int] | None = None) -> YarnResource:
        """A resource from numbers; `other` names the custom types."""
        entries = (ResourceAmount(name, amount) for name, amount in sorted((other or {}).items()))
        return YarnResource(memory_mib, vcores, tuple(entries))

    @property
    def other(self) -> dict[str, int]:
        """The custom types: everything but memory and cores."""
        return {each.key: each.value for each in self.amounts if each.key not in (_MEMORY, _VCORES)}

    def with_amount(self, name: str, amount: int) -> YarnResource:
        """The same with one custom type changed, and nothing else: units and order stay."""
        if name not in {each.key for each in self.amounts}:
            return replace(self, amounts=(*self.amounts, ResourceAmount(name, amount)))
        entries = (replace(each, value=amount) if each.key == name else each for each in self.amounts)
        return replace(self, amounts=tuple(entries))


@dataclass(frozen=True, slots=True)
class Priority:
    """Smaller is more urgent."""

    value: int = int32(1, 0, name="priority")


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """A request for containers of one size, at one priority, in one place (`ANY_HOST`, a rack or a host).

    The number is absolute: a new request of the same priority, place, size and `allocation_request_id`
    replaces the earlier one; 0 takes it back.
    """

    priority: Priority = message(1, Priority, required=True)
    place: str = string(2, ANY_HOST, name="resource_name")
    capability: YarnResource = message(3, YarnResource, required=True)
    n_containers: int = int32(4, 0, name="num_containers")
    relax_locality: bool = boolean(5, True)
    label: str | None = string(6, name="node_label_expression")
    allocation_request_id: int | None = int64(8)


def pinned(
    host: str,
    rack: str,
    priority: int,
    capability: YarnResource,
    n_containers: int = 1,
    *,
    allocation_request_id: int | None = None,
    label: str | None = None,
) -> tuple[ResourceRequest, ...]:
    """The three requests that mean "on this host and nowhere else".

    Rack and any must be there, for the scheduler counts on every level, and are closed to it by
    `relax_locality` False. Give `n_containers` 0 to take them back.

    Args:
        label: of the host's partition; empty: the host is in none; None: the application's own label. Hadoop
            takes it at `ANY_HOST` alone.
    """
    places = ((host, True, None), (rack, False, None), (ANY_HOST, False, label))
    return tuple(
        ResourceRequest(
            Priority(priority), place, capability, n_containers, relax, of_place, allocation_request_id
        )
        for place, relax, of_place in places
    )


# ---- containers and nodes


@dataclass(frozen=True, slots=True)
class YarnContainer:
    """A container that the ResourceManager gave; `token` proves it to the NodeManager."""

    id: ContainerId = message(1, ContainerId, required=True)
    node: NodeId = message(2, NodeId, required=True, name="nodeId")
    resource: YarnResource | None = message(4, YarnResource)
    priority: Priority | None = message(5, Priority)
    token: Token | None = message(6, Token, name="container_token")
    allocation_request_id: int = int64(8, -1)


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The state of a container, or its end (negative values: see `ExitStatus`)."""

    id: ContainerId = message(1, ContainerId, required=True, name="container_id")
    state: ContainerState | None = enum(2, ContainerState)
    diagnostics: str = string(3, "")
    exit_status: int = int32(4, ExitStatus.INVALID.value)
    capability: YarnResource | None = message(5, YarnResource)
    attributes: tuple[NamedText, ...] = message(7, NamedText, repeated=True, name="container_attributes")


@dataclass(frozen=True, slots=True)
class NodeToken:
    """The token for one NodeManager."""

    node: NodeId = message(1, NodeId, required=True, name="nodeId")
    token: Token = message(2, Token, required=True)


@dataclass(frozen=True, slots=True)
class NodeAttributeKey:
    """Name of a node attribute; ``rm.yarn.io`` are those that operators set."""

    prefix: str = string(1, "rm.yarn.io", name="attributePrefix")
    name: str = string(2, "", required=True, name="attributeName")


@dataclass(frozen=True, slots=True)
class NodeAttribute:
    """A fact about a node, as text."""

    key: NodeAttributeKey = message(1, NodeAttributeKey, required=True, name="attributeKey")
    kind: NodeAttributeType | None = enum(
        2, NodeAttributeType, NodeAttributeType.STRING, name="attributeType"
    )
    value: str | None = string(3, name="attributeValue")

    @staticmethod
    def of(name: str, value: str = "", prefix: str = "rm.yarn.io") -> NodeAttribute:
        """An attribute from its name and value; for a removal the value does not matter."""
        return NodeAttribute(NodeAttributeKey(prefix, name), NodeAttributeType.STRING, value)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node as the ResourceManager sees it."""

    node: NodeId = message(1, NodeId, required=True, name="nodeId")
    http: str | None = string(2, name="httpAddress")
    rack: str = string(3, "", name="rackName")
    used: YarnResource | None = message(4, YarnResource)
    capability: YarnResource | None = message(5, YarnResource)
    n_containers: int = int32(6, 0, name="numContainers")
    state: NodeState | None = enum(7, NodeState, name="node_state")
    labels: tuple[str, ...] = string(10, repeated=True, name="node_labels")
    attributes: tuple[NodeAttribute, ...] = message(15, NodeAttribute, repeated=True, name="node_attributes")

    @property
    def is_usable(self) -> bool:
        """New containers may start there."""
        return self.state is not None and self.state.is_usable


# ---- what to launch


@dataclass(frozen=True, slots=True)
class Url:
    """A URI in parts."""

    scheme: str | None = string(1)
    host: str | None = string(2)
    port: int | None = int32(3)
    file: str | None = string(4)
    user: str | None = string(5, name="userInfo")

    @staticmethod
    def of(uri: str) -> Url:
        """Take a URI with a scheme apart.

        Raises:
            ConfigError: it is none that nodes could fetch.
        """
        try:
            scheme, authority, path = split_uri(uri)
        except StorageError as error:
            raise ConfigError(error.message, cure=error.cure) from None
        host, port = split_authority(authority)
        return Url(scheme, host or None, port or -1, path, None)


@dataclass(frozen=True, slots=True)
class LocalResource:
    """A file that the NodeManager brings to the container; size and time must be those of the file."""

    url: Url = message(1, Url, required=True, name="resource")
    size_bytes: int = int64(2, 0, name="size")
    modified_ms: int = int64(3, 0, name="timestamp")
    type: LocalResourceType = enum(4, LocalResourceType, LocalResourceType.FILE)
    visibility: LocalResourceVisibility = enum(
        5, LocalResourceVisibility, LocalResourceVisibility.APPLICATION
    )

    @staticmethod
    def of(
        uri: str,
        size_bytes: int,
        modified_ms: int,
        type: LocalResourceType = LocalResourceType.FILE,
        visibility: LocalResourceVisibility = LocalResourceVisibility.APPLICATION,
    ) -> LocalResource:
        """A file by its URI.

        Never give an ARCHIVE to a container with a retry policy: its second start damages the node's copy.

        Raises:
            ConfigError: the URI has no scheme or no absolute path.
        """
        return LocalResource(Url.of(uri), size_bytes, modified_ms, type, visibility)


@dataclass(frozen=True, slots=True)
class NamedResource:
    """A file by the name it has in the container's directory."""

    key: str = string(1, "")
    value: LocalResource = message(2, LocalResource, required=True)


@dataclass(frozen=True, slots=True)
class RetryContext:
    """Whether the NodeManager starts the process again; intervals below 1000 ms are raised to that."""

    policy: RetryPolicy = enum(1, RetryPolicy, RetryPolicy.NEVER_RETRY, name="retry_policy")
    error_codes: tuple[int, ...] = int32(2, repeated=True)
    max_retries: int = int32(3, 0)
    retry_interval_ms: int = int32(4, 0, name="retry_interval")
    failures_validity_ms: int = int64(5, -1, name="failures_validity_interval")


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """A process to start in a container.

    Attributes:
        files: brought to the container's directory before it starts.
        credentials: a token file's content (`tokens.write_token_file`); the container finds it in
            HADOOP_TOKEN_FILE_LOCATION.
        environment: variables; ``$VAR`` and ``<LOG_DIR>`` in values and command are expanded on the node.
        command: words that a shell on the node joins by blanks: quote what is not ours.
    """

    files: tuple[NamedResource, ...] = message(1, NamedResource, repeated=True, name="localResources")
    credentials: bytes | None = binary(2, name="tokens")
    environment: tuple[NamedText, ...] = message(4, NamedText, repeated=True)
    command: tuple[str, ...] = string(5, repeated=True)
    retry: RetryContext | None = message(7, RetryContext, name="container_retry_context")

    def __repr__(self) -> str:
        return f"LaunchContext({' '.join(self.command)!r}, {len(self.files)} files)"

    @staticmethod
    def of(
        command: Iterable[str],
        environment: Mapping[str, str] | None = None,
        files: Mapping[str, LocalResource] | None = None,
        credentials: bytes | None = None,
        retry: RetryContext | None = None,
    ) -> LaunchContext:
        """A launch context from plain mappings."""
        return LaunchContext(
            tuple(NamedResource(name, each) for name, each in (files or {}).items()),
            credentials,
            tuple(NamedText(name, value) for name, value in (environment or {}).items()),
            tuple(command),
            retry,
        )


# ---- applications


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """The state of an application."""

    id: ApplicationId = message(1, ApplicationId, required=True, name="applicationId")
    user: str = string(2, "")
    queue: str = string(3, "")
    name: str = string(4, "")
    host: str = string(5, "")
    rpc_port: int = int32(6, -1)
    state: ApplicationState | None = enum(8, ApplicationState, name="yarn_application_state")
    tracking_url: str = string(9, "", name="trackingUrl")
    diagnostics: str = string(10, "")
    start_ms: int = int64(11, 0, name="startTime")
    final_status: FinalStatus | None = enum(13, FinalStatus, name="final_application_status")
    attempt: AttemptId | None = message(16, AttemptId, name="currentApplicationAttemptId")
    progress: float = float32(17, 0.0)
    type: str = string(18, "", name="applicationType")
    am_rm_token: Token | None = message(19, Token)
    tags: tuple[str, ...] = string(20, repeated=True, name="applicationTags")
