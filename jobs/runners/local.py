"""Runs a job on this machine: a pipeline server on a Unix socket, and one process for each task.

The tasks run from the same zipapp, binding file and token file that a node of a cluster would get.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import yaml

import yarn_accel
from jobs.runners.local_tasks import LocalTask, run_locally, uri_of
from jobs.runners.step import Report, Step, StepResult
from jobs.zipapp import ARCHIVE_NAME, build_zipapp
from yarn_accel.adapters.credentials import issue_token_file
from yarn_accel.client.binding import Binding, Endpoint, format_binding
from yarn_accel.client.reporter import GROUP
from yarn_accel.client.task_servers import BINDING_FILE, TOKEN_VARIABLE
from yarn_accel.errors import JobError, StartupError

__all__ = ["LocalRunner", "parse_stderr"]

START_LIMIT_S = 30.0
STOP_LIMIT_S = 10.0
_COUNTER = f"reporter:counter:{GROUP},"
#: The server lives as long as the run and serves its user only.
_PREFIXES = ["file:///", "hdfs://"]


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
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._servers: list[subprocess.Popen[bytes]] = []
        self._n_steps = 0

    def __enter__(self) -> LocalRunner:
        self._temporary = tempfile.TemporaryDirectory(prefix="accel-")
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def home(self, name: str) -> str:
        """URI of a local folder of this run."""
        return uri_of((self._given_home or self._scratch()) / name)

    def run(self, step: Step, report: Report) -> StepResult:
        """Run a step; raises JobError with the first line a failed task wrote on stderr."""
        self._n_steps += 1
        work = self._scratch() / f"step-{self._n_steps}"
        return run_locally(step, work, self._run_task, self._n_parallel, report)

    def _start(self) -> None:
        scratch = self._scratch()
        build_zipapp(scratch / ARCHIVE_NAME)
        master = secrets.token_bytes(32)
        (scratch / "master").touch(mode=0o600)
        (scratch / "master").write_text(master.hex() + "\n")
        issue_token_file(scratch / "token", master, lifetime_s=24 * 3600)
        endpoints = []
        for number in range(self._n_servers):
            socket = scratch / f"s{number}.sock"
            self._servers.append(_start_server(scratch, f"local{number}", socket))
            endpoints.append(Endpoint(f"local{number}", "", 0, str(socket), "localhost"))
        for number, server in enumerate(self._servers):
            _await_ready(server, scratch, f"local{number}")
        (scratch / BINDING_FILE).write_text(format_binding(Binding(tuple(endpoints))))

    def _stop(self) -> None:
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            try:
                server.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        self._servers.clear()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _scratch(self) -> Path:
        if self._temporary is None:
            raise JobError("the runner is not open")
        return Path(self._temporary.name)

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


def _start_server(scratch: Path, name: str, socket: Path) -> subprocess.Popen[bytes]:
    config = scratch / f"{name}.yaml"
    values = {
        "name": name,
        "listen_host": "",
        "tenants": {"*": {"read_prefixes": _PREFIXES, "write_prefixes": _PREFIXES}},
        "unix_path": str(socket),
        "master_secret_file": str(scratch / "master"),
        "state_file": str(scratch / f"{name}.json"),
    }
    config.write_text(yaml.safe_dump(values))
    root = str(Path(str(yarn_accel.__file__)).parent.parent)
    environ = dict(
        os.environ, PYTHONPATH=os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    with (scratch / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "yarn_accel", "pipeline", "serve", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
        )


def _await_ready(server: subprocess.Popen[bytes], scratch: Path, name: str) -> None:
    state = scratch / f"{name}.json"
    deadline_s = time.monotonic() + START_LIMIT_S
    while not state.exists():
        if server.poll() is not None or time.monotonic() > deadline_s:
            lines = (scratch / f"{name}.log").read_text(errors="replace").strip().splitlines()
            raise StartupError(f"the pipeline server did not start: {lines[-1] if lines else 'no output'}")
        time.sleep(0.05)
