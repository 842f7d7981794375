"""Policies of a task service by name: those for DAGs, and those of `core.tasks.policies`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yarn_accel.core.dags.live.policy import LiveDagPolicy
from yarn_accel.core.dags.policies.registry import DAG_POLICIES, make_dag_policy
from yarn_accel.core.tasks.commands import TaskPolicy
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies.registry import POLICIES, make
from yarn_accel.errors import ConfigError


def make_service_policy(
    name: str, settings: Mapping[str, Any], figures: FigureStore, bandwidth_bytes_per_s: float
) -> TaskPolicy:
    """A new policy that knows nothing yet.

    Args:
        name: of `POLICIES` or `DAG_POLICIES`.
        settings: those that it takes.
        figures: what is known from before; the policy learns into it.
        bandwidth_bytes_per_s: at which a task fetches what another one made.

    Raises:
        ConfigError: an unknown name or setting, or a value out of range; names the known ones.
    """
    if name in POLICIES:
        return make(name, settings, figures)
    if name not in DAG_POLICIES:
        known = ", ".join((*POLICIES, *DAG_POLICIES))
        raise ConfigError(f"policy: no policy is called {name!r}; known: {known}")
    return LiveDagPolicy(make_dag_policy(name, bandwidth_bytes_per_s, settings), figures.durations)
