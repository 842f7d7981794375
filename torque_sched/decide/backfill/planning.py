"""Rules that plan ahead on the nodes' free amounts: FCFS, EASY, conservative and selective backfilling.

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

from dataclasses import dataclass
from typing import ClassVar

from torque_sched.decide.backfill.rule import PlanningBackfill
from torque_sched.errors import ConfigError
from torque_sched.model.lengths import expansion_factor


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
