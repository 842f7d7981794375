"""Whether a job may be started at all now, before anybody looks for nodes.

`AdmissionCheck` sees the job alone, its queue and its time; the server would start held jobs and jobs of
paused users without asking. `Limits` counts how much runs at once: of the server, of each queue, user and
group, and of resources. The server enforces none of them when a job is started. Limits of the settings are
in `throttling`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from torque_sched.decide.context import Context, Window
from torque_sched.decide.needs import demand_of_memory, memory_of_share
from torque_sched.decide.rules import QueueRules, Throttling
from torque_sched.decide.throttling import Throttle, not_permitted
from torque_sched.model.cluster import Dependency, Job, JobId, Node, Queue, QueueName, Server
from torque_sched.model.decisions import Hold
from torque_sched.model.reasons import Reason
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState
from torque_sched.model.texts import time_text
from torque_sched.model.units import DURATION_RESOURCES


class AdmissionCheck:
    """Checks what concerns the job alone, its queue and its time."""

    def __init__(self, snapshot: Snapshot, context: Context, rules: QueueRules, zone: tzinfo) -> None:
        self._snapshot, self._context, self._rules, self._zone = snapshot, context, rules, zone
        self._now_s = snapshot.now_s
        self._pending = frozenset(start.job for start in context.pending)
        self._dedicated = any(w.start_s <= self._now_s < w.end_s for w in context.dedicated)

    def check(self, job: Job) -> Hold | None:
        """What holds the job; None: nothing of this."""
        if not self._snapshot.server.scheduling:
            return Hold(job.id, Reason.SCHEDULING_OFF)
        return self._check_state(job) or self._check_queue(job) or self._check_back_off(job)

    def _check_state(self, job: Job) -> Hold | None:
        if job.id in self._pending:
            return Hold(job.id, Reason.START_PENDING)
        waits_for = self._unmet(job)
        if waits_for:
            return Hold(job.id, Reason.DEPENDENCY, {"depend": waits_for})
        if job.hold_types or job.state is JobState.HELD:
            holds = ", ".join(sorted(hold.name.lower().replace("_", " ") for hold in job.hold_types))
            return Hold(job.id, Reason.JOB_HELD, {"holds": holds or "unnamed"})
        if job.execution_time_s is not None and job.execution_time_s > self._now_s:
            when = time_text(job.execution_time_s, self._zone)
            return Hold(job.id, Reason.WAITS_FOR_TIME, {"time": when})
        if job.state is not JobState.QUEUED or job.is_array_parent:
            return Hold(job.id, Reason.NOT_QUEUED)
        if job.request.trouble:
            return Hold(job.id, Reason.BAD_REQUEST, {"why": job.request.trouble})
        return None

    def _unmet(self, job: Job) -> str:
        """The dependencies not met yet, as text; usually the server holds such a job by itself."""
        if not job.depend:
            return ""
        unmet = [part for part in job.depend if any(self._is_open(part, other) for other in part.jobs)]
        return ", ".join(f"{part.kind}:{':'.join(part.jobs)}" for part in unmet)

    def _is_open(self, part: Dependency, other: str) -> bool:
        if not part.kind.startswith("after"):
            return False
        # A job the server does not list any more has ended.
        parent = self._snapshot.job_by_id.get(JobId(other.partition("@")[0]))
        if parent is None:
            return False
        return parent.state in _NOT_STARTED if part.kind == "after" else not parent.state.is_final

    def _check_queue(self, job: Job) -> Hold | None:
        if job.queue in self._rules.ignored:
            return Hold(job.id, Reason.QUEUE_IGNORED)
        queue = self._snapshot.queue_by_name.get(job.queue)
        if queue is not None and not queue.is_execution:
            return Hold(job.id, Reason.QUEUE_NOT_EXECUTION)
        if queue is None or not queue.is_started:
            return Hold(job.id, Reason.QUEUE_NOT_STARTED)
        return self._check_dedicated(job)

    def _check_dedicated(self, job: Job) -> Hold | None:
        windows = self._context.dedicated
        prefix = self._rules.dedicated_prefix
        is_for_it = bool(prefix) and job.queue.startswith(prefix)
        if is_for_it != self._dedicated and (is_for_it or self._dedicated):
            return Hold(job.id, Reason.DEDICATED_TIME)
        # Without a walltime it may run into any dedicated time ahead (the C daemon's check.c, too).
        end_s = math.inf if job.walltime_s is None else self._now_s + job.walltime_s
        if self._crosses(windows, end_s, is_for_it):
            return Hold(job.id, Reason.CROSSES_DEDICATED_TIME)
        return None

    def _crosses(self, windows: Sequence[Window], end_s: float, is_for_it: bool) -> bool:
        if is_for_it:
            return any(w.start_s <= self._now_s < w.end_s and end_s > w.end_s for w in windows)
        return any(self._now_s < w.start_s < end_s for w in windows)

    def _check_back_off(self, job: Job) -> Hold | None:
        pause = self._context.back_off.jobs.get(job.id)
        if pause is not None and pause.until_s > self._now_s:
            return Hold(job.id, Reason.JOB_BACK_OFF, {"why": pause.why or "-"})
        return None


_NOT_STARTED = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING, JobState.TRANSIT})


_WORDS = {"mem": "memory", "ncpus": "cpus", "nodect": "nodes"}
"""The C daemon's words for resources in its comments."""


def demand(job: Job, resource: str) -> float:
    """How much of a resource the whole job asks for.

    >>> from torque_sched.model.request import Chunk, Request
    >>> from torque_sched.model.cluster import JobId, JobState
    >>> job = Job(JobId("1.s"), JobState.QUEUED, QueueName("q"), Request(chunks=(Chunk(2, 4),)))
    >>> demand(job, "ncpus"), demand(job, "nodect"), demand(job, "licence")
    (8, 2, 0)
    """
    request = job.request
    if resource in {"mem", "pmem"}:
        return memory_of_share(request, request.n_procs)[0]
    if resource in {"vmem", "pvmem"}:
        return demand_of_memory(request, request.n_procs)[1]
    if resource == "ncpus":
        return request.n_cpus
    if resource == "procs":
        return request.n_procs
    if resource == "nodect":
        return request.n_pieces or 1
    if resource in {"gpus", "gpu", "ngpus"}:
        return request.n_gpus
    of_pieces = sum(p.count * n for p in request.pieces for name, n in p.others if name == resource)
    return of_pieces or sum(entry.count for entry in request.gres if entry.name == resource)


def _as_asked(job: Job, name: str) -> str:
    """The resource by the name the job used, where a limit has the other one."""
    request = job.request
    if name == "vmem" and not request.vmem_bytes and request.pvmem_bytes:
        return "pvmem"
    return "vmem" if name == "pvmem" and not request.pvmem_bytes else name


_OF_NODES = frozenset(
    {"ncpus", "procs", "mem", "pmem", "vmem", "pvmem", "nodect", "nodes", "gpus", "gpu", "ngpus", "mppe"}
) | DURATION_RESOURCES  # fmt: skip
"""Resources of a server or queue that are sums over its nodes, or no amounts."""


@dataclass(frozen=True, slots=True)
class SitePool:
    """A resource that the server, or a queue, has and no node: floating licences.

    Attributes:
        queue: whose; None: the server's.
        available: beside what is in use of which no job is known.
    """

    queue: QueueName | None
    name: str
    available: int

    def asked(self, job: Job) -> int:
        """How much of it a job asks for."""
        return 0 if self.queue not in {None, job.queue} else math.ceil(demand(job, self.name))


def site_pools(snapshot: Snapshot, running: Sequence[Job]) -> tuple[SitePool, ...]:
    """All that starts may be planned by."""
    sources: list[tuple[QueueName | None, Server | Queue]] = [(None, snapshot.server)]
    sources += [(queue.name, queue) for queue in snapshot.queues]
    found = []
    for queue, source in sources:
        names = [name for name in source.resources_available.texts if name not in _OF_NODES]
        for name in names:
            available = source.resources_available.amount(name)
            if available is None:
                continue
            own = [job for job in running if queue in {None, job.queue}]
            known = sum(demand(job, name) for job in own)
            unknown = max(0.0, (source.resources_assigned.amount(name) or 0.0) - known)
            found.append(SitePool(queue, name, math.floor(available - unknown)))
    return tuple(found)


class _Pool:
    """Resources of the server, of one queue or of the nodes' licences, and what is left of them."""

    def __init__(self, available: Mapping[str, float], assigned: Mapping[str, float]) -> None:
        self._available = available
        self._left = {name: amount - assigned.get(name, 0.0) for name, amount in available.items()}

    def lacking(self, job: Job, *, later: bool = False) -> tuple[str, bool] | None:
        """The first resource the job asks too much of, and whether it would be too much of all there is.

        ``later``: what a later start can be planned by is not too much, as long as it is there at all.
        """
        for name, left in self._left.items():
            wanted = demand(job, name)
            if later and name not in _OF_NODES and wanted <= self._available[name]:
                continue
            if wanted and wanted > left:
                return _as_asked(job, name), wanted > self._available[name]
        return None

    def take(self, job: Job) -> None:
        for name in self._left:
            self._left[name] -= demand(job, name)


def _available(source: Queue | Server, max_is_total: bool) -> dict[str, float]:
    names = dict.fromkeys(source.resources_available.texts)
    if max_is_total:
        names.update(dict.fromkeys(source.resources_max.texts))
    found = {}
    for name in names:
        amount = source.resources_available.amount(name)
        if amount is None and max_is_total:
            amount = source.resources_max.amount(name)
        if amount is not None and name not in DURATION_RESOURCES:
            found[name] = amount
    return found


def _assigned(source: Queue | Server, names: Iterable[str], running: Iterable[Job]) -> dict[str, float]:
    """What runs has been assigned; the server's figure where it is the larger."""
    names = list(names)
    sums = dict.fromkeys(names, 0.0)
    if names:
        for job in running:
            for name in names:
                sums[name] += demand(job, name)
    return {name: max(sums[name], source.resources_assigned.amount(name) or 0.0) for name in names}


def _licences(nodes: Iterable[Node]) -> dict[str, float]:
    """Static resources that nodes report, summed over the nodes."""
    found: dict[str, float] = {}
    for node in nodes:
        for name, text in (node.status.gres if node.status is not None else {}).items():
            if text.isascii() and text.isdigit() and name not in {"gpus", "gpu"}:
                found[name] = found.get(name, 0.0) + int(text)
    return found


def _tokens_left(server: Server, running: Iterable[Job]) -> dict[str, float]:
    """The server's tokens less those of running jobs."""
    left = dict(server.tokens)
    for job in running:
        for name, amount in job.request.tokens:
            left[name] = left.get(name, 0.0) - amount
    return left


class RunLimits:
    """Counts what runs against the server's and the queues' own limits for users, groups, projects and all.

    Who is named in a limit of a kind has that one, everybody else the one without a name.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        sources: list[tuple[QueueName | None, Server | Queue]] = [(None, snapshot.server)]
        sources += [(queue.name, queue) for queue in snapshot.queues]
        #: By queue (None: the server), kind and resource: the most by name.
        self._limits: dict[QueueName | None, dict[tuple[str, str], dict[str, float]]] = {}
        for queue, source in sources:
            for limit in source.run_limits:
                by_kind = self._limits.setdefault(queue, {})
                by_kind.setdefault((limit.kind, limit.resource), {})[limit.name] = limit.most
        self._used: Counter[tuple[QueueName | None, str, str, str]] = Counter()

    def _bounds(self, job: Job) -> Iterator[tuple[QueueName | None, str, str, str, dict[str, float]]]:
        names = {"user": job.user, "group": job.group, "project": job.project, "": ""}
        for queue in (None, job.queue):
            for (kind, resource), by_name in self._limits.get(queue, {}).items():
                yield queue, kind, names[kind], resource, by_name

    def count(self, job: Job) -> None:
        """The job counts as running from now on."""
        for queue, kind, name, resource, _ in self._bounds(job) if self._limits else ():
            self._used[queue, kind, name, resource] += _of(job, resource)

    def exceeded(self, job: Job) -> Hold | None:
        """The first limit that the job would exceed."""
        for queue, kind, name, resource, by_name in self._bounds(job) if self._limits else ():
            most = by_name.get(name, by_name.get(""))
            used, wanted = self._used[queue, kind, name, resource], _of(job, resource)
            if most is None or not wanted or used + wanted <= most:
                continue
            place = "" if queue is None else f" in queue {queue}"
            details = {
                "whose": (f"{kind} {name}" if kind else "all jobs") + place,
                "limit": f"{most:.0f} {resource or 'jobs'}",
                "used": f"{used:.0f}",
                "wanted": f"{wanted:.0f}",
            }
            return Hold(job.id, Reason.HARD_LIMIT, details)
        return None


def _of(job: Job, resource: str) -> int:
    return math.ceil(demand(job, resource)) if resource else 1


_NO_THROTTLING = Throttling()


class Limits:
    """Counts what runs, and says which limit a job would exceed.

    Args:
        snapshot: what runs and what waits.
        starting: jobs whose start was asked for and is not to be seen yet.
        max_is_total: as `QueueRules.max_is_total`.
        throttling: limits of the settings.
        may_run: whether nothing but limits and busy nodes keeps a job from running; asked for soft limits.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        starting: Iterable[Job],
        max_is_total: bool = False,
        throttling: Throttling = _NO_THROTTLING,
        may_run: Callable[[Job], bool] = lambda job: True,
    ) -> None:
        self._server, self._queues = snapshot.server, snapshot.queue_by_name
        self._running: Counter[tuple[QueueName | None, str, str]] = Counter()
        self._members: Counter[int] = Counter()
        starting = list(starting)
        running = [*snapshot.running, *starting]
        self._pools = self._open_pools(snapshot, running, max_is_total)
        self._tokens = _tokens_left(snapshot.server, running)
        self._run_limits = RunLimits(snapshot)
        self._throttling = throttling
        self._throttle = Throttle(throttling, snapshot.now_s, running)
        self._may_run = may_run
        self._gone = {job.id for job in starting}
        self._promised: set[JobId] = set()
        #: Jobs that may wait without a limit that holds them, the first to be asked last.
        self._others = list(reversed(snapshot.queued)) if self._throttle.has_soft else []
        for job in running:
            self._count(job)

    def _open_pools(
        self, snapshot: Snapshot, running: list[Job], max_is_total: bool
    ) -> dict[QueueName | None, list[_Pool]]:
        server = _available(snapshot.server, max_is_total)
        licences = {n: a for n, a in _licences(snapshot.nodes).items() if n not in server}
        all_of = _Pool(server, _assigned(snapshot.server, server, running))
        of_nodes = _Pool(licences, _assigned(Server(), licences, running))
        self._of_nodes = of_nodes
        pools: dict[QueueName | None, list[_Pool]] = {None: [all_of, of_nodes]}
        for queue in snapshot.queues:
            available = _available(queue, max_is_total)
            if available:
                own = [job for job in running if job.queue == queue.name]
                pools[queue.name] = [_Pool(available, _assigned(queue, available, own))]
        return pools

    def _count(self, job: Job) -> None:
        for queue in (None, job.queue):
            self._running[queue, "", ""] += 1
            self._running[queue, "user", job.user] += 1
            self._running[queue, "group", job.group] += 1
        self._run_limits.count(job)
        if job.array is not None:
            self._members[job.array] += 1

    def start(self, job: Job) -> None:
        """The job counts as running from now on."""
        self._gone.add(job.id)
        self._take(job)

    def promise(self, job: Job) -> None:
        """The job counts as running from now on, and waits all the same: it is promised a later start."""
        self._promised.add(job.id)
        self._take(job)

    def _take(self, job: Job) -> None:
        self._count(job)
        self._throttle.count(job)
        for queue in (None, job.queue):
            for pool in self._pools.get(queue, ()):
                pool.take(job)
        for name, amount in job.request.tokens:
            self._tokens[name] = self._tokens.get(name, 0.0) - amount

    def check(self, job: Job, *, later: bool = False) -> Hold | None:
        """The limit that holds the job; None: none does. In the C daemon's order, soft ones last.

        ``later``: whether it may be promised a later start; licences of the site are planned with then.
        """
        hold = self._check_hard(job, later=later)
        if hold is not None:
            return hold
        soft = self._throttle.soft(job)
        return soft if soft is not None and self._do_others_wait() else None

    def soft_last(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """The jobs in their order, but those beyond a soft limit at their turn after all others."""
        aside: list[Job] = []
        for job in jobs:
            if self._throttle.soft(job) is None:
                yield job
            else:
                aside.append(job)
        yield from aside

    def _do_others_wait(self) -> bool:
        """Whether a job waits whom no limit holds.

        What has started, or is beyond a limit, stays so for the rest of the cycle: each is asked once.
        """
        while self._others:
            other = self._others[-1]
            if other.id not in self._gone:
                if other.id in self._promised:
                    return True
                is_held = self._check_hard(other) is not None or self._throttle.soft(other) is not None
                if not is_held and self._may_run(other):
                    return True
            self._others.pop()
        return False

    def _check_hard(self, job: Job, *, later: bool = False) -> Hold | None:
        refused = not_permitted(job, self._throttling)
        if refused is not None:
            return refused
        # Where the server itself holds what is beyond the limit, only it knows the limit of now (qalter -t).
        limit = None if self._server.holds_beyond_array_limits else job.array_slot_limit
        if limit is not None and job.array is not None and self._members[job.array] >= limit:
            return Hold(job.id, Reason.ARRAY_SLOT_LIMIT, {"limit": str(limit)})
        queue = self._queues.get(job.queue)
        reason = self._check_counts(self._server, None, job, _SERVER_REASONS)
        if reason is None and queue is not None:
            reason = self._check_counts(queue, job.queue, job, _QUEUE_REASONS)
        if reason is not None:
            return Hold(job.id, reason)
        exceeded = self._run_limits.exceeded(job) or self._check_pools(job, later=later)
        return exceeded or self._throttle.hard(job)

    def _check_counts(
        self,
        source: Server | Queue,
        queue: QueueName | None,
        job: Job,
        reasons: tuple[Reason, Reason, Reason],
    ) -> Reason | None:
        limits = (
            (source.max_running, "", ""),
            (source.max_user_run, "user", job.user),
            (source.max_group_run, "group", job.group),
        )
        for (limit, kind, name), reason in zip(limits, reasons, strict=True):
            if limit is not None and self._running[queue, kind, name] >= limit:
                return reason
        return None

    def _check_pools(self, job: Job, *, later: bool) -> Hold | None:
        for queue in (None, job.queue):
            for pool in self._pools.get(queue, ()):
                # What only nodes report is in no plan.
                lacking = pool.lacking(job, later=later and pool is not self._of_nodes)
                if lacking is None:
                    continue
                name, never = lacking
                word = _WORDS.get(name, name)
                if never:
                    place = "the server" if queue is None else f"queue {queue}"
                    return Hold(job.id, Reason.NEVER_FITS, {"why": f"more {word} than {place} has"})
                return Hold(job.id, Reason.NOT_ENOUGH_RESOURCE, {"resource": word})
        for name, amount in job.request.tokens:
            if amount > self._tokens.get(name, 0.0):
                return Hold(job.id, Reason.NOT_ENOUGH_RESOURCE, {"resource": f"tokens {name}"})
        return None


_SERVER_REASONS = (Reason.SERVER_JOB_LIMIT, Reason.SERVER_USER_LIMIT, Reason.SERVER_GROUP_LIMIT)

_QUEUE_REASONS = (Reason.QUEUE_JOB_LIMIT, Reason.QUEUE_USER_LIMIT, Reason.QUEUE_GROUP_LIMIT)
