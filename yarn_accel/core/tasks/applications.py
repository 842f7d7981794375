"""An application as its owner submits it: its tasks, what they run, what they read, where their output goes.

A policy sees `AppSpec` alone; the rest is for the service and the workers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from yarn_accel.core.dags.model import DagTerms
from yarn_accel.core.tasks.attempt_orders import MAX_ARGUMENTS, MAX_TASK_FILES, InputSplit
from yarn_accel.core.tasks.values import AppSpec, Form, TaskId
from yarn_accel.errors import ConfigError

#: Tasks of one application.
MAX_TASKS = 100_000
#: In place of a program: the worker's own one that asks pipeline servers; operation and parameters follow.
OPERATION_PROGRAM = "yarn-accel-operation"
_MAX_PREDECESSORS = 1_000_000
#: What workers take as a name, and as the name of an output.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,199}\Z")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z", re.ASCII)
#: In each working folder already.
_TEMPORARY_FOLDER = "tmp"
_MAX_FUNCTION = 200


@dataclass(frozen=True, slots=True)
class FormProgram:
    """What a task runs in one form: a command, an operation of the pipeline server, or a function.

    Attributes:
        function: MODULE:NAME, called in a Python process that is there already.
        arguments: of the function, as the text of a JSON object or list.
        archives: names in `AppDefinition.files` from which modules are imported.
    """

    command: tuple[str, ...] = ()
    operation: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    function: str = ""
    arguments: str = ""
    archives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """One task.

    Attributes:
        task: unique among all tasks of a service: the application, a slash, a name of its own.
        predecessors: tasks of the same application that end well before this one starts.
        input: what its command reads from standard input; None: nothing.
        output: the file that its standard output becomes in the application's folder; empty: none.
        program: what it runs; None: the application's.
        inputs: name in its working folder -> URI, there before it starts. A file that a predecessor makes is
            FOLDER/TASK/FILE: the application's folder, the predecessor's own name, one of its `outputs`.
        outputs: files that it leaves in its working folder; they become the folder TASK, its own name, in the
            application's folder.
        kind: tasks of one kind take about as long; empty: as all others without one.
        runtime_s: what its owner expects it to take at speed 1; None or 0: nobody knows.
        predecessor_bytes: what it reads of each of its `predecessors`, in their order; empty: nothing.
        environment: more variables, which come before the application's.
        time_limit_s: of an attempt; None: the application's.
        python_environment: one of the service's, by its name; empty: that of its workers.
    """

    task: TaskId
    predecessors: tuple[TaskId, ...] = ()
    input: InputSplit | None = None
    output: str = ""
    program: FormProgram | None = None
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[str, ...] = ()
    kind: str = ""
    runtime_s: float | None = None
    predecessor_bytes: tuple[float, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    time_limit_s: float | None = None
    python_environment: str = ""

    @property
    def own_name(self) -> str:
        """Its name without its application's."""
        return self.task.partition("/")[2]


@dataclass(frozen=True, slots=True)
class AppDefinition:
    """All that a service needs to run an application.

    Attributes:
        programs: of each form of `spec.demands`; empty ones where each task has its own.
        output: folder of the outputs; empty: its tasks write none.
        max_attempts: a task that fails so often fails the application.
        time_limit_s: an attempt that runs longer is ended and counts as failed; 0: no limit.
        silence_limit_s: so long an attempt may read, write and report nothing; 0: for ever.
        environment: more variables of its processes.
        files: name in the working folder of each attempt -> URI.
        dag: the terms of a DAG, whose tasks a policy plans ahead; None: it is none.
        is_resumed: tasks may read what an earlier run left in `output`.
    """

    spec: AppSpec
    programs: Mapping[Form, FormProgram]
    tasks: tuple[TaskDefinition, ...]
    output: str = ""
    max_attempts: int = 4
    time_limit_s: float = 0.0
    silence_limit_s: float = 0.0
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    dag: DagTerms | None = None
    is_resumed: bool = False


def check_definition(app: AppDefinition) -> None:
    """Check what makes an application impossible, in time proportional to its tasks and predecessors.

    Raises:
        ConfigError: the first fault, with the application, the task and the cure.
    """
    name = app.spec.app
    if not _NAME.match(name) or "/" in name:
        raise ConfigError(f"application {name!r}: a name has letters, digits and . _ : @ -")
    if not _NAME.match(app.spec.name):
        raise ConfigError(f"{name}: name {app.spec.name!r}: expected letters, digits and . _ : / @ -")
    if not 1 <= len(app.tasks) <= MAX_TASKS:
        raise ConfigError(f"{name}: {len(app.tasks)} tasks; 1 to {MAX_TASKS} are taken")
    if app.spec.n_tasks != len(app.tasks):
        raise ConfigError(f"{name}: says that it has {app.spec.n_tasks} tasks, and has {len(app.tasks)}")
    if app.max_attempts < 1:
        raise ConfigError(f"{name}: max_attempts: expected a number from 1, found {app.max_attempts}")
    if not app.spec.demands or app.spec.demands.keys() != app.programs.keys():
        raise ConfigError(f"{name}: each form needs a demand and a program, and there is one form at least")
    if app.dag is not None and (
        app.spec.demands.keys() != {Form.CPU} or app.spec.demands[Form.CPU].cores != 1
    ):
        raise ConfigError(f"{name}: a task of a DAG takes one core, and has the form cpu alone")
    for form, need in app.spec.demands.items():
        if need.is_served is not (form is Form.GPU and bool(app.programs[form].operation)):
            raise ConfigError(f"{name}, {form.value}: GPUs of a server are for an operation, and no other")
    _check_names(app)
    _check_order(app)
    _check_programs(app)
    _check_files(app)


def _check_names(app: AppDefinition) -> None:
    tasks: set[str] = set()
    outputs: set[str] = set()
    for each in app.tasks:
        prefix, _, own = each.task.partition("/")
        if prefix != app.spec.app or not own or not _NAME.match(each.task):
            raise ConfigError(
                f"{app.spec.app}: task {each.task!r}: expected {app.spec.app}/NAME, "
                "of letters, digits and . _ : / @ -"
            )
        if each.task in tasks:
            raise ConfigError(f"{each.task}: there are two tasks of this name", cure="rename one of them")
        tasks.add(each.task)
        made = own if each.outputs else each.output
        if made and not (app.output and _FILE.match(made)):
            raise ConfigError(f"{each.task}: output {made!r} is no name of a file in the output folder")
        if made and made in outputs:
            raise ConfigError(f"{each.task}: another task also writes {made}", cure="rename one")
        outputs.add(made)


def _programs(app: AppDefinition) -> Iterator[tuple[str, FormProgram]]:
    """What is run, and by whom."""
    if any(each.program is None for each in app.tasks):
        for form, program in app.programs.items():
            yield f"{app.spec.app}, {form.value}", program
    for each in app.tasks:
        if each.program is not None:
            yield each.task, each.program


def _check_programs(app: AppDefinition) -> None:
    files = {name for name, _ in app.files}
    for place, program in _programs(app):
        if sum(map(bool, (program.command, program.operation, program.function))) != 1:
            raise ConfigError(f"{place}: expected a command, an operation or a function, one of them")
        if program.function:
            _check_function(place, program, files)
        elif program.arguments or program.archives:
            raise ConfigError(f"{place}: arguments and archives are a function's, and there is none")
    for each in app.tasks:
        program = each.program or next(iter(app.programs.values()))
        if program.function and (each.input is not None or each.output):
            raise ConfigError(
                f"{each.task}: a function has no standard input or output; give inputs, outputs"
            )
        if each.program is not None and (len(app.programs) > 1 or each.program.operation):
            raise ConfigError(
                f"{each.task}: has a program of its own, which is for applications with one form, and is no "
                "operation"
            )


def _check_function(place: str, program: FormProgram, files: set[str]) -> None:
    if len(program.function) > _MAX_FUNCTION or not _FUNCTION.match(program.function):
        raise ConfigError(f"{place}: function {program.function[:_MAX_FUNCTION]!r}: expected MODULE:NAME")
    if len(program.arguments) > MAX_ARGUMENTS:
        raise ConfigError(
            f"{place}: the arguments have {len(program.arguments)} characters, {MAX_ARGUMENTS} are taken",
            cure="put them into a file",
        )
    try:
        arguments = json.loads(program.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict | list):
        raise ConfigError(f"{place}: the arguments are no JSON object, and no list")
    for archive in program.archives:
        if archive not in files:
            raise ConfigError(f"{place}: archive {archive[:200]!r} is none of the files that it ships")


def _check_files(app: AppDefinition) -> None:
    """Refuse what cannot be read, cannot be made, or is nobody's; figures that are none."""
    by_name = {each.task: each for each in app.tasks}
    shipped = {name for name, _ in app.files}
    folder = f"{app.output.rstrip('/')}/" if app.output else None
    for each in app.tasks:
        if each.inputs or each.outputs:
            _check_file_names(each, shipped)
        for name, uri in each.inputs:
            if folder is not None and uri.startswith(folder):
                maker, _, file = uri[len(folder) :].partition("/")
                task = by_name.get(TaskId(f"{app.spec.app}/{maker}"))
                is_left = task is None and app.is_resumed
                is_made = task is not None and file in task.outputs and task.task in each.predecessors
                if not (is_left or is_made):
                    raise ConfigError(
                        f"{each.task}: its input {name} is {uri[:500]}, which no predecessor of it makes"
                    )
        figures = [*each.predecessor_bytes, each.runtime_s or 0.0, each.time_limit_s or 0.0]
        if not all(0 <= figure < math.inf for figure in figures):
            raise ConfigError(f"{each.task}: expected seconds and bytes from 0, found {figures}"[:500])
        if each.predecessor_bytes and len(each.predecessor_bytes) != len(each.predecessors):
            raise ConfigError(
                f"{each.task}: expected bytes of each of its {len(each.predecessors)} predecessors"
            )
        if each.kind and not _NAME.match(each.kind):
            raise ConfigError(
                f"{each.task}: kind {each.kind[:200]!r}: expected letters, digits and . _ : / @ -"
            )


def _check_file_names(task: TaskDefinition, shipped: set[str]) -> None:
    """Each file of a working folder has a name of its own; what a task leaves was not put there."""
    place, inputs = task.task, [name for name, _ in task.inputs]
    if max(len(inputs), len(task.outputs)) > MAX_TASK_FILES:
        raise ConfigError(
            f"{place}: {len(inputs)} inputs, {len(task.outputs)} outputs; {MAX_TASK_FILES} of each are taken",
            cure="put several into one file",
        )
    seen = {_TEMPORARY_FOLDER, *shipped}
    for name in (*inputs, *task.outputs):
        if not _FILE.match(name):
            raise ConfigError(f"{place}: {name[:200]!r} is no name of a file: letters, digits and . _ -")
        if name in seen:
            raise ConfigError(
                f"{place}: two files in its working folder are called {name}", cure="rename one"
            )
        seen.add(name)
    if task.output and task.outputs:
        raise ConfigError(
            f"{place}: has output and outputs", cure="let its command write standard output to a file"
        )


def _check_order(app: AppDefinition) -> None:
    """Refuse predecessors that are missing or doubled, and cycles."""
    if sum(len(each.predecessors) for each in app.tasks) > _MAX_PREDECESSORS:
        raise ConfigError(f"{app.spec.app}: more than {_MAX_PREDECESSORS} predecessors in all")
    missing = {each.task: len(each.predecessors) for each in app.tasks}
    successors: dict[TaskId, list[TaskId]] = {}
    for each in app.tasks:
        if len(set(each.predecessors)) < len(each.predecessors):
            raise ConfigError(f"{each.task}: names a predecessor twice", cure="name it once")
        for before in each.predecessors:
            if before not in missing:
                raise ConfigError(f"{each.task}: its predecessor {before} is no task of {app.spec.app}")
            successors.setdefault(before, []).append(each.task)
    ready = [task for task, n_missing in missing.items() if not n_missing]
    for task in ready:  # which grows meanwhile
        for after in successors.get(task, ()):
            missing[after] -= 1
            if not missing[after]:
                ready.append(after)
    if len(ready) < len(app.tasks):
        raise ConfigError(
            f"{app.spec.app}: its tasks wait for each other: {' <- '.join(_cycle(app, set(ready)))}",
            cure="remove one of these predecessors",
        )


def _cycle(app: AppDefinition, free: set[TaskId]) -> list[TaskId]:
    """A cycle among the tasks that are not free; at most its first tasks."""
    before = {each.task: each.predecessors for each in app.tasks if each.task not in free}
    path: dict[TaskId, None] = {}
    task = min(before)
    while task not in path:
        path[task] = None
        task = min(each for each in before[task] if each in before)
    steps = list(path)
    cycle = steps[steps.index(task) :]
    return [*cycle, task] if len(cycle) < 10 else [*cycle[:10], TaskId("...")]
