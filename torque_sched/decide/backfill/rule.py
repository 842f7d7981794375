"""What every rule of backfilling says, and what those have in common that plan on the nodes' future."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torque_sched.decide.rules import DEFAULT_WALLTIME_S
from torque_sched.errors import ConfigError

ALL = "all"
NEVER, PRIORITY = OUTRANK = ("never", "priority")


@dataclass(frozen=True, slots=True)
class BackfillRule:
    """Who of the waiting jobs may hold a reservation, whether it improves, and who may go ahead.

    A rule is a frozen value that holds its settings; `decide.plan` and `decide.draining` follow it.
    """

    lets_others_ahead: ClassVar[bool] = True
    """Whether jobs behind one that cannot start may start."""

    @property
    def ahead(self) -> PlanningBackfill | None:
        """The rule itself if it plans on free amounts over time; None: nodes drain for a reservation."""
        return None

    @property
    def n_reservations(self) -> float:
        """So many jobs may hold a reservation at once."""
        return math.inf

    def may_hold(self, waited_s: float, length_s: float) -> bool:
        """Whether a job that cannot start now may hold a reservation."""
        return True


@dataclass(frozen=True, slots=True)
class PlanningBackfill(BackfillRule):
    """Waiting jobs are planned on the nodes' free capacity over time (`decide.plan`); needs numpy.

    Attributes:
        window_s: nothing is promised further ahead than this.
        resolution_s: promised starts and planned ends are multiples of this.
        slack_s: a job may start, and be ended after its limit, this much late without harm to any promise.
        max_jobs: so many waiting jobs are looked at in one cycle, in their order.
        reservations: so many waiting jobs hold reservations, the first by their order; ``all``: each. The
            others start where they delay nobody, and learn so.
        outrank: ``priority``: a job of higher priority (of its QoS, then ``qsub -p``) that comes first takes
            over the reservations of jobs of lower priority; ``never``: a reservation once made stays.
        default_walltime_s: what a job without walltime is taken to need; 0: unknown, so it starts only where
            nothing is promised later.
        learned: plan with learned run times instead of walltimes; promises that rest on a wrong one are
            broken, and reported.
    """

    window_s: float = 7 * 86_400.0
    resolution_s: float = 60.0
    slack_s: float = 60.0
    max_jobs: int = 10_000
    reservations: int | Literal["all"] = 50
    outrank: Literal["never", "priority"] = "never"
    default_walltime_s: float = DEFAULT_WALLTIME_S
    learned: bool = False

    keeps_promises: ClassVar[bool] = True
    """Whether a start guaranteed before is kept; else nobody holds a reservation."""
    renews: ClassVar[bool] = False
    """Whether reservations are made anew in each cycle, by the order of turns; else they are kept."""

    def __post_init__(self) -> None:
        if self.resolution_s <= 0 or self.window_s <= 0 or self.slack_s < 0 or self.default_walltime_s < 0:
            raise ConfigError(
                "backfill: a time that makes no sense",
                cure="window_s and resolution_s are above 0, slack_s and default_walltime_s not below",
            )
        if self.max_jobs < 1 or not (self.reservations == ALL or _is_number(self.reservations)):
            raise ConfigError("backfill: max_jobs must be at least 1, reservations too, or all")
        if self.outrank not in OUTRANK:
            raise ConfigError(f"backfill: outrank {self.outrank!r}", cure=f"known are {', '.join(OUTRANK)}")

    @property
    def late_s(self) -> float:
        """A start that is late by no more is the guaranteed one."""
        return max(self.slack_s, self.resolution_s)

    @property
    def most_reservations(self) -> float:
        """`reservations` as a number."""
        return math.inf if isinstance(self.reservations, str) else self.reservations

    @property
    def ahead(self) -> PlanningBackfill | None:
        """Itself."""
        return self

    @property
    def improves(self) -> bool:
        """Whether reservations become sooner when jobs end early (compression)."""
        return True


def _is_number(value: int | str) -> bool:
    return isinstance(value, int) and value >= 1
