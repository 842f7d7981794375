"""The options of policies, each a reading of the paper or a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.tasks.contention import AFFINITY_MEANS, PROGRESS, READ_SECONDS
from yarn_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What a policy may be set to; a policy takes those that mean something to it.

    Attributes:
        above_saturation: form of equation (3) once more is requested than B.
        affinity_mean: mean over k of equation (4).
        progress: form of equation (6).
        tasks_per_heartbeat: ``all`` fills a resource in each decision, ``one`` gives it one task.
        tie_tolerance: keys that differ by no more are equal, and the next key decides.
        next_tasks_per_slot: tasks that may lie at a worker for each that runs there, 0 or 1.
        learns: False leaves figures as they were declared.
        measure_wait_s: how long a first task waits for a node where nobody reads, and how long such a node
            takes nothing else while it is measured.
    """

    above_saturation: str = "equal-share"
    affinity_mean: str = "arithmetic"
    progress: str = "rate"
    tasks_per_heartbeat: str = "all"
    tie_tolerance: float = 1e-9
    next_tasks_per_slot: int = 0
    learns: bool = True
    measure_wait_s: float = 30.0

    def __post_init__(self) -> None:
        _check_word("above_saturation", self.above_saturation, READ_SECONDS)
        _check_word("affinity_mean", self.affinity_mean, AFFINITY_MEANS)
        _check_word("progress", self.progress, PROGRESS)
        _check_word("tasks_per_heartbeat", self.tasks_per_heartbeat, ("all", "one"))
        for key in ("tie_tolerance", "measure_wait_s"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(f"policy.{key}: expected a number from 0, found {value!r}")
        if isinstance(self.next_tasks_per_slot, bool) or self.next_tasks_per_slot not in (0, 1):
            raise ConfigError(
                f"policy.next_tasks_per_slot: expected 0 or 1, found {self.next_tasks_per_slot!r}"
            )
        if not isinstance(self.learns, bool):
            raise ConfigError(f"policy.learns: expected true or false, found {self.learns!r}")


def _check_word(key: str, value: object, known: Mapping[str, Any] | tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"policy.{key}: expected one of {', '.join(known)}, found {value!r}")
