"""What `tasks status`, `tasks top` and `tasks submit --wait` show of a task service, from its status.

Names and errors come from users and their programs: they are text, never a command to the terminal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import click
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from yarn_accel.core.units import format_bytes
from yarn_accel.launch.status_view import plain

_DASH = "-"
#: The applications that ended last.
_MAX_ENDED = 20
_MAX_WORKERS = 200
_MAX_ERROR = 100
#: Lines for the whole of an application where there is no terminal.
_N_LINES = 10


class ProgressView(Protocol):
    """Shows how far an application is."""

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Show its row of the service's status."""


def tasks_table(answer: Mapping[str, Any]) -> Group:
    """The status of a task service, for people."""
    problems = [_text(f"problem: {each}") for each in answer["problems"]]
    ended = list(answer["ended"].items())
    n_cut = max(0, len(ended) - _MAX_ENDED)
    cut = [Text(f"... and {n_cut} that ended before; all of them: tasks status --json")] if n_cut else []
    wanted = _text(f"{answer['workers_wanted']} workers wanted, policy {answer.get('policy') or _DASH}")
    apps = _apps([*answer["apps"].items(), *ended[n_cut:]])
    return Group(apps, *cut, _workers(answer["workers"]), wanted, *problems)


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


def _apps(rows: list[tuple[str, Mapping[str, Any]]]) -> Table:
    table = Table(title="applications", title_justify="left")
    table.add_column("application", overflow="fold")  # other commands take it
    table.add_column("state")
    for name in ("waiting", "running", "done", "failed", "cores", "GPUs", "share", "delay", "predicted"):
        table.add_column(name, justify="right")
    table.add_column("error")
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
    table = Table(title="workers", title_justify="left")
    table.add_column("worker")
    for name in ("cores", "GPUs", "I/O", "running", "next", "silent"):
        table.add_column(name, justify="right")
    table.add_column("problem")
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


def _times(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}x"


def _text(value: object) -> Text:
    return Text(plain(str(value)))
