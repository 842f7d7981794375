"""What a simulation leaves: when each job started, what it had been promised, and what that took."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from torque_sched.simulate.workload import Workload


@dataclass(frozen=True, slots=True)
class MovedPromise:
    """A promise that moved to a later start."""

    place: int
    """Of the job in its workload."""
    at_s: float
    before_s: float
    after_s: float
    why: str


@dataclass(slots=True)
class Took:
    """Where the real time of a run went, cycle by cycle."""

    n_cycles: int = 0
    decide_s: float = 0.0
    snapshot_s: float = 0.0
    """Snapshots, and what is known beside them."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One policy's schedule of a workload; lists go by the place of a job in it.

    Attributes:
        name: of the policy, as it is shown.
        workload: what was scheduled.
        starts: when each job started.
        first_promises: the first start each was promised; None: it never had a promise.
        promises: the last one.
        broken: promises that were moved back, with the reason.
        n_events: submissions and terminations.
        n_passes: instants at which the policy decided.
        wall_s: real time it took.
        took: of it, in the scheduler's cycles; None: processors were counted.
        never: numbers of the jobs that could not be started, with the words to each; they are in no list.
    """

    name: str
    workload: Workload
    starts: list[float]
    first_promises: list[float | None]
    promises: list[float | None]
    broken: tuple[MovedPromise, ...] = ()
    n_events: int = 0
    n_passes: int = 0
    wall_s: float = field(default=0.0, compare=False)
    took: Took | None = field(default=None, compare=False)
    never: tuple[tuple[int, str], ...] = ()

    @property
    def digest(self) -> str:
        """The same for equal schedules: SHA-256 over job and start of every job, 16 digits."""
        text = "".join(f"{number},{start}\n" for number, start in self.rows())
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def rows(self) -> Iterator[tuple[int, str]]:
        """Job and start, in order of arrival."""
        for job, start_s in zip(self.workload.jobs, self.starts, strict=True):
            yield job.number, time_text(start_s)


def time_text(time_s: float) -> str:
    """A time without a fraction that is none.

    >>> time_text(7.0), time_text(7.25), time_text(29306682)
    ('7', '7.25', '29306682')
    """
    return str(int(time_s)) if time_s == int(time_s) else repr(float(time_s))
