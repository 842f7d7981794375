"""All that a site may set about decisions, in one frozen value; orders, placements, backfills by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from typing import Any, TypeVar

from torque_sched.decide.backfill import (
    AgedReservations,
    BackfillRule,
    ConservativeBackfill,
    DrainForStarving,
    EasyBackfill,
    FcfsBackfill,
    NoReservations,
    SelectiveBackfill,
)
from torque_sched.decide.order import COrder, FairShareOrder, FcfsOrder, Order, ShortestFirstOrder
from torque_sched.decide.placement.plain import (
    FirstFitPlacement,
    LoadAveragePlacement,
    RoundRobinPlacement,
)
from torque_sched.decide.placement.projected import ProjectedPlacement
from torque_sched.decide.placement.value import ValuePlacement
from torque_sched.decide.rules import GpuRules, MemoryRules, NodeRules, QueueRules, Throttling
from torque_sched.decide.search import Placement
from torque_sched.errors import ConfigError


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
        throttling: how much may run at once of each user, group, account and queue.
        max_starts: starts of one cycle; further jobs wait for the next, so that a cycle stays short.
        words_of_c: say only what the C daemon says (``Not enough of the right type of nodes are available``)
            where it has words for it; scripts may search for them.
        zone: the time zone of points in time in comments.
    """

    order: Order = field(default_factory=FcfsOrder)
    placement: Placement = field(default_factory=ProjectedPlacement)
    backfill: BackfillRule = field(default_factory=AgedReservations)
    nodes: NodeRules = field(default_factory=NodeRules)
    gpus: GpuRules = field(default_factory=GpuRules)
    memory: MemoryRules = field(default_factory=MemoryRules)
    queues: QueueRules = field(default_factory=QueueRules)
    throttling: Throttling = field(default_factory=Throttling)
    max_starts: int = 500
    words_of_c: bool = False
    zone: tzinfo = timezone.utc


ORDERS: dict[str, Callable[..., Order]] = {
    "fcfs": FcfsOrder,
    "c_order": COrder,
    "fair_share": FairShareOrder,
    "sjf": ShortestFirstOrder,
}

PLACEMENTS: dict[str, Callable[..., Placement]] = {
    "projected": ProjectedPlacement,
    "value": ValuePlacement,
    "firstfit": FirstFitPlacement,
    "round_robin": RoundRobinPlacement,
    "loadave": LoadAveragePlacement,
}

BACKFILLS: dict[str, Callable[..., BackfillRule]] = {
    "aged": AgedReservations,
    "drain": DrainForStarving,
    "none": NoReservations,
    "fcfs": FcfsBackfill,
    "easy": EasyBackfill,
    "conservative": ConservativeBackfill,
    "selective": SelectiveBackfill,
}

Made = TypeVar("Made")


def new_order(name: str, **values: Any) -> Order:
    """An order by its name, with its settings.

    Raises:
        ConfigError: no such order or no such setting; names the known ones.
    """
    return _new("order", ORDERS, name, values)


def new_placement(name: str, **values: Any) -> Placement:
    """A placement by its name, with its settings.

    Raises:
        ConfigError: no such placement or no such setting; names the known ones.
    """
    return _new("placement", PLACEMENTS, name, values)


def new_backfill(name: str, **values: Any) -> BackfillRule:
    """A backfill by its name, with its settings.

    Raises:
        ConfigError: no such backfill or no such setting; names the known ones.
    """
    # Journals of earlier versions have the old name.
    if "node_exact_jobs" in values and "reservations" not in values:
        values = {**values, "reservations": values["node_exact_jobs"]}
        del values["node_exact_jobs"]
    # Who names the time alone, as in earlier versions, means no other.
    if name == "aged" and "after_s" in values:
        values = {"after_walltimes": 0.0, **values}
    return _new("backfill", BACKFILLS, name, values)


def _new(kind: str, table: Mapping[str, Callable[..., Made]], name: str, values: Mapping[str, Any]) -> Made:
    factory = table.get(name)
    if factory is None:
        raise ConfigError(f"no {kind} {name!r}", cure=f"known are {', '.join(sorted(table))}")
    known = [field.name for field in dataclasses.fields(factory)]  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(known))
    if unknown:
        cure = f"known are {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"{kind} {name!r} has no setting {', '.join(unknown)}", cure=cure)
    return factory(**values)
