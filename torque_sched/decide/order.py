"""Who is considered next: in order of submission, as the C daemon orders, or by fair share."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from torque_sched.decide.context import Context
from torque_sched.decide.fair_share import UNKNOWN, Share, entitlements, weighed
from torque_sched.decide.needs import demand_of_memory
from torque_sched.decide.rules import CHARGED_WALLTIME_S, DEFAULT_WALLTIME_S
from torque_sched.errors import ConfigError
from torque_sched.model.cluster import Job, QueueName
from torque_sched.model.snapshot import Snapshot


class JobOrder(Protocol):
    """Jobs one after the other; what was started may change who is next."""

    def __iter__(self) -> Iterator[Job]:
        """Every job exactly once."""
        ...

    def started(self, job: Job) -> None:
        """The job just yielded is going to run."""
        ...


class Order(Protocol):
    """Who is considered next."""

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> JobOrder:
        """The queued jobs in this order; `jobs` come in order of submission."""
        ...


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

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> JobOrder:
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

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> JobOrder:
        """As `Order.turns`."""

        def length_s(job: Job) -> float:
            limit_s = math.inf if job.walltime_s is None else job.walltime_s
            prediction = context.predictions.expect(job) if self.learned else None
            if prediction is None or prediction.runtime_s is None:
                return limit_s
            return min(prediction.runtime_s, limit_s)

        return Fixed(sorted(jobs, key=length_s))


def _memory(job: Job) -> float | None:
    request = job.request
    return max(demand_of_memory(request, request.n_procs)) or None


def _most_first(amount: float | None) -> float | None:
    return None if amount is None else -amount


#: The ``sort_by`` and ``key`` words of sched_config: what decides, the least first; None: nothing is asked.
SORT_KEYS: dict[str, Callable[[Job], float | None]] = {
    "no_sort": lambda job: 0.0,
    "shortest_job_first": lambda job: job.request.cput_s,
    "longest_job_first": lambda job: _most_first(job.request.cput_s),
    "smallest_memory_first": _memory,
    "largest_memory_first": lambda job: _most_first(_memory(job)),
    "high_priority_first": lambda job: -float(job.priority),
    "low_priority_first": lambda job: float(job.priority),
    "large_walltime_first": lambda job: _most_first(job.walltime_s),
    "short_walltime_first": lambda job: job.walltime_s,
}

_BEFORE_6 = ("2.", "3.", "4.", "5.")
"""Versions whose strict_fifo does not sort: fifo.c of 5.1 and of 6.0 differ in this."""

Holders = tuple[str, str, str]
"""User, group and account; empty where one does not count."""
Row = tuple[tuple[float | None, ...], Job]


def _comes_later(row: Row, other: Row) -> bool:
    for mine, its in zip(row[0], other[0], strict=True):
        if mine is not None and its is not None and mine != its:
            return mine > its
    return False


def _merge_sorted(rows: list[Row]) -> list[Row]:
    """Sort as the C library's qsort does: by merging halves.

    Seen on 4.2.10 and 6.1.3: to the C daemon a job that asks nothing is equal to every other, so that its
    comparison is no order, and what comes out depends on how it is sorted.
    """
    if len(rows) < 2:
        return rows
    first, second = _merge_sorted(rows[: len(rows) // 2]), _merge_sorted(rows[len(rows) // 2 :])
    merged: list[Row] = []
    at = 0
    for row in first:
        while at < len(second) and _comes_later(row, second[at]):
            merged.append(second[at])
            at += 1
        merged.append(row)
    return merged + second[at:]


def _by_queue(jobs: Sequence[Job], snapshot: Snapshot, by_priority: bool) -> list[list[Job]]:
    """The jobs of each queue, in the order of queues."""
    queues = list(snapshot.queues)
    if by_priority:
        queues.sort(key=lambda queue: -queue.priority)
    lines: dict[QueueName, list[Job]] = {queue.name: [] for queue in queues}
    for job in jobs:
        lines.setdefault(job.queue, []).append(job)
    return list(lines.values())


def _all_queues(jobs: Sequence[Job], snapshot: Snapshot) -> list[Job]:
    """The whole server's jobs as the C daemon lists them before it sorts: queues as the server has them."""
    return [job for line in _by_queue(jobs, snapshot, by_priority=False) for job in line]


def _in_turn(lines: Sequence[Sequence[Job]]) -> list[Job]:
    """One job of each queue, then the next of each."""
    longest = max(map(len, lines), default=0)
    return [line[i] for i in range(longest) for line in lines if i < len(line)]


@dataclass(frozen=True, slots=True)
class COrder:
    """The orders of the C daemon's sched_config.

    Attributes:
        by_queue: a whole queue, then the next one; else all jobs are sorted together, from a list that is
            queue by queue as the server has them.
        round_robin: one job of each queue in turn (goes before `by_queue`).
        sort_queues: queues by descending Priority; else as the server lists them.
        keys: ``sort_by``, or the ``key`` lines of ``multi_sort``: `SORT_KEYS`, the first counts most.
        strict_fifo: as the C daemon of the server's version takes it. Before 6.0 the order is the same as
            without. Since 6.0 the jobs of all queues go by queue time, then number, unless `keys` is
            ``no_sort``; with `round_robin`, which goes before it, nothing is sorted. That the first job which
            cannot run blocks the rest of its queue is `QueueRules.strict`, in every version.
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

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> JobOrder:
        """As `Order.turns`."""
        if self.strict_fifo and not snapshot.server.version.startswith(_BEFORE_6):
            return self._strict(jobs, snapshot)
        if not (self.by_queue or self.round_robin):
            return Fixed(self._sorted(_all_queues(jobs, snapshot)))
        lines = [self._sorted(line) for line in _by_queue(jobs, snapshot, self.sort_queues)]
        return Fixed(_in_turn(lines) if self.round_robin else [job for line in lines for job in line])

    def _strict(self, jobs: Sequence[Job], snapshot: Snapshot) -> JobOrder:
        if self.round_robin:
            return Fixed(_in_turn(_by_queue(jobs, snapshot, self.sort_queues)))
        is_as_listed = self.keys[:1] == ("no_sort",)
        return Fixed(_all_queues(jobs, snapshot) if is_as_listed else sorted(jobs, key=_queued))

    def _sorted(self, jobs: Sequence[Job]) -> list[Job]:
        columns = [[SORT_KEYS[key](job) for job in jobs] for key in self.keys]
        deciding = [column for column in columns if any(value is not None for value in column)]
        rows: list[Row] = list(zip(zip(*deciding, strict=True), jobs, strict=True)) if deciding else []
        if not rows:
            return list(jobs)
        if any(None in column for column in deciding):
            return [job for _, job in _merge_sorted(rows)]
        return [job for _, job in sorted(rows, key=itemgetter(0))]


def _queued(job: Job) -> tuple[float, float]:
    return (job.qtime_s if job.qtime_s is not None else job.queued_s, float(job.sequence))


@dataclass(frozen=True, slots=True)
class FairShareRank:
    """How the user, group and account of a job stand: their parts of the whole, and who goes first."""

    parts: Mapping[str, float]
    """The part of each kind that counts (``user``, ``group``, ``account``)."""
    rank: float
    """Weighed sum of each one's usage per part: the smallest goes first."""


@dataclass(frozen=True, slots=True)
class FairShareOrder:
    """Who had least for the share goes first; each start counts at once.

    Usage of the user, of the group and of the account, each divided by what part of the cluster is its own,
    are added with their weights.

    Attributes:
        shares: the tree of users; with none, all users are equal.
        unknown_shares: what users outside of the tree have together, and so groups and accounts not named.
        default_walltime_s: for how long a started job without walltime is taken to run; 0: unknown, it counts
            an hour.
        by_queue: a whole queue, then the next one; fair within each.
        round_robin: one job of each queue in turn (goes before `by_queue`); fair within each.
        sort_queues: queues by descending Priority; else as the server lists them.
        group_shares: group -> shares; with none, all groups are equal.
        account_shares: account -> shares; with none, all accounts are equal.
        user_weight: how much the user's usage counts.
        group_weight: how much the group's counts; 0: not at all.
        account_weight: how much the account's counts; 0: not at all.
    """

    shares: tuple[Share, ...] = ()
    unknown_shares: float = 10.0
    default_walltime_s: float = DEFAULT_WALLTIME_S
    by_queue: bool = False
    round_robin: bool = False
    sort_queues: bool = True
    group_shares: Mapping[str, float] = field(default_factory=dict)
    account_shares: Mapping[str, float] = field(default_factory=dict)
    user_weight: float = 1.0
    group_weight: float = 0.0
    account_weight: float = 0.0

    def __post_init__(self) -> None:
        for name, (weight, shares) in self.kinds.items():
            entitlements(shares, self.unknown_shares)
            if weight < 0:
                raise ConfigError(f"{name}_weight {weight:g} is below 0", cure="write 0 or more")
            if name != "user" and shares and not weight:
                raise ConfigError(
                    f"{name}_shares are set and {name}_weight is 0",
                    cure=f"set {name}_weight above 0, or leave {name}_shares out",
                )
        if not any(weight for weight, _ in self.kinds.values()):
            raise ConfigError(
                "all weights are 0", cure="set user_weight, group_weight or account_weight above 0"
            )

    @property
    def kinds(self) -> dict[str, tuple[float, tuple[Share, ...]]]:
        """Weight and shares of users, groups and accounts."""
        groups, accounts = (
            tuple(Share(name, shares) for name, shares in table.items())
            for table in (self.group_shares, self.account_shares)
        )
        return {
            "user": (self.user_weight, self.shares),
            "group": (self.group_weight, groups),
            "account": (self.account_weight, accounts),
        }

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> JobOrder:
        """As `Order.turns`."""
        usage = _usage_of(context)
        if not (self.by_queue or self.round_robin):
            return _FairTurns(jobs, self, usage, context.gpu_weight)
        lines = _by_queue(jobs, snapshot, self.sort_queues)
        turns = [_FairTurns(line, self, usage, context.gpu_weight) for line in lines if line]
        return _QueueTurns(turns, self.round_robin)

    def holders_of(self, job: Job) -> Holders:
        """User, group and account of the job; empty where they do not count."""
        return (
            job.user if self.user_weight else "",
            job.group if self.group_weight else "",
            job.account if self.account_weight else "",
        )

    def ranks(self, jobs: Sequence[Job], context: Context) -> dict[Holders, FairShareRank]:
        """How everybody who waits stands before anything is started; the smaller, the earlier."""
        return _FairTurns(jobs, self, _usage_of(context), context.gpu_weight).ranks()


def _usage_of(context: Context) -> tuple[dict[str, float], ...]:
    return dict(context.usage), dict(context.group_usage), dict(context.account_usage)


class _QueueTurns:
    """Queue after queue, or one job of each in turn; a start counts in all of them."""

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
        """As `JobOrder.started`; all queues share one account of usage."""
        self._queues[0].started(job)


class _FairTurns:
    def __init__(
        self,
        jobs: Sequence[Job],
        settings: FairShareOrder,
        usage: tuple[dict[str, float], ...],
        gpu_weight: float,
    ) -> None:
        self._settings, self._usage, self._gpu_weight = settings, usage, gpu_weight
        self._lines: dict[Holders, list[Job]] = {}
        for job in reversed(jobs):
            self._lines.setdefault(settings.holders_of(job), []).append(job)
        self._kinds = [
            (
                kind,
                place,
                weight,
                _parts(shares, settings.unknown_shares, {line[place] for line in self._lines}),
            )
            for place, (kind, (weight, shares)) in enumerate(settings.kinds.items())
            if weight
        ]

    def ranks(self) -> dict[Holders, FairShareRank]:
        """Of all who wait."""
        return {
            line: FairShareRank(
                {kind: parts[line[place]] for kind, place, _, parts in self._kinds}, self._rank(line)
            )
            for line in self._lines
        }

    def _rank(self, line: Holders) -> float:
        """Usage per entitlement: the smaller, the earlier.

        As in the C daemon everybody begins with one second, so that of those who used nothing the one with
        the largest share is first.
        """
        rank = 0.0
        for _, place, weight, parts in self._kinds:
            part = parts[line[place]]
            used = self._usage[place].get(line[place], 0.0) + 1.0
            rank += weight * used / part if part > 0 else math.inf
        return rank

    def __iter__(self) -> Iterator[Job]:
        heap = [(self._rank(holders), line[-1].key, holders) for holders, line in self._lines.items()]
        heapq.heapify(heap)
        while heap:
            rank, _, holders = heapq.heappop(heap)
            line = self._lines[holders]
            if rank == self._rank(holders):
                yield line.pop()
            if line:
                heapq.heappush(heap, (self._rank(holders), line[-1].key, holders))

    def started(self, job: Job) -> None:
        """The start counts as if it ran to its limit."""
        settings, request = self._settings, job.request
        unknown_s = settings.default_walltime_s or CHARGED_WALLTIME_S
        walltime_s = job.walltime_s if job.walltime_s is not None else unknown_s
        more = weighed(request.n_procs, request.n_gpus, self._gpu_weight) * walltime_s
        for usage, name in zip(self._usage, settings.holders_of(job), strict=True):
            usage[name] = usage.get(name, 0.0) + more


def _parts(shares: Sequence[Share], unknown_shares: float, names: Collection[str]) -> dict[str, float]:
    """The part of the cluster of each name; those without shares have the rest, in equal parts."""
    known = {share.name for share in shares}
    parts = entitlements(shares, unknown_shares)
    n_unknown = max(1, sum(name not in known for name in names))
    return {name: parts.get(name, 0.0) if name in known else parts[UNKNOWN] / n_unknown for name in names}
