"""The one table of task policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yarn_accel.core.tasks.policies.base import FillingPolicy
from yarn_accel.core.tasks.policies.baselines import FifoPolicy, HadoopPolicy, ModelPolicy
from yarn_accel.core.tasks.policies.hdas import HdasPolicy
from yarn_accel.core.tasks.policies.hdas_plus import HdasPlusPolicy
from yarn_accel.core.tasks.policies.options import PolicyOptions
from yarn_accel.errors import ConfigError

POLICIES: dict[str, type[FillingPolicy]] = {
    "fifo": FifoPolicy,
    "model": ModelPolicy,
    "hdas": HdasPolicy,
    "hdas+": HdasPlusPolicy,
    "hadoop": HadoopPolicy,
}

_COMMON = ("above_saturation", "tasks_per_heartbeat", "next_tasks_per_slot", "learns")
_MEASURING = (*_COMMON, "tie_tolerance", "measure_wait_s")

#: The settings each policy takes: fields of `PolicyOptions`.
SETTINGS: dict[str, tuple[str, ...]] = {
    "fifo": _COMMON,
    "model": (*_MEASURING, "affinity_mean"),
    "hdas": (*_MEASURING, "progress"),
    "hdas+": (*_MEASURING, "progress"),
    "hadoop": _COMMON,
}


def make(name: str, settings: Mapping[str, Any] | None = None) -> FillingPolicy:
    """A new policy.

    Args:
        name: a key of `POLICIES`.
        settings: those in `SETTINGS`.

    Raises:
        ConfigError: an unknown name or setting, or a value out of range; names the known ones.
    """
    if name not in POLICIES:
        raise ConfigError(f"policy: no policy is called {name!r}; known: {', '.join(POLICIES)}")
    given = settings or {}
    for key in given:
        if key not in SETTINGS[name]:
            raise ConfigError(f"policy: {name!r} has no setting {key!r}; it has: {', '.join(SETTINGS[name])}")
    return POLICIES[name](PolicyOptions(**given))
