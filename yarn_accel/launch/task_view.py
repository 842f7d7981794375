"""Tables and progress bars of the commands `tasks` and `dag`, from the status of a task service.

Names and errors come from users and their programs: they are text, never a command to the terminal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from yarn_accel.launch.status_view import plain
from yarn_accel.report.task_tables import (
    StatusTable,
    dag_table,
    dags_of,
    done,
    known_apps,
    status_tables,
    times,
    workers_note,
)

_DASH = "-"
#: The applications that ended last.
_MAX_ENDED = 20
_MAX_NOTE = 200
_MIN_NAME = 8
#: Lines for the whole of an application where there is no terminal.
_N_LINES = 10
#: Shows how far an application is, from its row of the service's status.
ProgressView = Callable[[Mapping[str, Any]], None]


def tasks_table(answer: Mapping[str, Any]) -> Group:
    """The status of a task service, for people."""
    tables = status_tables(answer, time.time(), _MAX_ENDED)
    return Group(*(part for each in tables for part in _parts(each)), *_problems(answer))


def dags_table(answer: Mapping[str, Any], names: Collection[str] = ()) -> Group:
    """The DAGs of a task service, for people: those named, or all."""
    dags = [each for each in dags_of(known_apps(answer)) if not names or each[0] in names]
    shown = dag_table(answer, dags, time.time(), _MAX_ENDED)
    workers = _text(f"workers: {workers_note(answer)}")
    return Group(*_parts(shown), workers, *_problems(answer))


def _parts(shown: StatusTable) -> Iterator[RenderableType]:
    """A table and the lines below it.

    The first column is a name, which other commands take: where it is too narrow the name goes on in the next
    line.
    """
    table = Table(title=shown.title, title_justify="left")
    table.add_column(shown.columns[0], overflow="fold", min_width=_MIN_NAME)
    for name in shown.columns[1:]:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
    for row in shown.rows:
        table.add_row(*(_text(_DASH if cell is None else cell) for cell in row.cells))
    yield table
    for row in shown.rows:
        for note in row.notes:
            yield _text(f"{row.cells[0]}: {note[:_MAX_NOTE]}")
    yield _text(shown.note)


def _problems(answer: Mapping[str, Any]) -> list[Text]:
    return [_text(f"problem: {each}") for each in answer["problems"]]


@contextlib.contextmanager
def app_progress(app: str) -> Iterator[ProgressView]:
    """Yield what shows how far an application is, on stderr: a bar on a terminal, some lines elsewhere."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield _line_writer(app)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(plain(app), total=None, words="")

        def show(row: Mapping[str, Any]) -> None:
            n_done, n_tasks = done(row)
            bar.update(task, completed=n_done, total=n_tasks, words=_words(row))

        yield show


def _line_writer(app: str) -> ProgressView:
    shown = -1

    def show(row: Mapping[str, Any]) -> None:
        nonlocal shown
        n_done, n_tasks = done(row)
        part = _N_LINES * n_done // max(n_tasks, 1)
        if part != shown:
            shown = part
            click.echo(f"{plain(app)}: {n_done} of {n_tasks} tasks are done, {_words(row)}", err=True)

    return show


def _words(row: Mapping[str, Any]) -> str:
    words = [f"{row['tasks'].get('running', 0)} run"]
    if row.get("delay") is not None:
        words.append(f"delay {times(row['delay'])}")
        if row.get("predicted_delay") is not None:
            words.append(f"predicted {times(row['predicted_delay'])}")
    return ", ".join(words)


def _text(value: object) -> Text:
    return Text(plain(str(value)))
