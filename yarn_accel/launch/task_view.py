"""Tables and progress bars of the commands `tasks` and `dag`, from the status of a task service.

Names and errors come from users and their programs: they are text, never a command to the terminal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from yarn_accel.core.units import format_bytes, format_duration_s
from yarn_accel.launch.status_view import plain

_DASH = "-"
#: The applications that ended last.
_MAX_ENDED = 20
_MAX_WORKERS = 200
_MAX_ERROR = 100
_MAX_NOTE = 200
_MIN_NAME = 8
#: Lines for the whole of an application where there is no terminal.
_N_LINES = 10
#: Shows how far an application is, from its row of the service's status.
ProgressView = Callable[[Mapping[str, Any]], None]


def tasks_table(answer: Mapping[str, Any]) -> Group:
    """The status of a task service, for people."""
    problems = [_text(f"problem: {each}") for each in answer["problems"]]
    ended = list(answer["ended"].items())
    n_cut = max(0, len(ended) - _MAX_ENDED)
    cut = [Text(f"... and {n_cut} that ended before; all of them: tasks status --json")] if n_cut else []
    wanted = _text(f"{answer['workers_wanted']} workers wanted, policy {answer.get('policy') or _DASH}")
    apps = _apps([*answer["apps"].items(), *ended[n_cut:]])
    return Group(apps, *cut, _workers(answer["workers"]), wanted, *problems)


def dags_of(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The applications that are DAGs, those that ended first."""
    return {name: row for name, row in [*answer["ended"].items(), *answer["apps"].items()] if "dag" in row}


def dags_table(answer: Mapping[str, Any]) -> Group:
    """The DAGs of a task service, for people."""
    title = f"DAGs, policy {answer.get('policy') or _DASH}"
    numbers = (">running", ">done", ">SD", ">alone", ">for", ">ends in")
    table = _table(title, "DAG", "class", "state", *numbers)
    rows = list(dags_of(answer).items())
    n_running = sum("ended_at" not in row for _, row in rows)
    n_cut = max(0, len(rows) - n_running - _MAX_ENDED)
    notes = []
    for name, row in rows[n_cut:]:
        table.add_row(*_dag_cells(name, row))
        notes += [_text(f"{name}: {note}") for note in _dag_notes(row)]
    cut = [Text(f"... and {n_cut} that ended before; all of them: dag status --json")] if n_cut else []
    workers = answer["workers"].values()
    n_cores, n_busy = sum(each["n_cores"] for each in workers), sum(each["cores"] for each in workers)
    there = Text(f"{len(workers)} workers, {n_busy} of {n_cores} cores busy")
    problems = [_text(f"problem: {each}") for each in answer["problems"]]
    return Group(table, *notes, *cut, there, *problems)


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
            n_done, n_tasks = _done(row)
            bar.update(task, completed=n_done, total=n_tasks, words=_words(row))

        yield show


def _line_writer(app: str) -> ProgressView:
    shown = -1

    def show(row: Mapping[str, Any]) -> None:
        nonlocal shown
        n_done, n_tasks = _done(row)
        part = _N_LINES * n_done // max(n_tasks, 1)
        if part != shown:
            shown = part
            click.echo(f"{plain(app)}: {n_done} of {n_tasks} tasks are done, {_words(row)}", err=True)

    return show


def _done(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["tasks"].get("done", 0), sum(row["tasks"].values())


def _words(row: Mapping[str, Any]) -> str:
    words = [f"{row['tasks'].get('running', 0)} run"]
    if row.get("delay") is not None:
        words.append(f"delay {_times(row['delay'])}")
        if row.get("predicted_delay") is not None:
            words.append(f"predicted {_times(row['predicted_delay'])}")
    return ", ".join(words)


def _table(title: str, *columns: str) -> Table:
    """A table without rows; columns that begin with ``>`` are numbers.

    The first is a name, which other commands take: where it is too narrow the name goes on in the next line.
    """
    table = Table(title=title, title_justify="left")
    table.add_column(columns[0], overflow="fold", min_width=_MIN_NAME)
    for name in columns[1:]:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
    return table


def _apps(rows: list[tuple[str, Mapping[str, Any]]]) -> Table:
    numbers = (
        ">waiting",
        ">running",
        ">done",
        ">failed",
        ">cores",
        ">GPUs",
        ">share",
        ">delay",
        ">predicted",
    )
    table = _table("applications", "application", "state", *numbers, "error")
    for app, row in rows:
        counts, is_over = row["tasks"], "ended_at" in row
        n_waiting = sum(counts.get(each, 0) for each in ("waiting", "ready", "queued"))
        n_done, n_tasks = _done(row)
        table.add_row(
            _text(app),
            _text(row["state"]),
            str(n_waiting),
            str(counts.get("running", 0)),
            f"{n_done} of {n_tasks}",
            str(counts.get("failed", 0)),
            _DASH if is_over else str(row["cores"]),
            _DASH if is_over else str(row["gpus"]),
            _DASH if is_over else f"{100 * row['share']:.0f} %",
            _times(row["delay"]),
            _times(row["predicted_delay"]),
            _text(row["error"][:_MAX_ERROR]),
        )
    return table


def _workers(workers: Mapping[str, Mapping[str, Any]]) -> Table:
    numbers = (">cores", ">GPUs", ">I/O", ">running", ">next", ">silent")
    table = _table("workers", "worker", *numbers, "problem")
    for worker, row in list(workers.items())[:_MAX_WORKERS]:
        rate = row["bytes_per_s"]
        table.add_row(
            _text(worker),
            f"{row['cores']} of {row['n_cores']}",
            f"{row['gpus']} of {row['n_gpus']}",
            _DASH if rate is None else f"{format_bytes(rate)}/s",
            str(len(row["running"])),
            str(len(row["queued"])),
            "expected" if row["is_expected"] else f"{row['silent_s']:.1f} s",
            _text(row["problem"]),
        )
    return table


def _dag_cells(name: str, row: Mapping[str, Any]) -> list[Text | str]:
    counts, dag = row["tasks"], row["dag"]
    now = row.get("ended_at") or time.time()
    n_done, n_tasks = _done(row)
    end_at = dag.get("predicted_end_at")
    return [
        _text(name),
        dag["class"],
        _text(row["state"]),
        str(counts.get("running", 0)),
        f"{n_done} of {n_tasks}",
        _DASH if dag["sd"] is None else f"{dag['sd']:.3f}",
        _DASH if dag["own_makespan_s"] is None else f"{dag['own_makespan_s']:.1f} s",
        format_duration_s(max(0.0, now - row["begun_at"])),
        _DASH if end_at is None else format_duration_s(max(0.0, end_at - now)),
    ]


def _dag_notes(row: Mapping[str, Any]) -> Iterator[str]:
    """Lines about costs and errors, which few DAGs have."""
    dag, error = row["dag"], row["error"]
    if dag["n_moved"]:
        yield f"{dag['n_moved']} tasks moved to another worker before they started"
    if dag["n_interrupted"]:
        yield f"{dag['n_interrupted']} attempts interrupted, after {dag['lost_s']:.1f} s together"
    if error:
        yield error[:_MAX_NOTE]


def _times(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}x"


def _text(value: object) -> Text:
    return Text(plain(str(value)))
