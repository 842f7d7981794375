"""The plan of an application, with the containers of each role, and its submission to YARN.

The plan travels to the ApplicationMaster as JSON.  The master starts containers from it without knowing how
an environment is packed.  Roles are rows of a table.

A command is quoted so that a NodeManager runs exactly these words.  A NodeManager replaces markers in a
container's command (``{{``, ``}}``, ``<LOG_DIR>`` and others), writes it between double quotes into a
script, ``exec /bin/bash -c "..."``, and runs that with bash: each word must survive the markers, the double
quotes and the inner bash (seen in ContainerLaunch of Hadoop 3.5.0).  The values of environment variables
pass through markers and double quotes alone.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from yarn_accel.adapters.hadoop_rpc import (
    ApplicationId,
    ApplicationSubmission,
    Token,
    TokenFile,
    write_token_file,
)
from yarn_accel.adapters.hadoop_rpc.records import (
    LaunchContext,
    LocalResource,
    LocalResourceVisibility,
    Priority,
    YarnResource,
)
from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.rm_client import APPLICATION_TYPE
from yarn_accel.launch import bootstrap
from yarn_accel.launch.config import LaunchConfig, RoleSettings, ServerRole, WorkerRole
from yarn_accel.launch.container_entry import FILE_ALIAS, SERVE
from yarn_accel.launch.device_lock import EXIT_DEVICES
from yarn_accel.launch.token_follower import TOKENS_LOCATION
from yarn_accel.launch.uploads import ARCHIVE_PATTERN, SCRIPT_NAME, FileResource
from yarn_accel.master.credentials import AGENTS_ALIAS, CONTROL_ALIAS, SERVER_ALIAS

_GPU = "yarn.io/gpu"
#: The meaning of our containers' exit codes when they end before their command began.
EXIT_REASONS: Mapping[int, str] = {
    bootstrap.EXIT_PYTHON: "the node's python3 has another minor version than the packed environment",
    bootstrap.EXIT_GLIBC: "the node's glibc is older than the packed environment needs",
    bootstrap.EXIT_PLATFORM: "the node is another platform than the environment was packed on",
    bootstrap.EXIT_DISK: "the node has no disk space or no folder to unpack the environment",
    bootstrap.EXIT_DAMAGED: "the environment that came to the node is damaged",
    EXIT_DEVICES: "another process holds the node's accelerators",
    126: "the node's interpreter (`python:` in the launch settings) cannot be run",
    127: "the node has no interpreter of the name set with `python:` in the launch settings",
}
#: The NodeManager puts the container's own log folder here.
_LOG_DIR = "<LOG_DIR>"
#: Text that a NodeManager replaces before bash sees it; `(?<=a)(?=b)` is the place between its two halves.
_MARKERS = re.compile(r"(?<=\{)(?=\{)|(?<=\})(?=\})|(?<=<)(?=LOG_DIR>|CPS>|ADD_OPENS>)")
_ACTIVE = re.compile(r'[\\"$`]')
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Words of a command line that suggest a secret, which everybody on the node could read.
_SECRET = re.compile(r"secret|passw|token|credential", re.IGNORECASE)


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
    """The command, files and size of a container of one role.

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
        """The plan as text; `master.environment` reads it."""
        return json.dumps(asdict(self), sort_keys=True)


def make_plan(
    config: LaunchConfig,
    environment: FileResource,
    script: FileResource,
    more: Mapping[str, Sequence[FileResource]] | None = None,
    tokens_location: str = "",
) -> ApplicationPlan:
    """Make the plan from settings and uploads.

    Args:
        config: the settings.
        environment: the uploaded environment.
        script: the uploaded bootstrap.
        more: role -> further files of its containers, such as their settings.
        tokens_location: where containers look for newer tokens; empty: there are none.
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
                "" if row.name == "master" else tokens_location,
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


def container_argv(words: Sequence[str], archive_name: str, python: str = "python3") -> list[str]:
    """The words of a container that runs ``yarn-accel WORD...`` from a packed environment.

    Args:
        words: what stands after ``yarn-accel``.
        archive_name: name of the environment in the container's folder, ``accel-environment-DIGEST.zip``.
        python: the node's interpreter; isolated, so that nobody's settings or packages reach the bootstrap.
    """
    if not ARCHIVE_PATTERN.fullmatch(archive_name):
        raise ConfigError(f"{archive_name}: not the name of an environment")
    return [python, "-I", "-S", SCRIPT_NAME, archive_name, *words]


def container_command(argv: Sequence[str]) -> str:
    """One command for a ContainerLaunchContext; its output is appended to the container's log files.

    Raises:
        ConfigError: a word has a NUL in it.
    """
    words = " ".join(_quoted(word) for word in argv)
    # `exec`: signals of the NodeManager reach Python itself, and no shell stays behind.  Appending, so that
    # the files may be cut while they are written to.
    redirections = f"1>>'{_LOG_DIR}/stdout' 2>>'{_LOG_DIR}/stderr'"
    return f"exec {_ACTIVE.sub(_escaped, words)} {redirections}"


def _quoted(word: str) -> str:
    if "\0" in word:
        raise ConfigError(f"{word!r}: a NUL cannot be part of a command")
    return "".join(shlex.quote(part) for part in _MARKERS.split(word))


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match.group()


def quoted_environment(values: Mapping[str, str]) -> dict[str, str]:
    """Environment variables quoted for a ContainerLaunchContext: the process sees exactly these values.

    Raises:
        ConfigError: a name that bash does not take, a value with a marker of YARN or a NUL, or what looks
            like a secret: a process' environment is no place for it, and YARN logs it.
    """
    quoted = {}
    for name, value in values.items():
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(f"environment {name!r}: not the name of a variable")
        if _SECRET.search(name) and not name.endswith(("_FILE", "_LOCATION")):
            raise ConfigError(f"environment {name}: secrets go through container credentials alone")
        if _MARKERS.search(value) or "\0" in value:
            raise ConfigError(f"environment {name}={value!r}: YARN would replace a part of it")
        quoted[name] = _ACTIVE.sub(_escaped, value)
    return quoted


def container_environment(
    cache_dir: str = "",
    devices: str = "",
    devices_dir: str = "",
    more: Mapping[str, str] | None = None,
    tokens_location: str = "",
) -> dict[str, str]:
    """The environment variables of our containers, quoted, without empty ones.

    Args:
        cache_dir: where nodes unpack the environment; default: the NodeManager's folder of the user.
        devices: ``all`` or how many GPUs to lock, where YARN does not give them out.
        devices_dir: node-wide folder of those locks.
        more: further variables.
        tokens_location: URI at which the container looks for newer tokens.
    """
    own = {
        "ACCEL_CACHE_DIR": cache_dir,
        "ACCEL_DEVICES": devices,
        "ACCEL_DEVICES_DIR": devices_dir,
        TOKENS_LOCATION: tokens_location,
    }
    return quoted_environment({name: value for name, value in {**(more or {}), **own}.items() if value})


def make_submission(
    application: ApplicationId,
    config: LaunchConfig,
    plan: ApplicationPlan,
    control: bytes,
    pipeline: bytes,
    agents: bytes = b"",
    files: Mapping[str, str] | None = None,
    tokens: Mapping[str, Token] | None = None,
) -> ApplicationSubmission:
    """The submission of the master.

    Args:
        application: its id.
        plan: with all files of the role ``master``.
        control: the application's own secret.
        pipeline: the pipeline servers' master secret.
        agents: the secret of agents that the site runs; empty: their keys come from `control`.
        files: small files of the master, by name.
        tokens: of the master, by their aliases, where the cluster has Kerberos.
    """
    role = plan.roles["master"]
    given = {CONTROL_ALIAS: control, SERVER_ALIAS: pipeline, AGENTS_ALIAS: agents}
    given.update({FILE_ALIAS + name: text.encode() for name, text in (files or {}).items()})
    secrets = TokenFile(tokens or {}, {alias: secret for alias, secret in given.items() if secret})
    app = config.app
    return ApplicationSubmission(
        application,
        app.name,
        queue=app.queue,
        priority=Priority(app.priority),
        launch=_launch_context(role, write_token_file(secrets)),
        resource=YarnResource.of(role.memory_mib, role.vcores, role.other),
        max_attempts=app.max_attempts,
        keep_containers=True,
        type=APPLICATION_TYPE,
        tags=app.tags,
        attempt_failures_validity_ms=int(app.attempt_failures_validity_interval_s * 1000),
        label=app.node_label or None,
    )


def _launch_context(role: RolePlan, credentials: bytes) -> LaunchContext:
    files = {
        each.name: LocalResource.of(
            each.uri, each.n_bytes, each.modified_ms, visibility=LocalResourceVisibility[each.visibility]
        )
        for each in role.resources
    }
    return LaunchContext.of([role.command], role.environment, files, credentials)
