"""Runs the tasks of a step on this machine, for the runners `inline` and `local`.

The order is Hadoop's: every map task gets a run of lines or one SequenceFile. Its output is partitioned by a
hash of the key and sorted by the key's bytes, and every reduce task gets one partition.
"""

from __future__ import annotations

import io
import itertools
import shlex
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jobs.factorize.manifest import records
from jobs.runners.step import Report, Step, StepResult, TaskRecord
from yarn_accel.client import (
    SequenceFileReader,
    SequenceFileWriter,
    TypedBytesReader,
    TypedValue,
    encode_typed,
    encode_typed_pair,
)
from yarn_accel.errors import JobError, RejectedError, StorageError
from yarn_accel.local_filesystem import file_error, pieces
from yarn_accel.uris import file_uri, shown, split_uri


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
