"""What a policy must remember between two calls, as a value: for a file, a database or the next cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torque_sched.policies.backfilling.events import BatchJob

N = TypeVar("N")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class WaitingJob(Generic[N, S]):
    """A waiting job, with its promise if it has one.

    Attributes:
        length_s: the run time planned.
        seq: its number of arrival: it decides where all else is equal.
        spot: where and when it is promised to run; None: no promise.
        made_s: when this start was promised.
        first_s: the start promised first since it was last broken.
    """

    job: BatchJob[N]
    length_s: float
    seq: int
    spot: S | None = None
    made_s: float = 0.0
    first_s: float = 0.0
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class RunningJob(Generic[N, S]):
    """A running job and what it holds until its expected end."""

    job: BatchJob[N]
    length_s: float
    seq: int
    spot: S
    n_overruns: int = 0


@dataclass(frozen=True, slots=True)
class KeptReservation(Generic[S]):
    """An advance reservation."""

    name: str
    spot: S


@dataclass(frozen=True, slots=True)
class State(Generic[N, S]):
    """Everything but the settings and the shape of the machine."""

    now_s: float
    waiting: tuple[WaitingJob[N, S], ...] = ()
    running: tuple[RunningJob[N, S], ...] = ()
    reservations: tuple[KeptReservation[S], ...] = ()
    next_seq: int = 0
    n_broken: int = 0
    freed: bool = False
    """Whether room may have come free meanwhile, without an event that says so: promises are improved."""
    order: Mapping[str, float] = field(default_factory=dict)
    """What the order remembers."""
