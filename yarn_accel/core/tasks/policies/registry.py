"""The one table of task policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies.base import FillingPolicy
from yarn_accel.core.tasks.policies.fifo import FifoPolicy
from yarn_accel.core.tasks.policies.hadoop import HadoopPolicy
from yarn_accel.core.tasks.policies.hdas import GuardedHdasPolicy, HdasPolicy
from yarn_accel.core.tasks.policies.model import ModelPolicy
from yarn_accel.core.tasks.policies.options import PolicyOptions
from yarn_accel.errors import ConfigError

POLICIES: dict[str, type[FillingPolicy]] = {
    "fifo": FifoPolicy,
    "model": ModelPolicy,
    "hdas": HdasPolicy,
    "hdas+": GuardedHdasPolicy,
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


def make(
    name: str, settings: Mapping[str, Any] | None = None, figures: FigureStore | None = None
) -> FillingPolicy:
    """A new policy that knows no resources and no applications.

    Args:
        name: a key of `POLICIES`.
        settings: those in `SETTINGS`.
        figures: what is believed of applications from before; the policy learns into it.

    Raises:
        ConfigError: an unknown name or setting, or a value out of range; names the known ones.
    """
    if name not in POLICIES:
        raise ConfigError(f"policy: no policy is called {name!r}; known: {', '.join(POLICIES)}")
    given = settings or {}
    for key in given:
        if key not in SETTINGS[name]:
            raise ConfigError(f"policy: {name!r} has no setting {key!r}; it has: {', '.join(SETTINGS[name])}")
    return POLICIES[name](PolicyOptions(**given), figures)
