"""Whether a task service can run an application at all."""

from __future__ import annotations

from yarn_accel.core.tasks.applications import AppDefinition
from yarn_accel.core.tasks.service.pool import slots
from yarn_accel.core.tasks.service.settings import ServiceSettings
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import ConfigError


def check_runnable(definition: AppDefinition, settings: ServiceSettings, most_gpus: int) -> None:
    """Refuse what no worker, or not the policy, of this service would ever run.

    Args:
        most_gpus: of one pipeline server that serves now.

    Raises:
        ConfigError: why, with the cure.
    """
    app = definition.spec.app
    _check_kind(definition, settings)
    _check_environments(definition, settings)
    if not settings.uses_gpus and Form.CPU not in definition.spec.demands:
        raise ConfigError(
            f"{app}: it has the form gpu alone, and the policy of this service uses no GPUs",
            cure="give a form cpu, or start the service with another policy",
        )
    if all(need.is_served for need in definition.spec.demands.values()) and not most_gpus:
        raise ConfigError(
            f"{app}: gpu.operation: no pipeline server serves any node now",
            cure="see `yarn-accel status` for why, submit it again when one serves, or give a form cpu",
        )
    if settings.sizes and not any(slots(size, definition.spec, most_gpus) for size in settings.sizes):
        sizes = ", ".join(f"{size.name} ({size.cores} cores, {size.gpus} GPUs)" for size in settings.sizes)
        raise ConfigError(
            f"{app}: one of its tasks needs more than any worker has: {sizes}",
            cure="ask for fewer cores, GPUs or less memory, or start the service with larger workers",
        )


def _check_environments(definition: AppDefinition, settings: ServiceSettings) -> None:
    for task in definition.tasks:
        name = task.python_environment
        if name and name not in settings.environments:
            known = ", ".join(sorted(settings.environments)) or "none"
            raise ConfigError(
                f"{task.task}: python_environment {name}: this service has no environment of this name; "
                f"known: {known}",
                cure="the owner of the service names it under tasks.environments of the launch settings",
            )


def _check_kind(definition: AppDefinition, settings: ServiceSettings) -> None:
    """DAGs are for policies that plan them; these give each core to one task at a time."""
    app, policy = definition.spec.app, settings.policy
    if definition.dag is not None and not settings.takes_dags:
        raise ConfigError(
            f"{app}: it is a DAG, and the policy of this service, {policy}, plans none",
            cure="set tasks: {policy: mps} in the launch settings, and start the service anew",
        )
    if definition.dag is None and settings.takes_dags:
        raise ConfigError(
            f"{app}: it is no DAG, and the policy of this service, {policy}, plans DAGs alone",
            cure="start a service with another policy, as hdas+, or submit a DAG without edges",
        )
    if definition.dag is not None:
        if len(definition.tasks) > settings.max_dag_tasks:
            raise ConfigError(
                f"{app}: it has {len(definition.tasks)} tasks, and a DAG of this service has at most "
                f"{settings.max_dag_tasks}, as nothing else is decided while it is planned as a whole",
                cure="submit it in parts, or set tasks: {max_dag_tasks: ...} in the launch settings",
            )
        for size in settings.sizes:
            need_bytes = definition.spec.demands[Form.CPU].memory_bytes * size.cores
            if need_bytes > size.memory_bytes:
                raise ConfigError(
                    f"{app}: a worker ({size.name}) runs {size.cores} of its tasks at once, which take "
                    f"{need_bytes} bytes of memory, and has {size.memory_bytes}",
                    cure="ask for less memory, or start the service with more task_memory_mib or fewer cores",
                )
