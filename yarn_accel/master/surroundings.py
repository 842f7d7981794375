"""What a master works with: its container, its secrets and plan, and the lines to YARN."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc import (
    ApplicationMaster,
    ContainerId,
    NativeNodeManager,
    NativeResourceManager,
    NodeManager,
    ResourceManager,
)
from yarn_accel.master.arrival import PATIENCE, Arrival, Words
from yarn_accel.master.config import MasterConfig
from yarn_accel.master.credentials import Credentials
from yarn_accel.master.plan_file import Plan, load_plan

__all__ = ["Surroundings", "surroundings"]


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


def surroundings(config: MasterConfig, arrival: Arrival, environ: Mapping[str, str]) -> Surroundings:
    """The real ones, as YARN tells of them in the environment.

    Raises:
        ConfigError: the plan is wrong.
    """
    settings = Words((), config.hosts).rpc_settings
    identity = arrival.credentials.identity(config.user or getpass.getuser())
    return Surroundings(
        ContainerId.parse(environ["CONTAINER_ID"]),
        arrival.node,
        arrival.credentials,
        load_plan(Path(config.plan_file)),
        NativeResourceManager(config.addresses, identity, settings, PATIENCE),
        arrival.am,
        NativeNodeManager(settings, PATIENCE),
    )
