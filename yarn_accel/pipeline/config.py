"""The server's configuration: one frozen object from one YAML file; every default lives here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from yarn_accel.adapters.credentials import read_master_secret
from yarn_accel.errors import ConfigError

__all__ = ["PipelineConfig", "load_config"]

_MIB = 1024 * 1024


class PipelineConfig(BaseModel):
    """Settings of one pipeline server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("", max_length=64, description="how the server names itself; default: host and port")
    listen_host: str = Field("127.0.0.1", description="address to listen on for TCP; empty: no TCP")
    listen_port: int = Field(0, ge=0, le=65535, description="TCP port; 0: any free one (see state_file)")
    unix_path: str = Field("", max_length=100, description="path of the Unix socket; empty: none")
    master_secret_file: Path = Field(description="file with the site's master secret in hex, mode 0600")
    threads: int = Field(0, ge=0, le=256, description="compute workers; 0: one per core")
    blas_threads: int = Field(1, ge=1, le=256, description="threads of the linear algebra library per worker")
    read_threads: int = Field(2, ge=1, le=64, description="references read at once")
    write_threads: int = Field(4, ge=1, le=64, description="results written or sent at once")
    queue_bytes: int = Field(512 * _MIB, ge=_MIB, description="bound of each of the two queues")
    max_request_bytes: int = Field(256 * _MIB, ge=1024, description="largest inputs of one request")
    max_connections: int = Field(512, ge=1, le=65536, description="connections at once; more are refused")
    max_in_flight: int = Field(64, ge=1, le=4096, description="requests under way per connection")
    handshake_timeout_s: float = Field(10.0, gt=0, description="time to prove the credential")
    stall_timeout_s: float = Field(30.0, gt=0, description="longest pause of a peer inside a frame")
    min_bytes_per_s: int = Field(65536, ge=1, description="a payload that arrives slower ends the connection")
    drain_timeout_s: float = Field(60.0, ge=0, description="time to finish after the first SIGTERM")
    progress_interval_s: float = Field(5.0, gt=0, description="how often unfinished requests are reported")
    reply_cache_bytes: int = Field(8 * _MIB, ge=0, description="memory for recent small replies")
    reply_cache_age_s: float = Field(600.0, ge=0, description="how long they are kept")
    checksum: Literal["crc32", "none"] = Field("crc32", description="checksum of payloads over TCP")
    allowed_prefixes: tuple[str, ...] = Field(
        ("hdfs://",),
        description="what references and outputs must begin with; file:///folder/ enables a folder",
    )
    hdfs_conf_dir: str = Field("", description="folder with core-site.xml; default: HADOOP_CONF_DIR")
    state_file: str = Field("", description="JSON with pid, address and start time, written when ready")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level logged")

    @field_validator("allowed_prefixes")
    @classmethod
    def _check_prefixes(cls, prefixes: tuple[str, ...]) -> tuple[str, ...]:
        for prefix in prefixes:
            if not prefix.startswith(("hdfs://", "file:///")):
                raise ValueError(f"{prefix!r} begins with neither hdfs:// nor file:///")
        return prefixes

    @model_validator(mode="after")
    def _check_together(self) -> PipelineConfig:
        if not self.listen_host and not self.unix_path:
            raise ValueError("needs listen_host or unix_path to listen on")
        if self.max_request_bytes > self.queue_bytes:
            raise ValueError("max_request_bytes must not be larger than queue_bytes")
        return self

    @property
    def n_workers(self) -> int:
        """Compute workers, with 0 resolved to the number of cores this process may use."""
        return self.threads or len(os.sched_getaffinity(0))

    def master_secret(self) -> bytes:
        """Read the master secret.

        Raises:
            ConfigError: not there, not hex, too short, or readable by others.
        """
        return read_master_secret(self.master_secret_file)


def load_config(path: Path) -> PipelineConfig:
    """Read a YAML file.

    Raises:
        ConfigError: names the file and key, and for an unknown key the known ones.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: not a mapping of keys to values")
    try:
        return PipelineConfig(**{str(key): value for key, value in values.items()})
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_complaints(error))) from None


def _complaints(error: ValidationError) -> list[str]:
    texts = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = ", ".join(sorted(PipelineConfig.model_fields))
            texts.append(f"{place}: unknown key; known: {known}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            texts.append(f"{place}: {message}" if place else message)
    return texts
