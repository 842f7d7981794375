"""The pipeline server's configuration: one frozen class, from the YAML file to the running server.

`load_config` reads what people write.  `yarn-accel start` checks the same class, ships all its values to the
containers as JSON, and a container validates them again.  Every default is stated here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from yarn_accel.adapters.credentials import read_master_secret
from yarn_accel.adapters.settings_file import complaints, read_settings, with_current_names
from yarn_accel.core.requests.settings import MachineSettings, TenantSettings
from yarn_accel.errors import ConfigError, RejectedError
from yarn_accel.pipeline.workers.launching import N_LANES
from yarn_accel.uris import normalised_prefix

#: As `PipelineConfig.wake_latency_us`: the kernel decides how deep cores sleep.
CORES_MAY_SLEEP = -1
#: Settings that had another name in the version before.
FORMER_NAMES = {"max_lent_bytes": "max_shared_memory_bytes"}

_MIB = 1024 * 1024
_CPU_BATCH_BYTES, _GPU_BATCH_BYTES = 4 * _MIB, 256 * _MIB
_SIZES = ("pool_bytes", "queue_bytes", "max_request_bytes", "max_shared_memory_bytes")


class Tenant(BaseModel):
    """The rights of one tenant, and its share of the devices under load; by default it may use no storage."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: float = Field(1.0, gt=0, le=1e6, description="share of device-seconds under load")
    read_prefixes: tuple[str, ...] = Field(
        (), description="folders of inputs; /folder is one of fs.defaultFS, hdfs://* all HDFS"
    )
    write_prefixes: tuple[str, ...] = Field((), description="folders of output_uri, written likewise")

    @field_validator("read_prefixes", "write_prefixes")
    @classmethod
    def _check_prefixes(cls, prefixes: tuple[str, ...]) -> tuple[str, ...]:
        for prefix in prefixes:
            if not prefix.startswith(("/", "hdfs://", "file:///")):
                raise ValueError(f"{prefix!r} begins with neither / nor hdfs:// nor file:///")
            _check_prefix(prefix)
        return prefixes


class PipelineConfig(BaseModel):
    """Settings of one pipeline server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("", max_length=64, description="how the server names itself; default: host and port")
    # Where it listens
    listen_host: str = Field("127.0.0.1", description="address to listen on for TCP; empty: no TCP")
    listen_port: int = Field(0, ge=0, le=65535, description="TCP port; 0: any free one (see state_file)")
    unix_path: str = Field("", max_length=100, description="path of the Unix socket; empty: none")
    tls_cert_file: str = Field("", description="certificate chain (PEM); with it TCP is TLS only")
    tls_key_file: str = Field("", description="its private key (PEM), mode 0600")
    tls_client_ca_file: str = Field("", description="clients must show a certificate of this authority")
    checksums: tuple[Literal["xxh3", "crc32c", "crc32", "none"], ...] = Field(
        ("xxh3", "crc32c", "crc32"), min_length=1, description="payload checksums allowed over plain TCP"
    )
    http_host: str = Field("127.0.0.1", description="address of /metrics, /stats.json and /healthz")
    http_port: int = Field(-1, ge=-1, le=65535, description="their port; 0: any free one; -1: none")
    # Who may do what
    master_secret_file: Path = Field(description="file with the site's master secret in hex, mode 0600")
    revoked_file: str = Field(
        "", description="list of revoked credentials, followed as it changes: TENANT or TENANT KEY_ID a line"
    )
    tenants: dict[str, Tenant] = Field(
        default_factory=dict, description="rights and shares by tenant; '*' is everybody not named"
    )
    user_tokens: Literal["off", "per-user-containers", "shared-uid"] = Field(
        "per-user-containers",
        description="with Kerberos, requests run as the job's user; off: as the server's; shared-uid: even "
        "where all containers run as one user, who can read every user's tokens",
    )
    extra_operations: tuple[str, ...] = Field((), description="more operations, each module:attribute")
    # Memory
    pool_bytes: int = Field(
        1024 * _MIB, ge=_MIB, description="ceiling of all buffers together; follows from max_request_bytes"
    )
    queue_bytes: int = Field(
        512 * _MIB, ge=_MIB, description="bound of each of the two queues; follows from max_request_bytes"
    )
    max_request_bytes: int = Field(
        256 * _MIB, ge=1024, description="largest inputs of one request; alone enough to take larger ones"
    )
    max_shared_memory_bytes: int = Field(
        512 * _MIB, ge=0, description="shared memory that one connection on this node may use"
    )
    reply_cache_bytes: int = Field(8 * _MIB, ge=0, description="memory for recent replies")
    reply_cache_age_s: float = Field(600.0, ge=0, description="how long they are kept")
    # Models
    max_model_bytes: int = Field(
        512 * _MIB, ge=1024, description="largest model of `infer`, with the files beside it"
    )
    model_cache_bytes: int = Field(
        512 * _MIB, ge=0, description="memory for models that may be asked for again; at least one is kept"
    )
    model_memory_bytes: int = Field(
        1024 * _MIB, ge=_MIB, description="what a worker may take more while it loads or runs a model"
    )
    model_time_s: float = Field(
        10.0, gt=0, description="longest run of a model, at most a quarter of hang_min_s"
    )
    # Workers
    workers: int = Field(0, ge=0, le=256, description="CPU worker processes; 0: one per core group")
    cores_per_worker: int = Field(1, ge=1, le=256, description="cores (and BLAS threads) of a CPU worker")
    devices: tuple[str, ...] = Field(
        ("auto",), description="cpu, cuda:0, ...; auto: every GPU and CPU workers beside it, else cpu"
    )
    workers_per_gpu: int = Field(
        1, ge=1, le=16, description="worker processes that share one GPU or MIG part"
    )
    cpu_workers_per_gpu_worker: int = Field(
        1, ge=0, le=16, description="beside each GPU worker of auto, for operations without a CUDA form"
    )
    standby_workers: int = Field(
        1, ge=0, le=8, description="idle processes that replace lost ones at once; with GPUs, for each"
    )
    pin_workers: bool = Field(True, description="bind each CPU worker to its core group")
    wake_latency_us: int = Field(
        0,
        ge=CORES_MAY_SLEEP,
        le=1000,
        description="while requests come often, no core sleeps deeper than this; -1: as the kernel likes",
    )
    hang_min_s: float = Field(60.0, gt=0, description="no computation is called stuck before this")
    hang_factor: float = Field(20.0, ge=1, description="stuck: this many times the expected seconds")
    kill_timeout_s: float = Field(
        5.0, gt=0, description="a worker process that SIGKILL has not ended by then is given up"
    )
    max_attempts: int = Field(2, ge=1, le=10, description="workers one request may cost before it fails")
    quarantine_s: float = Field(30.0, ge=0, description="first rest of a sick device; doubled each time")
    probe_gpus: bool = Field(
        True, description="a worker computes small cases of all operations before it serves"
    )
    gpu_start_timeout_s: float = Field(
        120.0, gt=0, description="a worker whose GPU is not ready and probed by then is ended, its GPU rests"
    )
    gpu_memory_share: float = Field(
        0.9, gt=0, le=1, description="part of a GPU's memory that the processes on it take together"
    )
    gpu_memory_wait_s: float = Field(
        10.0, ge=0, le=600, description="a request waits so long for GPU memory that other processes use"
    )
    calibrate: bool = Field(True, description="measure each worker in the background when it is idle")
    calibration_file: str = Field("", description="where weights are kept; default: the user's cache folder")
    # Batches and queues
    max_batch_size: int = Field(64, ge=1, le=4096, description="small requests computed together")
    max_batch_bytes: int | None = Field(
        None, ge=0, description="inputs of one batch; default: 4 MiB on CPU workers, 256 MiB on a GPU"
    )
    max_queue_delay_us: int = Field(0, ge=0, le=1_000_000, description="wait for a batch to fill")
    read_threads: int = Field(2, ge=1, le=64, description="references read at once")
    write_threads: int = Field(16, ge=1, le=64, description="outputs written to storage at once")
    # Patience
    max_connections: int = Field(4096, ge=1, le=65536, description="connections at once; more are refused")
    max_in_flight: int = Field(64, ge=1, le=4096, description="requests under way per connection")
    handshake_timeout_s: float = Field(10.0, gt=0, description="time to prove the credential")
    stall_timeout_s: float = Field(30.0, gt=0, description="longest pause of a peer inside a frame")
    min_bytes_per_s: int = Field(65536, ge=1, description="a payload that arrives slower ends the connection")
    drain_timeout_s: float = Field(60.0, ge=0, description="time to finish after the first SIGTERM")
    progress_interval_s: float = Field(5.0, gt=0, description="how often unfinished requests are reported")
    # Surroundings
    hdfs_conf_dir: str = Field("", description="folder with core-site.xml; default: HADOOP_CONF_DIR")
    default_fs: str = Field(
        "", pattern=r"^(hdfs://[^/?#@]+/?)?$", description="what hdfs:/// means; default: fs.defaultFS"
    )
    hdfs_servers: tuple[Annotated[str, Field(pattern=r"^hdfs://[^/?#@]+$")], ...] = Field(
        (),
        description="each HDFS that jobs' users may name with Kerberos, beside default_fs and those that "
        "hdfs-site.xml names (dfs.nameservices); default: what the application has tokens for",
    )
    follow_symlinks: bool = Field(
        False, description="file:// may lead through links; only where each tenant may read every file"
    )
    state_file: str = Field("", description="JSON with pid, address and start time, written when ready")
    trace_file: str = Field("", description="Chrome trace of every stage, for Perfetto; empty: none")
    accounting_uri: str = Field(
        "", description="folder in which the use of jobs is kept as JSON lines; empty: nowhere"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level logged")

    @model_validator(mode="before")
    @classmethod
    def _derive_sizes(cls, values: Any) -> Any:
        return _in_proportion(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _check_together(self) -> PipelineConfig:
        if not self.listen_host and not self.unix_path:
            raise ValueError("needs listen_host or unix_path to listen on")
        if self.max_request_bytes > self.queue_bytes:
            raise ValueError("max_request_bytes must not be larger than queue_bytes")
        if self.queue_bytes > self.pool_bytes:
            raise ValueError("queue_bytes must not be larger than pool_bytes")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("tls_cert_file and tls_key_file go together")
        if self.tls_client_ca_file and not self.tls_cert_file:
            raise ValueError("tls_client_ca_file needs tls_cert_file")
        return self

    def tenant(self, name: str) -> Tenant:
        """The rights and share of a tenant: its own entry, else that of ``*``, else the defaults."""
        return self.tenants.get(name) or self.tenants.get("*") or _DEFAULT_TENANT

    @property
    def n_workers(self) -> int:
        """CPU workers, with 0 resolved to the number of core groups this process may use."""
        return self.workers or max(1, len(os.sched_getaffinity(0)) // self.cores_per_worker)

    def master_secret(self) -> bytes:
        """Read the master secret.

        Raises:
            ConfigError: not there, not hex, too short, or readable by others.
        """
        return read_master_secret(self.master_secret_file)


def _check_prefix(prefix: str) -> None:
    try:
        normalised_prefix(prefix)
    except RejectedError as error:
        raise ValueError(error.message) from None


_DEFAULT_TENANT = Tenant.model_validate({})


def _in_proportion(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sizes of buffers that are not given: in proportion to the pool, or to the largest request.

    A larger request makes all buffers larger, a smaller one none smaller.
    """
    usual = {name: int(PipelineConfig.model_fields[name].default) for name in _SIZES}
    given = {name: values[name] for name in _SIZES if isinstance(values.get(name), int)}
    request_bytes, pool_bytes = usual["max_request_bytes"], usual["pool_bytes"]
    if "pool_bytes" in given:
        sizes = {name: usual[name] * given["pool_bytes"] // pool_bytes for name in _SIZES}
        sizes["queue_bytes"] = max(sizes["queue_bytes"], _MIB, given.get("max_request_bytes", 0))
        sizes["max_request_bytes"] = min(sizes["max_request_bytes"], given.get("queue_bytes", 2**63))
    else:
        wanted = max(request_bytes, given.get("max_request_bytes", 0))
        sizes = {name: usual[name] * wanted // request_bytes for name in _SIZES}
        sizes["pool_bytes"] = max(sizes["pool_bytes"], given.get("queue_bytes", 0))
    return {**(sizes if given else {}), **values}


def parse_config(values: Mapping[str, Any]) -> PipelineConfig:
    """Validate settings.

    Raises:
        ConfigError: names the key, and for an unknown key the known ones.
    """
    try:
        return PipelineConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(complaints(error, PipelineConfig)) from None


def load_config(path: Path) -> PipelineConfig:
    """Read a YAML file.

    Raises:
        ConfigError: names the file and key, and for an unknown key the known ones.
    """
    values = with_current_names(read_settings(path), FORMER_NAMES, str(path))
    try:
        return parse_config(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", cure=error.cure) from None


def machine_settings(
    config: PipelineConfig, normalised: Callable[[str], str], users_roots: tuple[str, ...] = ()
) -> MachineSettings:
    """The limits and shares of the request machine.

    Args:
        config: of the server.
        normalised: a prefix of the settings as rights are compared, see `OwnFilesystem.normalised_prefix`.
        users_roots: of the file systems that jobs' users may use as HDFS allows them; none: requests run as
            no users.
    """
    batch_bytes = config.max_batch_bytes
    tenants = {
        name: TenantSettings(
            tenant.weight,
            tuple(map(normalised, tenant.read_prefixes)),
            tuple(map(normalised, tenant.write_prefixes)),
        )
        for name, tenant in config.tenants.items()
    }
    return MachineSettings(
        pool_bytes=config.pool_bytes,
        queue_bytes=config.queue_bytes,
        max_request_bytes=config.max_request_bytes,
        max_shared_bytes=config.max_shared_memory_bytes,
        max_in_flight=config.max_in_flight,
        reply_cache_bytes=config.reply_cache_bytes,
        reply_cache_age_s=config.reply_cache_age_s,
        max_attempts=config.max_attempts,
        max_batch_size=config.max_batch_size,
        max_batch_bytes=_CPU_BATCH_BYTES if batch_bytes is None else batch_bytes,
        max_queue_delay_s=config.max_queue_delay_us / 1e6,
        lanes={"cuda": N_LANES},
        batch_bytes={"cuda": _GPU_BATCH_BYTES} if batch_bytes is None else {},
        tenants=tenants,
        users=TenantSettings(read_prefixes=users_roots, write_prefixes=users_roots),
    )
