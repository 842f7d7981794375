"""What a backfilling policy is told, and what it answers: values only.

All events of one instant are told at once; the policy itself takes terminations first, then what changed the
machine, then submissions. Times are seconds on any clock that never goes back. Nobody changes a value that
was handed over; they are not frozen, as that makes one four times as slow to make, and a log takes half a
million.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

N = TypeVar("N")
S = TypeVar("S")

JobKey = int | str
"""The number in a trace, the id of a live job."""


@dataclass(slots=True)
class BatchJob(Generic[N]):
    """What the policy knows of a job."""

    key: JobKey
    need: N
    """What it needs of the table: a number of processors, or a shape of nodes."""
    limit_s: float
    """Its walltime: the run time its user stated."""
    submit_s: float
    user: str = ""
    priority: float = 0.0
    n_procs: int = 1
    """Its width, for shares and orders."""


@dataclass(slots=True)
class Submitted(Generic[N]):
    """The job waits from now on."""

    job: BatchJob[N]


@dataclass(slots=True)
class Began(Generic[N, S]):
    """A job runs that the policy did not start there: by hand, or in another place than was decided."""

    job: BatchJob[N]
    spot: S


@dataclass(slots=True)
class Ended:
    """A running job is gone, early, at its limit or killed: what it held is free."""

    key: JobKey


@dataclass(slots=True)
class Cancelled:
    """A waiting job is gone."""

    key: JobKey


@dataclass(slots=True)
class Held:
    """A waiting job may not start until it is released; it keeps its place in the order, not its promise."""

    key: JobKey


@dataclass(slots=True)
class Released:
    """A held job may start again."""

    key: JobKey


@dataclass(slots=True)
class Overran:
    """A running job will end at `end_s`, later than expected.

    Without it the policy itself finds out when the expected end is over, and asks its `Estimates`.
    """

    key: JobKey
    end_s: float


@dataclass(slots=True)
class Reshaped:
    """The machine changed: nodes failed or came back. `change` is for `Table.reshape`: a new capacity, ..."""

    change: object


@dataclass(slots=True)
class ReservationMade(Generic[N]):
    """Keep this much free of jobs for a time; it never moves.

    Attributes:
        may_break: whether promises give way to it (an administrator's); else it is refused where they stand.
    """

    name: str
    need: N
    start_s: float
    end_s: float
    may_break: bool = True


@dataclass(slots=True)
class ReservationDropped:
    """A reservation is given up before its end."""

    name: str


Event = (
    Submitted[N]
    | Began[N, Any]
    | Ended
    | Cancelled
    | Held
    | Released
    | Overran
    | Reshaped
    | ReservationMade[N]
    | ReservationDropped
)


class BreakReason(enum.Enum):
    """Why a job was promised a later start than before, or none."""

    OVERRUN = "overrun"
    """A running job was expected to end sooner."""
    CAPACITY = "capacity"
    """Nodes failed or were taken away."""
    RESERVATION = "reservation"
    """An advance reservation was made."""
    LIMIT = "limit"
    """At its time a limit did not let it start, or it was held."""
    OUTRANKED = "outranked"
    """Another job goes before it now: reservation depth, or an order that changes."""


@dataclass(slots=True)
class Promise:
    """A waiting job will start at `start_s` at the latest."""

    key: JobKey
    start_s: float
    made_s: float
    """When this start was promised."""
    first_s: float
    """The start promised first since it was last broken."""


@dataclass(slots=True)
class Broken:
    """The job lost its promise: its start is now `new_s`, infinite where none is promised."""

    key: JobKey
    reason: BreakReason
    old_s: float
    new_s: float


@dataclass(slots=True)
class Started(Generic[S]):
    """Start this job now, there."""

    key: JobKey
    spot: S


@dataclass(slots=True)
class Outcome(Generic[S]):
    """The answer to the events of one instant."""

    starts: tuple[Started[S], ...] = ()
    """In the order in which they should be enacted."""
    promises: tuple[Promise, ...] = ()
    """Only those that changed; a job that starts has none."""
    broken: tuple[Broken, ...] = ()
    refused: tuple[str, ...] = ()
    """Names of reservations for which there was no room."""
    wake_s: float = field(default=float("inf"))
    """Ask again then, with the events of that instant or with none."""
