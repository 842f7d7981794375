"""The one table of policies for DAGs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yarn_accel.core.dags.policies.base import DagPolicy, DagPolicyOptions
from yarn_accel.core.dags.policies.dispatch import LeastProgressPolicy, RoundRobinAtDispatchPolicy
from yarn_accel.core.dags.policies.mps import MpsPolicy
from yarn_accel.core.dags.policies.pool import (
    FairnessPolicy,
    FcfsPolicy,
    MmhsStandInPolicy,
    RoundRobinAtEntryPolicy,
)
from yarn_accel.core.dags.policies.static import FpctPolicy, FpftPolicy, MergedHeftPolicy
from yarn_accel.errors import ConfigError

_LISTED: tuple[type[DagPolicy], ...] = (
    MpsPolicy,
    FairnessPolicy,
    FpftPolicy,
    FpctPolicy,
    RoundRobinAtEntryPolicy,
    MmhsStandInPolicy,
    FcfsPolicy,
    MergedHeftPolicy,
    RoundRobinAtDispatchPolicy,
    LeastProgressPolicy,
)
DAG_POLICIES: Mapping[str, type[DagPolicy]] = {each.name: each for each in _LISTED}


def make_dag_policy(
    name: str, bandwidth_bytes_per_s: float, settings: Mapping[str, Any] | None = None
) -> DagPolicy:
    """A new policy that knows no machines and no DAGs.

    Args:
        name: a key of `DAG_POLICIES`.
        bandwidth_bytes_per_s: between any two machines.
        settings: fields of `DagPolicyOptions` that the policy takes.

    Raises:
        ConfigError: an unknown name or setting, or a value out of range; names the known ones.
    """
    if name not in DAG_POLICIES:
        raise ConfigError(f"policy: no policy is called {name!r}; known: {', '.join(DAG_POLICIES)}")
    kind, given = DAG_POLICIES[name], settings or {}
    for key in given:
        if key not in kind.settings:
            raise ConfigError(
                f"policy: {name!r} has no setting {key!r}; it has: {', '.join(kind.settings) or 'none'}"
            )
    return kind(bandwidth_bytes_per_s, DagPolicyOptions(**given))
