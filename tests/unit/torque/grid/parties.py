"""Two sites that agree about a job's block: their clock, their nodes, the job's token."""

from __future__ import annotations

from collections.abc import Iterable

from torque_sched.grid.handshake.holder import FreeCapacity
from torque_sched.grid.handshake.messages import Claim, Instant, SiteId, Token

HOME, HERE = SiteId("there"), SiteId("here")
WALL_S = 1_000_000.0


class Nodes:
    """Slots (and two GPUs) of each node; no work of the site's own."""

    def __init__(self, **slots: int) -> None:
        self.slots = slots or {"n1": 4, "n2": 4}

    def spare(self, node: str, start_s: float, end_s: float) -> FreeCapacity:
        return FreeCapacity(self.slots.get(node, 0), 2 if node in self.slots else 0)

    def nodes(self, claim: Claim) -> Iterable[str]:
        return self.slots


def at(seconds: float) -> Instant:
    return Instant(50.0 + seconds, WALL_S + seconds)


def token(job: str = "1", attempt: int = 1) -> Token:
    return Token(HOME, job, attempt)
