"""Everything about deciding that a site may set, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timezone, tzinfo

from torque_sched.policies.backfill import AgedReservations
from torque_sched.policies.base import Backfill, Order, Placement
from torque_sched.policies.order import FcfsOrder
from torque_sched.policies.placement.projected import ProjectedPlacement
from torque_sched.policies.rules import GpuRules, MemoryRules, NodeRules, QueueRules


@dataclass(frozen=True, slots=True)
class Settings:
    """How to decide.

    Attributes:
        order: who is considered next.
        placement: where.
        backfill: for whom nodes are kept.
        nodes: which nodes are used.
        gpus: which GPUs are avoided.
        memory: how memory decides.
        queues: what is said of queues.
        max_starts: starts of one cycle; further jobs wait for the next, so that a cycle stays short.
        words_of_c: say only what the C daemon says (``Not enough of the right type of nodes are available``)
            where it has words for it; scripts may search for them.
        zone: the time zone of points in time in comments.
    """

    order: Order = field(default_factory=FcfsOrder)
    placement: Placement = field(default_factory=ProjectedPlacement)
    backfill: Backfill = field(default_factory=AgedReservations)
    nodes: NodeRules = field(default_factory=NodeRules)
    gpus: GpuRules = field(default_factory=GpuRules)
    memory: MemoryRules = field(default_factory=MemoryRules)
    queues: QueueRules = field(default_factory=QueueRules)
    max_starts: int = 300
    words_of_c: bool = False
    zone: tzinfo = timezone.utc
