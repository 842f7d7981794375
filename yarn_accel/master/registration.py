"""The start of a master: listen, register, and only then load the rest.

Loading takes longer than everything else between a submission and a running application. For YARN the
application runs as soon as it is registered; calls that arrive while the rest is loaded wait in the socket's
backlog. So this module imports only what registering needs, and reads only those settings; `master.config`
checks all of them afterwards.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc import (
    Address,
    AlreadyRegisteredError,
    ApplicationMaster,
    Patience,
    RegisterResponse,
    ResourceManagerAddresses,
    RpcSettings,
)
from yarn_accel.errors import ConfigError, StartupError, UnavailableError
from yarn_accel.master.credentials import MasterCredentials, read_credentials

logger = logging.getLogger(__name__)

#: Calls that may wait in the socket's backlog.
BACKLOG = 1024
#: Field 22 of proc_pid_stat(5), counted from the one after the name.
_START_TIME = 19
_CONNECT_TIMEOUT_S, _CALL_TIMEOUT_S = 5.0, 15.0
#: Short, as every caller retries by itself, and reports who does not answer.
PATIENCE = Patience(total_s=3.0, initial_backoff_s=0.1, max_backoff_s=0.5)


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """The settings that registering needs; see `MasterConfig` for each."""

    rm_scheduler: tuple[str, ...]
    hosts: Mapping[str, str] = field(default_factory=dict)
    http_host: str = "0.0.0.0"
    http_port: int = 0

    @property
    def rpc_settings(self) -> RpcSettings:
        """Settings of all RPC connections to YARN."""
        return RpcSettings(_CONNECT_TIMEOUT_S, call_timeout_s=_CALL_TIMEOUT_S, hosts=self.hosts)


@dataclass(frozen=True, slots=True)
class Registration:
    """A registered attempt.

    Attributes:
        node: where it runs.
        am: its connection to the ResourceManager.
        listener: the socket for agents, mappers and admins.
        at: when it began to listen, Unix seconds.
        registered: the ResourceManager's answer; None: there was none, and registering is repeated.
        took_s: from the start of this process to that answer; 0 when not known.
    """

    node: str
    credentials: MasterCredentials
    am: ApplicationMaster
    listener: socket.socket
    at: float
    registered: RegisterResponse | None = None
    took_s: float = 0.0

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.listener.getsockname()[1])


def read_registration_settings(config_file: Path) -> RegistrationSettings:
    """Read these settings from the JSON that `yarn-accel start` ships, without checking the others.

    Raises:
        ConfigError: the file is wrong.
    """
    try:
        values = json.loads(config_file.read_text(encoding="utf-8"))
        scheduler = tuple(str(Address.parse(each)) for each in values["rm_scheduler"])
        more = {name: values[name] for name in ("hosts", "http_host", "http_port") if name in values}
        if scheduler and isinstance(more.get("hosts", {}), dict):
            return RegistrationSettings(scheduler, **more)
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        pass
    # YAML, or something is wrong, which the full check names.
    from yarn_accel.master.config import load_config

    config = load_config(config_file)
    return RegistrationSettings(config.rm_scheduler, config.hosts, config.http_host, config.http_port)


async def register(settings: RegistrationSettings, environ: Mapping[str, str]) -> Registration:
    """Listen and register.

    Raises:
        StartupError: this is no container of YARN, or the address cannot be listened on.
        AccelError: the ResourceManager refuses this attempt.
    """
    for name in ("CONTAINER_ID", "NM_HOST"):
        if not environ.get(name):
            raise StartupError(f"{name} is not set", cure="only YARN starts a master: `yarn-accel start`")
    credentials, node = read_credentials(environ), environ["NM_HOST"]
    where = tuple(Address.parse(each) for each in settings.rm_scheduler)
    addresses = ResourceManagerAddresses(where, where, where)
    am = ApplicationMaster(addresses, credentials.am_rm, settings.rpc_settings, PATIENCE)
    at, listener = time.time(), listen(settings.http_host, settings.http_port)
    port = int(listener.getsockname()[1])
    try:
        answer = await am.register(node, port, tracking_url(node, port))
    except (UnavailableError, AlreadyRegisteredError) as error:
        # Whether a lost answer matters is known where the work begins.
        logger.warning("not registered yet: %s", error)
        return Registration(node, credentials, am, listener, at)
    except BaseException:
        listener.close()
        await am.close()
        raise
    age_s = _age_s()
    logger.info("registered %.2f s after this process began", age_s)
    return Registration(node, credentials, am, listener, at, answer, age_s)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        StartupError: the address cannot be listened on.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise StartupError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _age_s() -> float:
    """Age of this process with the container's bootstrap; 0: unknown."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        began_s = int(after_name.split()[_START_TIME]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def tracking_url(node: str, port: int) -> str:
    """Address of the page, for the ResourceManager's proxy."""
    host = f"[{node}]" if ":" in node else node
    return f"http://{host}:{port}/"
