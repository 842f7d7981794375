"""The launch settings: one frozen object from one YAML file, with every default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from yarn_accel.adapters.settings_file import complaints, read_settings, with_current_names
from yarn_accel.errors import ConfigError
from yarn_accel.launch.container_entry import MASTER_SECRET_FILE
from yarn_accel.pipeline.config import FORMER_NAMES, PipelineConfig, parse_config

#: Sections that had another name in the version before.
_FORMER_NAMES = {"acct": "server"}
_MIB = 1024 * 1024
#: YARN carries these numbers as 32 bits with a sign.
_MAX_INT32 = 2**31 - 1
_FORBID = ConfigDict(frozen=True, extra="forbid")


class EnvironmentSettings(BaseModel):
    """The Python environment of the containers."""

    model_config = _FORBID

    python: str = Field("python3", min_length=1, description="interpreter of the nodes: a name or a path")
    extras: tuple[str, ...] = Field(("yarn",), description="extras of cluster-accel that are packed")
    gpu: Literal["auto", "bundled", "site", "none"] = Field(
        "auto",
        description="bundled: CuPy and CUDA 12's libraries travel; site: CuPy alone, nodes have CUDA 12's "
        "toolkit; auto: as installed where this is started",
    )
    packages: tuple[str, ...] = Field((), description="further installed distributions that are packed")
    staging_uri: str = Field("", description="folder for uploads; default: .yarn-accel in the user's home")
    cache_dir: str = Field("", description="where nodes unpack; default: beside the container's folder")


class AppSettings(BaseModel):
    """The application as YARN sees it."""

    model_config = _FORBID

    name: str = Field("yarn-accel", min_length=1, max_length=100, description="name of the application")
    queue: str = Field("default", min_length=1, description="queue it is submitted to")
    priority: int = Field(0, ge=0, le=_MAX_INT32, description="priority among the applications of the queue")
    node_label: str = Field("", description="node label of all containers; empty: the queue's own")
    tags: tuple[str, ...] = Field((), description="tags that `yarn application -list` can filter by")
    max_attempts: int = Field(
        100, ge=1, le=_MAX_INT32, description="attempts of the master (the site's limit holds too)"
    )
    attempt_failures_validity_interval_s: float = Field(
        300.0, gt=0, description="only failures younger than this count against max_attempts"
    )


class KerberosSettings(BaseModel):
    """Tokens on a cluster with Kerberos, and how the application lives for weeks."""

    model_config = _FORBID

    hdfs_servers: tuple[Annotated[str, Field(pattern=r"^hdfs://[^/?#@]+$")], ...] = Field(
        (),
        max_length=20,
        description="further HDFS, as hdfs://NAME, whose files servers, tasks and DAGs use; what other "
        "settings name, and mapreduce.job.hdfs-servers of mapred-site.xml, needs no mention",
    )

    principal: str = Field("", description="whose keys the keytab has; it starts the application")
    keytab: str = Field("", description="file here; the master asks for new tokens with it")
    keytab_on_nodes: str = Field(
        "",
        pattern=r"^(/.+)?$",
        description="where each node that may run the master has it already; else it is uploaded to HDFS",
    )
    clear_text: bool = Field(
        False, description="let keytab and tokens cross the network where Hadoop does not encrypt it"
    )

    @model_validator(mode="after")
    def _check_pair(self) -> KerberosSettings:
        if bool(self.principal) != bool(self.keytab):
            raise ValueError("principal and keytab go together")
        if self.keytab_on_nodes and not self.keytab:
            raise ValueError("keytab_on_nodes: name the keytab of this machine, too, in keytab")
        return self


class RoleSettings(BaseModel):
    """Settings that every role has."""

    model_config = _FORBID

    memory_mib: int = Field(0, ge=0, description="container memory; 0: what the role needs")
    vcores: int = Field(1, ge=1, le=_MAX_INT32, description="virtual cores")
    priority: int = Field(
        10, ge=0, le=_MAX_INT32, description="priority of its requests: a smaller number is served first"
    )
    environment: dict[str, str] = Field(default_factory=dict, description="further environment variables")


class MasterRole(RoleSettings):
    """The ApplicationMaster."""

    memory_mib: int = Field(256, ge=64, description="container memory")
    priority: int = Field(0, ge=0, le=_MAX_INT32, description="priority of its request")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of the master that differ from their defaults"
    )


class AgentRole(RoleSettings):
    """The agent of each node."""

    enabled: bool = Field(True, description="off where systemd runs the agents")
    memory_mib: int = Field(192, ge=64, description="container memory")
    priority: int = Field(
        9,
        ge=0,
        le=_MAX_INT32,
        description="priority of its requests: before the server's, which nobody reaches without an agent; "
        "where none is given and 9 is not, the next one that is",
    )
    secret_file: str = Field(
        "",
        description="secret of `yarn-accel node make-secret`, from which agents that systemd runs have their "
        "keys; default: a fresh one for each application, which only its own agents know",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of the agents that differ from their defaults"
    )


class ServerRole(RoleSettings):
    """The container of an accelerator node, which runs the pipeline server."""

    vcores: int = Field(2, ge=1, le=_MAX_INT32, description="virtual cores")
    gpus: Annotated[int, Field(ge=0, strict=True)] | Literal["auto"] = Field(
        "auto", description="yarn.io/gpu to ask for; auto: all of a node's, where the site gives out GPUs"
    )
    devices: str = Field(
        "all",
        pattern=r"^(all|none|[1-9]\d*)$",
        description="GPUs locked, of those the server sees; as many as gpus where that is a number above 0",
    )
    devices_dir: str = Field(
        "", description="node-wide folder below which each user has one of these locks; default: /var/tmp"
    )
    overhead_mib: int = Field(248, ge=0, description="memory of the server beside its buffers")
    worker_overhead_mib: int = Field(256, ge=0, description="memory of each worker beside its buffers")
    buffers_counted: Literal["once", "per_process"] = Field(
        "per_process",
        description="how YARN's memory check counts shared buffers: stock adds up the processes' resident "
        "sets; `once` with cgroup control or smaps-based-rss",
    )


class WorkerRole(RoleSettings):
    """The workers of a task service, one on each node that the service chooses; its tasks run in them."""

    enabled: bool = Field(False, description="have a task service: `yarn-accel tasks start` does")
    memory_mib: int = Field(2048, ge=256, description="container memory, that of its tasks included")
    overhead_mib: int = Field(256, ge=64, description="of that, what the worker itself needs")
    vcores: int = Field(2, ge=1, le=_MAX_INT32, description="virtual cores, and tasks on cores at once")
    gpus: Annotated[int, Field(ge=0, le=64, strict=True)] = Field(
        0, description="yarn.io/gpu to ask for, and tasks on GPUs at once"
    )
    priority: int = Field(30, ge=0, le=_MAX_INT32, description="priority of its requests")
    size: str = Field(
        "", pattern=r"^([a-z][a-z0-9]{0,29})?$", description="name of this size, where there are several"
    )
    min_workers: int | None = Field(None, ge=0, description="of this size; default: that of `tasks`")
    max_workers: int | None = Field(None, ge=1, description="of this size; default: that of `tasks`")
    node_label: str = Field("", description="only on nodes with this label")
    node_attribute: str = Field(
        "",
        pattern=r"^(.+=.*)?$",
        description="only on nodes with this attribute, as rm.yarn.io/disk=ssd",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of the workers that differ from their defaults"
    )

    @model_validator(mode="after")
    def _check_tasks_memory(self) -> WorkerRole:
        if self.overhead_mib >= self.memory_mib:
            raise ValueError(f"overhead_mib {self.overhead_mib} leaves no memory for tasks")
        return self

    @property
    def tasks_memory_mib(self) -> int:
        """Memory of all tasks of a worker together."""
        return self.memory_mib - self.overhead_mib


class LaunchConfig(BaseModel):
    """Settings of one `yarn-accel start`."""

    model_config = _FORBID

    app: AppSettings = Field(default_factory=lambda: AppSettings.model_validate({}))
    kerberos: KerberosSettings = Field(default_factory=lambda: KerberosSettings.model_validate({}))
    environment: EnvironmentSettings = Field(default_factory=lambda: EnvironmentSettings.model_validate({}))
    master: MasterRole = Field(default_factory=lambda: MasterRole.model_validate({}))
    server: ServerRole = Field(default_factory=lambda: ServerRole.model_validate({}))
    agent: AgentRole = Field(default_factory=lambda: AgentRole.model_validate({}))
    worker: WorkerRole = Field(default_factory=lambda: WorkerRole.model_validate({}))
    more_workers: tuple[WorkerRole, ...] = Field(
        (), max_length=20, description="further sizes of workers; or give `worker` as a list of sizes"
    )
    pipeline: dict[str, Any] = Field(
        default_factory=dict, description="settings of the pipeline servers that differ from their defaults"
    )
    tasks: dict[str, Any] = Field(
        default_factory=dict, description="settings of the task service that differ from their defaults"
    )

    @model_validator(mode="before")
    @classmethod
    def _split_workers(cls, values: Any) -> Any:
        """A list of sizes is the first one, and `more_workers`."""
        if not isinstance(values, dict) or not isinstance(values.get("worker"), list):
            return values
        if not values["worker"] or "more_workers" in values:
            raise ValueError("worker: a list has one size or more, and takes the place of more_workers")
        return {**values, "worker": values["worker"][0], "more_workers": values["worker"][1:]}

    @field_validator("pipeline")
    @classmethod
    def _check_pipeline(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "master_secret_file" in values:
            raise ValueError("master_secret_file: containers get their secret through credentials")
        try:
            parse_config({**values, "master_secret_file": MASTER_SECRET_FILE})
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return values

    @model_validator(mode="after")
    def _check_memory(self) -> LaunchConfig:
        if 0 < self.server.memory_mib < self._needed_mib():
            raise ValueError(
                f"server.memory_mib {self.server.memory_mib} is less than pool_bytes and the overheads "
                f"together need ({self._needed_mib()}); 0 computes it"
            )
        return self

    @model_validator(mode="after")
    def _check_priorities(self) -> LaunchConfig:
        # YARN gives a container back with its priority and nothing else that says which role it has.
        names: dict[int, str] = {}
        roles: list[tuple[str, RoleSettings]] = [("server", self.server)]
        roles += [(f"worker {size.size}".strip(), size) for size in (self.worker, *self.more_workers)]
        if "priority" in self.agent.model_fields_set:
            roles.insert(1, ("agent", self.agent))
        for name, role in roles:
            priority = role.priority
            if priority in names:
                raise ValueError(
                    f"{names[priority]}.priority and {name}.priority: both {priority}; they must differ, so "
                    f"give {name} another one (a smaller number is served first)"
                )
            names[priority] = name
        if "priority" not in self.agent.model_fields_set:
            before = range(min(self.agent.priority, self.server.priority - 1), -1, -1)
            after = range(self.server.priority + 1, self.server.priority + len(names) + 1)
            free = next(each for each in (*before, *after) if each not in names)
            object.__setattr__(self, "agent", self.agent.model_copy(update={"priority": free}))
        return self

    @model_validator(mode="after")
    def _check_sizes(self) -> LaunchConfig:
        names = [size.size for size in self.more_workers]
        if "" in names or len({*names, self.worker.size}) < len(names) + 1:
            raise ValueError("worker: each size but the first needs a name of its own, as `size: large`")
        return self

    @property
    def worker_roles(self) -> dict[str, WorkerRole]:
        """The roles of workers that are enabled, the first size first."""
        if not self.worker.enabled:
            return {}
        return {"worker": self.worker, **{f"worker-{size.size}": size for size in self.more_workers}}

    @model_validator(mode="after")
    def _check_agents(self) -> LaunchConfig:
        if not self.agent.enabled and not self.agent.secret_file:
            raise ValueError(
                "agent.enabled is off, so the site runs the agents: name the secret that their keys are made "
                "from in agent.secret_file, or the master accepts none of them"
            )
        return self

    @property
    def pipeline_settings(self) -> PipelineConfig:
        """All settings of the pipeline servers that are the same on every node."""
        # Without a number a server takes every core of its node, and the container was sized for fewer.
        workers = self.pipeline.get("workers") or self.server.vcores
        given = {**self.pipeline, "workers": workers, "master_secret_file": MASTER_SECRET_FILE}
        return PipelineConfig.model_validate(given)

    @property
    def server_memory_mib(self) -> int:
        """Memory of an accelerator container: the limit of its buffers, as YARN counts them, and overhead."""
        return self.server.memory_mib or self._needed_mib()

    def _needed_mib(self) -> int:
        server = self.pipeline_settings
        # Neither cores nor GPUs of the nodes are known here: what the container asks for is what it gets.
        n_devices = int(self.server.devices) if self.server.devices.isdecimal() else 0
        n_gpus = self.server.gpus if isinstance(self.server.gpus, int) else 0
        n_on_gpus = max(n_gpus, n_devices) * server.workers_per_gpu
        n_beside = min(n_on_gpus * server.cpu_workers_per_gpu_worker, server.workers)
        n_workers = max(server.workers, n_on_gpus + n_beside)
        # A worker keeps what it has touched mapped, so in time each has every buffer in its resident set
        # (72 LU of 18 MB, 2 workers: 1177 MiB resident in all, 553 MiB real).  A standby has none yet.
        n_counted = 1 + n_workers if self.server.buffers_counted == "per_process" else 1
        buffers_mib = math.ceil((server.pool_bytes * n_counted + server.reply_cache_bytes) / _MIB)
        # Two workers of one GPU share its standbys.
        n_standbys = server.standby_workers * max(1, n_gpus, n_devices)
        n_processes = n_workers + n_standbys
        return buffers_mib + self.server.overhead_mib + n_processes * self.server.worker_overhead_mib


def with_kerberos(config: LaunchConfig, given: Mapping[str, str]) -> LaunchConfig:
    """The settings with what the command line says of Kerberos, where it says something.

    Raises:
        ConfigError: a principal without a keytab, or the other way round.
    """
    said = {key: value for key, value in given.items() if value}
    try:
        kerberos = KerberosSettings.model_validate({**config.kerberos.model_dump(), **said})
    except ValidationError as error:
        raise ConfigError(f"kerberos: {complaints(error, KerberosSettings)}") from None
    return config.model_copy(update={"kerberos": kerberos})


def load_launch_config(path: Path) -> LaunchConfig:
    """Read a YAML file; an empty one means all defaults.

    Raises:
        ConfigError: names the file and key, and for an unknown key the known ones.
    """
    values = with_current_names(read_settings(path, may_be_empty=True), _FORMER_NAMES, str(path))
    if isinstance(values.get("pipeline"), dict):
        values["pipeline"] = with_current_names(values["pipeline"], FORMER_NAMES, f"{path}: pipeline")
    try:
        return LaunchConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {complaints(error, LaunchConfig)}") from None
