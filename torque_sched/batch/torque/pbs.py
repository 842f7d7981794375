"""Torque as a `Snapshot`, and the orders to start and to tell: in general, and by its own commands.

A snapshot needs four commands, run at the same time. When one of them fails, prints something damaged as a
whole, or hides jobs, there is no snapshot. ``pbsnodes`` is never older than ``qstat`` where that matters: the
slots of a job that has ended would look taken by nobody knows whom, for ever, and promises would break by it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torque_sched.adapters.commands import Commands, Completed
from torque_sched.batch.cluster_clock import ClusterClock
from torque_sched.batch.system import BatchSystem, Look, OrderKind, OrderResult
from torque_sched.batch.torque.parse.pbsnodes import parse_pbsnodes
from torque_sched.batch.torque.parse.qrun import classify_qrun, hosts_argument
from torque_sched.batch.torque.parse.qstat import parse_jobs, parse_queues, parse_server
from torque_sched.batch.torque.parse.records import Parsed
from torque_sched.errors import CommandError, ParseError, RecordError, SnapshotError
from torque_sched.model.cluster import Job, JobId, Node, NodeName, Queue, Server
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.model.states import JobState

QUERIES: dict[str, tuple[str, ...]] = {
    "nodes": ("pbsnodes", "-x"),
    "jobs": ("qstat", "-f", "-t", "-x"),
    "queues": ("qstat", "-Q", "-f", "-1"),
    "server": ("qstat", "-B", "-f", "-1"),
}
"""All that is run to look at a cluster, by the part it answers."""

START_COMMAND = ("qrun", "-a", "-H")
"""Nodes and job follow."""
NOTE_AFTER_S = 2.0
"""After this time whoever waits for a look learns what it waits for."""

_FEW = 0.5
"""Below this share of the jobs the server counts, jobs are hidden from us."""


def read_snapshot(
    outputs: Mapping[str, bytes], now_s: float, seen: dict[str, Job] | None = None, silent_s: float = 0.0
) -> tuple[Snapshot, tuple[RecordError, ...]]:
    """The snapshot in four outputs, and the records that were damaged and left out.

    Args:
        outputs: by the names of :data:`QUERIES`.
        now_s: when they were asked for, seconds since the epoch.
        seen: the same dict each time, so that unchanged jobs are not read again.
        silent_s: as `Snapshot` has it.

    Raises:
        SnapshotError: an output is unusable, or does not list the jobs the server counts.
    """
    return snapshot_of(_parse(outputs, seen), now_s, silent_s)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the answers to one look are made of."""

    nodes: Parsed[Node]
    jobs: Parsed[Job]
    queues: Parsed[Queue]
    server: Server
    reservations: tuple[Reservation, ...] = ()

    def show_slots_of_nobody(self) -> bool:
        """Whether a node lists a job that holds nothing by ``qstat``."""
        holding = {job.id for job in self.jobs.items if job.state in _HOLDING}
        return any(part.job not in holding for node in self.nodes.items for part in node.jobs)


_HOLDING = frozenset({JobState.RUNNING, JobState.EXITING, JobState.SUSPENDED})


def _parse(outputs: Mapping[str, bytes], seen: dict[str, Job] | None) -> Parts:
    try:
        return Parts(
            _parse_nodes(outputs["nodes"]),
            parse_jobs(outputs["jobs"], seen=seen),
            parse_queues(outputs["queues"]),
            parse_server(outputs["server"]),
        )
    except ParseError as error:
        raise SnapshotError(error.message, cure=error.cure) from error


def _parse_nodes(output: bytes) -> Parsed[Node]:
    try:
        return parse_pbsnodes(output)
    except ParseError as error:
        raise SnapshotError(error.message, cure=error.cure) from error


def snapshot_of(parts: Parts, now_s: float, silent_s: float) -> tuple[Snapshot, tuple[RecordError, ...]]:
    """The snapshot made of these parts, and the records that were damaged; arguments as `read_snapshot`.

    Raises:
        SnapshotError: there is no node, or jobs are hidden.
    """
    nodes, jobs, queues, server = parts.nodes, parts.jobs, parts.queues, parts.server
    problems = (*nodes.problems, *jobs.problems, *queues.problems)
    snapshot = Snapshot(
        now_s, server, queues.items, nodes.items, jobs.items, len(problems), silent_s, parts.reservations
    )
    if not nodes.items:
        raise SnapshotError("pbsnodes names no node", cure="add nodes to the server's nodes file")
    counted = sum(server.state_count.values())
    if counted and jobs.n_records < counted * _FEW:
        raise SnapshotError(
            f"qstat shows {jobs.n_records} of the {counted} jobs the server counts",
            cure="other users' jobs are hidden from this user: make it an operator (qmgr -c 'set server "
            "operators += USER@HOST') or set server query_other_jobs = True",
        )
    return snapshot, problems


@dataclass(frozen=True, slots=True)
class Asked:
    """What one round of questions brought.

    Attributes:
        parts: what was read in the answers.
        outputs: the answers as they came, by the names of :data:`QUERIES`.
        took_s: the time the server took.
        read_s: the time that reading the answers took us.
    """

    parts: Parts
    outputs: Mapping[str, bytes]
    took_s: float
    read_s: float = 0.0


class QueriedServer(BatchSystem, ABC):
    """A Torque server whose looks are made of the answers to four questions.

    Args:
        clock: seconds since the epoch; a `ClusterClock` learns from each look how far this host's is off.
        query_timeout_s: for each question.
        note: called, once for each look, with what it still waits for after `NOTE_AFTER_S`.

    Attributes:
        queries: the commands of the questions, by the part they answer.
    """

    queries: Mapping[str, Sequence[str]] = QUERIES

    def __init__(
        self, clock: Callable[[], float], query_timeout_s: float, note: Callable[[str], None] | None = None
    ) -> None:
        self._clock = clock
        self._query_timeout_s = query_timeout_s
        self._note = note
        self._unanswered: set[str] = set()

    @abstractmethod
    async def _ask_all(self) -> Asked:
        """Nodes, jobs, queues and the server."""

    @abstractmethod
    async def _ask_nodes(self) -> tuple[Parsed[Node], bytes, float]:
        """The nodes, the answer as it came, and the time it took."""

    async def look(self) -> Look:
        """One complete look at the cluster.

        A job that comes or goes between the answers may look like a hidden one, so a look that fails for
        that is tried a second time.

        Raises:
            SnapshotError: there is none to be had now.
        """
        reminder = asyncio.get_running_loop().call_later(NOTE_AFTER_S, self._tell, self._clock())
        try:
            return await self._look()
        except SnapshotError as error:
            if not error.message.startswith("qstat shows"):
                raise
        finally:
            reminder.cancel()
        return await self._look()

    def _tell(self, began_s: float) -> None:
        if self._note is None or not self._unanswered:
            return
        until = time.strftime("%H:%M:%S", time.localtime(began_s + self._query_timeout_s))
        queries = self.queries
        which = ", ".join(" ".join(queries[name]) for name in queries if name in self._unanswered)
        self._note(f"no answer yet from {which}; waiting until {until} (query_timeout_s)")

    async def _look(self) -> Look:
        clock = self._clock
        moment = clock.moment() if isinstance(clock, ClusterClock) else None
        now_s = clock()
        asked = await self._ask_all()
        parts, outputs, query_s = asked.parts, dict(asked.outputs), asked.took_s
        if parts.show_slots_of_nobody():
            # What is still listed now and holds nothing does not pass.
            nodes, outputs["nodes"], took_s = await self._ask_nodes()
            parts, query_s = replace(parts, nodes=nodes), query_s + took_s
        silent_s = ahead_s = 0.0
        if isinstance(clock, ClusterClock) and moment is not None:
            silent_s = clock.observe(parts.nodes.items, moment)
            now_s, ahead_s = clock.time_of(moment), clock.ahead_s
        snapshot, problems = snapshot_of(parts, now_s, silent_s)
        return Look(snapshot, outputs, problems, query_s, asked.read_s, ahead_s)


class Pbs(QueriedServer):
    """One Torque server by its commands.

    Args:
        commands: runs them.
        clock: as `QueriedServer` has it.
        query_timeout_s: for each of the four queries.
        order_timeout_s: for a qrun or a qalter.
        note: as `QueriedServer` has it.
    """

    def __init__(
        self,
        commands: Commands,
        clock: Callable[[], float],
        *,
        query_timeout_s: float = 60.0,
        order_timeout_s: float = 30.0,
        note: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(clock, query_timeout_s, note)
        self._commands = commands
        self._order_timeout_s = order_timeout_s
        self._seen: dict[str, Job] = {}

    def forget(self) -> None:
        """Read every job anew next time."""
        self._seen.clear()

    async def _ask_all(self) -> Asked:
        answers = await asyncio.gather(*(self._query(name) for name in QUERIES), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        done: dict[str, Completed] = dict(zip(QUERIES, answers, strict=True))  # type: ignore[arg-type]
        outputs = {name: completed.stdout for name, completed in done.items()}
        answered_s = time.monotonic()
        parts = _parse(outputs, self._seen)
        took_s = max(each.wall_s for each in done.values())
        return Asked(parts, outputs, took_s, time.monotonic() - answered_s)

    async def _ask_nodes(self) -> tuple[Parsed[Node], bytes, float]:
        again = await self._query("nodes")
        return _parse_nodes(again.stdout), again.stdout, again.wall_s

    async def _query(self, name: str) -> Completed:
        argv = QUERIES[name]
        self._unanswered.add(name)
        try:
            done = await self._commands.run(argv, self._query_timeout_s)
        except CommandError as error:
            raise SnapshotError(error.message, cure=error.cure) from error
        finally:
            self._unanswered.discard(name)
        if done.exit_code:
            raise SnapshotError(
                f"{' '.join(argv)} ended with exit code {done.exit_code}: {done.last_line()}",
                cure="is pbs_server running, and trqauthd on this host?",
            )
        return done

    async def start(self, job: Job, allocation: Sequence[NodeShare], lock: int | None = None) -> OrderResult:
        """``qrun -a -H HOSTS JOB``; with ``-a`` a hanging mom does not hold us up."""
        hosts = hosts_argument(allocation, job.request)
        return await self._order(*START_COMMAND, hosts, job.id, lock=lock)

    async def comment(self, jobs: Sequence[JobId], text: str) -> OrderResult:
        """Set one comment on many jobs by one ``qalter``; those that are gone do not hinder the others."""
        return await self._order("qalter", "-W", f"comment={quoted(text)}", *jobs)

    async def delete(self, job: JobId, why: str) -> OrderResult:
        """``qdel -m WHY JOB``, for jobs that can never run, where the administrator wants that."""
        return await self._order("qdel", "-m", why, job)

    async def set_offline(self, node: NodeName, note: str) -> OrderResult:
        """``pbsnodes -o -N NOTE NODE``; a refusal has exit code 0 and a text."""
        return await self._order("pbsnodes", "-o", "-N", note, node)

    async def _order(self, *argv: str, lock: int | None = None) -> OrderResult:
        """Run a command that changes something; all of them answer in qrun's words."""
        try:
            done = await self._commands.run(argv, self._order_timeout_s, keeps=lock)
        except CommandError as error:
            return OrderResult(OrderKind.OTHER, error.message)
        return classify_qrun(done.exit_code, done.stderr.replace(f"{argv[0]}: ".encode(), b"qrun: "))


def quoted(text: str) -> str:
    """A value for qalter's ``name=value,name=value``: an equals sign would begin another value.

    >>> quoted('select=1: "a=b" is not understood')
    '"select=1: \'a=b\' is not understood"'
    """
    if "=" not in text and text[:1] not in {'"', "'"} and text[-1:] != ",":
        return text
    return '"{}"'.format(text.replace('"', "'"))
