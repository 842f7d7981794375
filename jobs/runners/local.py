"""Runs a job on this machine: a pipeline server on a Unix socket, and one process for each task.

The tasks run from the same zipapp, binding file and token file that a node of a cluster would get.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from jobs.runners.local_tasks import LocalTask, run_locally
from jobs.runners.step import Report, Step, StepResult
from jobs.zipapp import ARCHIVE_NAME, build_zipapp
from yarn_accel.client import COUNTER_GROUP, Binding, LocalServer, format_binding
from yarn_accel.errors import JobError, StartupError
from yarn_accel.uris import file_uri

#: What a task finds its servers by, in its working directory, and its credential.
BINDING_FILE = "binding.json"
TOKEN_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
_COUNTER = f"reporter:counter:{COUNTER_GROUP},"


class LocalRunner:
    """Starts a pipeline server for the time it is open and runs tasks as processes of this machine.

    Args:
        home: folder for the data of this run; a temporary one when None.
        python: the interpreter of mappers and reducers, as on a node.
        n_parallel: how many tasks run at once.
        n_servers: 0 shows what happens when nobody serves: mappers compute on their own CPU.
    """

    name = "local"

    def __init__(
        self, home: Path | None = None, python: str = "python3", n_parallel: int = 2, n_servers: int = 1
    ) -> None:
        self._given_home = home
        self._python = python
        self._n_parallel = n_parallel
        self._n_servers = n_servers
        self._folder: Path | None = None
        self._resources = contextlib.ExitStack()
        self._n_steps = 0

    def __enter__(self) -> LocalRunner:
        with contextlib.ExitStack() as resources:
            self._resources = resources
            self._folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="accel-")))
            self._start()
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def home(self, name: str) -> str:
        """URI of a local folder of this run."""
        return file_uri((self._given_home or self._scratch()) / name)

    def run(self, step: Step, report: Report) -> StepResult:
        """Run a step; raises JobError with the first line a failed task wrote on stderr."""
        self._n_steps += 1
        work = self._scratch() / f"step-{self._n_steps}"
        return run_locally(step, work, self._run_task, self._n_parallel, report)

    def _start(self) -> None:
        build_zipapp(self._scratch() / ARCHIVE_NAME)
        # All servers take the same credential.
        secret = secrets.token_bytes(32)
        servers = [LocalServer({"name": f"local{n}"}, secret=secret) for n in range(self._n_servers)]
        for server in servers:
            self._resources.enter_context(server)
        endpoints = tuple(replace(server.endpoint, node="localhost") for server in servers)
        (self._scratch() / BINDING_FILE).write_text(format_binding(Binding(endpoints)))
        if servers:
            servers[0].write_token_file(self._scratch() / "token")

    def _scratch(self) -> Path:
        if self._folder is None:
            raise JobError("the runner is not open")
        return self._folder

    def _run_task(self, task: LocalTask) -> Mapping[str, int]:
        scratch = self._scratch()
        task.link_files(scratch / BINDING_FILE)
        environ = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        environ.update(task.environ())
        environ[TOKEN_VARIABLE] = str(scratch / "token")
        log = task.folder / "stderr"
        argv = [self._python, str(scratch / ARCHIVE_NAME), *task.arguments]
        with task.stdin.open("rb") as stdin, task.stdout.open("wb") as stdout, log.open("wb") as stderr:
            try:
                done = subprocess.run(
                    argv, stdin=stdin, stdout=stdout, stderr=stderr, env=environ, cwd=task.folder, check=False
                )
            except OSError as error:
                raise StartupError(
                    f"{self._python} cannot be started: {error.strerror}", cure="see --python"
                ) from error
        counters, first_line = parse_stderr(log.read_text(errors="replace"))
        if done.returncode != 0:
            reason = first_line or f"exit code {done.returncode}, nothing on stderr"
            raise JobError(f"{task.attempt_id}: {reason}")
        return counters


def parse_stderr(text: str) -> tuple[dict[str, int], str]:
    """Our counters, and the first ordinary line, of what a task wrote on stderr; as Hadoop reads it."""
    counters: Counter[str] = Counter()
    first_line = ""
    for line in text.splitlines():
        if line.startswith(_COUNTER):
            name, amount = line[len(_COUNTER) :].rsplit(",", 1)
            counters[name] += int(amount)
        elif not line.startswith("reporter:") and line.strip() and not first_line:
            first_line = line.strip()
    return dict(counters), first_line
