"""One job as a policy keeps it, waiting or running."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

from torque_sched.policies.backfilling.events import BatchJob, Promise
from torque_sched.policies.backfilling.state import RunningJob, WaitingJob
from torque_sched.policies.backfilling.table import Spot

N = TypeVar("N")
S = TypeVar("S", bound=Spot)


class Entry(Generic[N, S]):
    """Mutable; belongs to one policy object.

    Attributes:
        length_s: the run time planned.
        spot: where it runs or is promised to run; None: no promise.
        told_s: the start promised last, as it was told; infinite: none.
        rank: its place in the line: the order's rank, submission, arrival.
        first_s: the start promised first since it was last broken.
        is_held: may not start.
        is_refused: was not allowed to start in this pass.
        n_overruns: how often its end was put off.
        kinds: the bits of its need (`Table.kinds`).
        seen: how much of the log of freed room it has been tried on (`conservative`).
    """

    __slots__ = (
        "first_s",
        "is_held",
        "is_refused",
        "job",
        "kinds",
        "length_s",
        "made_s",
        "n_overruns",
        "rank",
        "seen",
        "spot",
        "told_s",
    )

    def __init__(self, job: BatchJob[N], length_s: float, rank: tuple[float, float, int], kinds: int) -> None:
        self.job = job
        self.length_s = length_s
        self.rank = rank
        self.spot: S | None = None
        self.made_s = self.first_s = 0.0
        self.told_s = math.inf
        self.is_held = self.is_refused = False
        self.n_overruns = self.seen = 0
        self.kinds = kinds

    def promise(self) -> Promise:
        """The promise it has."""
        if self.spot is None:
            raise ValueError(f"job {self.job.key} has no promise")
        return Promise(self.job.key, self.spot.start_s, self.made_s, self.first_s)

    def as_waiting(self) -> WaitingJob[N, S]:
        """What is carried of a waiting job."""
        return WaitingJob(
            self.job, self.length_s, self.rank[2], self.spot, self.made_s, self.first_s, self.is_held
        )

    def as_running(self) -> RunningJob[N, S]:
        """What is carried of a running job."""
        if self.spot is None:
            raise ValueError(f"job {self.job.key} runs nowhere")
        return RunningJob(self.job, self.length_s, self.rank[2], self.spot, self.n_overruns)


def by_rank(entry: Entry[N, S]) -> tuple[float, float, int]:
    """For sorting."""
    return entry.rank


def by_arrival(entry: Entry[N, S]) -> int:
    """For sorting."""
    return entry.rank[2]
