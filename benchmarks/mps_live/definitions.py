"""Emulated DAGs as the task service takes them. Pure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.mps_live import steps
from benchmarks.mps_live.setting import Costs, EmulatedDag, EmulatedTask, declared, step_words
from yarn_accel.core.dags.model import DagTerms
from yarn_accel.core.tasks.applications import AppDefinition, FormProgram, TaskDefinition
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, TaskId

#: The zip from which functions are imported, as workers call it.
ARCHIVE = "steps.zip"
_TASK_BYTES = 128 << 20
_MODULE = Path(steps.__file__)


def dag_definition(
    dag: EmulatedDag, app: str, costs: Costs, notes: Path, folder: str, archive_uri: str
) -> AppDefinition:
    """A DAG whose tasks are commands where they leave files, and functions in warm workers where not.

    Args:
        app: its name in the service; what its tasks take is learned under it, so each run needs its own.
        notes: the file to which tasks add their times.
        folder: of the outputs, in HDFS.
        archive_uri: the zip with the module `steps`.
    """
    times_s = {each.task: each.runtime_s for each in declared(dag, costs).tasks}
    output = f"{folder}/{dag.name}" if dag.file_bytes else ""
    tasks = tuple(
        TaskDefinition(
            TaskId(f"{app}/{task.task}"),
            tuple(TaskId(f"{app}/{parent}") for parent in task.after),
            program=_program(dag, task, notes),
            inputs=tuple(_file(output, parent) for parent in task.after) if output else (),
            outputs=(steps.file_name(task.task),) if output else (),
            kind=f"wait-{task.wait_s:g}-reads-{len(task.after)}",
            runtime_s=times_s[task.task],
        )
        for task in dag.tasks
    )
    demands = {Form.CPU: FormDemand(1, 0, _TASK_BYTES)}
    return AppDefinition(
        AppSpec(AppId(app), app, 0, len(tasks), demands),
        {Form.CPU: FormProgram()},
        tasks,
        output,
        files=() if dag.file_bytes else ((ARCHIVE, archive_uri),),
        dag=DagTerms(dag.priority_class),
    )


def _file(output: str, parent: str) -> tuple[str, str]:
    name = steps.file_name(parent)
    return name, f"{output}/{parent}/{name}"


def _program(dag: EmulatedDag, task: EmulatedTask, notes: Path) -> FormProgram:
    if dag.file_bytes:
        # Neither the site's packages nor the user's: what a short program imports is half of its start.
        command = (sys.executable, "-I", "-S", str(_MODULE), *step_words(dag, task, str(notes)))
        return FormProgram(command)
    arguments = {"notes": str(notes), "dag": dag.name, "task": task.task, "wait_s": task.wait_s}
    return FormProgram(function=f"{_MODULE.stem}:step", arguments=json.dumps(arguments), archives=(ARCHIVE,))
