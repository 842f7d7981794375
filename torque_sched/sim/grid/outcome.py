"""What a simulated grid did: a line per job, and counts of what it cost to agree."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from torque_sched.core.grid.model import Plan, Way
from torque_sched.sim.workload import TraceJob


class Ran(NamedTuple):
    """One job of the run; it starts and ends at all its blocks together."""

    home: int
    job: TraceJob
    plan: Plan
    way: Way

    @property
    def n_blocks(self) -> int:
        """f: into how many blocks it was split."""
        return len(self.plan.blocks)


@dataclass
class GridRun:
    """The jobs in the order in which they were decided.

    Attributes:
        jobs: all that ran.
        too_wide: jobs no way could ever hold.
        messages: by kind, those between different sites only.
        refusals: confirms answered by "not ready", by reason.
        rounds: how often jobs were offered anew after a refusal.
        decision_s: measured time per decision, where a clock was given: all of it, or with messages the home
            site's part.
        offer_s: measured time per answer of another site, with messages.
    """

    jobs: list[Ran] = field(default_factory=list)
    too_wide: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    decision_s: list[float] = field(default_factory=list)
    offer_s: list[float] = field(default_factory=list)

    def schedule_hash(self) -> str:
        """Sixteen characters that are equal only for equal schedules."""
        digest = hashlib.sha256()
        for ran in self.jobs:
            line = (
                ran.home,
                ran.job.number,
                ran.plan.start_s,
                ran.plan.length_s,
                *map(tuple, ran.plan.blocks),
            )
            digest.update(repr(line).encode())
        return digest.hexdigest()[:16]
