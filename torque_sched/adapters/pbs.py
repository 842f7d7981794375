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

from torque_sched.adapters.cluster_clock import ClusterClock
from torque_sched.adapters.commands import Commands, Completed
from torque_sched.core.model import Job, JobId, Node, NodeName, Queue, Server
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.errors import CommandError, ParseError, RecordError, SnapshotError
from torque_sched.parse.pbsnodes import parse_pbsnodes
from torque_sched.parse.qrun import RunKind, RunResult, classify_qrun
from torque_sched.parse.qstat import parse_jobs, parse_queues, parse_server
from torque_sched.parse.records import Parsed

QUERIES: dict[str, tuple[str, ...]] = {
    "nodes": ("pbsnodes", "-x"),
    "jobs": ("qstat", "-f", "-t", "-x"),
    "queues": ("qstat", "-Q", "-f", "-1"),
    "server": ("qstat", "-B", "-f", "-1"),
}
"""All that is run to look at a cluster, by the part it answers."""

NOTE_AFTER_S = 2.0
"""Whoever waits for a look is told after this time what it waits for."""

_FEW = 0.5
"""Below this share of the jobs the server counts, jobs are hidden from us."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look: the snapshot, the outputs it came from, and what was damaged in them."""

    snapshot: Snapshot
    outputs: Mapping[str, bytes]
    problems: tuple[RecordError, ...] = ()
    query_s: float = 0.0
    """Longest of the four commands, and ``pbsnodes`` asked again; all requests of the protocol."""
    read_s: float = 0.0
    """Reading the answers, while the server had nothing to do with them."""
    clock_ahead_s: float = 0.0
    """How far this host's clock is ahead of the server's where that matters (`ClusterClock.ahead_s`)."""
    transport: str = ""
    """By which way it was taken, and why by that, in words; empty: by commands, which was not chosen."""


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
    return _snapshot(_parse(outputs, seen), now_s, silent_s)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the answers to one look are made of."""

    nodes: Parsed[Node]
    jobs: Parsed[Job]
    queues: Parsed[Queue]
    server: Server

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


def _snapshot(parts: Parts, now_s: float, silent_s: float) -> tuple[Snapshot, tuple[RecordError, ...]]:
    nodes, jobs, queues, server = parts.nodes, parts.jobs, parts.queues, parts.server
    problems = (*nodes.problems, *jobs.problems, *queues.problems)
    snapshot = Snapshot(now_s, server, queues.items, nodes.items, jobs.items, len(problems), silent_s)
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


class TorqueServer(ABC):
    """One Torque server, by whatever way it is asked and told."""

    @property
    def one_order_at_a_time(self) -> bool:
        """Whether nothing is gained by orders given together, nor by one comment for many jobs."""
        return False

    @abstractmethod
    async def look(self) -> Look:
        """One complete look at the cluster.

        Raises:
            SnapshotError: there is none to be had now.
        """

    @abstractmethod
    def forget(self) -> None:
        """Read every job anew next time."""

    @abstractmethod
    async def start(self, job: JobId, hosts: str, lock: int | None = None) -> RunResult:
        """Start a job without waiting for its mom.

        A start without an answer counts as ``OTHER``: whether it took effect, the next snapshot tells.

        Args:
            job: which.
            hosts: where, as ``qrun -H`` wants it.
            lock: the descriptor of a lock that must not be free before the order is over, even where this
                process is killed.
        """

    @abstractmethod
    async def comment(self, jobs: Sequence[JobId], text: str) -> RunResult:
        """Set one comment on many jobs; those that are gone do not hinder the others."""

    @abstractmethod
    async def delete(self, job: JobId, why: str) -> RunResult:
        """For jobs that can never run, where the administrator wants that."""

    @abstractmethod
    async def set_offline(self, node: NodeName, note: str) -> RunResult:
        """For nodes that swallow jobs, where the administrator wants that."""

    async def close(self) -> None:  # noqa: B027 -- commands leave nothing open
        """Leave the server."""


class QueriedServer(TorqueServer):
    """A Torque server whose looks are made of the answers to four questions.

    Args:
        clock: seconds since the epoch; a `ClusterClock` learns from each look how far this host's is off.
        query_timeout_s: for each question.
        note: told, once for each look, what a look still waits for after `NOTE_AFTER_S`.
    """

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
        which = ", ".join(" ".join(QUERIES[name]) for name in QUERIES if name in self._unanswered)
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
        snapshot, problems = _snapshot(parts, now_s, silent_s)
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

    async def start(self, job: JobId, hosts: str, lock: int | None = None) -> RunResult:
        """``qrun -a -H HOSTS JOB``; with ``-a`` a hanging mom does not hold us up."""
        argv = ("qrun", "-a", "-H", hosts, job)
        try:
            done = await self._commands.run(argv, self._order_timeout_s, keeps=lock)
        except CommandError as error:
            return RunResult(RunKind.OTHER, error.message)
        return classify_qrun(done.exit_code, done.stderr)

    async def comment(self, jobs: Sequence[JobId], text: str) -> RunResult:
        """Set one comment on many jobs by one ``qalter``; those that are gone do not hinder the others."""
        try:
            done = await self._commands.run(
                ("qalter", "-W", f"comment={_quoted(text)}", *jobs), self._order_timeout_s
            )
        except CommandError as error:
            return RunResult(RunKind.OTHER, error.message)
        return classify_qrun(done.exit_code, done.stderr.replace(b"qalter: ", b"qrun: "))

    async def delete(self, job: JobId, why: str) -> RunResult:
        """``qdel -m WHY JOB``, for jobs that can never run, where the administrator wants that."""
        try:
            done = await self._commands.run(("qdel", "-m", why, job), self._order_timeout_s)
        except CommandError as error:
            return RunResult(RunKind.OTHER, error.message)
        return classify_qrun(done.exit_code, done.stderr.replace(b"qdel: ", b"qrun: "))

    async def set_offline(self, node: NodeName, note: str) -> RunResult:
        """``pbsnodes -o -N NOTE NODE``; a refusal has exit code 0 and a text."""
        try:
            done = await self._commands.run(("pbsnodes", "-o", "-N", note, node), self._order_timeout_s)
        except CommandError as error:
            return RunResult(RunKind.OTHER, error.message)
        return classify_qrun(done.exit_code, done.stderr.replace(b"pbsnodes: ", b"qrun: "))


def _quoted(text: str) -> str:
    """A value for qalter's ``name=value,name=value``: an equals sign would begin another value."""
    return f'"{text}"' if "=" in text else text


def look_once(
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    note: Callable[[str], None] | None = None,
) -> Look:
    """One look from code that has no event loop; it only reads.

    Args:
        env: environment of the commands; this process's own when None.
        timeout_s: for each command.
        note: told what it waits for when that takes long.

    Raises:
        SnapshotError: there is none to be had now.
    """
    return asyncio.run(Pbs(Commands(env), ClusterClock(), query_timeout_s=timeout_s, note=note).look())
