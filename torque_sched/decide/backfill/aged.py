"""Rules that look no further than now: whether nodes drain for a job that has waited long, and for which.

A cycle starts what fits, in order. A large job then never starts if small ones always fit first. So a job
that waited long gets the nodes that can be free soonest, which drain for it (`decide.draining`). The order
stays as it is: a job that goes first by priority or fair share takes what is free, and only what was kept
before it came is kept from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torque_sched.decide.backfill.rule import BackfillRule


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
