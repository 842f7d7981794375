"""A job as the policies keep it, and the orders in which waiting jobs are considered."""

from __future__ import annotations

import math
from collections.abc import Callable

from torque_sched.decide.fair_share import decayed
from torque_sched.simulate.counts.table import Interval


class CountJob:
    """One job, waiting or running; one policy object changes it.

    Attributes:
        place: its number in the order of arrival.
        limit_s: the run time that its user asked for.
        length_s: the run time planned.
        planned: the processors that it runs on or has reserved, and when; None: it has no reservation.
        rank: its place in the queue: the order's rank, then arrival.
        guaranteed_s: the guaranteed start that was reported last; infinite: none.
        width_bit: as `ProcessorTable.width_bit`.
        is_waiting: from its submission to its start.
        n_overruns: how often its end was put off.
        n_tried: on how many entries of the conservative policy's log it was tried.
    """

    __slots__ = (
        "guaranteed_s", "is_waiting", "length_s", "limit_s", "n_overruns", "n_tried", "place", "planned",
        "priority", "procs", "rank", "submit_s", "user", "width_bit",
    )  # fmt: skip

    def __init__(
        self, place: int, procs: int, limit_s: float, submit_s: float, user: str = "", priority: float = 0.0
    ) -> None:
        self.place = place
        self.procs = procs
        self.limit_s = self.length_s = limit_s
        self.submit_s = submit_s
        self.user = user
        self.priority = priority
        self.planned: Interval | None = None
        self.rank: tuple[float, int] = (0.0, place)
        self.guaranteed_s = math.inf
        self.width_bit = self.n_overruns = self.n_tried = 0
        self.is_waiting = True


class StaticOrder:
    """An order in which a job's rank never changes while it waits; equal ranks go by arrival.

    Args:
        rank: the smaller the sooner; asked at submission, when the job's `length_s` is known.
    """

    is_static = True

    def __init__(self, rank: Callable[[CountJob], float] | None = None) -> None:
        self._rank = rank

    def rank(self, job: CountJob) -> float:
        """The smaller the sooner."""
        return 0.0 if self._rank is None else self._rank(job)

    def started(self, job: CountJob, now_s: float) -> None:
        """The job runs from now on."""

    def ended(self, job: CountJob, ran_s: float, now_s: float) -> None:
        """The job ran `ran_s`."""


class UsageOrder(StaticOrder):
    """Users who used least go first; usage is forgotten by half-lives.

    A start is charged at once with the planned run time, so that one user cannot start everything in one
    pass; the end corrects it to what was used.

    Args:
        half_life_s: after this time usage counts half.
    """

    is_static = False

    def __init__(self, half_life_s: float) -> None:
        super().__init__()
        self._half_life_s = half_life_s
        self._used: dict[str, float] = {}
        self._as_of_s = 0.0

    def rank(self, job: CountJob) -> float:
        """Processor seconds used. All decay alike: their order does not change."""
        return self._used.get(job.user, 0.0)

    def started(self, job: CountJob, now_s: float) -> None:
        """Charge the planned run time."""
        self._charge(job, job.procs * job.length_s, now_s)

    def ended(self, job: CountJob, ran_s: float, now_s: float) -> None:
        """Correct the charge to what was used; the part that was forgotten since the start is left out."""
        kept = decayed({"": job.procs * job.length_s}, ran_s, self._half_life_s)[""]
        self._charge(job, job.procs * ran_s - kept, now_s)

    def _charge(self, job: CountJob, amount: float, now_s: float) -> None:
        if now_s > self._as_of_s:
            self._used = decayed(self._used, now_s - self._as_of_s, self._half_life_s)
            self._as_of_s = now_s
        self._used[job.user] = max(self._used.get(job.user, 0.0) + amount, 0.0)
