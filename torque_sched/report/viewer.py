"""Who asks, and what Torque would show him: his own jobs, or all of them."""

from __future__ import annotations

import fnmatch
import getpass
import os
import pwd
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torque_sched.errors import ConfigError
from torque_sched.model.cluster import Job, JobId, Server

if TYPE_CHECKING:
    from torque_sched.model.snapshot import Snapshot

_JOB_ID = re.compile(r"(?<![\w.\[\]-])([0-9]{1,18})(?:\[[0-9]*\])?\.([A-Za-z][\w.-]*\w|[A-Za-z])")
_SOMEBODY = "another user's job"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who asks.

    Attributes:
        sees_all: the details of every job; otherwise those of his own, and of others only how many there are.
    """

    name: str
    sees_all: bool = True

    def may_see(self, job: Job) -> bool:
        """Whether he is shown who a job belongs to and what it is called."""
        return self.sees_all or self.name in {job.user, job.owner.partition("@")[0]}

    def user(self, asked: str) -> str:
        """Whose job a question is about that names a user, or none.

        Raises:
            ConfigError: somebody else's, and this one is shown only his own.
        """
        if asked and asked != self.name and not self.sees_all:
            raise ConfigError(
                f"--user {asked}: you are {self.name}",
                cure="only managers and operators ask for another user",
            )
        return asked or self.name

    def hide(self, text: str, snapshot: Snapshot) -> str:
        """The text without the ids of jobs that are not his."""
        if self.sees_all:
            return text

        own = {job.id for job in snapshot.jobs if self.may_see(job)}
        suffixes = {job.id.partition(".")[2] for job in snapshot.jobs}
        # A job that is only asked about has the next number.
        next_number = max(
            [snapshot.server.next_job_number or 0, *(job.sequence + 1 for job in snapshot.jobs)]
        )

        def shown(found: re.Match[str]) -> str:
            is_job = found[2] in suffixes and int(found[1]) < next_number
            return found[0] if not is_job or JobId(found[0]) in own else _SOMEBODY

        return _JOB_ID.sub(shown, text)


def this_viewer() -> Viewer:
    """Who runs this process: what the server showed him he may see."""
    return Viewer(getpass.getuser())


def viewer_of(uid: int, server: Server) -> Viewer:
    """Somebody on this host, by the kernel's word and the server's attributes."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return Viewer(f"uid {uid}", sees_all=False)
    sees_all = uid in {0, os.geteuid()} or bool(server.query_other_jobs) or _is_named(server, name)
    return Viewer(name, sees_all)


def _is_named(server: Server, name: str) -> bool:
    """Whether he is a manager or operator from this host; ``*`` stands for any part of a host's name."""
    host = socket.gethostname()
    hosts = (host, host.partition(".")[0])
    for each in (*server.managers, *server.operators):
        user, _, pattern = each.partition("@")
        if user == name and any(fnmatch.fnmatchcase(host, pattern) for host in hosts):
            return True
    return False
