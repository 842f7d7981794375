"""The master's configuration: one frozen object from the file that `yarn-accel start` ships beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from yarn_accel.adapters.hadoop_rpc import Address, ResourceManagerAddresses
from yarn_accel.adapters.settings_file import LazySection, complaints, read_settings
from yarn_accel.core import binding
from yarn_accel.core.application import Settings
from yarn_accel.core.binding import DeviceWeights
from yarn_accel.core.server_choice import ChooserSettings
from yarn_accel.errors import ConfigError


def journal_uri(application_uri: str) -> str:
    """The folder of the journal, in that of the application."""
    return f"{application_uri}/task-journal"


def tokens_uri(application_uri: str) -> str:
    """The file of the newest tokens, in the application's folder."""
    return f"{application_uri}/tokens"


#: In place of the addresses that `yarn-accel start` fills in, when settings are checked without a cluster.
SOME_MANAGERS: Mapping[str, Any] = {
    "rm_client": ["RM:8032"],
    "rm_scheduler": ["RM:8030"],
    "rm_admin": ["RM:8033"],
}

#: Of sun_path in unix(7), with its last byte 0.
_MAX_SOCKET_PATH = 107
#: Times of the core that are a setting of their own.
_OWN_TIMES = ("idle_release_s",)
_TIMES = tuple(
    each.name for each in fields(Settings) if each.name.endswith("_s") and each.name not in _OWN_TIMES
)


class MasterConfig(BaseModel):
    """Settings of one ApplicationMaster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = Field(1, description="of this file's form")
    # Filled in by the submission
    plan_file: str = Field("plan.json", min_length=1, description="what to start in containers of each role")
    rm_client: tuple[str, ...] = Field(min_length=1, description="host:port of the RMs' service for clients")
    rm_scheduler: tuple[str, ...] = Field(min_length=1, description="host:port of that for masters")
    rm_admin: tuple[str, ...] = Field(min_length=1, description="host:port of that for operators")
    rm_webs: tuple[str, ...] = Field((), description="web addresses of the RMs; their hosts may see the page")
    user: str = Field("", description="who asks the RM for nodes, slots and attributes; default: our user")
    application_name: str = Field("yarn-accel", description="what people call the application")
    staging_uri: str = Field("", description="folder of this application's files")
    default_fs: str = Field(
        "", pattern=r"^(hdfs://[^/?#@]+/?)?$", description="what hdfs:/// means; default: fs.defaultFS"
    )
    hosts: dict[str, str] = Field(
        default_factory=dict, description="addresses of names that the master's node cannot resolve"
    )
    # Kerberos
    hdfs_names: dict[str, str] = Field(
        default_factory=dict, description="host:port in URIs -> what the token for that NameNode is called"
    )
    # Kerberos, for weeks
    principal: str = Field("", description="whose keys `keytab` has")
    keytab: str = Field("", description="file by which the master asks for new tokens; empty: it does not")
    hadoop: dict[str, str] = Field(default_factory=dict, description="Hadoop's properties that it needs then")
    hdfs_servers: tuple[str, ...] = Field((), description="HDFS to ask for tokens, beside fs.defaultFS")
    # Bindings
    policy: str = Field("paper", description="who is bound to whom: paper, weighted or container")
    policy_settings: dict[str, Any] = Field(
        default_factory=dict,
        description="settings of that policy; weighted, container: cross_rack (fallback: a rack without a "
        "server uses other racks' until it has one; deny)",
    )
    weights: dict[str, Any] = Field(
        default_factory=dict,
        description="speed of devices against each other: {default, devices: {name or prefix*: weight}}; a "
        "node without known devices is looked up by its own name",
    )
    accelerator_nodes: tuple[str, ...] = Field(
        (), description="names or globs of nodes that get a server although no accelerator is found there"
    )
    slots: bool = Field(True, description="limit mappers with acct/slot to what the bound server can feed")
    mappers_per_worker: float = Field(
        4.0, gt=0, le=1000, description="mappers that one worker of a server can feed"
    )
    idle_release_s: float = Field(
        0.0,
        ge=0,
        le=30 * 86400,
        description="servers without a request for so long, while no task asked for servers, give their "
        "containers and GPUs back to YARN, and return when a task asks; 0: they stay",
    )
    attributes: bool = Field(True, description="publish bindings as node attributes rm.yarn.io/accel-bind")
    # Tasks
    tasks: Annotated[Any, LazySection("yarn_accel.master.tasks.settings", "TaskSettings")] = Field(
        None, description="a task service; none: the application has none"
    )
    # How often
    heartbeat_interval_s: float = Field(1.0, ge=0.05, le=60, description="pause between heartbeats to the RM")
    busy_interval_s: float = Field(0.2, ge=0.05, le=60, description="the same while containers are asked for")
    agent_interval_s: float = Field(1.0, ge=0.1, le=60, description="pause between heartbeats of the agents")
    report_interval_s: float = Field(10.0, ge=0.5, le=600, description="pause between looks at all nodes")
    timing: dict[str, float] = Field(default_factory=dict, description="patience: " + ", ".join(_TIMES))
    retries: int = Field(
        3, ge=0, le=100, description="restarts of a container in place before it is replaced"
    )
    # Access
    http_host: str = Field("0.0.0.0", description="address of heartbeats, control and page")
    http_port: int = Field(0, ge=0, le=65535, description="their port; 0: any free one")
    page_clients: tuple[str, ...] = Field(
        (), description="addresses that may see the page directly, beside this node and the RMs"
    )
    # Credentials for users of the master's node
    credential_socket: str = Field(
        "",
        description="Unix socket for `yarn-accel credential request`, with {node} and {application}; "
        "default: beside the agent's; off: none",
    )
    credential_hours: float = Field(12.0, gt=0, le=24 * 31, description="longest life of such a credential")
    shared_users: tuple[str, ...] = Field(
        ("yarn", "nobody", "mapred", "hdfs"),
        description="users under whom several people's processes run, who therefore get none; the master's "
        "own is always one",
    )
    revoked_file: str = Field("", description="revoked credentials, as `revoked_file` of the servers")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level logged")

    @field_validator("rm_client", "rm_scheduler", "rm_admin")
    @classmethod
    def _check_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            _complain(lambda address=address: Address.parse(address))
        return addresses

    @field_validator("credential_socket")
    @classmethod
    def _check_credential_socket(cls, path: str) -> str:
        if path not in ("", "off") and not path.startswith("/"):
            raise ValueError(f"{path!r} is neither an absolute path nor off")
        if len(path.encode()) > _MAX_SOCKET_PATH:
            raise ValueError(f"{path!r} is too long for a Unix socket; {_MAX_SOCKET_PATH} bytes")
        return path

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, values: dict[str, Any]) -> dict[str, Any]:
        _complain(lambda: DeviceWeights.from_mapping(values))
        return values

    @field_validator("timing")
    @classmethod
    def _check_timing(cls, values: dict[str, float]) -> dict[str, float]:
        for name, value in values.items():
            if name not in _TIMES:
                raise ValueError(f"unknown key {name}; known: {', '.join(_TIMES)}")
            if not 0 <= value <= 86400:
                raise ValueError(f"{name}: {value} is not within 0..86400 seconds")
        return values

    def check_policy(self) -> None:
        """Make the policy once.

        Raises:
            ConfigError: no such policy, or a setting it does not know.
        """
        binding.make(self.policy, self.policy_settings)

    @property
    def addresses(self) -> ResourceManagerAddresses:
        """Where the ResourceManagers answer."""
        client, scheduler, admin = (
            tuple(Address.parse(each) for each in some)
            for some in (self.rm_client, self.rm_scheduler, self.rm_admin)
        )
        return ResourceManagerAddresses(client, scheduler, admin)

    @property
    def core_settings(self) -> Settings:
        """The settings of the core."""
        own = {"has_slots": self.slots, "idle_release_s": self.idle_release_s}
        return Settings(**own, **self.timing)  # type: ignore[arg-type]

    @property
    def choice(self) -> dict[str, Any] | None:
        """Settings of the choice of a server per request; None: requests go where their node is bound."""
        if self.policy != "container":
            return None
        usual = asdict(ChooserSettings())
        given = {name: value for name, value in self.policy_settings.items() if name in usual}
        return {"name": self.policy, **usual, **given}

    @property
    def device_weights(self) -> DeviceWeights:
        """The table of speeds."""
        return DeviceWeights.from_mapping(self.weights)


def parse_config(values: Mapping[str, object]) -> MasterConfig:
    """Check settings.

    Raises:
        ConfigError: names the key, and for an unknown key the known ones.
    """
    try:
        config = MasterConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"master: {complaints(error, MasterConfig)}") from None
    config.check_policy()
    return config


def load_config(path: Path) -> MasterConfig:
    """Read a JSON or YAML file.

    Raises:
        ConfigError: names the file and the key.
    """
    values = read_settings(path)
    try:
        return parse_config(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", cure=error.cure) from None


def _complain(check: Any) -> None:
    try:
        check()
    except ConfigError as error:
        raise ValueError(str(error)) from None
