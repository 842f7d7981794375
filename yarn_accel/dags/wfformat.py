"""WfFormat, the JSON of WfCommons, versions 1.4 and 1.5: one real execution of a workflow.

1.5 parts tasks (`specification`) from their run times (`execution`); 1.4 has both, and the files, in one
list. Children and parents name each other; an edge counts that only one end names. Ids of files are opaque:
they are the paths on a machine of long ago, or URLs, and nothing is read there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from yarn_accel.adapters.settings_file import complaints
from yarn_accel.core.dags.model import MOST_TASKS, Dag
from yarn_accel.core.units import MAX_BYTES, MAX_SECONDS
from yarn_accel.dags.file_edges import FileTask, check_file_id, dag_of_file_tasks
from yarn_accel.errors import ConfigError

_IGNORE = ConfigDict(frozen=True, extra="ignore")
_Id = Annotated[str, Field(min_length=1, max_length=512)]
_Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
_Bytes = Annotated[float, Field(ge=0, le=MAX_BYTES)]


class _WfTask(BaseModel):
    model_config = _IGNORE

    id: _Id = ""
    name: _Id = ""
    parents: list[_Id] = []
    children: list[_Id] = []


class _SpecifiedTask(_WfTask):
    id: _Id
    inputFiles: list[str] = []
    outputFiles: list[str] = []


class _ListedFile(BaseModel):
    model_config = _IGNORE

    id: str
    sizeInBytes: _Bytes


class _Specification(BaseModel):
    model_config = _IGNORE

    tasks: list[_SpecifiedTask]
    files: list[_ListedFile] = []


class _ExecutedTask(BaseModel):
    model_config = _IGNORE

    id: _Id
    runtimeInSeconds: _Seconds


class _Execution(BaseModel):
    model_config = _IGNORE

    tasks: list[_ExecutedTask]


class _Workflow15(BaseModel):
    model_config = _IGNORE

    specification: _Specification
    execution: _Execution


class _LinkedFile(BaseModel):
    model_config = _IGNORE

    name: str = Field(validation_alias=AliasChoices("name", "id"))
    link: str
    size: _Bytes = Field(validation_alias=AliasChoices("sizeInBytes", "size"))


class _JoinedTask(_WfTask):
    runtime: _Seconds = Field(validation_alias=AliasChoices("runtimeInSeconds", "runtime"))
    files: list[_LinkedFile] = []


class _Workflow14(BaseModel):
    model_config = _IGNORE

    tasks: list[_JoinedTask] = Field(validation_alias=AliasChoices("tasks", "jobs"))


class _First:
    """The first of the errors that pydantic found: a damaged list has as many as entries."""

    def __init__(self, error: ValidationError) -> None:
        self._first = error.errors()[:1]

    def errors(self) -> Any:
        return self._first


def read_wfformat(path: Path) -> Dag:
    """Read a workflow.

    Raises:
        ConfigError: names the file, the place, and what is wrong there.
    """
    try:
        document = json.loads(
            path.read_bytes(), object_pairs_hook=_without_doubles, parse_constant=_no_constant
        )
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {str(error) or 'nested too deeply'}") from None
    return dag_of_wfformat(document, path.stem, str(path))


def dag_of_wfformat(document: Any, name: str, place: str) -> Dag:
    """A workflow from what a file says; see `read_wfformat`."""
    if not isinstance(document, dict) or not isinstance(document.get("workflow"), dict):
        raise ConfigError(f"{place}: no WfFormat: expected an object with `schemaVersion` and `workflow`")
    version, workflow = document.get("schemaVersion"), document["workflow"]
    if version not in ("1.4", "1.5"):
        raise ConfigError(f"{place}: schemaVersion is {str(version)[:20]!r}; known: 1.4, 1.5")
    kind: type[_Workflow15 | _Workflow14] = _Workflow15 if version == "1.5" else _Workflow14
    try:
        parsed = kind.model_validate(workflow)
    except ValidationError as error:
        raise ConfigError(f"{place}: workflow.{complaints(_First(error), kind, workflow)}") from None  # type: ignore[arg-type]
    try:
        return _of_15(parsed, name) if isinstance(parsed, _Workflow15) else _of_14(parsed, name)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}", cure=error.cure) from None


def _of_15(workflow: _Workflow15, name: str) -> Dag:
    sizes: dict[str, float] = {}
    for file in workflow.specification.files:
        if file.id in sizes:
            raise ConfigError(f"file {file.id} is given twice")
        sizes[check_file_id(file.id)] = file.sizeInBytes
    runtimes: dict[str, float] = {}
    for executed in workflow.execution.tasks:
        if executed.id in runtimes:
            raise ConfigError(f"execution: task {executed.id} is given twice")
        runtimes[executed.id] = executed.runtimeInSeconds
    listed = workflow.specification.tasks
    _check_ids([task.id for task in listed])
    tasks = []
    for task in listed:
        if task.id not in runtimes:
            raise ConfigError(f"task {task.id}: execution has no runtimeInSeconds of it")
        tasks.append(FileTask(task.id, runtimes.pop(task.id), {}, task.inputFiles, task.outputFiles))
    if runtimes:
        raise ConfigError(f"execution: task {next(iter(runtimes))} is no task of the specification")
    _add_parents(tasks, list(listed), {})
    return dag_of_file_tasks(name, tasks, sizes, sizes)


def _of_14(workflow: _Workflow14, name: str) -> Dag:
    ids = [task.id or task.name for task in workflow.tasks]
    _check_ids(ids)
    by_name = {task.name: task_id for task, task_id in zip(workflow.tasks, ids, strict=True) if task.name}
    sizes: dict[str, float] = {}
    made: set[str] = set()
    tasks = []
    for task, task_id in zip(workflow.tasks, ids, strict=True):
        read = FileTask(task_id, task.runtime)
        for file in task.files:
            if file.link not in ("input", "output"):
                raise ConfigError(
                    f"task {task_id}: file {file.name}: link is {file.link!r}, not input or output"
                )
            check_file_id(file.name)
            (read.outputs if file.link == "output" else read.inputs).append(file.name)
            # What its maker says of a file's size counts.
            if file.link == "output" or file.name not in made:
                sizes[file.name] = file.size
            if file.link == "output":
                made.add(file.name)
        tasks.append(read)
    _add_parents(tasks, list(workflow.tasks), by_name)
    return dag_of_file_tasks(name, tasks, sizes, set(sizes) - made)


def _check_ids(ids: list[str]) -> None:
    if len(ids) > MOST_TASKS:
        raise ConfigError(f"more than {MOST_TASKS} tasks")
    seen: set[str] = set()
    for each in ids:
        if not each or each in seen:
            raise ConfigError(f"task {each} is given twice" if each else "a task has neither id nor name")
        seen.add(each)


def _add_parents(tasks: list[FileTask], listed: list[Any], by_name: dict[str, str]) -> None:
    """Tasks name others by id, in 1.4 also by name."""
    of_id = {task.task: task for task in tasks}

    def found(other: str, task: FileTask) -> FileTask:
        known = of_id.get(other) or of_id.get(by_name.get(other, ""))
        if known is None:
            raise ConfigError(f"task {task.task} names {other}, which is no task of this workflow")
        return known

    for task, read in zip(tasks, listed, strict=True):
        for parent in read.parents:
            task.after[found(parent, task).task] = 0.0
        for child in read.children:
            found(child, task).after[task.task] = 0.0


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {max(keys, key=keys.count)[:60]!r} is given twice in one object")
    return values


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")
