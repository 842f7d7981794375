"""The orders, placements and backfills by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torque_sched.errors import ConfigError
from torque_sched.policies.backfill import (
    AgedReservations,
    ConservativeBackfill,
    DrainForStarving,
    EasyBackfill,
    FcfsBackfill,
    NoReservations,
    SelectiveBackfill,
)
from torque_sched.policies.base import Backfill, Order, Placement
from torque_sched.policies.order import COrder, FairShareOrder, FcfsOrder, ShortestFirstOrder
from torque_sched.policies.placement.plain import (
    FirstFitPlacement,
    LoadAveragePlacement,
    RoundRobinPlacement,
)
from torque_sched.policies.placement.projected import ProjectedPlacement
from torque_sched.policies.placement.value import ValuePlacement

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
BACKFILLS: dict[str, Callable[..., Backfill]] = {
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


def new_backfill(name: str, **values: Any) -> Backfill:
    """A backfill by its name, with its settings.

    Raises:
        ConfigError: no such backfill or no such setting; names the known ones.
    """
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
