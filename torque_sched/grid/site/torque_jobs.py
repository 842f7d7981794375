"""The server's side of the grid: blocks as jobs of local users, and our users' jobs that may run elsewhere.

A block is an ordinary job, submitted by ``qsub`` as the local user it is mapped to, on exactly the nodes
its claim holds, and started by ``qrun``. A job of ours that may run elsewhere is held twice: by its owner,
who said ``qsub -h -v TORQUE_GRID=yes``, and by the operator's hold that takes it into our care. No
scheduler starts a held job, so it and we can never both start it; a job whose owner has lifted his hold in
between is left alone. The server is a Torque or an OpenPBS.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torque_sched.adapters.commands import Commands, Completed
from torque_sched.batch.openpbs.parse.select import Kinds, request_of
from torque_sched.batch.openpbs.parse.text import read_blocks
from torque_sched.batch.openpbs.pbs import OpenPbs, is_look
from torque_sched.batch.system import BatchSystem, Look, OrderKind
from torque_sched.batch.torque.parse.qrun import hosts_argument
from torque_sched.batch.torque.parse.xml import read_xml
from torque_sched.errors import CommandError, ConfigError
from torque_sched.grid.handshake.messages import Piece
from torque_sched.grid.site.blocks import NO_DIRECTIVES
from torque_sched.grid.site.config import SiteConfig
from torque_sched.model.cluster import Job, JobId, NodeName, QueueName
from torque_sched.model.decisions import NodeShare
from torque_sched.model.request import Request
from torque_sched.model.states import HoldType, JobState

BLOCK_VARIABLE = "TORQUE_GRID_BLOCK"
"""In the Variable_List of a block: its token."""
_ORDER_S = 60.0
_YES = frozenset({"yes", "true", "1"})
_LONGEST_SCRIPT = 256 * 1024
_PRINTED = re.compile(rb"-+\nJobscript for jobid:[^\n]*\n-+\n(.*?) ?\n", re.DOTALL)
"""What ``printjob -s`` prints: a title, the script, a blank and a newline."""


def local_user(name: str, min_uid: int) -> pwd.struct_passwd:
    """A user of this machine that may get a block.

    Raises:
        ConfigError: there is none, or it is root or a system account.
    """
    try:
        user = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise ConfigError(
            f"user {name!r} is mapped, but unknown on this machine",
            cure="add the account, or map to another user",
        ) from None
    if user.pw_uid == 0 or user.pw_name == "root" or 0 in os.getgrouplist(user.pw_name, user.pw_gid):
        raise ConfigError(
            f"user {name!r} is root or in its group, and never gets a block", cure="map to an ordinary user"
        )
    if user.pw_uid < min_uid:
        raise ConfigError(
            f"user {name!r} has uid {user.pw_uid}, below min_uid {min_uid}",
            cure="map to an ordinary user, or set `min_uid`",
        )
    return user


def filled(template: Sequence[str], **words: str) -> tuple[str, ...]:
    """An argument list from a template; a value is always a part of one argument, whatever is in it."""

    def value(found: re.Match[str]) -> str:
        return words.get(found[1], "")

    return tuple(re.sub(r"\{(\w+)\}", value, word) for word in template)


def variables_of(outputs: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    """Job -> its environment variables whose names begin with ``TORQUE_GRID``, from the outputs of a look."""
    output = outputs["jobs"]
    if b"TORQUE_GRID" not in output:
        return {}
    if is_look(outputs):
        blocks = (each for each in read_blocks(output, "Job", "qstat") if "TORQUE_GRID" in each.text)
        listed = ((each.name, each.attributes()) for each in blocks)
    else:
        listed = ((each.name, each.attributes) for each in read_xml(output, "Job", "qstat -f -t -x").items)
    found = {}
    for job, attributes in listed:
        parts = attributes.get("Variable_List", "").split(",")
        pairs = [part.partition("=") for part in parts if part.startswith("TORQUE_GRID")]
        if pairs:
            found[job] = {name: value for name, _, value in pairs}
    return found


def _select(allocation: Sequence[NodeShare]) -> str:
    """A chunk on each node of a claim, as OpenPBS is asked for it."""
    return "+".join(
        f"1:ncpus={share.slots}{f':ngpus={share.gpus}' if share.gpus else ''}:host={share.node}"
        for share in allocation
    )


@dataclass(frozen=True, slots=True)
class BlockJob:
    """What a block's job is to be."""

    token: str
    user: str
    name: str
    allocation: tuple[NodeShare, ...]
    """The nodes of its claim: `shares_of`."""
    walltime_s: float
    script: str

    @property
    def label(self) -> str:
        """Job and attempt at home, for the name of its output file."""
        _, job, attempt = self.token.split("/")
        return f"{job}.{attempt}"


def shares_of(pieces: Iterable[Piece]) -> tuple[NodeShare, ...]:
    """The nodes of a claim as the allocation of a job."""
    return tuple(NodeShare(NodeName(piece.node), piece.slots, piece.gpus) for piece in pieces)


class TorqueJobs:
    """Orders to the local server, Torque or OpenPBS.

    Args:
        commands: runs them.
        system: starts, comments, deletes.
        config: of this site.
        folder: for the scripts of blocks; users must be able to enter it.
        spool: where the server keeps job scripts.
    """

    def __init__(
        self, commands: Commands, system: BatchSystem, config: SiteConfig, folder: Path, spool: Path
    ) -> None:
        self._commands, self._system, self._config = commands, system, config
        self._folder, self._spool = folder, spool

    # -- blocks

    async def submit(self, block: BlockJob) -> JobId:
        """``qsub`` as the block's user.

        Raises:
            CommandError: refused, in qsub's words, or without an answer: then it may have been submitted.
            ConfigError: the user may not get one.
        """
        user = local_user(block.user, self._config.min_uid)
        path = self._folder / f"{re.sub('[^A-Za-z0-9_.-]', '_', block.token)}.sh"
        _write_for(path, block.script, user)
        try:
            done = await self._commands.run(self._qsub(block, path, user), _ORDER_S)
        finally:
            path.unlink(missing_ok=True)
        if done.exit_code:
            raise CommandError(f"qsub as {block.user}: {done.last_line()}")
        return JobId(done.stdout.decode("ascii", "replace").split()[-1])

    def _qsub(self, block: BlockJob, path: Path, user: pwd.struct_passwd) -> tuple[str, ...]:
        walltime = f"walltime={max(1, round(block.walltime_s))}"
        if isinstance(self._system, OpenPbs):
            # Jobs begin in their user's home there; qsub has no option for it.
            asked = ["-l", f"select={_select(block.allocation)}", "-l", "place=scatter", "-l", walltime]
        else:
            nodes = hosts_argument(block.allocation, Request())
            asked = ["-l", f"nodes={nodes},{walltime}", "-d", user.pw_dir]
        queue = ("-q", self._config.queue) if self._config.queue else ()
        return (
            *filled(self._config.become, user=block.user),
            "env", f"HOME={user.pw_dir}", f"USER={block.user}", f"LOGNAME={block.user}",
            self._commands.find("qsub"), *queue, "-N", block.name, *asked, "-r", "n", "-j", "oe",
            "-o", f"{user.pw_dir}/{block.name}.{block.label}.out",
            "-C", NO_DIRECTIVES, "-v", f"{BLOCK_VARIABLE}={block.token}", str(path),
        )  # fmt: skip

    async def start(self, job: JobId, allocation: tuple[NodeShare, ...]) -> tuple[str, bool]:
        """Start it on the claim's nodes: why it was not taken (empty: it was), and whether they are busy."""
        request = Request()
        if isinstance(self._system, OpenPbs):
            asked = {"Resource_List.select": _select(allocation), "Resource_List.place": "scatter"}
            request = request_of(asked, Kinds())
        result = await self._system.start(
            Job(job, JobState.QUEUED, QueueName(self._config.queue), request), allocation
        )
        if result.kind in (OrderKind.STARTED, OrderKind.ALREADY_RUNNING):
            return "", False
        return result.text or result.kind.value, result.kind is OrderKind.NOT_NOW

    async def delete(self, job: JobId, why: str) -> bool:
        """``qdel``; whether it is sure to be gone."""
        result = await self._system.delete(job, why)
        return result.kind in (OrderKind.STARTED, OrderKind.UNKNOWN_JOB)

    # -- our users' jobs

    def marked(self, look: Look) -> list[tuple[Job, str]]:
        """Jobs of ours that are held and marked, in order of submission, with their NAME_NODES."""
        name = self._config.grid.variable
        if name.encode() not in look.outputs["jobs"]:
            return []
        variables = variables_of(look.outputs)
        jobs = [
            (job, variables[job.id].get(f"{name}_NODES", ""))
            for job in look.snapshot.jobs
            if job.state is JobState.HELD and HoldType.USER in job.hold_types
            and variables.get(job.id, {}).get(name, "").lower() in _YES
        ]  # fmt: skip
        return sorted(jobs, key=lambda pair: pair[0].key)

    async def take(self, job: JobId) -> bool:
        """The operator's hold; False when the server would not."""
        return not (await self._order("qhold", "-h", "o", job)).exit_code

    async def let_go(self, job: JobId) -> bool:
        """Lift both holds: the job runs at home, as any other."""
        return not (await self._order("qrls", "-h", "uo", job)).exit_code

    async def say(self, job: JobId, text: str) -> None:
        """A comment its owner sees."""
        await self._system.comment([job], text[:200])

    async def script_of(self, job: JobId) -> str:
        """What the user submitted: a file of Torque's server; of OpenPBS's database, what ``printjob`` says.

        Raises:
            CommandError: the server has no script of it (yet), or it is too long to travel.
        """
        data = await self._printed(job) if isinstance(self._system, OpenPbs) else self._spooled(job)
        if len(data) > _LONGEST_SCRIPT:
            raise CommandError(f"the script of {job}: longer than {_LONGEST_SCRIPT} bytes")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise CommandError(f"the script of {job}: for the grid it has to be UTF-8 text") from None

    def _spooled(self, job: JobId) -> bytes:
        path = self._spool / f"{job}.SC"
        try:
            with path.open("rb") as file:
                return file.read(_LONGEST_SCRIPT + 1)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}", cure="see the key grid.spool") from None

    async def _printed(self, job: JobId) -> bytes:
        done = await self._order("printjob", "-s", job)
        found = _PRINTED.fullmatch(done.stdout)
        if done.exit_code or found is None:
            raise CommandError(
                f"printjob -s {job} ended with exit code {done.exit_code}: {done.last_line()}",
                cure="the site's service must run as root on the server's host; a job without a script stays",
            )
        return found[1]

    # -- inside

    async def _order(self, *argv: str) -> Completed:
        return await self._commands.run(argv, _ORDER_S)

    async def stage(self, template: tuple[str, ...], **words: str) -> None:
        """Run a staging command; nothing without one.

        Raises:
            CommandError: it failed or took too long.
        """
        if not template:
            return
        done = await self._commands.run(filled(template, **words), self._config.stage_timeout_s)
        if done.exit_code:
            raise CommandError(f"{template[0]} ended with exit code {done.exit_code}: {done.last_line()}")


def _write_for(path: Path, text: str, user: pwd.struct_passwd) -> None:
    """A file only that user can read."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 -- has a mode
        file.write(text)
        if os.geteuid() == 0:
            os.fchown(fd, user.pw_uid, user.pw_gid)
