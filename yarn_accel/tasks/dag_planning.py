"""Makes of a DAG.yaml what a task service takes: looks at its files, and joins its tasks."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from yarn_accel.core.dags.model import MOST_EDGES, DagTerms, PriorityClass
from yarn_accel.core.tasks.applications import AppDefinition, FormProgram, TaskDefinition, check_definition
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, TaskId
from yarn_accel.dags.own_file import DagFile, DagFileTask, edges_of_file, read_dag_file
from yarn_accel.errors import ConfigError
from yarn_accel.storage import Store
from yarn_accel.tasks.app_file import check_command, check_environment, shipped_files, uri_of
from yarn_accel.tasks.archives import archived_modules, check_archive
from yarn_accel.tasks.place_checks import (
    check_output_place,
    check_program,
    check_shipped,
    n_bytes_of,
)
from yarn_accel.uris import split_uri

_MIB = 1024 * 1024
_N_THREADS = 8
_OWN_FORM = (".yaml", ".yml")


def load_dag_file(path: Path) -> DagFile:
    """Read a DAG.yaml that is to run. Local files in it are named relative to its folder.

    Raises:
        ConfigError: names the file, the key and the cure; also for a workflow in another form, which has no
            commands.
    """
    if path.suffix.lower() not in _OWN_FORM:
        raise ConfigError(
            f"{path}: only a DAG.yaml can run. WfFormat and DAX record what ran elsewhere: programs and "
            "files by the names that they had there, and not where they are",
            cure="`yarn-accel dag simulate` takes it; to run it, write a DAG.yaml with commands or functions",
        )
    return with_uris(read_dag_file(path), path.resolve().parent, str(path))


def with_uris(file: DagFile, folder: Path, place: str) -> DagFile:
    """A DAG whose files are URIs.

    Args:
        folder: what local files are relative to.
        place: the file, for the error.

    Raises:
        ConfigError: names the file and the key.
    """
    try:
        return file.model_copy(
            update={
                "output": file.output and uri_of("output", file.output, folder),
                "files": tuple(_shipped("files", file.files, folder)),
                "archives": tuple(_shipped("archives", file.archives, folder)),
                "inputs": {
                    name: given.model_copy(
                        update={"uri": given.uri and uri_of(f"inputs.{name}.uri", given.uri, folder)}
                    )
                    for name, given in file.inputs.items()
                },
            }
        )
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}", cure=error.cure) from None


def plan_dag(
    file: DagFile,
    priority_class: PriorityClass,
    storage: Store,
    dag_id: str = "",
    *,
    is_resumed: bool = False,
) -> AppDefinition:
    """All tasks of a DAG.

    Args:
        file: with URIs, as `load_dag_file` reads it.
        dag_id: its name in the service; default: its own.
        is_resumed: its output folder may be there already.

    Raises:
        ConfigError: something is missing, twice, too much or in the way, or waits for itself; names the task
            and the cure.
        StorageError: HDFS did not answer.
    """
    app = AppId(dag_id or file.name or "")
    files = [(name, uri) for uri, _, name in (each.rpartition("#") for each in file.files)]
    archives = [(name, uri) for uri, _, name in (each.rpartition("#") for each in file.archives)]
    _check_shipped(files, archives, file, storage)
    _check_programs(file, [name for name, _ in files], archives)
    tasks = _tasks(app, file, tuple(name for name, _ in archives))
    _check_places(file, storage, is_resumed=is_resumed)
    demand = FormDemand(1, 0, file.memory_mib * _MIB)
    definition = AppDefinition(
        AppSpec(app, file.name or app, 0, len(tasks), {Form.CPU: demand}),
        {Form.CPU: FormProgram()},
        tasks,
        file.output,
        file.max_attempts,
        file.time_limit_s,
        file.silence_limit_s,
        tuple(sorted(file.environment.items())),
        (*files, *archives),
        DagTerms(priority_class, file.may_interrupt),
        is_resumed,
    )
    check_definition(definition)
    return definition


# ---- tasks


def _tasks(app: AppId, file: DagFile, archives: tuple[str, ...]) -> tuple[TaskDefinition, ...]:
    parents: dict[str, dict[str, float]] = {each.id: {} for each in file.tasks}
    known = {each.id for each in file.tasks}
    if len(known) < len(file.tasks):
        ids = [each.id for each in file.tasks]
        twice = next(each for n, each in enumerate(ids) if each in ids[:n])
        raise ConfigError(f"task {twice} is given twice", cure="rename one of them")
    for edge in edges_of_file(file):
        if edge.parent not in known:
            raise ConfigError(
                f"task {edge.child}: names {edge.parent}, which is no task of this DAG",
                cure="correct `after`",
            )
        parents[edge.child][edge.parent] = edge.n_bytes
    places = _places(file)
    found = (_task(app, each, parents[each.id], places, archives) for each in file.tasks)
    default = file.python_environment
    return tuple(
        each if each.python_environment else replace(each, python_environment=default) for each in found
    )


def _places(file: DagFile) -> dict[str, str]:
    """Where each file lies before it is read."""
    places = {name: given.uri for name, given in file.inputs.items()}
    for task in file.tasks:
        for made in task.outputs:
            if not file.output:
                raise ConfigError(
                    f"task {task.id}: makes {made}, and there is no folder for it", cure="give `output`"
                )
            if made in places:
                raise ConfigError(
                    f"task {task.id}: another task also makes {made}", cure="give one of these another name"
                )
            places[made] = f"{file.output.rstrip('/')}/{task.id}/{made}"
    return places


def _task(
    app: AppId,
    task: DagFileTask,
    parents: dict[str, float],
    places: dict[str, str],
    archives: tuple[str, ...],
) -> TaskDefinition:
    for name in task.inputs:
        if not places[name]:
            raise ConfigError(
                f"task {task.id}: reads {name}, of which nothing says where it lies",
                cure=f"give it in `inputs`, as {name}: {{uri: hdfs:///..., bytes: ...}}",
            )
    arguments = json.dumps(task.arguments, separators=(",", ":")) if task.function else ""
    return TaskDefinition(
        TaskId(f"{app}/{task.id}"),
        tuple(TaskId(f"{app}/{each}") for each in parents),
        program=FormProgram(
            task.command,
            function=task.function,
            arguments=arguments,
            archives=archives if task.function else (),
        ),
        inputs=tuple((name, places[name]) for name in dict.fromkeys(task.inputs)),
        outputs=tuple(task.outputs),
        kind=task.kind or task.function,
        runtime_s=task.runtime_s,
        predecessor_bytes=tuple(parents.values()),
        environment=tuple(sorted(task.environment.items())),
        time_limit_s=task.time_limit_s,
        python_environment=task.python_environment,
    )


# ---- programs and files


def _check_programs(file: DagFile, shipped: list[str], archives: list[tuple[str, str]]) -> None:
    modules = _modules(archives)
    found: set[str] = set()
    for task in file.tasks:
        place = f"task {task.id}"
        # Only the nodes have what is in one.
        is_elsewhere = bool(task.python_environment or file.python_environment)
        if not task.command and not task.function:
            raise ConfigError(
                f"{place}: has neither a command nor a function, so it cannot run",
                cure="give it one; `yarn-accel dag simulate` needs none",
            )
        try:
            check_environment(task.environment)
            if task.command:
                check_command(task.command)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from None
        if task.command:
            if task.command[0] not in found and not (is_elsewhere and "/" not in task.command[0]):
                check_program(f"{place}: command", task.command[0], [*shipped, *task.inputs])
                if task.command[0][2:] not in task.inputs:
                    found.add(task.command[0])
        elif modules is not None and not is_elsewhere:
            _check_module(place, task.function, modules, found)
    try:
        check_environment(file.environment)
    except ValueError as error:
        raise ConfigError(f"environment: {error}") from None


def _modules(archives: Iterable[tuple[str, str]]) -> set[str] | None:
    """What archives of this machine have; None where one lies elsewhere."""
    modules: set[str] = set()
    for _, uri in archives:
        scheme, _, path = split_uri(uri)
        if scheme != "file":
            return None
        modules |= archived_modules(Path(path))
    return modules


def _check_module(place: str, function: str, modules: set[str], found: set[str]) -> None:
    """Refuse a function whose module is in no archive, and likely not on the nodes."""
    top = function.partition(":")[0].partition(".")[0]
    if top in modules or top in found:
        return
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigError(
            f"{place}: function {function}: there is no module {top!r} in the archives or on this machine",
            cure="ship its package as a zip file in `archives`",
        )
    found.add(top)


def _shipped(key: str, values: tuple[str, ...], folder: Path) -> Iterable[str]:
    try:
        return [f"{uri_of(key, place, folder)}#{name}" for name, place in shipped_files(values)]
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def _check_shipped(
    files: list[tuple[str, str]], archives: list[tuple[str, str]], file: DagFile, storage: Store
) -> None:
    try:
        shipped_files([name for name, _ in (*files, *archives)])
    except ValueError as error:
        raise ConfigError(f"files, archives: {error}") from None
    programs = [each.command[0] for each in file.tasks if each.command]
    check_shipped("files", files, programs, storage)
    check_shipped("archives", archives, (), storage)
    for _, uri in archives:
        scheme, _, path = split_uri(uri)
        if scheme == "file":
            check_archive(Path(path))


def _check_places(file: DagFile, storage: Store, *, is_resumed: bool) -> None:
    """Refuse inputs that are not there, and an output folder that is."""
    used = {name for task in file.tasks for name in task.inputs if name in file.inputs}
    if len(used) > MOST_EDGES:
        raise ConfigError(f"inputs: more than {MOST_EDGES} files")

    def check(name: str) -> None:
        uri = file.inputs[name].uri
        if n_bytes_of(f"inputs.{name}", uri, storage) is None:
            raise ConfigError(f"inputs.{name}: {uri} is a folder", cure="name its files")

    with concurrent.futures.ThreadPoolExecutor(_N_THREADS) as pool:
        list(pool.map(check, sorted(used)))
    if file.output:
        inputs = (file.inputs[name].uri for name in used)
        check_output_place(file.output, inputs, storage, may_exist=is_resumed)
