"""Options of the policies for DAGs, each a reading of the paper or a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from yarn_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DagPolicyOptions:
    """What a policy may be set to; a policy takes those that mean something to it.

    Attributes:
        most_moves: so often a task may go from one machine's queue to another's; then it keeps its machine.
        overdue_after: a task that has waited in the pool for so many times its DAG's own makespan is overdue.
        overdue_share: share of the machines that may be busy with overdue tasks, whatever their class; one
            machine at least.
        backfill: `threshold` lets a backfilled task overrun its gap by C (equation 4), `exact` does not,
            `none` has no backfilling.
        take_back: False leaves planned tasks where they are.
        queue_depth: planned tasks that lie at each worker.
    """

    most_moves: int = 8
    overdue_after: float = 10.0
    overdue_share: float = 0.1
    backfill: str = "threshold"
    take_back: bool = True
    queue_depth: int = 1

    def __post_init__(self) -> None:
        for key, least in (("most_moves", 0), ("queue_depth", 1)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"policy.{key}: expected a whole number from {least}, found {value!r}")
        for key, most in (("overdue_after", math.inf), ("overdue_share", 1.0)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                raise ConfigError(
                    f"policy.{key}: expected a number above 0 and up to {most}, found {value!r}"
                )
        if self.backfill not in ("threshold", "exact", "none"):
            raise ConfigError(f"policy.backfill: expected threshold, exact or none, found {self.backfill!r}")
        if not isinstance(self.take_back, bool):
            raise ConfigError(f"policy.take_back: expected true or false, found {self.take_back!r}")
