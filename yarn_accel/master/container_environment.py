"""The environment of a master: its container, its secrets, its launch plan, its connections to YARN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc import ApplicationMaster, ContainerId, NodeManager, ResourceManager
from yarn_accel.master.config import MasterConfig
from yarn_accel.master.credentials import MasterCredentials
from yarn_accel.master.launch_plan import LaunchPlan, load_plan
from yarn_accel.master.registration import PATIENCE, Registration, RegistrationSettings
from yarn_accel.users import login_name


@dataclass(frozen=True, slots=True)
class ContainerEnvironment:
    """The environment of a master; tests replace its parts."""

    container: ContainerId
    node: str
    credentials: MasterCredentials
    plan: LaunchPlan
    rm: ResourceManager
    am: ApplicationMaster
    nm: NodeManager


def container_environment(
    config: MasterConfig, registration: Registration, environ: Mapping[str, str]
) -> ContainerEnvironment:
    """The real environment, from the variables that YARN sets.

    Raises:
        ConfigError: the plan is wrong.
    """
    settings = RegistrationSettings((), config.hosts).rpc_settings
    user = config.user or login_name()
    identity = registration.credentials.identity(user)
    return ContainerEnvironment(
        ContainerId.parse(environ["CONTAINER_ID"]),
        registration.node,
        replace(registration.credentials, tenant=user),
        load_plan(Path(config.plan_file)),
        ResourceManager(config.addresses, identity, settings, PATIENCE),
        registration.am,
        NodeManager(settings, PATIENCE),
    )
