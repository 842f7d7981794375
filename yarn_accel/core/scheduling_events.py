"""What the scheduler is told and what it orders: plain values, times in monotonic seconds.

::

    Arrived ──> queued ──> Run ──> Finished          every item ends in exactly one of the four words
                  │         └────> Lost              on the right; an item that was lost is forgotten and
                  ├──────────────> Expire            may arrive again
                  └──────────────> Drop
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

__all__ = [
    "Arrived",
    "Cancelled",
    "Command",
    "Drop",
    "Event",
    "Expire",
    "Finished",
    "Item",
    "Lost",
    "Room",
    "Run",
    "Tick",
    "WakeAt",
    "WorkerDown",
    "WorkerUp",
]


class Item(NamedTuple):
    """One request as far as its order matters.

    Attributes:
        priority: -8..7, higher first, within the tenant only.
        batch_key: items of one tenant with equal keys may be computed together; None: always alone.
        n_bytes: bytes of the inputs.
        expected_s: seconds it should take, by the device kinds it can run on; at least one.
        due_s: not started from then on; 0: no deadline.
        arrived_s: its place in the queue; the past for an item that arrives a second time.
    """

    id: int
    tenant: str
    priority: int
    batch_key: Hashable | None
    n_bytes: int
    expected_s: Mapping[str, float]
    due_s: float
    arrived_s: float


class Arrived(NamedTuple):
    """An item is complete and can be computed."""

    item: Item
    now_s: float


class WorkerUp(NamedTuple):
    """A worker is ready; one that is known already was replaced, and what it had is lost."""

    worker: int
    device_kind: str
    now_s: float


class WorkerDown(NamedTuple):
    """A worker died, hangs, or its device is in quarantine."""

    worker: int
    now_s: float


class Finished(NamedTuple):
    """A worker answered for items of one batch; `busy_s` is the device time they really took together.

    Answers from a worker that has them no longer (late, or twice) change nothing.
    """

    worker: int
    ids: tuple[int, ...]
    busy_s: float
    now_s: float


class Cancelled(NamedTuple):
    """Nobody wants the item any more; what runs already runs on."""

    id: int
    now_s: float


class Tick(NamedTuple):
    """Time has passed: the answer to `WakeAt`, harmless at any other time."""

    now_s: float


class Room(NamedTuple):
    """Whether the results have somewhere to go; while not, nothing is started."""

    now_s: float
    is_open: bool


class Run(NamedTuple):
    """Send these items to the worker as one batch; it may still be busy with the one before."""

    worker: int
    ids: tuple[int, ...]


class Lost(NamedTuple):
    """The worker is gone with these items; tell their clients or let them arrive again."""

    worker: int
    ids: tuple[int, ...]


class Expire(NamedTuple):
    """The deadline passed before the item was started."""

    id: int


class Drop(NamedTuple):
    """The item was cancelled before it was started: its memory can go."""

    id: int


class WakeAt(NamedTuple):
    """Send a `Tick` at this time or soon after; replaces the time named before."""

    at_s: float


Event = Arrived | WorkerUp | WorkerDown | Finished | Cancelled | Tick | Room
Command = Run | Lost | Expire | Drop | WakeAt
