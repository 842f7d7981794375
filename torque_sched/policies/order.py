"""Who is considered next: in order of submission, as the C daemon orders, or by fair share."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torque_sched.core.model import Job, QueueName
from torque_sched.core.snapshot import Snapshot
from torque_sched.errors import ConfigError
from torque_sched.policies.base import Turns
from torque_sched.policies.context import Context
from torque_sched.policies.fair_share import UNKNOWN, Share, entitlements
from torque_sched.policies.needs import demand_of_memory

__all__ = ["SORT_KEYS", "COrder", "FairShareOrder", "FcfsOrder", "Fixed", "ShortestFirstOrder"]


class Fixed:
    """An order that starting jobs does not change."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def started(self, job: Job) -> None:
        """Nothing changes."""


@dataclass(frozen=True, slots=True)
class FcfsOrder:
    """First come, first served; what does not fit now is skipped (`Backfill` sees that it does not starve).

    Attributes:
        by_priority: larger job priorities (``qsub -p``) go first, the order of submission within each.
    """

    by_priority: bool = False

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> Turns:
        """As `Order.turns`."""
        return Fixed(sorted(jobs, key=lambda job: -job.priority) if self.by_priority else jobs)


@dataclass(frozen=True, slots=True)
class ShortestFirstOrder:
    """The job that is expected to run for the shortest time goes first.

    A job of unknown length goes last; with a backfill that promises or ages, long ones do not starve.

    Attributes:
        learned: by the run time of jobs like it, where there were any; else, and always if false, by its
            walltime.
    """

    learned: bool = True

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> Turns:
        """As `Order.turns`."""

        def length_s(job: Job) -> float:
            limit_s = math.inf if job.walltime_s is None else job.walltime_s
            prediction = context.predictions.expect(job) if self.learned else None
            if prediction is None or prediction.runtime_s is None:
                return limit_s
            return min(prediction.runtime_s, limit_s)

        return Fixed(sorted(jobs, key=length_s))


def _memory(job: Job) -> int:
    request = job.request
    return max(demand_of_memory(request, request.n_procs))


#: The ``sort_by`` and ``key`` words of sched_config. Jobs that ask nothing count as asking 0.
SORT_KEYS: dict[str, Callable[[Job], float]] = {
    "no_sort": lambda job: 0.0,
    "shortest_job_first": lambda job: job.request.cput_s or 0.0,
    "longest_job_first": lambda job: -(job.request.cput_s or 0.0),
    "smallest_memory_first": lambda job: float(_memory(job)),
    "largest_memory_first": lambda job: -float(_memory(job)),
    "high_priority_first": lambda job: -float(job.priority),
    "low_priority_first": lambda job: float(job.priority),
    "large_walltime_first": lambda job: -(job.walltime_s or 0.0),
    "short_walltime_first": lambda job: job.walltime_s or 0.0,
}


def _by_queue(jobs: Sequence[Job], snapshot: Snapshot, by_priority: bool) -> list[list[Job]]:
    """The jobs of each queue, in the order of queues."""
    queues = list(snapshot.queues)
    if by_priority:
        queues.sort(key=lambda queue: -queue.priority)
    lines: dict[QueueName, list[Job]] = {queue.name: [] for queue in queues}
    for job in jobs:
        lines.setdefault(job.queue, []).append(job)
    return list(lines.values())


@dataclass(frozen=True, slots=True)
class COrder:
    """The orders of the C daemon's sched_config.

    Attributes:
        by_queue: a whole queue, then the next one.
        round_robin: one job of each queue in turn (goes before `by_queue`).
        sort_queues: queues by descending Priority; else as the server lists them.
        keys: ``sort_by``, or the ``key`` lines of ``multi_sort``: `SORT_KEYS`, the first counts most.
        strict_fifo: by queue time, then number, whatever `keys` say. That the first job which cannot run
            blocks the rest of its queue is `QueueRules.strict`.
    """

    by_queue: bool = True
    round_robin: bool = False
    sort_queues: bool = True
    keys: tuple[str, ...] = ("shortest_job_first",)
    strict_fifo: bool = False

    def __post_init__(self) -> None:
        for key in self.keys:
            if key not in SORT_KEYS:
                raise ConfigError(f"sort_by {key!r}", cure=f"known are {', '.join(sorted(SORT_KEYS))}")

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> Turns:
        """As `Order.turns`."""
        ordered = sorted(jobs, key=self._key)
        if not (self.by_queue or self.round_robin):
            return Fixed(ordered)
        lines = _by_queue(ordered, snapshot, self.sort_queues)
        if self.round_robin:
            longest = max(map(len, lines), default=0)
            return Fixed([line[i] for i in range(longest) for line in lines if i < len(line)])
        return Fixed([job for line in lines for job in line])

    def _key(self, job: Job) -> tuple[float, ...]:
        if self.strict_fifo:
            return (job.qtime_s if job.qtime_s is not None else job.queued_s, float(job.sequence))
        return tuple(SORT_KEYS[key](job) for key in self.keys)


@dataclass(frozen=True, slots=True)
class FairShareOrder:
    """The user with the least usage for the share goes first; each start counts at once.

    Attributes:
        shares: the tree; with none, all users are equal.
        unknown_shares: what users outside of the tree have together.
        default_walltime_s: what a started job without walltime is taken to use, in processor seconds per
            processor.
        by_queue: a whole queue, then the next one; fair within each.
        round_robin: one job of each queue in turn (goes before `by_queue`); fair within each.
        sort_queues: queues by descending Priority; else as the server lists them.
    """

    shares: tuple[Share, ...] = ()
    unknown_shares: float = 10.0
    default_walltime_s: float = 3600.0
    by_queue: bool = False
    round_robin: bool = False
    sort_queues: bool = True

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> Turns:
        """As `Order.turns`."""
        usage = dict(context.usage)
        if not (self.by_queue or self.round_robin):
            return _FairTurns(jobs, self, usage)
        lines = _by_queue(jobs, snapshot, self.sort_queues)
        turns = [_FairTurns(line, self, usage) for line in lines if line]
        return _QueueTurns(turns, self.round_robin)


class _QueueTurns:
    """Queue after queue, or one job of each in turn; a start counts for its user in all of them."""

    def __init__(self, queues: Sequence[_FairTurns], one_each: bool) -> None:
        self._queues, self._one_each = queues, one_each

    def __iter__(self) -> Iterator[Job]:
        if not self._one_each:
            for queue in self._queues:
                yield from queue
            return
        left = [iter(queue) for queue in self._queues]
        while left:
            for turns in tuple(left):
                job = next(turns, None)
                if job is None:
                    left.remove(turns)
                else:
                    yield job

    def started(self, job: Job) -> None:
        """As `Turns.started`; all queues share one account of usage."""
        self._queues[0].started(job)


class _FairTurns:
    def __init__(self, jobs: Sequence[Job], settings: FairShareOrder, usage: dict[str, float]) -> None:
        self._usage = usage
        self._default_s = settings.default_walltime_s
        self._parts = entitlements(settings.shares, settings.unknown_shares)
        self._known = {share.name for share in settings.shares}
        self._lines: dict[str, list[Job]] = {}
        for job in reversed(jobs):
            self._lines.setdefault(job.user, []).append(job)
        self._n_unknown = max(1, len(set(self._lines) - self._known))

    def _rank(self, user: str) -> float:
        """Usage per entitlement: the smaller, the earlier."""
        used = self._usage.get(user, 0.0)
        is_known = user in self._known
        part = self._parts.get(user, 0.0) if is_known else self._parts[UNKNOWN] / self._n_unknown
        return used / part if part > 0 else float("inf")

    def __iter__(self) -> Iterator[Job]:
        heap = [(self._rank(user), line[-1].key, user) for user, line in self._lines.items()]
        heapq.heapify(heap)
        while heap:
            rank, _, user = heapq.heappop(heap)
            line = self._lines[user]
            if rank == self._rank(user):
                yield line.pop()
            if line:
                heapq.heappush(heap, (self._rank(user), line[-1].key, user))

    def started(self, job: Job) -> None:
        """The start counts as if it ran to its limit."""
        walltime_s = job.walltime_s if job.walltime_s is not None else self._default_s
        self._usage[job.user] = self._usage.get(job.user, 0.0) + walltime_s * job.request.n_procs
