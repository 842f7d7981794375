"""Limits of the settings: what users, groups, accounts, queues and qualities of service (QoS) may have.

`qos_of` says which QoS a job has, `not_permitted` whether it may have it, `QosOrder` takes jobs of the QoS
of the highest priority first, and `Throttle` counts what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torque_sched.decide.context import Context
from torque_sched.decide.order import JobOrder, Order
from torque_sched.decide.rules import ANYBODY, CHARGED_WALLTIME_S, RunningLimits, Throttling
from torque_sched.model.cluster import Job
from torque_sched.model.decisions import Hold
from torque_sched.model.reasons import Reason
from torque_sched.model.snapshot import Snapshot


def qos_of(job: Job, rules: Throttling) -> str:
    """The name of the job's QoS: the one it asks for, else its queue's if it may have that; empty: none.

    >>> from torque_sched.decide.rules import Qos
    >>> from torque_sched.model.cluster import JobId, JobState, QueueName
    >>> job = Job(JobId("1.s"), JobState.QUEUED, QueueName("long"))
    >>> qos_of(job, Throttling(qos={"low": Qos(default_of=frozenset({"long"}))}))
    'low'
    """
    if not rules.qos:
        return ""
    if job.request.qos:
        return job.request.qos
    return next(
        (name for name, qos in rules.qos.items() if job.queue in qos.default_of and job in qos.members), ""
    )


def not_permitted(job: Job, rules: Throttling) -> Hold | None:
    """That the job asks for a QoS, or names an account, that it may not use."""
    why = ""
    asked, account = job.request.qos[:_LONGEST_NAME], job.account[:_LONGEST_NAME]
    if rules.account_members and job.account:
        members = rules.account_members.get(job.account)
        if members is None:
            why = f"there is no account {account} here; name another (qalter -A)"
        elif job not in members:
            why = f"account {account} is not open to {_whom(job)}; name another (qalter -A)"
    if rules.qos and job.request.qos and not why:
        qos = rules.qos.get(job.request.qos)
        if qos is None:
            why = f"there is no QoS {asked} here; ask for another (qalter -l qos=NAME)"
        elif job not in qos.members:
            why = f"QoS {asked} is not open to {_whom(job)}; ask for another (qalter -l qos=NAME)"
    return Hold(job.id, Reason.NOT_PERMITTED, {"why": why}) if why else None


def _whom(job: Job) -> str:
    group = f" of group {job.group}" if job.group else ""
    return f"user {job.user}{group}"


@dataclass(frozen=True, slots=True)
class QosOrder:
    """Jobs of the QoS of highest priority first; those of equal priority by an order of their own.

    Attributes:
        order: within each priority.
        rules: the QoS.
    """

    order: Order
    rules: Throttling

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> JobOrder:
        """As `Order.turns`."""
        by_priority: dict[int, list[Job]] = {}
        for job in jobs:
            by_priority.setdefault(self.priority_of(job), []).append(job)
        return _InPriority(
            [
                self.order.turns(by_priority[each], snapshot, context)
                for each in sorted(by_priority, reverse=True)
            ]
        )

    def priority_of(self, job: Job) -> int:
        """The priority of the job's QoS; 0 without one, or with one that it may not use."""
        qos = self.rules.qos.get(qos_of(job, self.rules))
        return qos.priority if qos is not None and job in qos.members else 0


class _InPriority:
    """One order after the other; a start counts in all of them."""

    def __init__(self, turns: Sequence[JobOrder]) -> None:
        self._turns = turns

    def __iter__(self) -> Iterator[Job]:
        for each in self._turns:
            yield from each

    def started(self, job: Job) -> None:
        """As `JobOrder.started`."""
        for each in self._turns:
            each.started(job)


Holder = tuple[str, str]
"""Kind and name, such as ``group`` and ``chem``."""

_UNITS = (("job", "jobs"), ("processor", "processors"), ("processor-second", "processor-seconds"))
_LONGEST_NAME = 60


def n_procs(job: Job) -> int:
    """The processors a job asks for, or holds where it holds more.

    >>> from torque_sched.model.cluster import JobId, JobState, QueueName
    >>> from torque_sched.model.request import Chunk, Request
    >>> n_procs(Job(JobId("1.s"), JobState.QUEUED, QueueName("q"), Request(chunks=(Chunk(2, 4),))))
    8
    """
    return max(job.request.n_cpus, job.n_slots_held)


def remaining_s(job: Job, now_s: float) -> float:
    """The walltime a job has left: all of it before it runs, none once it outlived it."""
    limit_s = job.walltime_s if job.walltime_s is not None else CHARGED_WALLTIME_S
    ran_s = now_s - job.start_s if job.start_s is not None else 0.0
    return max(0.0, limit_s - max(0.0, ran_s))


class Throttle:
    """Counts jobs, processors and processor-seconds, and says whose limit a job would exceed."""

    def __init__(self, rules: Throttling, now_s: float, running: Iterable[Job]) -> None:
        self._now_s = now_s
        tables = {
            "user": rules.users, "group": rules.groups, "account": rules.accounts, "queue": rules.queues,
        }  # fmt: skip
        self._tables = [(kind, table) for kind, table in tables.items() if table]
        self._rules = rules
        bounds = [each for _, table in self._tables for each in table.values()]
        bounds += [each for qos in rules.qos.values() for each in (qos.limits, qos.each_user)]
        self.has_limits = any(limit is not None for each in bounds for limit in (*each.hard, *each.soft))
        self.has_soft = any(limit is not None for each in bounds for limit in each.soft)
        self._used: dict[Holder, tuple[float, float, float]] = {}
        for job in running if self.has_limits else ():
            self.count(job)

    def count(self, job: Job) -> None:
        """The job counts as running from now on."""
        if not self.has_limits:
            return
        amounts = self._amounts(job)
        for holder, _ in self._bounds(job):
            was = self._used.get(holder, (0.0, 0.0, 0.0))
            self._used[holder] = was[0] + amounts[0], was[1] + amounts[1], was[2] + amounts[2]

    def hard(self, job: Job) -> Hold | None:
        """The hard limit that the job would exceed."""
        return self._exceeded(job, Reason.HARD_LIMIT) if self.has_limits else None

    def soft(self, job: Job) -> Hold | None:
        """The soft limit that the job would exceed, whoever else waits."""
        return self._exceeded(job, Reason.SOFT_LIMIT) if self.has_soft else None

    def described(self, job: Job) -> Iterator[str]:
        """Each limit that the job counts for, and what is used of it, a sentence each."""
        for holder, bounds in self._bounds(job):
            used = self._used.get(holder, (0.0, 0.0, 0.0))
            for hard, soft, units, has in zip(bounds.hard, bounds.soft, _UNITS, used, strict=True):
                if hard is None and soft is None:
                    continue
                words = f"{hard:.0f} {units[hard != 1]}" if hard is not None else units[1]
                words += f", {soft:.0f} while others wait" if soft is not None else ""
                yield f"limit of {_whose(holder)}: {words}; {has:.0f} now"

    def _exceeded(self, job: Job, kind: Reason) -> Hold | None:
        wanted = self._amounts(job)
        for holder, bounds in self._bounds(job):
            used = self._used.get(holder, (0.0, 0.0, 0.0))
            limits = bounds.hard if kind is Reason.HARD_LIMIT else bounds.soft
            for limit, units, has, more in zip(limits, _UNITS, used, wanted, strict=True):
                if limit is not None and has + more > limit:
                    return Hold(job.id, kind, _details(holder, limit, units, has, more))
        return None

    def _amounts(self, job: Job) -> tuple[float, float, float]:
        procs = n_procs(job)
        return 1.0, float(procs), procs * remaining_s(job, self._now_s)

    def _bounds(self, job: Job) -> Iterator[tuple[Holder, RunningLimits]]:
        for kind, table in self._tables:
            name = getattr(job, kind)
            bounds = table.get(name, table.get(ANYBODY))
            if bounds is not None:
                yield (kind, name), bounds
        if not self._rules.qos:
            return
        name = qos_of(job, self._rules)
        qos = self._rules.qos.get(name)
        if qos is not None:
            yield ("QoS", name), qos.limits
            yield ("user", f"{job.user} in QoS {name}"), qos.each_user


def _whose(holder: Holder) -> str:
    kind, name = holder
    return f"{kind} {name[:_LONGEST_NAME]}" if name else f"jobs without {kind}"


def _details(
    holder: Holder, limit: float, units: tuple[str, str], used: float, wanted: float
) -> dict[str, str]:
    return {
        "whose": _whose(holder),
        "limit": f"{limit:.0f} {units[limit != 1]}",
        "used": f"{used:.0f}",
        "wanted": f"{wanted:.0f}",
    }
