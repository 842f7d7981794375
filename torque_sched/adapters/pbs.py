"""Torque through its own commands: what it has as a `Snapshot`, and the orders to start and to tell.

A snapshot needs four commands, run at the same time. When one of them fails, prints something damaged as a
whole, or hides jobs, there is no snapshot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torque_sched.adapters.commands import Commands, Completed
from torque_sched.core.model import Job, JobId, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.errors import CommandError, ParseError, RecordError, SnapshotError
from torque_sched.parse.pbsnodes import parse_pbsnodes
from torque_sched.parse.qrun import RunKind, RunResult, classify_qrun
from torque_sched.parse.qstat import parse_jobs, parse_queues, parse_server

__all__ = ["QUERIES", "Look", "Pbs", "look_once", "read_snapshot"]

QUERIES: dict[str, tuple[str, ...]] = {
    "nodes": ("pbsnodes", "-x"),
    "jobs": ("qstat", "-f", "-t", "-x"),
    "queues": ("qstat", "-Q", "-f", "-1"),
    "server": ("qstat", "-B", "-f", "-1"),
}
"""All that is run to look at a cluster, by the part it answers."""

_FEW = 0.5
"""Below this share of the jobs the server counts, jobs are hidden from us."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look: the snapshot, the outputs it came from, and what was damaged in them."""

    snapshot: Snapshot
    outputs: Mapping[str, bytes]
    problems: tuple[RecordError, ...] = ()
    query_s: float = 0.0
    """Longest of the four commands."""


def read_snapshot(
    outputs: Mapping[str, bytes], now_s: float, seen: dict[str, Job] | None = None
) -> tuple[Snapshot, tuple[RecordError, ...]]:
    """The snapshot in four outputs, and the records that were damaged and left out.

    Args:
        outputs: by the names of :data:`QUERIES`.
        now_s: when they were asked for, seconds since the epoch.
        seen: the same dict each time, so that unchanged jobs are not read again.

    Raises:
        SnapshotError: an output is unusable, or does not list the jobs the server counts.
    """
    try:
        nodes = parse_pbsnodes(outputs["nodes"])
        jobs = parse_jobs(outputs["jobs"], seen=seen)
        queues = parse_queues(outputs["queues"])
        server = parse_server(outputs["server"])
    except ParseError as error:
        raise SnapshotError(error.message, cure=error.cure) from error
    problems = (*nodes.problems, *jobs.problems, *queues.problems)
    snapshot = Snapshot(now_s, server, queues.items, nodes.items, jobs.items, len(problems))
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


class Pbs:
    """The commands of one Torque server.

    Args:
        commands: runs them.
        clock: seconds since the epoch.
        query_timeout_s: for each of the four queries.
        order_timeout_s: for a qrun or a qalter.
    """

    def __init__(
        self,
        commands: Commands,
        clock: Callable[[], float],
        *,
        query_timeout_s: float = 60.0,
        order_timeout_s: float = 30.0,
    ) -> None:
        self._commands = commands
        self._clock = clock
        self._query_timeout_s = query_timeout_s
        self._order_timeout_s = order_timeout_s
        self._seen: dict[str, Job] = {}

    def forget(self) -> None:
        """Read every job anew next time."""
        self._seen.clear()

    async def look(self) -> Look:
        """One complete look at the cluster.

        A job that comes or goes between the commands may look like a hidden one, so a look that fails for
        that is tried a second time.

        Raises:
            SnapshotError: there is none to be had now.
        """
        try:
            return await self._look()
        except SnapshotError as error:
            if not error.message.startswith("qstat shows"):
                raise
        return await self._look()

    async def _look(self) -> Look:
        now_s = self._clock()
        answers = await asyncio.gather(*(self._query(name) for name in QUERIES), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, CommandError):
                raise SnapshotError(answer.message, cure=answer.cure) from answer
            if isinstance(answer, BaseException):
                raise answer
        done: dict[str, Completed] = dict(zip(QUERIES, answers, strict=True))  # type: ignore[arg-type]
        outputs = {name: completed.stdout for name, completed in done.items()}
        snapshot, problems = read_snapshot(outputs, now_s, self._seen)
        return Look(snapshot, outputs, problems, max(each.wall_s for each in done.values()))

    async def _query(self, name: str) -> Completed:
        argv = QUERIES[name]
        done = await self._commands.run(argv, self._query_timeout_s)
        if done.exit_code:
            raise CommandError(
                f"{' '.join(argv)} ended with exit code {done.exit_code}: {done.last_line()}",
                cure="is pbs_server running, and trqauthd on this host?",
            )
        return done

    async def start(self, job: JobId, hosts: str) -> RunResult:
        """``qrun -a -H HOSTS JOB``; with ``-a`` a hanging mom does not hold us up.

        A qrun without an answer counts as ``OTHER``: whether it took effect, the next snapshot tells.
        """
        try:
            done = await self._commands.run(("qrun", "-a", "-H", hosts, job), self._order_timeout_s)
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


def look_once(env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Look:
    """One look from code that has no event loop; it only reads.

    Args:
        env: environment of the commands; this process's own when None.
        timeout_s: for each command.

    Raises:
        SnapshotError: there is none to be had now.
    """
    return asyncio.run(Pbs(Commands(env), time.time, query_timeout_s=timeout_s).look())
