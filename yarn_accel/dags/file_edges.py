"""From tasks that read and write files to the edges of a DAG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from yarn_accel.core.dags.model import MOST_EDGES, Dag, DagEdge, DagTask
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.core.units import MAX_BYTES
from yarn_accel.errors import ConfigError

_LONGEST_NAME = 4096


@dataclass(slots=True)
class FileTask:
    """A task as a file describes it.

    Attributes:
        after: task -> bytes it gets from there beside its files.
    """

    task: str
    runtime_s: float | None
    after: dict[str, float] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    times_s: Mapping[ResourceId, float] = field(default_factory=dict)


def check_file_id(name: str) -> str:
    """The id of a file as it is: it tells files apart, and nobody opens one by it.

    Raises:
        ConfigError: it is empty, too long, or has a NUL.
    """
    if not name or len(name) > _LONGEST_NAME or "\0" in name:
        raise ConfigError(f"a file is called {name[:60]!r}: expected 1 to {_LONGEST_NAME} characters, no NUL")
    return name


def check_file_name(name: str) -> str:
    """The name of a file as it is, if it can only mean something below a folder.

    Raises:
        ConfigError: as `check_file_id`; or it is absolute, or leads out of the folder with `..`.
    """
    check_file_id(name)
    if name.startswith(("/", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts:
        raise ConfigError(
            f"file {name!r} is absolute or has `..`", cure="name files relative to the workflow's folder"
        )
    return name


def dag_of_file_tasks(
    name: str, tasks: Iterable[FileTask], sizes: Mapping[str, float], given: Iterable[str]
) -> Dag:
    """A DAG of tasks that are joined by their files and by what they name; see `edges_of_files`.

    Raises:
        ConfigError: as `Dag` and `edges_of_files`.
    """
    listed = list(tasks)
    edges = edges_of_files(listed, sizes, given)
    return Dag(name, tuple(DagTask(each.task, each.runtime_s, each.times_s) for each in listed), tuple(edges))


def edges_of_files(
    tasks: Sequence[FileTask], sizes: Mapping[str, float], given: Iterable[str]
) -> list[DagEdge]:
    """Join tasks by their files and by what they name.

    An edge carries the bytes of all files that its parent writes and its child reads. Where a file has
    several makers, those count that the child names; a file with one maker makes an edge by itself.

    Args:
        tasks: each with files whose names were checked.
        sizes: file -> bytes.
        given: files that are there before the first task.

    Raises:
        ConfigError: a file without a size, of a negative one, or that nobody makes and that is not given;
            more edges than there may be.
    """
    for file, size in sizes.items():
        if not 0 <= size <= MAX_BYTES:
            raise ConfigError(f"file {file}: expected bytes from 0 to {MAX_BYTES}, found {size!r}")
    makers = _makers(tasks)
    present = frozenset(given)
    edges: list[DagEdge] = []
    for task in tasks:
        n_bytes = dict(task.after)
        for file in dict.fromkeys(task.inputs):
            for maker in _makers_of(file, task, makers, present):
                if file not in sizes:
                    raise ConfigError(f"task {task.task}: reads {file}, whose size is not given")
                n_bytes[maker] = n_bytes.get(maker, 0.0) + sizes[file]
        edges += (DagEdge(parent, task.task, float(count)) for parent, count in n_bytes.items())
        if len(edges) > MOST_EDGES:
            raise ConfigError(f"more than {MOST_EDGES} edges")
    return edges


def _makers(tasks: Iterable[FileTask]) -> dict[str, list[str]]:
    """File -> the tasks that make it."""
    makers: dict[str, list[str]] = defaultdict(list)
    for task in tasks:
        for file in dict.fromkeys(task.outputs):
            makers[file].append(task.task)
    return makers


def _makers_of(
    file: str, task: FileTask, makers: Mapping[str, list[str]], present: frozenset[str]
) -> list[str]:
    """From which tasks a task gets a file."""
    made_by = [maker for maker in makers.get(file, ()) if maker != task.task]
    if not made_by and file not in present:
        if file in makers:
            raise ConfigError(f"task {task.task}: reads {file}, which only it makes")
        raise ConfigError(
            f"task {task.task}: reads {file}, which nobody makes",
            cure="declare it as an input with its size, or name the task that makes it",
        )
    named = [maker for maker in made_by if maker in task.after]
    return named or (made_by if len(made_by) == 1 else [])
