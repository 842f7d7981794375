"""The rules of backfilling: who may hold a reservation, whether it improves, and who may go ahead.

A cycle starts what fits, in order. A large job then never starts if small ones always fit first. So a job
that waited long gets the nodes that can be free soonest, which drain for it (`decide.draining`). The order
stays as it is: a job that goes first by priority or fair share takes what is free, and only what was kept
before it came is kept from it.

EASY (Lifka 1995, with depth 1): the first jobs that cannot start hold a reservation, the head's shadow time,
and who does not delay it goes ahead. Nobody else has a claim, so reservations are made anew in each cycle.

Conservative (Mu'alem, Feitelson 2001; Lu, Han, Sun 2007, section 3.2.2): every job holds a reservation, and
its start can only become sooner. What jobs leave free that end early is used by compression: each waiting
job, in the order of turns, moves to the earliest start there is for it now. The paper prints the algorithm
without this step: then reservations that rest on too long walltimes never improve (`compress=False`).

Selective (Srinivasan, Kettimuthu, Subramani, Sadayappan 2002): between the two. Jobs without a reservation
are in nobody's way, and none of them waits for ever. Once given, reservations are as the conservative ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torque_sched.decide.rules import DEFAULT_WALLTIME_S
from torque_sched.errors import ConfigError
from torque_sched.model.lengths import expansion_factor

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


# -- rules of now alone: nodes drain for a job that has waited long


@dataclass(frozen=True, slots=True)
class NoReservations(BackfillRule):
    """Skips what does not fit, and keeps nothing for it: large jobs may starve."""

    def may_hold(self, waited_s: float, length_s: float) -> bool:
        """Nobody."""
        return False


@dataclass(frozen=True, slots=True)
class AgedReservations(BackfillRule):
    """Nodes drain for the jobs that have waited longest.

    Attributes:
        after_s: a job that waited so long is aged: nodes are kept for it, its place in the order stays. The
            default is a day, as ``max_starve`` of the sched_config that Torque ships.
        after_walltimes: a job that wants one node, and more than half the slots of a usual one (the median),
            is aged, too, once it has waited so many times its walltime; 0: none is. One node at a time drains
            for them, none while another is aged.
        depth: for how many jobs at once that waited for `after_s`.
    """

    after_s: float = 86_400.0
    after_walltimes: float = 0.43
    depth: int = 4

    @property
    def n_reservations(self) -> float:
        """The depth."""
        return self.depth

    def may_hold(self, waited_s: float, length_s: float) -> bool:
        """Those that waited long enough, or long for their length."""
        if self.after_walltimes and waited_s >= self.after_walltimes * length_s:
            return True
        return waited_s >= self.after_s


@dataclass(frozen=True, slots=True)
class DrainForStarving(BackfillRule):
    """The C daemon's ``help_starving_jobs``: while a starving job waits for nodes, nothing else starts.

    Unlike the C daemon's, a job that waits for a limit or for anything but nodes does not stop the cluster.

    Attributes:
        max_starve_s: a job that waited so long is starving.
    """

    max_starve_s: float = 86_400.0

    lets_others_ahead: ClassVar[bool] = False

    @property
    def n_reservations(self) -> float:
        """One: nobody else starts meanwhile."""
        return 1

    def may_hold(self, waited_s: float, length_s: float) -> bool:
        """Those that are starving."""
        return waited_s >= self.max_starve_s


# -- rules that plan ahead on the nodes' free amounts


@dataclass(frozen=True, slots=True)
class FcfsBackfill(PlanningBackfill):
    """First come, first served: no backfilling and no reservations. Strict, and wasteful."""

    keeps_promises: ClassVar[bool] = False
    renews: ClassVar[bool] = True
    lets_others_ahead: ClassVar[bool] = False

    def may_hold(self, waited_s: float, length_s: float) -> bool:
        """Nobody."""
        return False


@dataclass(frozen=True, slots=True)
class EasyBackfill(PlanningBackfill):
    """The first jobs that cannot start are promised nodes, the others go ahead where they do not delay these.

    Attributes:
        depth: how many; 1 is EASY itself.
    """

    depth: int = 1

    renews: ClassVar[bool] = True

    def __post_init__(self) -> None:
        PlanningBackfill.__post_init__(self)
        if self.depth < 1:
            raise ConfigError("backfill: a depth of less than 1", cure="1 is EASY; fcfs reserves nothing")

    @property
    def n_reservations(self) -> float:
        """The depth."""
        return self.depth

    @property
    def improves(self) -> bool:
        """They are made anew in each cycle."""
        return False


@dataclass(frozen=True, slots=True)
class ConservativeBackfill(PlanningBackfill):
    """Every job is promised nodes and a start that can only become sooner; nobody delays a promise.

    Attributes:
        compress: promises become sooner when jobs end early.
    """

    compress: bool = True

    @property
    def improves(self) -> bool:
        """As it is set."""
        return self.compress


@dataclass(frozen=True, slots=True)
class SelectiveBackfill(PlanningBackfill):
    """Jobs are promised nodes once they have waited long for their length.

    Attributes:
        threshold: the expansion factor, (waited + walltime) / walltime, from which on.
    """

    threshold: float = 2.0

    def __post_init__(self) -> None:
        PlanningBackfill.__post_init__(self)
        if not self.threshold >= 1:
            raise ConfigError(
                f"backfill: a threshold of {self.threshold:g}",
                cure="it is an expansion factor: 1 is no wait at all",
            )

    def may_hold(self, waited_s: float, length_s: float) -> bool:
        """Whether its expansion factor is above the threshold."""
        return expansion_factor(waited_s, length_s) > self.threshold
