"""The first thing a master does: listen, register, and only then load what it works with.

Loading takes longer than all else between a submission and a running application.  Once it is registered the
application runs, for YARN and for who waits for it: who calls meanwhile stands in the socket's queue and is
answered a moment later.  So nothing is imported here that registering does not need, and of the settings only
those are looked at that it needs; `master.config` checks them all afterwards.
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
    NativeApplicationMaster,
    Patience,
    RegisterResponse,
    ResourceManagerAddresses,
    RpcSettings,
)
from yarn_accel.errors import ConfigError, StartupError, UnavailableError
from yarn_accel.master.credentials import MasterCredentials, read_credentials

__all__ = [
    "BACKLOG",
    "Registration",
    "RegistrationSettings",
    "listen",
    "read_registration_settings",
    "register",
    "tracking_url",
]

logger = logging.getLogger(__name__)

#: So many callers may wait while the rest is loaded, and later.
BACKLOG = 1024
#: Field 22 of proc_pid_stat(5), counted from the one after the name.
_START_TIME = 19
_CONNECT_TIMEOUT_S, _CALL_TIMEOUT_S = 5.0, 15.0
#: Short, as every caller tries again by itself and meanwhile should say who is away.
PATIENCE = Patience(patience_s=3.0, first_pause_s=0.1, longest_pause_s=0.5)


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """What registering needs of the settings; see `MasterConfig` for each."""

    rm_scheduler: tuple[str, ...]
    hosts: Mapping[str, str] = field(default_factory=dict)
    http_host: str = "0.0.0.0"
    http_port: int = 0

    @property
    def rpc_settings(self) -> RpcSettings:
        """For every line to YARN."""
        return RpcSettings(_CONNECT_TIMEOUT_S, _CALL_TIMEOUT_S, hosts=self.hosts)


@dataclass(frozen=True, slots=True)
class Registration:
    """What an attempt has when it begins to work.

    Attributes:
        node: where it runs.
        am: its line to the ResourceManager.
        listener: where agents, mappers and admins reach it.
        at: when that began, Unix seconds: nobody has called this attempt before.
        registered: the ResourceManager's answer; None: there was none, and it is to be asked again.
        took_s: from the begin of this process to that answer; 0 when it is not known.
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
    """The few settings, from JSON as `yarn-accel start` ships it without a look at the others.

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
    # YAML, or something is wrong: what it is the settings' own check says.
    from yarn_accel.master.config import load_config

    config = load_config(config_file)
    return RegistrationSettings(config.rm_scheduler, config.hosts, config.http_host, config.http_port)


async def register(words: RegistrationSettings, environ: Mapping[str, str]) -> Registration:
    """Listen and register.

    Raises:
        StartupError: this is no container of YARN, or the address cannot be listened on.
        AccelError: the ResourceManager refuses this attempt.
    """
    for name in ("CONTAINER_ID", "NM_HOST"):
        if not environ.get(name):
            raise StartupError(f"{name} is not set", cure="only YARN starts a master: `yarn-accel start`")
    credentials, node = read_credentials(environ), environ["NM_HOST"]
    where = tuple(Address.parse(each) for each in words.rm_scheduler)
    addresses = ResourceManagerAddresses(where, where, where)
    am = NativeApplicationMaster(addresses, credentials.am_rm, words.rpc_settings, PATIENCE)
    at, listener = time.time(), listen(words.http_host, words.http_port)
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
    """How long this process is there, the container's bootstrap included; 0 where the kernel does not say."""
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
