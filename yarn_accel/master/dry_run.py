"""What a master would do with its settings and its plan; it does not register.

It asks the ResourceManager for its nodes, which any user may, and lets the real core decide about them as if
every container ran at once and every server were healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from yarn_accel.adapters.hadoop_rpc import ResourceManager, User
from yarn_accel.core import binding
from yarn_accel.core.application import Application
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.master.config import MasterConfig, load_config
from yarn_accel.master.inventory import Inventory
from yarn_accel.master.launch_plan import SERVER_ROLE, LaunchPlan, load_plan
from yarn_accel.master.registration import PATIENCE, RegistrationSettings
from yarn_accel.users import login_name


async def preview(config_file: Path) -> dict[str, Any]:
    """Who would get which container of what size, who would be bound to whom, and the policy.

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
