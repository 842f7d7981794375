"""The worker's configuration: one frozen object from a YAML file and what YARN tells a container."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from yarn_accel.adapters.settings_file import complaints, read_settings
from yarn_accel.errors import ConfigError
from yarn_accel.node.config import container_application

_MIB = 1024 * 1024
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")


class WorkerConfig(BaseModel):
    """Settings of one worker."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: str = Field("", description="this node's name; default: NM_HOST, else the host name")
    size: str = Field("", max_length=30, description="name of this worker's size, where there are several")
    worker: str = Field(
        "", description="this worker's name; default: the node's, with _SIZE where there is one"
    )
    # What it has
    cores: int = Field(1, ge=1, le=4096, description="cores that tasks may occupy together")
    gpus: tuple[str, ...] = Field(
        (), max_length=64, description="names of GPUs, as CUDA_VISIBLE_DEVICES has them; one task each"
    )
    memory_mib: int = Field(1024, ge=1, le=2**30, description="memory that tasks may occupy together")
    bandwidth_bytes_per_s: float = Field(
        0.0, ge=0, le=2**53, description="of the node's disk or link; 0: as the master has it"
    )
    accelerator: str = Field("", max_length=100, description="kind of the GPUs")
    # Where it works
    work_dir: str = Field("", description="folder for running tasks; default: work in the current folder")
    log_dir: str = Field(
        "", description="folder of tasks' logs; default: YARN's, else logs in the current one"
    )
    max_files_mib: int = Field(
        4096,
        ge=1,
        le=2**30,
        description="copies of files that tasks take, and leave, which are kept; the oldest go first",
    )
    function_idle_s: float = Field(
        60.0, ge=0, le=86_400, description="how long a process that calls functions waits for the next call"
    )
    max_log_bytes: int = Field(_MIB, ge=4096, le=2**30, description="bytes of one task's log")
    max_logs: int = Field(2000, ge=1, le=100_000, description="logs that are kept; the oldest go first")
    default_fs: str = Field(
        "", pattern=r"^(hdfs://[^/?#@]+/?)?$", description="what hdfs:/// means; default: fs.defaultFS"
    )
    network_interfaces: tuple[str, ...] = Field((), description="default: those with the default route")
    io: Literal["larger", "link", "disk"] = Field(
        "larger", description="whose bytes are the node's I/O: link, disk, or the larger of both"
    )
    agent_socket: str = Field(
        "", description="socket of this node's agent, with {node} for the node; default: where agents listen"
    )
    # The master
    key_file: str = Field(
        "", description="file with this node's key in hex; default: from the container's credentials"
    )
    master_url: str = Field("", description="where the master is; default: ask the RM")
    rm_urls: tuple[str, ...] = Field((), description="web addresses of the ResourceManagers")
    rm_addresses: tuple[str, ...] = Field((), description="their RPC addresses, as the agents' settings")
    application_id: str = Field("", description="the master's application; default: that of this container")
    application_type: str = Field("yarn-accel", description="else: running applications of this type")
    timeout_s: float = Field(4.0, gt=1, le=60, description="how long to wait for one answer")
    max_backoff_s: float = Field(2.0, ge=0.1, le=60, description="longest pause while the master is away")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level logged")

    @field_validator("node", "worker")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NODE.match(name):
            raise ValueError(f"{name!r} is not a host name")
        return name

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, gpus: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(gpus)) < len(gpus) or any(not each or "," in each for each in gpus):
            raise ValueError("each GPU has one name of its own, without a comma")
        return gpus


def load_worker_config(path: Path | None, environ: Mapping[str, str]) -> WorkerConfig:
    """The settings: what ``environ`` and this machine say < the file.

    Raises:
        ConfigError: names the file and the key, and for an unknown key the known ones.
    """
    place = "the worker's settings" if path is None else str(path)
    values = {} if path is None else read_settings(path, may_be_empty=True)
    node = values.setdefault("node", environ.get("NM_HOST") or socket.gethostname())
    size = str(values.get("size") or "")
    values.setdefault("worker", f"{node}_{size}" if size else node)
    values.setdefault("application_id", container_application(environ))
    here = Path.cwd()
    values["work_dir"] = values.get("work_dir") or os.fspath(here / "work")
    logs = environ.get("LOG_DIRS", "").split(",")[0] or os.fspath(here / "logs")
    values["log_dir"] = values.get("log_dir") or logs
    return check_worker_settings(values, place)


def check_worker_settings(values: Mapping[str, Any], place: str = "the worker's settings") -> WorkerConfig:
    """Settings with all defaults.

    Raises:
        ConfigError: names the key and the known ones.
    """
    try:
        return WorkerConfig(**values)
    except ValidationError as error:
        raise ConfigError(f"{place}: {complaints(error, WorkerConfig)}") from None
