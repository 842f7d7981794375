"""The common part of the backfilling policies: the table, the queue, and the order of an instant.

The table holds the running jobs (until their expected ends) and the reservations of waiting jobs. `apply`
takes all events of one instant: ended jobs give back what is left of their intervals; jobs that outlive their
estimates get longer ones; submitted jobs join the queue; then the policy's one pass over the queue starts
jobs and makes reservations. A job that runs longer than planned may take the place of reservations: each that
still fits is kept, in the order of the queue, and the others are made anew and reported as broken.
"""

from __future__ import annotations

import abc
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter
from typing import NamedTuple

from torque_sched.errors import ConfigError
from torque_sched.simulate.counts.estimates import Walltimes
from torque_sched.simulate.counts.jobs import CountJob, StaticOrder
from torque_sched.simulate.counts.table import Interval, ProcessorTable

OVERRUN = "overrun"
"""A guaranteed start moved, as a running job was expected to end sooner."""
OUTRANKED = "outranked"
"""A guaranteed start moved, as another job goes first now: reservation depth, or an order that changes."""

by_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """How a policy works; the defaults put no limit on a pass, so that a simulation is exact.

    Attributes:
        depth: at most so many waiting jobs have a reservation; None: one under easy, all under the others.
        compress: conservative and selective: reservations improve when jobs end early.
        at_once: they improve once in each instant, after all that happened in it, as in the live scheduler's
            cycles; else after each early end by itself.
        threshold: selective: of the expansion factor; 1 or more, 1 reserves for all who must wait.
        window_s: nothing is reserved further ahead than this.
        resolution_s: expected ends are rounded up to its multiples (`ProcessorTable`); 0 is exact.
        max_jobs: so many waiting jobs without a reservation are tested in one pass, in their order.
    """

    depth: int | None = None
    compress: bool = True
    at_once: bool = False
    threshold: float = 2.0
    window_s: float = math.inf
    resolution_s: float = 0.0
    max_jobs: float = math.inf

    def __post_init__(self) -> None:
        """Refuse values that mean nothing.

        Raises:
            ConfigError: one does.
        """
        if self.depth is not None and self.depth < 1:
            raise ConfigError(f"a reservation depth of {self.depth}", cure="1 is EASY, fcfs has none")
        if not self.threshold >= 1:
            raise ConfigError(
                f"a threshold of {self.threshold:g}", cure="it is an expansion factor: 1 is no wait at all"
            )


class Moved(NamedTuple):
    """A job lost its guaranteed start `old_s`; the new one is infinite where it has no reservation."""

    place: int
    reason: str
    old_s: float
    new_s: float


@dataclass(slots=True)
class Pass:
    """The answer to the events of one instant.

    Attributes:
        starts: places of the jobs that start now.
        guaranteed: (place, start) of waiting jobs whose guaranteed start is new or earlier.
        moved: guaranteed starts that became later.
        wake_s: when to ask again, also if nothing happens until then.
    """

    starts: list[int]
    guaranteed: list[tuple[int, float]]
    moved: list[Moved]
    wake_s: float


class CountScheduler(abc.ABC):
    """One policy: events of one instant in, starts and changed reservations out.

    Args:
        table: where jobs are planned; nobody else changes it.
        order: who is considered first; by arrival where none is given.
        estimates: how long jobs will run; the users' walltimes where none are given.
        settings: how it works.
    """

    def __init__(
        self,
        table: ProcessorTable,
        order: StaticOrder | None = None,
        estimates: Walltimes | None = None,
        settings: PolicySettings | None = None,
    ) -> None:
        self.table = table
        self.order = order or StaticOrder()
        self.estimates = estimates or Walltimes()
        self.settings = settings or PolicySettings()
        self.now_s = -math.inf
        self._is_static = self.order.is_static
        self._queue: list[CountJob] = []
        self._running: dict[int, CountJob] = {}
        self._ends: list[tuple[float, int]] = []
        self._left: list[CountJob] = []
        self._freed = False
        self._wake_s = math.inf
        self._starts: list[int] = []
        self._changed: list[CountJob] = []
        self._broken: dict[int, tuple[CountJob, str]] = {}

    @property
    def reservations(self) -> dict[int, float]:
        """The start of each waiting job that has a reservation, by its place."""
        return {job.place: job.planned.start_s for job in self._queue if job.planned is not None}

    # One instant.

    def apply(self, now_s: float, ended: Sequence[int], submitted: Sequence[CountJob]) -> Pass:
        """Take all events of one instant and make one pass.

        Args:
            now_s: the instant: later than the last one, at most `wake_s` of its answer.
            ended: places of jobs that ended, in this order.
            submitted: jobs that wait from now on.

        Raises:
            ValueError: a job that does not run ended, or time went back.
        """
        if now_s < self.now_s:
            raise ValueError(f"time went back from {self.now_s:g} to {now_s:g}")
        self.now_s = now_s
        self.table.free.advance(now_s)
        if not self._is_static:
            self._sort()
        for place in ended:
            self._end(place)
        if self._ends and self._ends[0][0] <= now_s:
            self._extend_overruns()
        for job in submitted:
            self._submit(job)
        self._pass(submitted)
        self._freed = False
        moved = sorted(self._moved()) if self._broken else []
        answer = Pass(self._starts, self._guaranteed() if self._changed else [], moved, self._next_wake())
        self._starts = []
        return answer

    @abc.abstractmethod
    def _pass(self, new: Sequence[CountJob]) -> None:
        """Start and reserve; `new` are in the queue already."""

    def _moved(self) -> Iterator[Moved]:
        """Guaranteed starts that are later at the end of the instant than before it."""
        for job, reason in self._broken.values():
            new_s = math.inf if job.planned is None else job.planned.start_s
            if job.is_waiting and new_s > max(job.guaranteed_s, self.now_s):
                old_s, job.guaranteed_s = job.guaranteed_s, math.inf
                yield Moved(job.place, reason, old_s, new_s)
        self._broken.clear()

    def _guaranteed(self) -> list[tuple[int, float]]:
        found = []
        for job in self._changed:
            planned = job.planned
            if planned is not None and job.is_waiting and planned.start_s != job.guaranteed_s:
                job.guaranteed_s = planned.start_s
                found.append((job.place, planned.start_s))
        self._changed.clear()
        return found

    def _next_wake(self) -> float:
        """When something is to be done even if nothing happens."""
        ends, running = self._ends, self._running
        while ends:
            end_s, place = ends[0]
            job = running.get(place)
            if job is not None and job.planned is not None and job.planned.end_s == end_s:
                if end_s <= self.now_s:
                    end_s = math.nextafter(self.now_s, math.inf)
                return end_s if end_s < self._wake_s else self._wake_s
            heappop(ends)
        return self._wake_s

    # Events.

    def _end(self, place: int) -> None:
        job = self._running.pop(place, None)
        if job is None:
            raise ValueError(f"job {place} ended, but it does not run")
        interval = planned_of(job)
        self.table.give_back(interval)
        ran_s = self.now_s - interval.start_s
        self.order.ended(job, ran_s, self.now_s)
        self.estimates.ended(job, ran_s)
        self._use_freed(interval)

    def _use_freed(self, interval: Interval) -> None:
        """A job ended and gave this back."""
        self._freed = True

    def _submit(self, job: CountJob) -> None:
        job.length_s = self.estimates.estimate_s(job)
        job.rank = (self.order.rank(job), job.place)
        job.width_bit = self.table.width_bit(job.procs)
        queue = self._queue
        if not queue or queue[-1].rank < job.rank:
            queue.append(job)
        else:
            insort(queue, job, key=by_rank)

    def _extend_overruns(self) -> None:
        """Give longer to jobs that should have ended by now."""
        ends, now_s = self._ends, self.now_s
        while ends and ends[0][0] <= now_s:
            end_s, place = heappop(ends)
            job = self._running.get(place)
            if job is None or job.planned is None or job.planned.end_s != end_s:
                continue
            procs, start_s, _ = job.planned
            more_s = self.estimates.corrected_s(job, now_s - start_s)
            job.n_overruns += 1
            self.table.give_back(job.planned)
            until_s = max(start_s + more_s, math.nextafter(now_s, math.inf))
            job.planned = Interval(procs, start_s, self.table.rounded(until_s))
            heappush(ends, (job.planned.end_s, place))
            self._freed = True
            if self.table.fits(job.planned):
                self.table.take(job.planned)
            else:
                self._displace(job.planned)

    def _displace(self, interval: Interval) -> None:
        """A running job takes the interval: reservations that still fit are kept, the others renewed."""
        table = self.table
        reserved = [(job, job.planned) for job in self._queue if job.planned is not None]
        for _, planned in reserved:
            table.give_back(planned)
        table.free.force(*interval)
        moved = []
        for job, planned in reserved:
            if table.fits(planned):
                table.take(planned)
            else:
                moved.append((job, planned))
        lost = [job for job, planned in moved if not self._keep_start(job, planned.start_s)]
        for job in lost:
            self._reserve(job)

    def _keep_start(self, job: CountJob, start_s: float) -> bool:
        """Whether a job whose interval is gone fits at the same time; else it has no reservation."""
        start_s = max(start_s, self.now_s)
        interval = self.table.earliest(job.procs, job.length_s, start_s, start_s)
        if interval is None:
            self._lose(job)
            return False
        self._plan(job, interval)
        return True

    def _lose(self, job: CountJob) -> None:
        """Its interval is in the table no more."""
        if job.guaranteed_s < math.inf:
            self._broken.setdefault(job.place, (job, OVERRUN))
        job.planned = None

    # Reservations and starts.

    def _reserve(self, job: CountJob) -> bool:
        """Reserve the earliest start, if there is one within the window."""
        now_s = self.now_s
        interval = self.table.earliest(job.procs, job.length_s, now_s, now_s + self.settings.window_s)
        if interval is None:
            return False
        self._plan(job, interval)
        return True

    def _plan(self, job: CountJob, interval: Interval) -> None:
        """Reserve the interval for the job."""
        self.table.take(interval)
        job.planned = interval
        self._changed.append(job)

    def _start_if_free(self, job: CountJob) -> bool:
        """Start the job where enough processors are free now; whether it has."""
        interval = self.table.earliest(job.procs, job.length_s, self.now_s, self.now_s)
        if interval is None:
            return False
        self.table.take(interval)
        job.planned = interval
        self._start(job)
        return True

    def _start(self, job: CountJob) -> None:
        """Its interval is taken and begins now; `_remove_started` takes it out of the queue."""
        job.is_waiting = False
        self._left.append(job)
        self._running[job.place] = job
        heappush(self._ends, (planned_of(job).end_s, job.place))
        self.order.started(job, self.now_s)
        self._starts.append(job.place)

    # The queue.

    def _turns(self) -> Iterable[CountJob]:
        """The queue, one after the other; a start may change who is next."""
        return self._queue if self._is_static else self._changing_turns()

    def _changing_turns(self) -> Iterator[CountJob]:
        self._sort()
        left, n_started = self._queue, len(self._starts)
        while left:
            if n_started != len(self._starts):
                n_started = len(self._starts)
                self._rank(left)
            job, left = left[0], left[1:]
            yield job

    def _remove_started(self) -> None:
        left = self._left
        if not left:
            return
        queue = self._queue
        if self._is_static and queue[len(left) - 1] is left[-1]:
            # Jobs start in the order of the queue, so these are its first ones.
            del queue[: len(left)]
        elif self._is_static and len(left) * 32 <= len(queue) + 256:
            for job in left:
                del queue[bisect_left(queue, job.rank, key=by_rank)]
        else:
            self._queue = [job for job in queue if job.is_waiting]
        left.clear()

    def _sort(self) -> None:
        """Rank the queue anew, where time or starts change the order."""
        self._rank(self._queue)

    def _rank(self, jobs: list[CountJob]) -> None:
        for job in jobs:
            job.rank = (self.order.rank(job), job.place)
        jobs.sort(key=by_rank)


def planned_of(job: CountJob) -> Interval:
    """Where it runs or has a reservation. Raises ValueError where neither is so."""
    if job.planned is None:
        raise ValueError(f"job {job.place} has no place in the table")
    return job.planned
