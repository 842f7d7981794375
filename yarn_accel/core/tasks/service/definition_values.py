"""An application's definition as JSON values, for its owner's document and for the journal; and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from yarn_accel.core.dags.model import DagTerms, PriorityClass
from yarn_accel.core.tasks.applications import AppDefinition, FormProgram, TaskDefinition
from yarn_accel.core.tasks.attempt_orders import InputSplit
from yarn_accel.core.tasks.values import AppFigures, AppId, AppSpec, Form, FormDemand, FormFigures, TaskId


def definition_of(values: Mapping[str, Any], rows: Iterable[list[Any]], n_tasks: int) -> AppDefinition:
    """The application that `app_values` and `task_row` came from; nothing is checked."""
    app = str(values["app"])
    demands = {Form(name): FormDemand(*row) for name, row in values["demands"].items()}
    figures, terms = values["declared"], values["dag"]
    spec = AppSpec(
        AppId(app),
        values["name"],
        values["priority"],
        n_tasks,
        demands,
        None if figures is None else _figures(figures),
    )
    return AppDefinition(
        spec,
        {Form(name): _program(row) for name, row in values["programs"].items()},
        tuple(_task(app, row) for row in rows),
        values["output"],
        values["max_attempts"],
        values["time_limit_s"],
        values["silence_limit_s"],
        _pairs(values["environment"]),
        _pairs(values["files"]),
        None if terms is None else DagTerms(PriorityClass[terms[0].upper()], *terms[1:]),
        values.get("is_resumed", False),
    )


def app_values(definition: AppDefinition) -> dict[str, Any]:
    """What `AppBegun` says of an application."""
    spec, terms = definition.spec, definition.dag
    return {
        "app": spec.app,
        "name": spec.name,
        "priority": spec.priority,
        "demands": {
            form.value: [need.cores, need.gpus, need.memory_bytes, need.is_served]
            for form, need in spec.demands.items()
        },
        "declared": None if spec.declared is None else _figures_values(spec.declared),
        "programs": {form.value: _program_values(each) for form, each in definition.programs.items()},
        "output": definition.output,
        "max_attempts": definition.max_attempts,
        "time_limit_s": definition.time_limit_s,
        "silence_limit_s": definition.silence_limit_s,
        "environment": [list(pair) for pair in definition.environment],
        "files": [list(pair) for pair in definition.files],
        "dag": terms and [terms.priority_class.word, terms.may_interrupt, terms.is_paused],
        # Only where it says something: an older master knows no such key.
        **({"is_resumed": True} if definition.is_resumed else {}),
    }


def _figures_values(figures: AppFigures) -> list[Any]:
    forms = {form.value: [each.read_s, each.compute_s] for form, each in figures.forms.items()}
    kinds = {kind: [each.read_s, each.compute_s] for kind, each in figures.accelerators.items()}
    return [figures.split_bytes, forms, kinds]


def _figures(values: list[Any]) -> AppFigures:
    split_bytes, forms, kinds = values
    return AppFigures(
        split_bytes,
        {Form(name): FormFigures(*row) for name, row in forms.items()},
        {kind: FormFigures(*row) for kind, row in kinds.items()},
    )


def _program_values(program: FormProgram) -> list[Any]:
    values = [list(program.command), program.operation, dict(program.params)]
    return [*values, program.function, program.arguments, list(program.archives)]


def _program(row: list[Any]) -> FormProgram:
    command, operation, params, function, arguments, archives = row
    return FormProgram(tuple(command), operation, params, function, arguments, tuple(archives))


def _pairs(rows: Iterable[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in rows)


def task_row(task: TaskDefinition, n_prefix: int) -> list[Any]:
    """A task's values: name, predecessors, input, output, and an object of what else it has, if anything.

    Names are without the application's, which would be most of a long journal.
    """
    split = task.input
    more = {key: value for key, value in _more(task) if value not in (None, "", [])}
    return [
        task.task[n_prefix:],
        [each[n_prefix:] for each in task.predecessors],
        None if split is None else [split.uri, split.start, split.length, split.with_keys],
        task.output,
        *([more] if more else []),
    ]


def _more(task: TaskDefinition) -> tuple[tuple[str, Any], ...]:
    return (
        ("program", None if task.program is None else _program_values(task.program)),
        ("inputs", [list(each) for each in task.inputs]),
        ("outputs", list(task.outputs)),
        ("kind", task.kind),
        ("runtime_s", task.runtime_s),
        ("predecessor_bytes", list(task.predecessor_bytes)),
        ("environment", [list(each) for each in task.environment]),
        ("time_limit_s", task.time_limit_s),
        ("python_environment", task.python_environment),
    )


def _task(app: str, row: list[Any]) -> TaskDefinition:
    name, predecessors, split, output, *rest = row
    more = rest[0] if rest else {}
    return TaskDefinition(
        TaskId(f"{app}/{name}"),
        tuple(TaskId(f"{app}/{each}") for each in predecessors),
        None if split is None else InputSplit(*split),
        output,
        _program(more["program"]) if "program" in more else None,
        _pairs(more.get("inputs", ())),
        tuple(more.get("outputs", ())),
        more.get("kind", ""),
        more.get("runtime_s"),
        tuple(more.get("predecessor_bytes", ())),
        _pairs(more.get("environment", ())),
        more.get("time_limit_s"),
        more.get("python_environment", ""),
    )
