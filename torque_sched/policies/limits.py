"""Limits on what runs at once: of the server, of each queue, of each user and group, and of resources.

pbs_server enforces none of these when a job is started: they are the scheduler's duty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from torque_sched.core.decisions import Hold
from torque_sched.core.model import Job, Node, Queue, QueueName, Server
from torque_sched.core.reasons import Reason
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.units import DURATION_RESOURCES
from torque_sched.policies.needs import demand_of_memory

_WORDS = {"mem": "memory", "ncpus": "cpus", "nodect": "nodes"}
"""The C daemon's words for resources in its comments."""


def demand(job: Job, resource: str) -> float:
    """How much of a resource the whole job asks for.

    >>> from torque_sched.core.request import Chunk, Request
    >>> from torque_sched.core.model import JobId, JobState
    >>> job = Job(JobId("1.s"), JobState.QUEUED, QueueName("q"), Request(chunks=(Chunk(2, 4),)))
    >>> demand(job, "ncpus"), demand(job, "nodect"), demand(job, "licence")
    (8, 2, 0)
    """
    request = job.request
    if resource in {"mem", "pmem"}:
        return demand_of_memory(request, request.n_procs)[0]
    if resource in {"vmem", "pvmem"}:
        return demand_of_memory(request, request.n_procs)[1]
    if resource == "ncpus":
        return max(request.ncpus, request.n_procs)
    if resource == "procs":
        return request.n_procs
    if resource == "nodect":
        return request.n_pieces or 1
    if resource in {"gpus", "gpu"}:
        return request.n_gpus
    return sum(entry.count for entry in request.gres if entry.name == resource)


def _as_asked(job: Job, name: str) -> str:
    """The resource by the name the job used, where a limit has the other one."""
    request = job.request
    if name == "vmem" and not request.vmem_bytes and request.pvmem_bytes:
        return "pvmem"
    return "vmem" if name == "pvmem" and not request.pvmem_bytes else name


class _Pool:
    """Resources of the server, of one queue or of the nodes' licences, and what is left of them."""

    def __init__(self, available: Mapping[str, float], assigned: Mapping[str, float]) -> None:
        self._available = available
        self._left = {name: amount - assigned.get(name, 0.0) for name, amount in available.items()}

    def lacking(self, job: Job) -> tuple[str, bool] | None:
        """The first resource the job asks too much of, and whether it would be too much of all there is."""
        for name, left in self._left.items():
            wanted = demand(job, name)
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
    """Static resources that moms report, summed over the nodes."""
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


class Limits:
    """Counts what runs, and says which limit a job would exceed."""

    def __init__(self, snapshot: Snapshot, starting: Iterable[Job], max_is_total: bool = False) -> None:
        self._server, self._queues = snapshot.server, snapshot.queue_by_name
        self._running: Counter[tuple[QueueName | None, str, str]] = Counter()
        self._members: Counter[int] = Counter()
        running = [*snapshot.running, *starting]
        self._pools = self._open_pools(snapshot, running, max_is_total)
        self._tokens = _tokens_left(snapshot.server, running)
        for job in running:
            self._count(job)

    def _open_pools(
        self, snapshot: Snapshot, running: list[Job], max_is_total: bool
    ) -> dict[QueueName | None, list[_Pool]]:
        server = _available(snapshot.server, max_is_total)
        licences = {n: a for n, a in _licences(snapshot.nodes).items() if n not in server}
        all_of = _Pool(server, _assigned(snapshot.server, server, running))
        of_nodes = _Pool(licences, _assigned(Server(), licences, running))
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
        if job.array is not None:
            self._members[job.array] += 1

    def start(self, job: Job) -> None:
        """The job counts as running from now on."""
        self._count(job)
        for queue in (None, job.queue):
            for pool in self._pools.get(queue, ()):
                pool.take(job)
        for name, amount in job.request.tokens:
            self._tokens[name] = self._tokens.get(name, 0.0) - amount

    def check(self, job: Job) -> Hold | None:
        """The limit that holds the job; None: none does. In the C daemon's order."""
        # Where the server itself holds what is beyond the limit, only it knows the limit of now (qalter -t).
        limit = None if self._server.moab_array_compatible else job.array_slot_limit
        if limit is not None and job.array is not None and self._members[job.array] >= limit:
            return Hold(job.id, Reason.ARRAY_SLOT_LIMIT, {"limit": str(limit)})
        queue = self._queues.get(job.queue)
        reason = self._check_counts(self._server, None, job, _SERVER_REASONS)
        if reason is None and queue is not None:
            reason = self._check_counts(queue, job.queue, job, _QUEUE_REASONS)
        if reason is not None:
            return Hold(job.id, reason)
        return self._check_pools(job)

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

    def _check_pools(self, job: Job) -> Hold | None:
        for queue in (None, job.queue):
            for pool in self._pools.get(queue, ()):
                lacking = pool.lacking(job)
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
