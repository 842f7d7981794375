"""DAG.yaml: a workflow in this project's own form; docs/dags.md has the schema.

A simulation needs times and bytes; the task service what tasks run, and where files come from and go.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from yarn_accel.adapters.settings_file import complaints, read_settings
from yarn_accel.core.dags.model import MOST_EDGES, MOST_TASKS, Dag, DagEdge
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.core.units import MAX_BYTES, MAX_SECONDS
from yarn_accel.dags.file_edges import FileTask, check_file_name, dag_of_file_tasks, edges_of_files
from yarn_accel.errors import ConfigError

_FORBID = ConfigDict(frozen=True, extra="forbid")
_Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
_Bytes = Annotated[float, Field(ge=0, le=MAX_BYTES)]
_PYTHON_ENVIRONMENT = "name of an environment of the task service, in which functions and `python` run"
_Id = Annotated[str, Field(min_length=1, max_length=256)]


class DagFileTask(BaseModel):
    """One task."""

    model_config = _FORBID

    id: _Id = Field(description="its name in the DAG")
    runtime_s: _Seconds | None = Field(None, description="seconds on a machine of speed 1")
    times_s: dict[str, _Seconds] = Field(
        default_factory=dict, description="machine -> seconds there, instead of runtime_s / speed"
    )
    after: list[_Id] | dict[_Id, _Bytes] = Field(
        default_factory=list,
        description="tasks that end before it starts; as a mapping: with bytes from each",
    )
    inputs: list[str] = Field(default_factory=list, description="files it reads")
    outputs: dict[str, _Bytes] = Field(default_factory=dict, description="files it makes -> bytes")
    command: tuple[str, ...] = Field((), description="program and arguments; no shell reads them")
    function: str = Field("", description="MODULE:NAME, called in a Python process that is there already")
    arguments: dict[str, Any] | list[Any] = Field(
        default_factory=dict, description="of the function: by name, or in order"
    )
    kind: str = Field(
        "", description="tasks of one kind take about as long; default of functions: their name"
    )
    environment: dict[str, str] = Field(default_factory=dict, description="further environment variables")
    python_environment: str = Field("", description=_PYTHON_ENVIRONMENT + "; default: the DAG's")
    time_limit_s: _Seconds | None = Field(
        None, description="an attempt that runs longer has failed; 0: no limit; default: the DAG's"
    )

    @model_validator(mode="after")
    def _check_program(self) -> DagFileTask:
        if self.command and self.function:
            raise ValueError("give either a command or a function")
        if self.arguments and not self.function:
            raise ValueError("arguments belong to a function; a command has its own")
        return self


class GivenFile(BaseModel):
    """A file that is there before the first task; a number alone is its bytes."""

    model_config = _FORBID

    bytes: _Bytes = Field(0.0, description="its length, as planning believes it")
    uri: str = Field("", description="where it lies: a URI, or a file of this machine")

    @model_validator(mode="before")
    @classmethod
    def _bytes_alone(cls, value: Any) -> Any:
        return {"bytes": value} if isinstance(value, int | float) else value


class DagFile(BaseModel):
    """A workflow."""

    model_config = _FORBID

    name: _Id | None = Field(None, description="of the DAG; default: the file's name without its ending")
    inputs: dict[str, GivenFile] = Field(
        default_factory=dict, description="files that are there before the first task -> bytes, uri"
    )
    tasks: tuple[DagFileTask, ...] = Field(description="at least one")
    output: str = Field("", description="folder, not there yet, that gets a folder of each task with outputs")
    files: tuple[str, ...] = Field(
        (), description="files put into the folder in which each task runs; `FILE#NAME` gives another name"
    )
    archives: tuple[str, ...] = Field(
        (), description="the same, of zip files from which functions' modules are imported"
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="further environment variables of all tasks"
    )
    python_environment: str = Field("", description=_PYTHON_ENVIRONMENT + "; default: that of the workers")
    max_attempts: int = Field(4, ge=1, le=100, description="a task that fails so often fails the DAG")
    time_limit_s: _Seconds = Field(0.0, description="of each attempt; 0: no limit")
    silence_limit_s: _Seconds = Field(
        600.0,
        description="an attempt that reads, writes and reports nothing for so long has failed; 0: no limit",
    )
    memory_mib: int = Field(512, ge=1, le=2**24, description="an attempt that occupies more has failed")
    may_interrupt: bool = Field(
        False, description="its attempts may be ended for DAGs of higher classes; they run again later"
    )


def read_own_file(path: Path) -> Dag:
    """Read DAG.yaml.

    Raises:
        ConfigError: names the file, the place, and what is wrong there.
    """
    return dag_of_document(read_settings(path), path.stem, str(path))


def read_dag_file(path: Path) -> DagFile:
    """Read DAG.yaml as it stands there; its tasks are not joined yet.

    Raises:
        ConfigError: as `read_own_file`.
    """
    file = _parsed(read_settings(path), str(path))
    return file if file.name else file.model_copy(update={"name": path.stem})


def dag_of_document(document: dict[str, Any], name: str, place: str) -> Dag:
    """A workflow from what a file says; see `read_own_file`."""
    file = _parsed(document, place)
    try:
        tasks, sizes = _joinable(file)
        return dag_of_file_tasks(file.name or name, tasks, sizes, file.inputs)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}", cure=error.cure) from None


def edges_of_file(file: DagFile) -> list[DagEdge]:
    """Which task of a file waits for which, with the bytes between them.

    Raises:
        ConfigError: a file that nobody makes, a wrong name or a doubled one; names the task.
    """
    tasks, sizes = _joinable(file)
    return edges_of_files(tasks, sizes, file.inputs)


def _parsed(document: dict[str, Any], place: str) -> DagFile:
    _check_sizes(document, place)
    try:
        return DagFile.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{place}: {complaints(error, DagFile, document)}") from None


def _joinable(file: DagFile) -> tuple[list[FileTask], dict[str, float]]:
    """Its tasks, and the bytes of each file."""
    sizes = {name: given.bytes for name, given in file.inputs.items()}
    tasks = []
    for task in file.tasks:
        for made in task.outputs:
            if made in file.inputs:
                raise ConfigError(f"task {task.id}: makes {made}, which is an input of the DAG")
        sizes.update(task.outputs)
        tasks.append(_file_task(task))
    for each in sizes:
        check_file_name(each)
    return tasks, sizes


def _file_task(task: DagFileTask) -> FileTask:
    after = task.after if isinstance(task.after, dict) else dict.fromkeys(task.after, 0.0)
    if isinstance(task.after, list) and len(after) < len(task.after):
        raise ConfigError(f"task {task.id}: names a task twice in `after`")
    times_s = {ResourceId(machine): seconds for machine, seconds in task.times_s.items()}
    return FileTask(task.id, task.runtime_s, dict(after), task.inputs, list(task.outputs), times_s)


def _check_sizes(document: dict[str, Any], place: str) -> None:
    """Refuse too much before it is validated; an alias in YAML makes much of little."""
    tasks = document.get("tasks")
    if not isinstance(tasks, list):
        return
    total = 0
    for task in tasks[: MOST_TASKS + 1]:
        if isinstance(task, dict):
            total += sum(len(each) for each in task.values() if isinstance(each, list | dict))
    if len(tasks) > MOST_TASKS or total > 2 * MOST_EDGES:
        raise ConfigError(f"{place}: more than {MOST_TASKS} tasks or {2 * MOST_EDGES} files and edges")
