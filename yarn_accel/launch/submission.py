"""The submission of an application: the master's container, its secrets and its rules."""

from __future__ import annotations

from collections.abc import Mapping

from yarn_accel.adapters.hadoop_rpc import ApplicationId, ApplicationSubmission, TokenFile, write_token_file
from yarn_accel.adapters.hadoop_rpc.records import (
    LaunchContext,
    LocalResource,
    LocalResourceVisibility,
    NodeReport,
    Priority,
    YarnResource,
)
from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.rm_client import APPLICATION_TYPE
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.container_secrets import FILE_ALIAS
from yarn_accel.launch.plan import ApplicationPlan, RolePlan
from yarn_accel.master.credentials import AGENTS_ALIAS, CONTROL_ALIAS, SERVER_ALIAS


def make_submission(
    application: ApplicationId,
    config: LaunchConfig,
    plan: ApplicationPlan,
    control: bytes,
    pipeline: bytes,
    agents: bytes = b"",
    files: Mapping[str, str] | None = None,
) -> ApplicationSubmission:
    """The submission of the master.

    Args:
        application: its id.
        plan: with all files of the role ``master``.
        control: the application's own secret.
        pipeline: the pipeline servers' master secret.
        agents: the secret of agents that the site runs; empty: their keys come from `control`.
        files: small files of the master, by name.
    """
    role = plan.roles["master"]
    given = {CONTROL_ALIAS: control, SERVER_ALIAS: pipeline, AGENTS_ALIAS: agents}
    given.update({FILE_ALIAS + name: text.encode() for name, text in (files or {}).items()})
    secrets = TokenFile(secrets={alias: secret for alias, secret in given.items() if secret})
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


def check_sizes(
    plan: ApplicationPlan, maximum: YarnResource | None, nodes: tuple[NodeReport, ...]
) -> list[str]:
    """Check that YARN can allocate containers of these sizes.

    Args:
        maximum: the largest container the cluster gives out.
        nodes: the cluster's.

    Returns:
        what will not fit on any node as it is now; it may fit on one that comes.

    Raises:
        ConfigError: the cluster never gives out one as large.
    """
    warnings = []
    for role in plan.roles.values():
        wanted = {"memory-mb": role.memory_mib, "vcores": role.vcores, **role.other}
        if maximum is not None:
            _check_maximum(role, wanted, _amounts(maximum))
        have = [_amounts(node.capability) for node in nodes if node.capability is not None]
        if have and not any(all(amounts.get(k, 0) >= n for k, n in wanted.items()) for amounts in have):
            listed = ", ".join(f"{name} {amount}" for name, amount in wanted.items())
            warnings.append(f"no node is large enough for a container of role {role.name} ({listed})")
    return warnings


def _check_maximum(role: RolePlan, wanted: dict[str, int], maximum: dict[str, int]) -> None:
    for name, amount in wanted.items():
        if amount > maximum.get(name, 0):
            cure = "let YARN give out so many, or ask for less with `gpus` of the role"
            if name in ("memory-mb", "vcores"):
                cure = (
                    "ask for less (accelerator containers follow pipeline.pool_bytes and workers), or raise "
                    "yarn.scheduler.maximum-allocation-mb or -vcores"
                )
            raise ConfigError(
                f"role {role.name} needs {name} {amount}, the largest container has {maximum.get(name, 0)}",
                cure=cure,
            )


def _amounts(resource: YarnResource) -> dict[str, int]:
    return {"memory-mb": resource.memory_mib, "vcores": resource.vcores, **resource.other}


def _launch_context(role: RolePlan, credentials: bytes) -> LaunchContext:
    files = {
        each.name: LocalResource.of(
            each.uri, each.n_bytes, each.modified_ms, visibility=LocalResourceVisibility[each.visibility]
        )
        for each in role.resources
    }
    return LaunchContext.of([role.command], role.environment, files, credentials)
