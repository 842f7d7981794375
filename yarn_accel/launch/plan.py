"""The plan of an application: what runs in the containers of each role, with which files, and their sizes.

The plan travels to the ApplicationMaster as JSON.  The master starts containers from it without knowing how
an environment is packed.  Roles are rows of a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from yarn_accel.launch.config import LaunchConfig, RoleSettings, ServerRole, WorkerRole
from yarn_accel.launch.container_command import container_argv, container_command, container_environment
from yarn_accel.launch.container_entry import SERVE
from yarn_accel.launch.node_compatibility import EXIT_REASONS
from yarn_accel.launch.upload import FileResource

_GPU = "yarn.io/gpu"


@dataclass(frozen=True, slots=True)
class RoleDefinition:
    """One kind of container.

    Attributes:
        name: also the section of its settings.
        words: the words after ``yarn-accel`` in its command; see `container_entry`.
        nodes: where it runs: ``one``, ``accelerator``, ``every`` or, by the master's choice, ``chosen``.
    """

    name: str
    words: tuple[str, ...]
    nodes: str


#: Add a row, and a section in the settings, for a new kind of container.
ROLES = (
    RoleDefinition("master", ("master", "run", "--config", "master.json"), "one"),
    RoleDefinition("server", (*SERVE, "pipeline.json"), "accelerator"),
    RoleDefinition("agent", ("node", "agent", "--config", "agent.yaml"), "every"),
    RoleDefinition("worker", ("worker", "--config", "worker.yaml"), "chosen"),
)


@dataclass(frozen=True, slots=True)
class RolePlan:
    """What a container of one role is started with.

    Attributes:
        name: of the role.
        nodes: where it runs, see `RoleDefinition`.
        command: the one command of its ContainerLaunchContext, quoted for a NodeManager.
        environment: its variables, quoted likewise.
        resources: the files it finds in its folder.
        memory_mib: its size.
        vcores: its virtual cores.
        other: further resource types, such as ``yarn.io/gpu``, and how many.
        priority: of its requests; a smaller number is served first.
        whole: resource types of which it asks for all that its node has, if any.
    """

    name: str
    nodes: str
    command: str
    environment: Mapping[str, str]
    resources: tuple[FileResource, ...]
    memory_mib: int
    vcores: int
    other: Mapping[str, int]
    priority: int
    whole: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplicationPlan:
    """The roles of one application and the meaning of their containers' exit codes."""

    roles: Mapping[str, RolePlan]
    exit_reasons: Mapping[int, str]

    def to_json(self) -> str:
        """The plan as text; `master.launch_plan` reads it."""
        return json.dumps(asdict(self), sort_keys=True)


def make_plan(
    config: LaunchConfig,
    environment: FileResource,
    script: FileResource,
    more: Mapping[str, Sequence[FileResource]] | None = None,
) -> ApplicationPlan:
    """Make the plan from settings and uploads.

    Args:
        config: the settings.
        environment: the uploaded environment.
        script: the uploaded bootstrap.
        more: role -> further files of its containers, such as their settings.
    """
    roles = {}
    for row, settings in _rows(config):
        is_server = row.name == "server"
        argv = container_argv(row.words, environment.name, config.environment.python)
        roles[row.name] = RolePlan(
            name=row.name,
            nodes=row.nodes,
            command=container_command(argv),
            environment=container_environment(
                config.environment.cache_dir,
                _locked_devices(config) if is_server else "",
                config.server.devices_dir if is_server else "",
                settings.environment,
            ),
            resources=(environment, script, *(more or {}).get(row.name, ())),
            memory_mib=config.server_memory_mib if is_server else settings.memory_mib,
            vcores=settings.vcores,
            other=_counted_gpus(settings) if isinstance(settings, ServerRole | WorkerRole) else {},
            priority=settings.priority,
            whole=(_GPU,) if is_server and config.server.gpus == "auto" else (),
        )
    return ApplicationPlan(roles, EXIT_REASONS)


def _rows(config: LaunchConfig) -> Iterator[tuple[RoleDefinition, RoleSettings]]:
    """The roles that run, with their settings; one of workers for each of their sizes."""
    for row in ROLES:
        if row.name == "worker":
            for name, settings in config.worker_roles.items():
                yield RoleDefinition(name, ("worker", "--config", f"{name}.yaml"), row.nodes), settings
        elif getattr(getattr(config, row.name), "enabled", True):
            yield row, getattr(config, row.name)


def _counted_gpus(role: ServerRole | WorkerRole) -> dict[str, int]:
    return {_GPU: role.gpus} if isinstance(role.gpus, int) and role.gpus else {}


def _locked_devices(config: LaunchConfig) -> str:
    """The devices that the server locks itself, of those that it sees.

    As many as YARN counts for it, where it does: unless the site isolates GPUs, YARN says to no container
    which ones it has, and the lock chooses. Where the site does, the server sees only its own.
    """
    server = config.server
    if server.devices != "none" and (counted := _counted_gpus(config.server)):
        return str(counted[_GPU])
    return "" if server.devices == "none" else server.devices
