"""OpenPBS as a `Snapshot`, and the orders to start and to tell, by its commands.

A look takes four queries at the same time. Others come besides: what the site's resources are (``qmgr``,
every ten minutes), reservations (``pbs_rstat``, where a vnode has one), and how the jobs ended that the look
before still showed (``qstat -x``, where the server keeps them).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torque_sched.adapters.commands import Commands, Completed
from torque_sched.batch.openpbs.loads import read_files, samples_of, with_loads
from torque_sched.batch.openpbs.parse.cluster import (
    Vnode,
    by_host,
    is_ours,
    kinds_of,
    node_of,
    parse_definitions,
    parse_queues,
    parse_server,
    parse_vnodes,
    settled,
)
from torque_sched.batch.openpbs.parse.jobs import parse_jobs
from torque_sched.batch.openpbs.parse.reservations import (
    Reserved,
    VnodeReservation,
    apply_reservations,
    ordered_name,
    parse_reservations,
)
from torque_sched.batch.openpbs.parse.select import Kinds, parse_select
from torque_sched.batch.openpbs.parse.text import read_blocks
from torque_sched.batch.openpbs.placing import (
    ChunkRules,
    Elements,
    NotFreeError,
    SiteAccounts,
    VnodeAccounts,
    hosts_argument,
)
from torque_sched.batch.system import OrderKind, OrderResult
from torque_sched.batch.torque.parse.qrun import classify_qrun
from torque_sched.batch.torque.parse.records import Parsed, decoded
from torque_sched.batch.torque.pbs import START_COMMAND, Asked, Parts, QueriedServer, quoted, snapshot_of
from torque_sched.errors import CommandError, ModelError, ParseError, RecordError, SnapshotError
from torque_sched.extras import install_command
from torque_sched.model.cluster import Job, JobId, Node, NodeName, Queue, Server
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, NodeState

logger = logging.getLogger(__name__)

QUERIES: dict[str, tuple[str, ...]] = {
    "nodes": ("pbsnodes", "-av"),
    "jobs": ("qstat", "-f", "-t", "-w"),
    "queues": ("qstat", "-Q", "-f", "-w"),
    "server": ("qstat", "-B", "-f", "-w"),
}
"""All that is run for each look, by the part it answers."""

_RESOURCES = ("qmgr", "-c", "print server")
_RESERVATIONS = ("pbs_rstat", "-f")
_ENDED = ("qstat", "-x", "-f", "-w")
_RESOURCES_EVERY_S = 600.0
_MOST_ENDED = 200
"""Jobs whose end is asked for in one look; those that are left, in the next ones."""
_MOST_JOINED = 100
_AT_ONCE = 4
_SEEN_WITHIN_S = 30.0
"""An order that the server took shows within this time."""
_SETTLES_WITHIN_S = 30.0
"""After a restart of the server the MoMs have called again within this time: 5 s were seen."""
_LONGEST_COMMENT = 255
_PAUSES = "heed_scheduling"
_KINDS: tuple[tuple[str, OrderKind], ...] = (
    ("Request invalid for state of job", OrderKind.WRONG_STATE),
    ("Invalid request", OrderKind.ARRAY_PARENT),
    ("Server could not connect to MOM", OrderKind.NOT_NOW),
    ("Unknown resource", OrderKind.NEVER),
    ("Could not contact Scheduler", OrderKind.USAGE),
    ("illegal -H value", OrderKind.USAGE),
)
"""Texts of OpenPBS's own; all others are Torque's as well."""


@dataclass(slots=True)
class ReadBefore:
    """What is kept of a look so that what did not change is not read again.

    Attributes:
        kinds: by which the jobs were read.
        jobs: of the output before by their text; `settled` as `cluster.settled` has it.
    """

    kinds: Kinds = field(default_factory=Kinds)
    jobs: dict[str, Job] = field(default_factory=dict)
    settled: dict[JobId, tuple[Job, Job]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenPbsParts:
    """What the answers of one look are made of."""

    parts: Parts
    vnodes: tuple[Vnode, ...]
    kinds: Kinds
    jobs: tuple[Job, ...]
    reservations: tuple[VnodeReservation, ...] = ()
    foreign: tuple[str, ...] = ()
    """Partitions of vnodes that are other schedulers'."""

    def reserved(self, vnodes: tuple[Vnode, ...]) -> Reserved:
        """What its reservations make of these vnodes."""
        host_of = {vnode.name: host for host, members in by_host(vnodes).items() for vnode in members}
        started = frozenset(queue.name for queue in self.parts.queues.items if queue.is_started)
        return apply_reservations(self.reservations, vnodes, host_of, self.jobs, started)


def _nodes(vnodes: Iterable[Vnode]) -> tuple[Node, ...]:
    return tuple(node_of(name, members) for name, members in by_host(vnodes).items())


def read_parts(outputs: Mapping[str, bytes], memory: ReadBefore) -> OpenPbsParts:
    """What is in the outputs of a look.

    Args:
        outputs: by the names of :data:`QUERIES`, and ``settings``, ``resources``, ``loads`` ...
        memory: of the look before.

    Raises:
        SnapshotError: an output is unusable.
    """
    try:
        return _read_parts(outputs, memory)
    except ParseError as error:
        raise SnapshotError(error.message, cure=error.cure) from error


def _read_parts(outputs: Mapping[str, bytes], memory: ReadBefore) -> OpenPbsParts:
    settings = decoded(outputs["settings"], "settings").split("\n")
    partition = settings[0]
    blocks = read_blocks(outputs["nodes"], "Vnode", "pbsnodes")
    kinds = kinds_of(blocks, parse_definitions(decoded(outputs.get("resources", b""), "qmgr")))
    if kinds != memory.kinds:
        memory.jobs.clear()
        memory.kinds = kinds
    read = parse_vnodes(blocks, kinds)
    vnodes = tuple(vnode for vnode in read.items if is_ours(vnode.partition, partition))
    jobs = parse_jobs(outputs["jobs"], kinds, seen=memory.jobs)
    ended = parse_jobs(outputs.get("ended", b""), kinds, "qstat -x")
    found = parse_reservations(outputs.get("reservations", b""), vnodes)
    shown = {job.id for job in jobs.items}
    finished = tuple(job for job in ended.items if job.id not in shown and job.state.is_final)
    problems = (*jobs.problems, *ended.problems, *found.problems)
    queues = parse_queues(outputs["queues"], partition)
    server = _server(outputs["server"], heed_scheduling=_PAUSES in settings)
    parts = Parts(Parsed((), read.problems), Parsed(jobs.items, problems), queues, server)
    foreign = sorted({each.partition for each in read.items if not is_ours(each.partition, partition)})
    as_shown = OpenPbsParts(parts, vnodes, kinds, jobs.items, found.items, tuple(foreign))
    reserved = as_shown.reserved(vnodes)
    settled_jobs = settled(jobs.items, by_host(reserved.vnodes), memory.settled, reserved.nodes)
    nodes = with_loads(_nodes(reserved.vnodes), samples_of(blocks, outputs.get("loads", b"")))
    queues = replace(queues, items=tuple(_bound(queue, reserved) for queue in queues.items))
    parts = replace(
        parts, nodes=Parsed(nodes, read.problems), jobs=Parsed((*settled_jobs, *finished), problems),
        queues=queues, reservations=reserved.reservations,
    )  # fmt: skip
    return replace(as_shown, parts=parts, vnodes=reserved.vnodes)


def _bound(queue: Queue, reserved: Reserved) -> Queue:
    """The queue of a reservation with what its jobs need of nodes."""
    word = reserved.properties.get(queue.name)
    return queue if word is None else replace(queue, features_required=(*queue.features_required, word))


def _server(output: bytes, *, heed_scheduling: bool) -> Server:
    server = parse_server(output)
    return server if heed_scheduling else replace(server, scheduling=True)


def is_look(outputs: Mapping[str, bytes]) -> bool:
    """Whether the outputs of a look are those of OpenPBS."""
    return "settings" in outputs


def read_snapshot(
    outputs: Mapping[str, bytes], now_s: float, silent_s: float = 0.0
) -> tuple[Snapshot, tuple[RecordError, ...]]:
    """The snapshot in the outputs of a look, and the records that were damaged and left out.

    Raises:
        SnapshotError: an output is unusable, or does not list the jobs the server counts.
    """
    return snapshot_of(read_parts(outputs, ReadBefore()).parts, now_s, silent_s)


def not_supported(found: OpenPbsParts, partition: str) -> Iterator[str]:
    """What this server has and a scheduler of ours does not do, a sentence each."""
    extra = found.parts.server.extra
    words = {
        "job_sort_formula": "is not used: set `order` in the settings",
        "backfill_depth": "is the native scheduler's: set `backfill` in the settings",
    }
    yield from (f"{name} of the server {text}" for name, text in words.items() if extra.get(name))
    if not _keeps_history(found.parts.server):
        yield (
            "job_history_enable is off: nothing is learned from how jobs ended "
            "(qmgr -c 'set server job_history_enable = True')"
        )
    for place, attributes in (
        ("the server", extra),
        *((f"queue {q.name}", q.extra) for q in found.parts.queues.items),
    ):
        if any(name.startswith(("max_run_soft", "max_run_res_soft")) for name in attributes):
            yield f"soft limits of {place} (max_run_soft) are not used: nothing is preempted"
    yield from _not_followed(found.reservations)
    for queue in found.parts.queues.items:
        other = queue.extra.get("partition", "")
        if not is_ours(other, partition):
            yield f"queue {queue.name} is of partition {other}: left to its scheduler (setting `partition`)"
    for other in found.foreign:
        yield f"vnodes of partition {other or 'none'} are left to its scheduler (setting `partition`)"
    for vnode in found.vnodes:
        if vnode.queue:
            yield f"vnode {vnode.name} is bound to queue {vnode.queue}: no job is placed there; use Qlist"
    if any(word.startswith(("aoe=", "eoe=")) for vnode in found.vnodes for word in vnode.properties):
        yield "provisioning (aoe, eoe) is not supported: jobs that ask for it wait"


def _not_followed(reservations: Iterable[VnodeReservation]) -> Iterator[str]:
    for each in reservations:
        if each.rule:
            yield (
                f"reservation {each.name} comes again by {each.rule[:60]!r}, which is not followed: only its "
                f"next time is kept ({install_command('python-dateutil')}, if it is not installed)"
            )


def _keeps_history(server: Server) -> bool:
    return server.extra.get("job_history_enable", "") == "True"


@dataclass(slots=True)
class _Ordered:
    """A start that the server took, until a look shows it."""

    elements: Elements
    at_s: float


class OpenPbs(QueriedServer):
    """One OpenPBS server by its commands.

    Args:
        commands: run with ``TZ=UTC``, as the server's times have no zone.
        clock: as `QueriedServer` has it.
        query_timeout_s: for each query.
        order_timeout_s: for a qrun or a qalter.
        note: as `QueriedServer` has it.
        partition: whose queues and vnodes are ours; empty: those of none.
        loads_folder: where the nodes' samplers write their files; empty: nowhere.
        heed_scheduling: whether the server's ``scheduling`` is our pause switch; False beside a native
            scheduler that is paused by it.
    """

    queries = QUERIES
    absent_cure = "is pbs_server running, and is pbs_iff installed with its setuid bit on this host?"

    def __init__(
        self,
        commands: Commands,
        clock: Callable[[], float],
        *,
        query_timeout_s: float = 60.0,
        order_timeout_s: float = 30.0,
        note: Callable[[str], None] | None = None,
        partition: str = "",
        loads_folder: str = "",
        heed_scheduling: bool = True,
    ) -> None:
        super().__init__(clock, query_timeout_s, note)
        self._commands = commands
        self._order_timeout_s = order_timeout_s
        self._partition = partition
        self._loads_folder = loads_folder
        self._settings = f"{partition}\n{_PAUSES if heed_scheduling else ''}".encode()
        self._memory = ReadBefore()
        self._resources = b""
        self._resources_at_s = -_RESOURCES_EVERY_S
        self._unknown_since_s: float | None = None
        self._shown: frozenset[JobId] = frozenset()
        self._to_ask: dict[JobId, None] = {}
        self._found: OpenPbsParts | None = None
        self._accounts = VnodeAccounts((), Kinds())
        self._site = SiteAccounts(Server(), (), ())
        self._ordered: dict[JobId, _Ordered] = {}
        self._queued: dict[str, list[tuple[JobId, asyncio.Future[OrderResult]]]] = {}
        self._flushing: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._said: frozenset[str] = frozenset()

    @property
    def joins_equal_starts(self) -> bool:
        """One ``qrun -a`` takes many jobs for the same vnodes: six times as many a second as one by one."""
        return True

    def forget(self) -> None:
        """Read every job anew next time."""
        self._memory = ReadBefore()

    # -- looks

    async def _ask_all(self) -> Asked:
        names = list(self.queries)
        done = await asyncio.gather(*(self._query(name) for name in names), self._ask_resources())
        outputs = {name: each.stdout for name, each in zip(names, done[:-1], strict=True) if each is not None}
        took_s = max(each.wall_s for each in done if each is not None)
        outputs["resources"] = self._resources
        outputs["settings"] = self._settings
        began_s = time.monotonic()
        await self._ask_besides(outputs)
        took_s += time.monotonic() - began_s
        answered_s = time.monotonic()
        parts = self._read(outputs)
        return Asked(parts, outputs, took_s, time.monotonic() - answered_s)

    def _read(self, outputs: Mapping[str, bytes]) -> Parts:
        found = read_parts(outputs, self._memory)
        self._check_settled(found)
        self._found = found
        self._see(found)
        return found.parts

    def _check_settled(self, found: OpenPbsParts) -> None:
        """After a restart of the server no vnode is known for seconds: that is no failure of nodes.

        Raises:
            SnapshotError: vnodes that run jobs are not known yet, and have not been for long.
        """
        unknown = [each.name for each in found.vnodes if NodeState.UNKNOWN in each.states and each.jobs]
        now_s = time.monotonic()
        if not unknown:
            self._unknown_since_s = None
            return
        if self._unknown_since_s is None:
            self._unknown_since_s = now_s
        if now_s - self._unknown_since_s < _SETTLES_WITHIN_S:
            raise SnapshotError(
                f"the server does not know yet of {len(unknown)} vnodes that run jobs, {unknown[0]} first",
                cure=f"it has just restarted: wait; after {_SETTLES_WITHIN_S:.0f} s they count as down",
            )

    def _see(self, found: OpenPbsParts) -> None:
        """Open the accounts of vnodes and site, and see which jobs are gone."""
        jobs = found.parts.jobs.items
        live = {job.id: job for job in jobs if not job.state.is_final and not job.is_array_parent}
        if _keeps_history(found.parts.server):
            self._to_ask.update(dict.fromkeys(sorted(self._shown - live.keys())))
        self._shown = frozenset(live)
        now_s = self._clock()
        self._accounts = VnodeAccounts(found.vnodes, found.kinds)
        self._site = SiteAccounts(found.parts.server, found.parts.queues.items, jobs)
        for job_id, ordered in tuple(self._ordered.items()):
            job = live.get(job_id)
            if job is None or job.state is not JobState.QUEUED or abs(now_s - ordered.at_s) > _SEEN_WITHIN_S:
                del self._ordered[job_id]
            else:
                self._accounts.take(ordered.elements, job.request.access)
                self._site.take(job)
        said = frozenset(not_supported(found, self._partition))
        for text in sorted(said - self._said):
            logger.warning("%s", text)
        self._said = said

    async def _ask_besides(self, outputs: dict[str, bytes]) -> None:
        """Loads from files, reservations where a vnode has any, and how jobs ended that are shown no more."""
        if self._loads_folder:
            outputs["loads"] = await asyncio.to_thread(read_files, Path(self._loads_folder), self._clock())
        if b"\n     resv = " in outputs["nodes"] or b"Queue: R" in outputs["queues"]:
            done = await self._run(_RESERVATIONS)
            if done.exit_code:
                raise SnapshotError(
                    f"pbs_rstat -f ended with exit code {done.exit_code}: {done.last_line()}",
                    cure="reservations must be known before anything starts: run it by hand",
                )
            outputs["reservations"] = done.stdout if done.stdout.endswith(b"\n\n") else done.stdout + b"\n"
        ids = list(self._to_ask)[:_MOST_ENDED]
        if ids:
            # The answer has those that the server still keeps; of the others it complains.
            done = await self._run((*_ENDED, *ids))
            for each in ids:
                del self._to_ask[each]
            outputs["ended"] = done.stdout

    async def _ask_resources(self) -> Completed | None:
        """What the site's resources are; an answer that fails is not asked for again at once."""
        if time.monotonic() - self._resources_at_s < _RESOURCES_EVERY_S:
            return None
        self._resources_at_s = time.monotonic()
        try:
            done = await self._commands.run(_RESOURCES, self._query_timeout_s)
        except CommandError as error:
            logger.info("resources are known by their values alone: %s", error)
            return None
        if done.exit_code:
            logger.info("resources are known by their values alone: qmgr says %s", done.last_line())
            return None
        self._resources = done.stdout
        return done

    async def _ask_nodes(self) -> tuple[Parsed[Node], bytes, float]:
        again = await self._query("nodes")
        assert self._found is not None
        blocks = read_blocks(again.stdout, "Vnode", "pbsnodes")
        read = parse_vnodes(blocks, self._found.kinds)
        vnodes = tuple(vnode for vnode in read.items if is_ours(vnode.partition, self._partition))
        vnodes = self._found.reserved(vnodes).vnodes
        self._found = replace(self._found, vnodes=vnodes)
        self._see(self._found)
        return Parsed(_nodes(vnodes), read.problems), again.stdout, again.wall_s

    async def _query(self, name: str) -> Completed:
        self._unanswered.add(name)
        try:
            done = await self._run(self.queries[name])
        finally:
            self._unanswered.discard(name)
        if done.exit_code:
            raise SnapshotError(
                f"{' '.join(self.queries[name])} ended with exit code {done.exit_code}: {done.last_line()}",
                cure=self.absent_cure,
            )
        return done

    async def _run(self, argv: Sequence[str]) -> Completed:
        try:
            return await self._commands.run(argv, self._query_timeout_s)
        except CommandError as error:
            raise SnapshotError(error.message, cure=error.cure) from error

    # -- orders

    async def start(self, job: Job, allocation: Sequence[NodeShare], lock: int | None = None) -> OrderResult:
        """``qrun -a -H ELEMENTS JOB``, one element for each chunk; refused here where it does not fit."""
        refusal = _refusal(job)
        if refusal is not None:
            return refusal
        request = job.request
        try:
            self._site.check(job)
            select = parse_select(request.nodes_text or "1:ncpus=1")
            elements = self._accounts.elements(select, allocation, ChunkRules.of(request))
        except NotFreeError as error:
            return OrderResult(OrderKind.NOT_NOW, error.message)
        except (ModelError, RecordError) as error:
            return OrderResult(OrderKind.NEVER, error.message)
        self._accounts.take(elements, request.access)
        self._site.take(job)
        self._ordered[job.id] = _Ordered(elements, self._clock())
        result = await self._start(job.id, hosts_argument(elements), lock)
        # Without an answer it may have been taken.
        if result.kind not in {OrderKind.STARTED, OrderKind.OTHER}:
            self._ordered.pop(job.id, None)
            self._accounts.give_back(elements)
            self._site.take(job, -1)
        return result

    async def _start(self, job: JobId, hosts: str, lock: int | None) -> OrderResult:
        """Order with all others for the same vnodes that are given at the same time."""
        loop = asyncio.get_running_loop()
        waiting = self._queued.setdefault(hosts, [])
        answer: asyncio.Future[OrderResult] = loop.create_future()
        waiting.append((job, answer))
        if len(waiting) == 1:
            flushed = loop.create_task(self._flush(hosts, lock))
            self._flushing.add(flushed)
            flushed.add_done_callback(self._flushing.discard)
        return await answer

    async def _flush(self, hosts: str, lock: int | None) -> None:
        async with self._slots:
            waiting = self._queued.pop(hosts)
            for first in range(0, len(waiting), _MOST_JOINED):
                some = waiting[first : first + _MOST_JOINED]
                results = await self._start_many([job for job, _ in some], hosts, lock)
                for job, answer in some:
                    if not answer.done():
                        answer.set_result(results[job])

    async def _start_many(
        self, jobs: Sequence[JobId], hosts: str, lock: int | None
    ) -> dict[JobId, OrderResult]:
        """The result of each job: the server names those that it refuses."""
        done = await self._order_output((*START_COMMAND, hosts, *jobs), lock)
        if isinstance(done, OrderResult):
            return dict.fromkeys(jobs, done)
        if len(jobs) == 1 or not done.exit_code:
            return {job: classify(done.exit_code, done.stderr) for job in jobs}
        lines = done.stderr.decode("utf-8", "replace").splitlines()
        named = {job: line for line in lines for job in jobs if line.rstrip().endswith(f" {job}")}
        rest = "\n".join(line for line in lines if line not in set(named.values()))
        others = classify(done.exit_code, rest.encode()) if rest.strip() else OrderResult(OrderKind.STARTED)
        return {
            job: classify(done.exit_code, named[job].encode()) if job in named else others for job in jobs
        }

    async def comment(self, jobs: Sequence[JobId], text: str) -> OrderResult:
        """Set one comment on many jobs by one ``qalter``; those that are gone do not hinder the others."""
        return await self._order("qalter", "-W", f"comment={quoted(text[:_LONGEST_COMMENT])}", *jobs)

    async def delete(self, job: JobId, why: str) -> OrderResult:
        """``qdel JOB``: there is no place for the reason, so it is written into the log."""
        logger.warning("deleting %s: %s", job, why)
        return await self._order("qdel", job)

    async def set_offline(self, node: NodeName, note: str) -> OrderResult:
        """``pbsnodes -o -C NOTE HOST``: it takes the name of a host, whose vnodes all go, and no vnode's."""
        hosts = dict.fromkeys(ordered_name(vnode.host) for vnode in self._accounts.hosts.get(node, ())) or [
            str(node)
        ]
        return await self._order("pbsnodes", "-o", "-C", note, *hosts)

    async def _order(self, *argv: str) -> OrderResult:
        done = await self._order_output(argv, None)
        return done if isinstance(done, OrderResult) else classify(done.exit_code, done.stderr)

    async def _order_output(self, argv: Sequence[str], lock: int | None) -> Completed | OrderResult:
        try:
            return await self._commands.run(argv, self._order_timeout_s, keeps=lock)
        except CommandError as error:
            return OrderResult(OrderKind.OTHER, error.message)


def _refusal(job: Job) -> OrderResult | None:
    """Why a job must not be started whatever was decided: the server would start it."""
    if job.is_array_parent:
        return OrderResult(OrderKind.ARRAY_PARENT, "a whole array cannot be run; its members can")
    if job.state is not JobState.QUEUED or job.hold_types:
        return OrderResult(OrderKind.WRONG_STATE, f"the job is held, waits or runs (state {job.state.value})")
    if job.request.trouble:
        return OrderResult(OrderKind.NEVER, job.request.trouble)
    return None


def classify(exit_code: int, stderr: bytes) -> OrderResult:
    """What a finished order means; all commands answer in qrun's words.

    >>> classify(2, b"qrun: Request invalid for state of job 0.head").kind
    <OrderKind.WRONG_STATE: 'wrong-state'>
    """
    words = stderr
    for command in (b"qalter: ", b"qdel: ", b"pbsnodes: ", b"qhold: "):
        words = words.replace(command, b"qrun: ")
    result = classify_qrun(exit_code, words)
    if exit_code == 0:
        return result
    kind = next((kind for text, kind in _KINDS if text.encode() in stderr), result.kind)
    return OrderResult(kind, result.text)
