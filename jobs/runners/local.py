"""Runs a job on this machine: `InlineRunner` in this process, `LocalRunner` with a server and processes.

The order is Hadoop's: every map task gets a run of lines or one SequenceFile. Its output is partitioned by a
hash of the key and sorted by the key's bytes, and every reduce task gets one partition. The processes of
`LocalRunner` run from the same zipapp, binding file and token file that a node of a cluster would get.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import secrets
import shlex
import subprocess
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from jobs.entry import TaskContext, parse_stderr, parse_verb, run_verb
from jobs.factorize.manifest import records
from jobs.runners.step import Report, Step, StepResult, TaskRecord
from jobs.zipapp import ARCHIVE_NAME, build_zipapp
from yarn_accel.client import (
    COUNTER_GROUP,
    Binding,
    CurrentAttempt,
    LocalServer,
    Reporter,
    SequenceFileReader,
    SequenceFileWriter,
    TaskFiles,
    TypedBytesReader,
    TypedValue,
    connect,
    encode_typed,
    encode_typed_pair,
    format_binding,
)
from yarn_accel.errors import AccelError, JobError, RejectedError, StartupError, StorageError
from yarn_accel.local_filesystem import file_error, pieces
from yarn_accel.uris import file_uri, shown, split_uri

#: By them a task finds its servers, in its working directory, and its credential.
BINDING_FILE = "binding.json"
TOKEN_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
_Runner = TypeVar("_Runner", bound="_RunnerHere")


class _RunnerHere:
    """A runner whose data and tasks stay on this machine, open in a ``with`` block."""

    def __init__(self, home: Path | None, n_parallel: int) -> None:
        self._given_home = home
        self._n_parallel = n_parallel
        self._resources = contextlib.ExitStack()
        self._folder: Path | None = None
        self._n_steps = 0

    def __enter__(self: _Runner) -> _Runner:
        with contextlib.ExitStack() as resources:
            self._folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="accel-")))
            self._start(resources)
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._resources.close()

    def home(self, name: str) -> str:
        """URI of a local folder of this run."""
        return file_uri((self._given_home or self._scratch()) / name)

    def run(self, step: Step, report: Report) -> StepResult:
        """Run a step; raises JobError with the first line a failed task wrote on stderr."""
        self._n_steps += 1
        work = self._scratch() / f"step-{self._n_steps}"
        return run_locally(step, work, self.run_task, self._n_parallel, report)

    def _scratch(self) -> Path:
        if self._folder is None:
            raise JobError("the runner is not open")
        return self._folder

    def _start(self, resources: contextlib.ExitStack) -> None:
        """Start all that tasks need besides the folder."""

    def run_task(self, task: LocalTask) -> Mapping[str, int]:
        """Run a task to its end; returns its counters."""
        raise NotImplementedError


class InlineRunner(_RunnerHere):
    """Runs every task in this process, one after the other, without any server.

    Args:
        home: folder for the data of this run; a temporary one, removed at the end, when None.
    """

    def __init__(self, home: Path | None = None) -> None:
        super().__init__(home, n_parallel=1)

    def run_task(self, task: LocalTask) -> Mapping[str, int]:
        """Run a task in this process; returns its counters."""
        reporter = Reporter(is_silent=True)
        task.link_files()
        with (
            task.stdin.open("rb") as stdin,
            task.stdout.open("wb") as stdout,
            connect("inline", count_calls=False, reporter=reporter, environ=task.environ()) as accel,
        ):
            context = TaskContext(
                attempt=CurrentAttempt.from_environ(task.environ()),
                map_calls=accel.map,
                files=TaskFiles(task.environ()),
                reporter=reporter,
                stdin=stdin,
                stdout=stdout,
                folder=task.folder,
            )
            try:
                run_verb(parse_verb(task.arguments), context)
            except AccelError as error:
                raise JobError(f"{task.attempt_id}: {error}") from error
        return {name: total for (group, name), total in reporter.totals.items() if group == COUNTER_GROUP}


class LocalRunner(_RunnerHere):
    """Starts a pipeline server for the time it is open and runs tasks as processes of this machine.

    Args:
        home: folder for the data of this run; a temporary one when None.
        python: the interpreter of mappers and reducers, as on a node.
        n_parallel: how many tasks run at once.
        n_servers: 0 shows what happens when nobody serves: mappers compute on their own CPU.
    """

    def __init__(
        self, home: Path | None = None, python: str = "python3", n_parallel: int = 2, n_servers: int = 1
    ) -> None:
        super().__init__(home, n_parallel)
        self._python = python
        self._n_servers = n_servers

    def _start(self, resources: contextlib.ExitStack) -> None:
        build_zipapp(self._scratch() / ARCHIVE_NAME)
        # All servers take the same credential.
        secret = secrets.token_bytes(32)
        servers = [LocalServer({"name": f"local{n}"}, secret=secret) for n in range(self._n_servers)]
        for server in servers:
            resources.enter_context(server)
        endpoints = tuple(replace(server.endpoint, node="localhost") for server in servers)
        (self._scratch() / BINDING_FILE).write_text(format_binding(Binding(endpoints)))
        if servers:
            servers[0].write_token_file(self._scratch() / "token")

    def run_task(self, task: LocalTask) -> Mapping[str, int]:
        """Run a task as a process of this machine; returns its counters."""
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


# ---- the tasks of a step


@dataclass(frozen=True, slots=True)
class LocalTask:
    """One task of a local step: arguments of the zipapp, input and output files, and its folder.

    ``run_id`` differs between steps: a server refuses a request whose key it knows from another one.
    """

    step: Step
    run_id: str
    kind: str
    index: int
    arguments: tuple[str, ...]
    stdin: Path
    stdout: Path
    folder: Path

    @property
    def task_id(self) -> str:
        """A task id in Hadoop's form."""
        return f"task_{self.run_id}_{self.kind[0]}_{self.index:06d}"

    @property
    def attempt_id(self) -> str:
        """The id of the only attempt at this task."""
        return f"attempt_{self.run_id}_{self.kind[0]}_{self.index:06d}_0"

    @property
    def work(self) -> Path:
        """Where the task puts files that become the job's when it has succeeded."""
        return self.folder / "work"

    def link_files(self, *more: Path) -> None:
        """Put what travels with the job into the task's folder, as ``-files`` does."""
        for source in (*self.step.files, *more):
            (self.folder / source.name).symlink_to(source.absolute())

    def environ(self) -> dict[str, str]:
        """The variables Hadoop Streaming would set."""
        return {
            "mapreduce_job_id": f"job_{self.run_id}",
            "mapreduce_task_id": self.task_id,
            "mapreduce_task_attempt_id": self.attempt_id,
            "mapreduce_task_partition": str(self.index),
            "mapreduce_task_output_dir": file_uri(self.work),
            "NM_HOST": "localhost",
        }


RunTask = Callable[[LocalTask], Mapping[str, int]]
"""Runs one task and returns its counters; raises JobError with the first line of a task that fails."""


def run_locally(step: Step, work: Path, run_task: RunTask, n_parallel: int, report: Report) -> StepResult:
    """Run the whole step, `n_parallel` tasks at a time, with scratch files under `work`."""
    started_s = time.time()
    output = path_of(step.output_uri)
    if output.exists():
        raise JobError(
            f"the output folder {output} exists already",
            cure=f"remove it (rm -r {shlex.quote(str(output))}), or name another folder with --home",
        )
    counters: Counter[str] = Counter()
    run_id = f"local{time.time_ns()}_0001"
    maps = [_task(step, "map", run_id, index, work, content) for index, content in enumerate(_splits(step))]
    done = _run_all(maps, run_task, n_parallel, counters, report)
    last = maps
    if step.reducer:
        partitions = _shuffle(step, [task.stdout for task in maps])
        last = [_task(step, "reduce", run_id, index, work, part) for index, part in enumerate(partitions)]
        done += _run_all(last, run_task, n_parallel, counters, report)
    output.mkdir(parents=True)
    parts = []
    for task in last:
        part = output / f"part-{task.index:05d}"
        _keep_output(step, task.stdout, part)
        for path in task.work.glob("*"):
            path.replace(output / path.name)
        parts.append(file_uri(part))
    return StepResult(tuple(parts), dict(counters), tuple(done), time.time() - started_s)


def path_of(uri: str) -> Path:
    """The local path of a ``file:`` URI.

    Raises:
        StorageError: it is another kind of URI.
    """
    scheme, _, path = split_uri(uri)
    if scheme != "file":
        raise StorageError(f"{shown(uri)} is not a local file", cure="use --runner hadoop for data in HDFS")
    return Path(path)


def _task(step: Step, kind: str, run_id: str, index: int, work: Path, content: bytes) -> LocalTask:
    folder = work / f"{step.name}-{kind}-{index:05d}"
    folder.mkdir(parents=True)
    stdin = folder / "stdin"
    stdin.write_bytes(content)
    arguments = step.mapper if kind == "map" else step.reducer
    return LocalTask(step, run_id, kind, index, arguments, stdin, folder / "stdout", folder)


def _run_all(
    tasks: Sequence[LocalTask], run_task: RunTask, n_parallel: int, counters: Counter[str], report: Report
) -> list[TaskRecord]:
    finished: list[TaskRecord] = []
    with ThreadPoolExecutor(n_parallel) as pool:
        waiting = {pool.submit(_timed, run_task, task): task for task in tasks}
        try:
            for future in as_completed(waiting):
                task = waiting[future]
                counted, start_s, finish_s = future.result()
                counters.update(counted)
                finished.append(
                    TaskRecord(task.attempt_id, task.kind, "localhost", "SUCCEEDED", start_s, finish_s)
                )
                report(f"{task.step.name}: {task.kind} {len(finished)} of {len(tasks)} done")
        except BaseException:
            for future in waiting:
                future.cancel()
            raise
    return sorted(finished, key=lambda record: record.attempt)


def _timed(run_task: RunTask, task: LocalTask) -> tuple[Mapping[str, int], float, float]:
    start_s = time.time()
    counters = run_task(task)
    return counters, start_s, time.time()


def _splits(step: Step) -> list[bytes]:
    if step.io == "typedbytes":
        return [_as_typed_bytes(_content(uri)) for uri in step.inputs]
    splits: list[bytes] = []
    for uri in step.inputs:
        text = _content(uri).decode("utf-8", "surrogateescape")
        lines = [line for _, line in records(text.split("\n"))]
        size = step.lines_per_map or max(1, len(lines))
        texts = ("".join(line + "\n" for line in chunk) for chunk in _chunks(lines, size))
        splits.extend(text.encode("utf-8", "surrogateescape") for text in texts)
    return splits


def _content(uri: str) -> bytes:
    try:
        return b"".join(pieces(path_of(uri)))
    except OSError as error:
        raise file_error(uri, error) from error


def _chunks(lines: Iterable[str], size: int) -> Iterable[list[str]]:
    iterator = iter(lines)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _as_typed_bytes(content: bytes) -> bytes:
    pairs = SequenceFileReader(io.BytesIO(content))
    return b"".join(encode_typed_pair(key, value) for key, value in pairs)


def _keep_output(step: Step, stdout: Path, part: Path) -> None:
    """Turn what a task wrote into the part Hadoop's output format would write."""
    if step.io == "text":
        stdout.replace(part)
        return
    with stdout.open("rb") as source, part.open("wb") as target:
        writer = SequenceFileWriter(target) if step.output_kind == "sequence" else None
        for key, value in _pairs(stdout, source):
            if writer is None:
                target.write(f"{_text(key)}\t{_text(value)}\n".encode())
            else:
                writer.append(str(key), value if isinstance(value, bytes) else str(value).encode())


def _shuffle(step: Step, outputs: Sequence[Path]) -> list[bytes]:
    """The input of each reduce task: partitioned by key, sorted by the key's bytes."""
    pairs: list[list[tuple[bytes, bytes]]] = [[] for _ in range(max(1, step.n_reduces))]
    for path in outputs:
        for key, record in _keyed(step, path):
            pairs[zlib.crc32(key) % len(pairs)].append((key, record))
    return [b"".join(record for _, record in sorted(part, key=lambda pair: pair[0])) for part in pairs]


def _text(value: TypedValue) -> str:
    """A value as Hadoop's text output writes it: bytes in hex."""
    return value.hex(" ") if isinstance(value, bytes) else str(value)


def _keyed(step: Step, path: Path) -> Iterable[tuple[bytes, bytes]]:
    with path.open("rb") as stream:
        if step.io == "text":
            for line in stream:
                yield line.rstrip(b"\n").split(b"\t", 1)[0], line
        else:
            for key, value in _pairs(path, stream):
                yield encode_typed(key), encode_typed_pair(key, value)


def _pairs(path: Path, stream: BinaryIO) -> Iterable[tuple[TypedValue, TypedValue]]:
    for key, value in TypedBytesReader(stream):
        if isinstance(value, RejectedError):
            raise JobError(f"{path} holds a record that cannot be read: {value}")
        yield key, value
