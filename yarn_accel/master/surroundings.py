"""What a master works with: its container, its secrets and plan, and the lines to YARN."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc import (
    ApplicationMaster,
    ContainerId,
    NativeApplicationMaster,
    NativeNodeManager,
    NativeResourceManager,
    NodeManager,
    Patience,
    ResourceManager,
    RpcSettings,
)
from yarn_accel.errors import StartupError
from yarn_accel.master.config import MasterConfig
from yarn_accel.master.credentials import Credentials, read_credentials
from yarn_accel.master.plan_file import Plan, load_plan

__all__ = ["Surroundings", "surroundings"]

_CONNECT_TIMEOUT_S, _CALL_TIMEOUT_S = 5.0, 15.0
#: Short, as every caller here tries again by itself and meanwhile should say who is away.
_PATIENCE = Patience(patience_s=3.0, first_pause_s=0.1, longest_pause_s=0.5)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the master works with; tests put others in their places."""

    container: ContainerId
    node: str
    credentials: Credentials
    plan: Plan
    rm: ResourceManager
    am: ApplicationMaster
    nm: NodeManager


def surroundings(config: MasterConfig, environ: Mapping[str, str]) -> Surroundings:
    """The real ones, as YARN tells of them in the environment.

    Raises:
        StartupError: a variable or the token file is missing.
        ConfigError: the plan is wrong.
    """
    for name in ("CONTAINER_ID", "NM_HOST"):
        if not environ.get(name):
            raise StartupError(f"{name} is not set", cure="only YARN starts a master: `yarn-accel start`")
    credentials = read_credentials(environ)
    settings = RpcSettings(_CONNECT_TIMEOUT_S, _CALL_TIMEOUT_S, hosts=config.hosts)
    user = config.user or getpass.getuser()
    return Surroundings(
        ContainerId.parse(environ["CONTAINER_ID"]),
        environ["NM_HOST"],
        credentials,
        load_plan(Path(config.plan_file)),
        NativeResourceManager(config.addresses, credentials.identity(user), settings, _PATIENCE),
        NativeApplicationMaster(config.addresses, credentials.am_rm, settings, _PATIENCE),
        NativeNodeManager(settings, _PATIENCE),
    )
