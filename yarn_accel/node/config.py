"""The agent's configuration: one frozen object, from a YAML file and the variables that YARN sets."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from yarn_accel.adapters.settings_file import complaints, read_settings
from yarn_accel.client.token_file import TOKEN_FILE_VARIABLE, read_secrets
from yarn_accel.core.ended_applications import APPLICATION_ID
from yarn_accel.core.tasks.late_binding.values import LateBindingSettings
from yarn_accel.core.tasks.policies import make
from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.node.paths import default_run_dir, filled

#: The defaults of the decisions about claims.
_CORE: dict[str, Any] = {each.name: each.default for each in fields(LateBindingSettings)}


class LateBindingConfig(BaseModel):
    """Section ``late_binding`` of an agent's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="off: mappers that ask choose by themselves")
    policy: str = Field("hdas+", description="who decides, as in docs/hdas.md")
    policy_settings: dict[str, Any] = Field(default_factory=dict, description="its own settings")
    cores: int = Field(0, ge=0, le=4096, description="tasks that run at once, on a GPU or not; 0: the cores")
    gpus: int = Field(-1, ge=-1, le=64, description="GPUs for mappers; -1: those that the agent sees work")
    bandwidth_mb_s: float = Field(125.0, gt=0, le=1e9, description="what the disk or link gives its readers")
    io: Literal["link", "disk", "larger"] = Field("larger", description="what of the node's I/O counts")
    max_wait_s: float = Field(
        _CORE["max_wait_s"], ge=0, le=3600, description="no mapper waits longer for an answer"
    )
    lease_s: float = Field(
        _CORE["lease_s"], ge=1, le=4, description="so long after its last sign of life a place is held"
    )
    counts_max_age_s: float = Field(
        _CORE["counts_max_age_s"], gt=0, le=3600, description="older counts of the cluster do not count"
    )
    max_claims_per_user: int = Field(64, ge=1, le=256, description="mappers of one user, waiting or not")
    max_jobs_per_user: int = Field(16, ge=1, le=256, description="jobs of one user that have such mappers")
    shared_users: tuple[str, ...] = Field(
        (), description="users, beside the agent's own, under whom mappers of several people run"
    )
    figures_file: str = Field("", description="what was learned of jobs; default: figures.json in run_dir")

    @model_validator(mode="after")
    def _check_policy(self) -> LateBindingConfig:
        try:
            make(self.policy, self.policy_settings)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def settings(self, node: str, gpus: tuple[int, ...], accelerator: str) -> LateBindingSettings:
        """For the decisions of one node, whose agent sees these GPUs work."""
        return LateBindingSettings(
            node,
            self.cores or os.cpu_count() or 1,
            gpus,
            self.bandwidth_mb_s * 1e6,
            accelerator,
            self.policy,
            self.policy_settings,
            self.max_wait_s,
            self.lease_s,
            self.counts_max_age_s,
            max_claims_per_user=self.max_claims_per_user,
            max_jobs_per_user=self.max_jobs_per_user,
        )


#: The name of the node's key among the secrets of a Hadoop credentials file.
KEY_ALIAS = "yarn-accel.node"
_KEY_BYTES = 32
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\Z")
_CONTAINER = re.compile(r"container_(?:e[0-9]+_)?([0-9]+_[0-9]+)_[0-9]+_[0-9]+\Z")
_MAX_SOCKET_PATH = 100


class MasterSettings(Protocol):
    """Where a node's processes find the master, and by which key they are known to it."""

    @property
    def node(self) -> str: ...  # noqa: D102 -- see `AgentConfig` for each
    @property
    def key_file(self) -> str: ...  # noqa: D102
    @property
    def master_url(self) -> str: ...  # noqa: D102
    @property
    def rm_urls(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def rm_addresses(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def application_id(self) -> str: ...  # noqa: D102
    @property
    def application_type(self) -> str: ...  # noqa: D102
    @property
    def timeout_s(self) -> float: ...  # noqa: D102


class AgentConfig(BaseModel):
    """Settings of one agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: str = Field(
        "", description="this node's name, as YARN has it; default: NM_HOST, else the host name"
    )
    address: str = Field("", max_length=255, description="where others reach this node; default: its name")
    run_dir: str = Field(
        "",
        description="folder of socket, state and lock, {node} and {application} stand for their names; "
        "default: {node}/{application} below /run/yarn-accel as root, else below /tmp/yarn-accel-UID; "
        "{node} alone where no application started the agent",
    )
    server_state_file: str = Field(
        "", description="state_file of this node's pipeline server; default: server.json in run_dir"
    )
    # The master
    key_file: str = Field(
        "",
        description="file with this node's key in hex, mode 0600; default: from the container's credentials",
    )
    master_url: str = Field(
        "", description="where the master is, when that never changes; default: ask the RM"
    )
    rm_urls: tuple[str, ...] = Field(
        (), description="web addresses of the ResourceManagers, http://host:8088"
    )
    rm_addresses: tuple[str, ...] = Field(
        (), description="their RPC addresses, host:8032, asked instead with the container's own token"
    )
    application_id: str = Field("", description="the master's application; default: that of this container")
    application_name: str = Field("", max_length=100, description="its name, for mappers of this node")
    application_user: str = Field("", max_length=200, description="who started it, for mappers of this node")
    application_type: str = Field(
        "yarn-accel", pattern=r"^[A-Za-z0-9._-]{1,20}$", description="else: running applications of this type"
    )
    interval_s: float = Field(
        1.0, ge=0.1, le=60, description="pause between heartbeats; the master may change it"
    )
    timeout_s: float = Field(2.0, gt=0, le=60, description="how long to wait for one answer")
    max_backoff_s: float = Field(5.0, ge=0.1, le=300, description="longest pause while the master is away")
    # Measurements
    network_interfaces: tuple[str, ...] = Field((), description="default: those with the default route")
    hot_celsius: float = Field(90.0, gt=0, description="a device as warm as this is called hot")
    # Access
    socket_mode: str = Field(
        "0666", pattern=r"^0?[0-7]{3}$", description="rights of the Unix socket, in octal"
    )
    socket_users: tuple[str, ...] = Field((), description="who gets answers there; default: every local user")
    http_host: str = Field("127.0.0.1", description="address of /metrics and /healthz")
    http_port: int = Field(-1, ge=-1, le=65535, description="their port; 0: any free one; -1: none")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level logged")
    late_binding: LateBindingConfig = Field(
        default_factory=lambda: LateBindingConfig.model_validate({}),
        description="answers for mappers that ask: CPU or GPU?",
    )

    @field_validator("node")
    @classmethod
    def _check_node(cls, node: str) -> str:
        if not _NODE.match(node):
            raise ValueError(f"{node!r} is not a host name")
        return node

    @field_validator("application_id")
    @classmethod
    def _check_application(cls, application_id: str) -> str:
        if application_id and not re.fullmatch(APPLICATION_ID, application_id):
            raise ValueError(f"{application_id!r} is not like application_1700000000000_0001")
        return application_id

    @field_validator("rm_urls")
    @classmethod
    def _check_rm_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_checked_url(url) for url in urls)

    @field_validator("master_url")
    @classmethod
    def _check_master_url(cls, url: str) -> str:
        return _checked_url(url) if url else url

    @field_validator("run_dir")
    @classmethod
    def _check_run_dir(cls, path: str) -> str:
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is not an absolute path")
        if len(path) + len("/agent.sock") > _MAX_SOCKET_PATH:
            raise ValueError(f"{path!r} is too long for a Unix socket in it; {_MAX_SOCKET_PATH} characters")
        return path

    @property
    def socket_path(self) -> Path:
        """Where local mappers ask."""
        return Path(self.run_dir) / "agent.sock"

    @property
    def state_path(self) -> Path:
        """The state file, which the NodeManager's script reads."""
        return Path(self.run_dir) / "state.json"

    @property
    def lock_path(self) -> Path:
        """Held by the agent as long as it lives."""
        return Path(self.run_dir) / "agent.lock"


def load_config(path: Path | None, environ: Mapping[str, str], **flags: object) -> AgentConfig:
    """The settings: what ``environ`` and this machine say < the file < ``flags``.

    Raises:
        ConfigError: names the file and the key, and for an unknown key the known ones.
    """
    place = "the agent's settings" if path is None else str(path)
    said = [{} if path is None else read_settings(path, may_be_empty=True), flags]
    values = {key: value for given in said for key, value in given.items() if value not in ("", None)}
    node = str(values.setdefault("node", environ.get("NM_HOST") or socket.gethostname()))
    values.setdefault("address", node)
    application = str(values.setdefault("application_id", container_application(environ)))
    run_dir = str(values.get("run_dir") or default_run_dir(node, container_application(environ)))
    values["run_dir"] = filled(run_dir, node, application)
    values.setdefault("server_state_file", f"{values['run_dir']}/server.json")
    try:
        return AgentConfig(**values)
    except ValidationError as error:
        raise ConfigError(f"{place}: {complaints(error, AgentConfig)}") from None


def container_application(environ: Mapping[str, str]) -> str:
    """The application of the YARN container that this process runs in; empty: it runs in none."""
    container = _CONTAINER.match(environ.get("CONTAINER_ID", ""))
    return f"application_{container[1]}" if container else ""


def read_key(config: MasterSettings, environ: Mapping[str, str]) -> bytes:
    """This node's key: from ``key_file``, else from the credentials that YARN gave the container.

    Raises:
        ConfigError: there is none, it is damaged, or others may read it.
    """
    if config.key_file:
        return _key_from_file(Path(config.key_file), config.node)
    path = environ.get(TOKEN_FILE_VARIABLE, "")
    if not path:
        raise ConfigError(
            f"key_file is not set, and neither is {TOKEN_FILE_VARIABLE}",
            cure="make a key with `yarn-accel node make-key`, or let `yarn-accel start` start the agents",
        )
    try:
        key = read_secrets(Path(path).read_bytes())[KEY_ALIAS]
    except OSError as error:
        raise ConfigError(f"the credentials {path}: {error.strerror}") from None
    except KeyError:
        raise ConfigError(f"the credentials {path} have no secret {KEY_ALIAS!r}") from None
    except AccelError as error:
        raise ConfigError(f"the credentials {path}: {error}") from None
    return _checked_key(key, f"the credentials {path}")


def key_place(config: MasterSettings, environ: Mapping[str, str]) -> str:
    """Where `read_key` looks, in words."""
    if config.key_file:
        return f"key_file {config.key_file}"
    return f"the credentials {environ.get(TOKEN_FILE_VARIABLE, '')}"


def _key_from_file(path: Path, node: str) -> bytes:
    try:
        mode = path.stat().st_mode & 0o777
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except OSError as error:
        cure = f"make it with `yarn-accel node make-key --secret-file SECRET {node} {path}`"
        if isinstance(error, PermissionError):
            cure = "it belongs to the user whom the agent runs as"
        raise ConfigError(f"key_file {path}: {error.strerror}", cure=cure) from None
    except ValueError:
        raise ConfigError(f"key_file {path}: not hexadecimal") from None
    if mode & 0o077:
        raise ConfigError(f"key_file {path}: others may read it", cure=f"chmod 600 {path}")
    return _checked_key(key, f"key_file {path}")


def _checked_key(key: bytes, place: str) -> bytes:
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"{place}: a key of {len(key)} bytes, {_KEY_BYTES} expected")
    return key


def _checked_url(url: str) -> str:
    if not re.match(r"https?://[^/\s?#@]+(/[^\s?#]*)?\Z", url):
        raise ValueError(f"{url!r} is not like http://host:port")
    return url.rstrip("/")
