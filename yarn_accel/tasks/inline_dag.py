"""Runs a DAG in this process, task by task: for tests, and to try a DAG before it is submitted."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from yarn_accel.core.tasks.applications import AppDefinition, FormProgram, TaskDefinition
from yarn_accel.errors import JobError
from yarn_accel.local_filesystem import pieces
from yarn_accel.storage import Store
from yarn_accel.tasks.dag_handle import RESULT_FILE
from yarn_accel.uris import split_uri

_PIECE_BYTES = 4 << 20
_LOG_LINES = 3


def run_inline(definition: AppDefinition, store: Store) -> dict[str, Any]:
    """Run all tasks, each after those that it waits for; what functions returned, by task.

    Files go where they would go on a cluster. Tasks have a folder of their own, which is the process's
    working folder meanwhile; limits of time and memory are not watched, and nothing is tried again.

    Raises:
        JobError: a task failed, or left a file out; names it.
    """
    by_name = {each.task: each for each in definition.tasks}
    results: dict[str, Any] = {}
    with _archives_on_path(definition):
        order = TopologicalSorter({each.task: each.predecessors for each in definition.tasks})
        for name in order.static_order():
            task = by_name[name]
            with tempfile.TemporaryDirectory(prefix="accel-task-") as folder:
                result = _run_task(definition, task, store, Path(folder))
            if task.program is not None and task.program.function:
                results[task.own_name] = result
    return results


def _run_task(definition: AppDefinition, task: TaskDefinition, store: Store, folder: Path) -> Any:
    assert task.program is not None, "each task of a DAG has a program"
    for name, uri in (*definition.files, *task.inputs):
        _fetch(store, uri, folder / name)
    environment = dict((*definition.environment, *task.environment))
    with _working_in(folder, environment):
        try:
            result = _called(task.program) if task.program.function else None
            if task.program.command:
                _run_command(task.program, folder)
        except Exception as error:
            raise JobError(f"{task.task}: {type(error).__name__}: {error}") from error
    target = f"{definition.output.rstrip('/')}/{task.own_name}"
    for name in task.outputs:
        if not (folder / name).is_file():
            raise JobError(f"{task.task}: has left no file {name}")
        path = folder / name
        store.write_atomic(f"{target}/{name}", lambda path=path: pieces(path))  # type: ignore[misc]
    if task.outputs and result is not None:
        content = json.dumps(result).encode()
        store.write_atomic(f"{target}/{RESULT_FILE}", [content])
    return result


def _called(program: FormProgram) -> Any:
    module, _, name = program.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    given = json.loads(program.arguments)
    result = function(**given) if isinstance(given, dict) else function(*given)
    return json.loads(json.dumps(result, allow_nan=False))


def _run_command(program: FormProgram, folder: Path) -> None:
    done = subprocess.run(
        program.command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        said = done.stdout.decode(errors="replace").splitlines()[-_LOG_LINES:]
        raise JobError(f"{program.command[0]} ended with {done.returncode}: {' | '.join(said)}")


def _fetch(store: Store, uri: str, path: Path) -> None:
    with store.stream(uri) as source, path.open("wb") as target:
        while piece := source.read(_PIECE_BYTES):
            target.write(piece)
    scheme, _, place = split_uri(uri)
    if scheme == "file":
        path.chmod(Path(place).stat().st_mode)


@contextlib.contextmanager
def _working_in(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    before, variables = Path.cwd(), dict(os.environ)
    os.environ.update(environment)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(variables)


@contextlib.contextmanager
def _archives_on_path(definition: AppDefinition) -> Iterator[None]:
    places = dict(definition.files)
    named = dict.fromkeys(
        archive for each in definition.tasks if each.program is not None for archive in each.program.archives
    )
    # What is imported here comes before an archive elsewhere, which is not fetched.
    more = [split_uri(places[each])[2] for each in named if places[each].startswith("file:")]
    sys.path[:0] = more
    try:
        yield
    finally:
        for each in more:
            sys.path.remove(each)
