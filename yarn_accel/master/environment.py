"""The launch plan of the application, and all that a master is given at its start.

The plan says how the containers of each role are started: `launch` writes it as JSON, and this package may
not import `launch`; a test compares both. `container_environment` makes the real environment of a master.
`preview` is a dry run: it asks the ResourceManager for its nodes, which any user may, and lets the real core
decide about them as if every container ran at once and every server were healthy.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel.adapters.hadoop_rpc import (
    ApplicationMaster,
    ContainerId,
    NodeManager,
    ResourceManager,
    Security,
    User,
)
from yarn_accel.adapters.hadoop_rpc.records import (
    LaunchContext,
    LocalResource,
    LocalResourceVisibility,
    RetryContext,
    RetryPolicy,
)
from yarn_accel.adapters.hadoop_rpc.sasl import Protection
from yarn_accel.adapters.hadoop_rpc.tokens import name_tokens
from yarn_accel.client.token_file import TOKEN_FILE_VARIABLE
from yarn_accel.core import binding
from yarn_accel.core.application import Application, ContainerRole, NodeSelector, RoleResource, RoleTable
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.errors import ConfigError
from yarn_accel.master.config import MasterConfig, load_config
from yarn_accel.master.credentials import MasterCredentials
from yarn_accel.master.inventory import Inventory
from yarn_accel.master.registration import PATIENCE, Registration, RegistrationSettings
from yarn_accel.users import login_name

if TYPE_CHECKING:
    from yarn_accel.master.token_renewal import KeytabLogin

logger = logging.getLogger(__name__)

SERVER_ROLE = "server"
#: Exit codes that another start may cure: a fault of the program, abort, bus error, arithmetic, segmentation.
_PASSING = (1, 134, 135, 136, 139)
_RETRY_PAUSE_MS = 1000
_RETRY_WINDOW_MS = 60_000


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """How a container of one role is started; everything is quoted for a NodeManager already."""

    command: str
    environment: Mapping[str, str]
    files: Mapping[str, LocalResource]

    def context(self, credentials: bytes | None, retries: int) -> LaunchContext:
        """The launch context for the NodeManager.

        Args:
            credentials: content of the container's token file.
            retries: starts in place after a fault, a second apart, while no master is there to replace it.
        """
        retry = None
        if retries:
            policy = RetryPolicy.RETRY_ON_SPECIFIC_ERROR_CODES
            retry = RetryContext(policy, _PASSING, retries, _RETRY_PAUSE_MS, _RETRY_WINDOW_MS)
        return LaunchContext.of([self.command], self.environment, self.files, credentials, retry)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All roles of the application.

    Attributes:
        roles: the rows for the core.
        launches: by name of the role.
        exit_reasons: the meaning of our containers' exit codes.
    """

    roles: RoleTable
    launches: Mapping[str, LaunchSpec]
    exit_reasons: Mapping[int, str]


def load_plan(path: Path) -> LaunchPlan:
    """Read the file.

    Raises:
        ConfigError: it is not such a file; names the place.
    """
    try:
        return parse_plan(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None


def parse_plan(text: str) -> LaunchPlan:
    """Read the JSON; the role that runs on ``one`` node is the master itself, and skipped.

    Raises:
        ConfigError: it is no such JSON; names the role.
    """
    role = "roles"
    rows, launches = [], {}
    try:
        document = json.loads(text)
        for role, values in document["roles"].items():
            if values["nodes"] == "one":
                continue
            launches[role] = _launch(values)
            rows.append(_row(role, values))
        role = "exit_reasons"
        reasons = {int(code): str(reason) for code, reason in document["exit_reasons"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"plan: {role}: {type(error).__name__}: {error}") from None
    if SERVER_ROLE not in launches:
        raise ConfigError(f"plan: no role {SERVER_ROLE}")
    return LaunchPlan(RoleTable(rows), launches, reasons)


def _launch(values: Mapping[str, Any]) -> LaunchSpec:
    files = {
        each["name"]: LocalResource.of(
            each["uri"],
            each["n_bytes"],
            each["modified_ms"],
            visibility=LocalResourceVisibility[each["visibility"]],
        )
        for each in values["resources"]
    }
    return LaunchSpec(str(values["command"]), dict(values["environment"]), files)


def _row(name: str, values: Mapping[str, Any]) -> ContainerRole:
    resource = RoleResource(
        int(values["memory_mib"]),
        int(values["vcores"]),
        tuple(sorted((str(key), int(amount)) for key, amount in values["other"].items())),
        tuple(str(name) for name in values.get("whole", ())),
    )
    where = NodeSelector(values["nodes"])
    return ContainerRole(name, where, resource, int(values["priority"]), is_server=name == SERVER_ROLE)


@dataclass(frozen=True, slots=True)
class ContainerEnvironment:
    """The environment of a master; tests replace its parts.

    Attributes:
        login: by the master's keytab; None: it has none.
    """

    container: ContainerId
    node: str
    credentials: MasterCredentials
    plan: LaunchPlan
    rm: ResourceManager
    am: ApplicationMaster
    nm: NodeManager
    login: KeytabLogin | None = None


#: A container's tokens travel to its NodeManager: encrypted, if the site lets a client choose.
_STRONGEST = Security(protections=tuple(sorted(Protection, reverse=True)))


def container_environment(
    config: MasterConfig, registration: Registration, environ: Mapping[str, str]
) -> ContainerEnvironment:
    """The real environment, from the variables that YARN sets.

    Raises:
        ConfigError: the plan is wrong.
    """
    settings = RegistrationSettings((), config.hosts).rpc_settings
    to_nodes = replace(settings, security=_STRONGEST) if registration.credentials.hdfs else settings
    user = config.user or login_name()
    credentials = replace(registration.credentials, tenant=user, hdfs_names=config.hdfs_names)
    if credentials.hdfs:
        try:
            name_tokens(Path(environ[TOKEN_FILE_VARIABLE]), credentials.hdfs_names)
        except OSError as error:
            logger.warning("HDFS may not know this master: its tokens cannot be named: %s", error)
    identity, login = credentials.identity(user), None
    if config.keytab:
        # Only such a master needs what asks for tokens.
        from yarn_accel.master.token_renewal import KeytabLogin

        login = KeytabLogin.of(config, settings, environ)
        identity, settings = login.kerberos, login.settings
    return ContainerEnvironment(
        ContainerId.parse(environ["CONTAINER_ID"]),
        registration.node,
        credentials,
        load_plan(Path(config.plan_file)),
        ResourceManager(config.addresses, identity, settings, PATIENCE),
        registration.am,
        NodeManager(to_nodes, PATIENCE),
        login,
    )


async def preview(config_file: Path) -> dict[str, Any]:
    """A dry run: the containers that nodes would get, their bindings, and the policy.

    Raises:
        ConfigError: the settings or the plan are wrong.
        UnavailableError: no ResourceManager answers.
    """
    config = load_config(config_file)
    plan = load_plan(Path(config.plan_file))
    user = User(config.user or login_name())
    rm = ResourceManager(
        config.addresses, user, RegistrationSettings((), config.hosts).rpc_settings, PATIENCE
    )
    try:
        views = Inventory(config.accelerator_nodes).complete(await rm.nodes())
    finally:
        await rm.close()
    return _decided(config, plan, views)


def _decided(config: MasterConfig, plan: LaunchPlan, views: Iterable[ev.NodeView]) -> dict[str, Any]:
    """Pure."""
    core = Application(
        config.core_settings,
        plan.roles,
        lambda: binding.make(config.policy, config.policy_settings),
    )
    orders: list[cmd.Command] = core.apply(ev.Registered((), 1, 0.0))
    orders += core.apply(ev.NodesReported(tuple(views), 0.0, is_complete=True))
    asks: list[cmd.RequestContainer] = []
    while orders:
        new = [order for order in orders if isinstance(order, cmd.RequestContainer)]
        is_to_go_on = any(isinstance(order, cmd.SetTimer) and order.at_s <= 0.0 for order in orders)
        orders = [order for ask in new for order in _granted(core, ask)]
        orders += core.apply(ev.TimerFired(0.0)) if is_to_go_on else []
        asks += new
    return {
        "policy": config.policy,
        "containers": [_document(ask) for ask in sorted(asks, key=lambda ask: (ask.node, ask.role))],
        "bound": dict(sorted(core.bound().items())),
    }


def _granted(core: Application, ask: cmd.RequestContainer) -> list[cmd.Command]:
    """The commands that follow when the container runs, and its server is healthy."""
    name = f"{ask.role} on {ask.node}"
    orders = core.apply(
        ev.ContainersAllocated((ev.ContainerRef(name, ask.node, ask.priority, ask.request_id),), 0.0)
    ) + core.apply(ev.ContainerStarted(name, 0.0))
    if ask.role == SERVER_ROLE:
        orders += core.apply(ev.StatusReported(ask.node, ask.role, 0.0, name, ask.node))
    return orders


def _document(ask: cmd.RequestContainer) -> Mapping[str, Any]:
    return {"node": ask.node, "rack": ask.rack, "role": ask.role, "resource": dict(ask.resource)}
