"""An application as its owner hands it in: a document of which nothing is believed before it was checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.tasks.applications import (
    MAX_TASKS,
    AppDefinition,
    TaskDefinition,
    check_definition,
)
from yarn_accel.core.tasks.attempt_orders import MAX_TASK_FILES, MAX_URI, attempt_id
from yarn_accel.core.tasks.checked_document import CheckedObject
from yarn_accel.core.tasks.service.definition_values import app_values, definition_of, task_row
from yarn_accel.core.tasks.service.orders import attempt_order
from yarn_accel.core.tasks.values import Form
from yarn_accel.core.tasks.worker_messages import (
    MAX_LISTED,
    MAX_ORDER_BYTES,
    OrderNumber,
    WorkerOrder,
    order_document,
    parse_order,
)
from yarn_accel.core.units import MAX_BYTES, MAX_SECONDS
from yarn_accel.errors import ConfigError, RemoteProtocolError

#: Of an application's document.
_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}\Z")
_MAX_PRIORITY = 1_000_000
_MAX_ATTEMPTS = 1000
_MAX_PAIRS = 256
_MAX_TEXT = 32 * 1024
_MAX_WORD = 200
#: Of a task's row, before what else it has.
_N_VALUES = 4
#: Of what one attempt adds to an order, so that an order that lists as many as it may is not too long. What
#: differs from task to task, such as the URI of the input, takes a small part of it.
_MAX_ATTEMPT_BYTES = MAX_ORDER_BYTES // MAX_LISTED // 2


def app_document(definition: AppDefinition) -> dict[str, Any]:
    """An application as its owner hands it in; `parse_app` reads it."""
    n_prefix = len(definition.spec.app) + 1
    rows = [task_row(each, n_prefix) for each in definition.tasks]
    return {"version": _VERSION, "definition": app_values(definition), "tasks": rows}


def parse_app(document: Any) -> AppDefinition:
    """Read an application that its owner hands in; `check_definition` has been passed then.

    Raises:
        ConfigError: it is not what `app_document` makes, or no worker could run it.
    """
    try:
        top = CheckedObject(document, "application")
        version = top.count("version", MAX_BYTES)
        if version != _VERSION:
            raise ConfigError(
                f"the application is of version {version}, {_VERSION} is expected",
                cure="use the yarn-accel that started the task service",
            )
        _check_head(top.below("definition"))
        rows = list(top.values("tasks", MAX_TASKS))
        for at, row in enumerate(rows):
            if not _is_task(row):
                raise top.error("tasks", f"[{at}] is not name, predecessors, input and output of a task")
            if len(row) > _N_VALUES:
                _check_more(CheckedObject(row[_N_VALUES], f"application.tasks[{at}]"))
        top.close()
    except RemoteProtocolError as error:
        raise ConfigError(f"this is no application: {error}") from None
    definition = definition_of(document["definition"], rows, len(rows))
    check_definition(definition)
    return definition


def check_orders(definition: AppDefinition) -> None:
    """Check that workers can take orders of this application.

    Raises:
        ConfigError: what a worker would not take, or an order that would be too long.
    """
    app = definition.spec.app
    task = max(definition.tasks, key=_n_characters)
    for form in definition.programs:
        order = attempt_order(definition, task, form, attempt_id(1, 1, 1, 1), {})
        document = order_document(WorkerOrder(OrderNumber(1, 1), "0" * 16, 0, (order,)))
        try:
            parse_order(document)
        except RemoteProtocolError as error:
            raise ConfigError(f"{app}: no worker takes this: {error}") from None
        n_bytes = len(json.dumps(document))
        if n_bytes > _MAX_ATTEMPT_BYTES:
            raise ConfigError(
                f"{app}, {form.value}: command, environment and files of a task have {n_bytes} bytes, "
                f"{_MAX_ATTEMPT_BYTES} are taken",
                cure="put long arguments into a file and name that in `files`",
            )


def _n_characters(task: TaskDefinition) -> int:
    """About what differs from task to task."""
    n = len(task.input.uri) if task.input is not None else 0
    if task.program is not None:
        n += sum(map(len, task.program.command)) + len(task.program.arguments)
    n += sum(map(len, task.outputs))
    return n + sum(len(name) + len(text) for name, text in (*task.inputs, *task.environment))


def _check_head(head: CheckedObject) -> None:
    head.text("app", _MAX_TEXT, _NAME)
    head.text("name", _MAX_TEXT, _NAME)
    head.count("priority", _MAX_PRIORITY, -_MAX_PRIORITY)
    head.count("max_attempts", _MAX_ATTEMPTS, 1)
    head.number("time_limit_s", MAX_SECONDS)
    head.number("silence_limit_s", MAX_SECONDS)
    head.text("output", MAX_URI)
    for key in ("environment", "files"):
        _check_pairs(head, key, _MAX_PAIRS)
    demands, programs = head.below("demands"), head.below("programs")
    for form in _forms(demands):
        row = demands.row(form, 4)
        for at in range(3):
            row.count(at, MAX_BYTES)
        row.flag(3)
    for form in _forms(programs):
        _check_program(programs.row(form, 6))
    if not head.is_null("dag"):
        terms = head.row("dag", 3)
        if terms.text(0, _MAX_WORD) not in (known := [each.word for each in PriorityClass]):
            raise terms.error(0, f"is no class; known: {', '.join(known)}")
        terms.flag(1)
        terms.flag(2)
    if "is_resumed" in head.names(_MAX_PAIRS):
        head.flag("is_resumed")
    if not head.is_null("declared"):
        _check_figures(head.row("declared", 3))
    head.close()


def _check_program(row: CheckedObject) -> None:
    row.texts(0, _MAX_TEXT, _MAX_TEXT)
    row.text(1, _MAX_TEXT)
    row.below(2)
    row.text(3, _MAX_WORD)
    row.text(4, _MAX_TEXT)
    row.texts(5, _MAX_PAIRS, _MAX_WORD)


def _check_more(more: CheckedObject) -> None:
    """What a task may have beside its first four values, each key at most once."""
    for key in more.names(len(_MORE)):
        if key not in _MORE:
            raise more.error(key, f"is unknown; known: {', '.join(_MORE)}")
        _MORE[key](more, key)


def _check_pairs(source: CheckedObject, key: str, most: int) -> None:
    for row in source.rows(key, most, 2):
        row.text(0, _MAX_TEXT)
        row.text(1, _MAX_TEXT)


def _check_numbers(source: CheckedObject, key: str) -> None:
    for value in source.values(key, MAX_TASKS):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= MAX_BYTES:
            raise source.error(key, f"has what is no number from 0 to {MAX_BYTES}")


_MORE: dict[str, Callable[[CheckedObject, str], object]] = {
    "program": lambda source, key: _check_program(source.row(key, 6)),
    "inputs": lambda source, key: _check_pairs(source, key, MAX_TASK_FILES),
    "outputs": lambda source, key: source.texts(key, MAX_TASK_FILES, _MAX_WORD),
    "kind": lambda source, key: source.text(key, _MAX_WORD),
    "runtime_s": lambda source, key: source.number(key, MAX_SECONDS),
    "predecessor_bytes": _check_numbers,
    "environment": lambda source, key: _check_pairs(source, key, _MAX_PAIRS),
    "time_limit_s": lambda source, key: source.number(key, MAX_SECONDS),
    "python_environment": lambda source, key: source.text(key, _MAX_WORD, _NAME),
}


def _check_figures(figures: CheckedObject) -> None:
    figures.number(0, float(MAX_BYTES))
    forms, kinds = figures.below(1), figures.below(2)
    rows = [forms.row(form, 2) for form in _forms(forms)]
    rows += [kinds.row(kind, 2) for kind in kinds.names(_MAX_PAIRS)]
    for row in rows:
        row.number(0, MAX_SECONDS)
        row.number(1, MAX_SECONDS)


def _forms(source: CheckedObject) -> list[str]:
    known = [form.value for form in Form]
    names = source.names(len(known))
    for name in names:
        if name not in known:
            raise source.error(name, f"is no form; known: {', '.join(known)}")
    return names


def _is_task(row: Any) -> bool:
    """Whether these are the values of a task; 100,000 of them take a tenth of a second."""
    if not isinstance(row, list) or not _N_VALUES <= len(row) <= _N_VALUES + 1:
        return False
    name, predecessors, split, output = row[:_N_VALUES]
    return (
        isinstance(name, str)
        and isinstance(predecessors, list)
        and all(isinstance(each, str) for each in predecessors)
        and isinstance(output, str)
        and (split is None or _is_split(split))
    )


def _is_split(split: Any) -> bool:
    if not isinstance(split, list) or len(split) != 4:
        return False
    uri, start, length, with_keys = split
    return (
        isinstance(uri, str)
        and len(uri) <= MAX_URI
        and type(start) is type(length) is int
        and 0 <= start <= MAX_BYTES
        and 0 <= length <= MAX_BYTES
        and isinstance(with_keys, bool)
    )
