"""Goes on with a DAG from what an earlier run left: only tasks whose program or inputs changed run again.

Each submission leaves ``OUTPUT/_workflow.json``: the name of the run, and a key for each task. A key is a
hash over all that a task's files are made of: its program with arguments and environment, the content of the
files that travel with the DAG, its inputs, and the keys of the tasks that it waits for. An input of up to
1 MiB counts by its content, a larger one by its length and the time of its last change.

A task is done if its key is the same and its folder is there: a worker makes that by one rename, when all of
its files are complete. Tasks without outputs leave nothing, and run again.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

from yarn_accel.adapters.signed_http import decode_json
from yarn_accel.core.tasks.applications import AppDefinition, TaskDefinition
from yarn_accel.core.tasks.checked_document import CheckedObject
from yarn_accel.core.tasks.values import TaskId
from yarn_accel.errors import ConfigError, RemoteProtocolError
from yarn_accel.storage import Store

_FILE = "_workflow.json"
_VERSION = 1
_MOST_BYTES = 64 << 20
_MOST_TASKS = 1_000_000
_LONGEST = 4096
_BY_CONTENT_BYTES = 1 << 20
_N_THREADS = 8
_SUCCESS = "_SUCCESS"
_TEMPORARY = "_temporary"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a submission leaves in the output folder of its DAG.

    Attributes:
        run: its name in the service.
        keys: by task.
    """

    run: str
    keys: Mapping[str, str]

    def write(self, output: str, store: Store) -> None:
        """Put it into the output folder, in place of an earlier one.

        Raises:
            StorageError: the storage takes no files.
        """
        document = {"version": _VERSION, "run": self.run, "keys": dict(self.keys)}
        content = json.dumps(document, separators=(",", ":")).encode()
        store.write_atomic(f"{output.rstrip('/')}/{_FILE}", lambda: [content])


def read_record(output: str, store: Store) -> RunRecord | None:
    """What the last submission left; None: there was none.

    Raises:
        ConfigError: it is damaged, or the folder holds something else.
        StorageError: the storage did not answer.
    """
    if not store.exists(output):
        return None
    uri = f"{output.rstrip('/')}/{_FILE}"
    cure = "give another `output`, or delete this one and submit without --resume"
    if not store.exists(uri):
        raise ConfigError(f"output: {output} is there, and no DAG's run left {_FILE} in it", cure=cure)
    try:
        record = CheckedObject(decode_json(store.read_bytes(uri, _MOST_BYTES), uri), uri)
        record.count("version", _VERSION, _VERSION)
        keys = record.below("keys")
        names = keys.names(_MOST_TASKS)
        return RunRecord(record.text("run", _LONGEST), {name: keys.text(name, _LONGEST) for name in names})
    except RemoteProtocolError as error:
        raise ConfigError(f"output: {error.message}", cure=cure) from None


def record_of(definition: AppDefinition, store: Store) -> RunRecord:
    """The record of a DAG as it would be submitted now.

    Raises:
        StorageError: the storage did not answer.
    """
    made = {
        f"{definition.output.rstrip('/')}/{task.own_name}/{name}"
        for task in definition.tasks
        for name in task.outputs
    }
    given = sorted({uri for task in definition.tasks for _, uri in task.inputs} - made)
    shipped = [uri for _, uri in definition.files]
    with concurrent.futures.ThreadPoolExecutor(_N_THREADS) as pool:
        found = pool.map(lambda uri: _content(uri, store, is_whole=False), given)
        contents = dict(zip(given, found, strict=True))
        travel = list(pool.map(lambda uri: _content(uri, store, is_whole=True), shipped))
    names = [name for name, _ in definition.files]
    common = [definition.environment, list(zip(names, travel, strict=True))]
    keys: dict[str, str] = {}
    by_id = {task.task: task for task in definition.tasks}
    for name in TopologicalSorter({task.task: task.predecessors for task in definition.tasks}).static_order():
        keys[name] = _key(by_id[name], common, contents, keys)
    return RunRecord(definition.spec.app, {each.own_name: keys[each.task] for each in definition.tasks})


def done_tasks(definition: AppDefinition, before: RunRecord, now: RunRecord, store: Store) -> set[TaskId]:
    """The tasks that need not run again.

    Args:
        before: of the submission that left the output folder.
        now: as `record_of` makes it.

    Raises:
        StorageError: the storage did not answer.
    """
    there = _names_in(definition.output, store)
    return {
        task.task
        for task in definition.tasks
        if task.outputs
        and task.own_name in there
        and before.keys.get(task.own_name) == now.keys[task.own_name]
    }


def without_done(definition: AppDefinition, done: Collection[TaskId]) -> AppDefinition:
    """The DAG of the other tasks; what they read of those that are done lies in the output folder."""
    left = tuple(_without(task, done) for task in definition.tasks if task.task not in done)
    return replace(definition, tasks=left, spec=replace(definition.spec, n_tasks=len(left)))


def delete_stale(definition: AppDefinition, store: Store) -> None:
    """Delete what earlier runs left of tasks that are to run again.

    Args:
        definition: has these tasks alone.

    Raises:
        StorageError: the storage did not answer.
    """
    output = definition.output.rstrip("/")
    names = {task.own_name for task in definition.tasks} | {_SUCCESS, _TEMPORARY}
    for name in sorted(names & _names_in(output, store)):
        store.delete(f"{output}/{name}")


def _names_in(folder: str, store: Store) -> set[str]:
    return {uri.rpartition("/")[2] for uri in store.list(folder)}


def _without(task: TaskDefinition, done: Collection[TaskId]) -> TaskDefinition:
    kept = [number for number, each in enumerate(task.predecessors) if each not in done]
    n_bytes = task.predecessor_bytes
    return replace(
        task,
        predecessors=tuple(task.predecessors[number] for number in kept),
        predecessor_bytes=tuple(n_bytes[number] for number in kept) if n_bytes else (),
    )


def _key(
    task: TaskDefinition, common: Sequence[object], contents: Mapping[str, str], keys: Mapping[str, str]
) -> str:
    program = task.program
    what = [
        common,
        None if program is None else [program.command, program.function, program.arguments, program.archives],
        task.environment,
        task.python_environment,
        [[name, contents.get(uri, "")] for name, uri in task.inputs],
        task.outputs,
        sorted((each.rpartition("/")[2], keys[each]) for each in task.predecessors),
    ]
    return hashlib.sha256(json.dumps(what, separators=(",", ":")).encode()).hexdigest()


def _content(uri: str, store: Store, *, is_whole: bool) -> str:
    """What tells a file from another one of its name.

    Args:
        is_whole: read all of it, however large it is.
    """
    stamp = store.stamp(uri)
    if not is_whole and stamp.n_bytes > _BY_CONTENT_BYTES:
        return f"{stamp.n_bytes} bytes, {stamp.modified}"
    found = hashlib.sha256()
    with store.stream(uri) as stream:
        while piece := stream.read(_BY_CONTENT_BYTES):
            found.update(piece)
    return found.hexdigest()
