"""What `status`, `top` and `submit --wait` of tasks and of DAGs show."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType

from tests.fixtures.page_reader import Reader
from tests.unit.launch.task_master import Master
from tests.unit.master.tasks.scenes import busy_world, state_with, task_state
from tests.unit.master.test_page import rows
from yarn_accel.cli import root
from yarn_accel.errors import ConfigError, JobError, UnavailableError
from yarn_accel.launch import task_view, tasks_cli
from yarn_accel.launch.application_cli import FILE_WIDTH
from yarn_accel.launch.task_view import app_progress, dags_table, tasks_table
from yarn_accel.master import page as pages
from yarn_accel.master.status_documents import Query
from yarn_accel.master.tasks import views

STATUS = task_state(busy_world())
ESCAPE = "\x1b[2J[red]x[/red]"


def drawn(picture: RenderableType, width: int = 200) -> str:
    screen = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    screen.print(picture)
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def line_of(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"│ {name} ")]
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def page_of(status: dict[str, Any]) -> str:
    state = state_with(status)
    return pages.page(state, Query(), "", views.sections(status, state["at"]))


def app_row(**more: Any) -> dict[str, Any]:
    return {**STATUS["apps"]["late"], **more}


def cells_of(text: str) -> list[list[str]]:
    """The cells of all tables on a terminal, row by row."""
    lines = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in cells] for cells in lines]


def test_a_terminal_shows_what_the_page_shows() -> None:
    dags = {
        "flow-2": dag_row(state="failed", error="b/t1: exit code 1"),
        "flow-1": dag_row(dag={"n_moved": 2, "n_interrupted": 1, "lost_s": 2.5, "sd": 0.25}),
    }
    apps = {"late": app_row(delay=1.5, predicted_delay=1.25, begun_at=0.0)}
    status = {**STATUS, "apps": apps, "ended": {**dags, **STATUS["ended"]}}
    text, page = drawn(tasks_table(status), 250), Reader(page_of(status))
    parts = [rows(page, title) for title in ("DAGs", "Applications of tasks", "Workers over time")]
    on_page = [row for part in parts for row in part]
    for cells, (*shown, notes) in zip(cells_of(text), on_page, strict=True):
        # A bar stands beside how much is done.
        known = ["" if value == "-" else value for value in cells]
        assert all(cell.startswith(value) for cell, value in zip(shown, known, strict=True))
        for note in filter(None, notes.split("; ")):
            assert f"{cells[0]}: {note}" in text
    assert line_of(text, "flow-1")[6] == "0.250"
    assert line_of(text, "late")[9:11] == ["1.50 ×", "1.25 ×"]
    for line in (
        "unfairness 0.500 (mean deviation 0.500 of the mean SD) of 2",
        "2 wanted, ",
    ):
        assert line in text
        assert line in page.text


def test_nothing_that_users_write_is_a_command_to_the_terminal() -> None:
    worker = {**STATUS["workers"]["n1"], "problem": ESCAPE}
    text = drawn(
        tasks_table(
            {
                **STATUS,
                "apps": {ESCAPE: app_row(error=ESCAPE)},
                "workers": {ESCAPE: worker},
                "problems": [ESCAPE],
                "policy": ESCAPE,
            }
        )
    )
    assert "\x1b[2J" not in text
    assert text.count("?[2J[red]x[/red]") == 8


def test_of_many_that_ended_the_last_ones_are_shown() -> None:
    ended = {f"e{number}": STATUS["ended"]["early"] for number in range(50)}
    text = drawn(tasks_table({**STATUS, "ended": ended}))
    assert "e49" in text
    assert "e29 " not in text
    assert "; 30 more are left out" in text


def test_progress_on_no_terminal_is_a_line_for_each_tenth(capsys) -> None:
    with app_progress("knn") as show:
        for n_done in range(101):
            show(app_row(tasks={"done": n_done, "running": 2, "ready": 98 - n_done}, delay=1.2))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11, "one at the beginning, too"
    assert lines[1].startswith("knn: 10 of 100 tasks are done, 2 run, delay 1.20 ×")


def test_progress_on_a_terminal_is_a_bar(monkeypatch) -> None:
    screen = Console(width=120, file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(task_view, "Console", lambda **_: screen)
    with app_progress(ESCAPE) as show:
        show(app_row(tasks={"done": 3, "running": 2}, delay=None))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "3/5" in text
    assert "2 run" in text
    assert "\x1b[2J" not in text


def test_top_in_a_pipe_is_written_once(master: Master) -> None:
    master.status = STATUS
    result = CliRunner().invoke(root, ["tasks", "top"])
    assert result.exit_code == 0, result.exception
    assert result.stdout.count("Applications of tasks") == 1
    assert "late" in result.stdout
    assert len(master.asked) == 1


def test_top_on_a_terminal_goes_on_while_the_master_is_away(master: Master, monkeypatch) -> None:
    shown: list[str] = []

    @contextlib.contextmanager
    def screen(_: int):
        yield show

    def show(picture: RenderableType) -> None:
        shown.append(drawn(picture))
        if len(shown) == 3:
            raise KeyboardInterrupt
        master.status = UnavailableError("no master answers") if len(shown) == 1 else STATUS

    master.status = STATUS
    monkeypatch.setattr(tasks_cli, "repeated_output", screen)
    monkeypatch.setattr(tasks_cli, "_is_terminal", lambda: True)
    result = CliRunner().invoke(root, ["tasks", "top", "--interval", "0.2"])
    assert result.exit_code == 0, result.exception
    assert "late" in shown[0]
    assert "asking again" in shown[1]
    assert "late" in shown[2]


class Control:
    """Answers the statuses in this order."""

    def __init__(self, *statuses: dict[str, Any]) -> None:
        self.statuses = list(statuses)

    async def ask(self, verb: str, *, patience_s: float) -> dict[str, Any]:
        assert verb == "tasks-status"
        assert patience_s >= 60, "a ResourceManager may be started again meanwhile"
        return self.statuses.pop(0)


def test_waiting_shows_progress_and_the_end(monkeypatch, capsys) -> None:
    monkeypatch.setattr(tasks_cli, "_POLL_S", 0.0)
    runs = {"apps": {"a": app_row(tasks={"done": 1, "running": 1})}, "ended": {}}
    done = {"apps": {}, "ended": {"a": {"state": "done", "error": ""}}}
    asyncio.run(tasks_cli.wait_until_ended(Control(runs, runs, done), "a"))  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == ["a: 1 of 2 tasks are done, 1 run", "a: done"]
    failed = {"apps": {}, "ended": {"a": {"state": "failed", "error": "no such luck"}}}
    with pytest.raises(JobError, match="failed: no such luck"):
        asyncio.run(tasks_cli.wait_until_ended(Control(failed), "a"))  # type: ignore[arg-type]
    with pytest.raises(JobError, match="knows nothing"):
        asyncio.run(tasks_cli.wait_until_ended(Control({"apps": {}, "ended": {}}), "a"))  # type: ignore[arg-type]


# DAGs.

NAME = "killed-resourcemanager-5f3a9c01"


def dag_row(**more: Any) -> dict[str, Any]:
    dag = {"class": "preemptive", "sd": 0.75, "own_makespan_s": 3.0, "n_moved": 0}
    ended = {"tasks": {"done": 8}, "state": "done", "begun_at": 1.0, "ended_at": 5.0, "error": ""}
    return {**ended, "dag": {**dag, "n_interrupted": 0, "lost_s": 0.0, **more.pop("dag", {})}, **more}


def drawn_dags(width: int, **rows: dict[str, Any]) -> str:
    return drawn(dags_table({**STATUS, "ended": rows, "apps": {}, "workers": {}}), width)


def test_a_name_can_be_copied_from_a_file() -> None:
    text = drawn_dags(FILE_WIDTH, **{NAME: dag_row()})
    cells = [NAME, "preemptive", "done", "0", "0", "8 of 8", "0.750", "3.0 s", "4.0 s", "-"]
    assert line_of(text, NAME) == cells


@pytest.mark.parametrize("width", [80, 100])
def test_no_part_of_a_name_is_lost_on_a_narrow_terminal(width: int) -> None:
    lines = drawn_dags(width, **{NAME: dag_row()}).splitlines()
    cells = [line.strip("│").partition("│")[0].strip() for line in lines if line.startswith("│")]
    assert "".join(cells) == NAME


def test_the_fairness_of_those_named_is_in_the_json(master: Master) -> None:
    master.status = {**STATUS, "ended": {"a": dag_row(dag={"sd": 0.25}), "b": dag_row()}}

    def ask(*names: str) -> dict[str, Any]:
        result = CliRunner().invoke(root, ["dag", "status", *names, "--json"])
        assert result.exit_code == 0, result.exception
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    both, one = ask(), ask("a")
    assert (both["unfairness"], both["relative_deviation"], list(both["dags"])) == (0.5, 0.5, ["a", "b"])
    assert (one["unfairness"], one["relative_deviation"], list(one["dags"])) == (0.0, 0.0, ["a"])
    result = CliRunner().invoke(root, ["dag", "status", "c"])
    assert isinstance(result.exception, ConfigError)
    assert "the last: b, a" in str(result.exception)
