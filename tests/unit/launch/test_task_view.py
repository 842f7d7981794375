"""What `status`, `top` and `submit --wait` of tasks and of DAGs show."""

from __future__ import annotations

import asyncio
import contextlib
import io
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType

from tests.unit.launch.task_master import Master
from tests.unit.master.task_scenes import busy_world, task_state
from yarn_accel.cli import root
from yarn_accel.errors import JobError, UnavailableError
from yarn_accel.launch import task_view, tasks_cli
from yarn_accel.launch.application_cli import FILE_WIDTH
from yarn_accel.launch.task_view import app_progress, dags_table, tasks_table

STATUS = task_state(busy_world())
ESCAPE = "\x1b[2J[red]x[/red]"


def drawn(picture: RenderableType, width: int = 200) -> str:
    screen = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    screen.print(picture)
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def line_of(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"│ {name} ")]
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def app_row(**more: Any) -> dict[str, Any]:
    return {**STATUS["apps"]["late"], **more}


def test_applications_have_shares_and_delays() -> None:
    text = drawn(tasks_table({**STATUS, "apps": {"late": app_row(delay=1.5, predicted_delay=1.25)}}))
    late = line_of(text, "late")
    counts = STATUS["apps"]["late"]["tasks"]
    assert late[3:5] == [str(counts["running"]), f"{counts['done']} of 300"]
    assert late[6:11] == [
        str(STATUS["apps"]["late"]["cores"]),
        "0",
        f"{100 * STATUS['apps']['late']['share']:.0f} %",
        "1.50x",
        "1.25x",
    ]
    assert line_of(text, "early")[1:5] == ["done", "0", "0", "4 of 4"]
    assert line_of(text, "n1")[1].endswith(" of 4")
    assert "2 workers wanted" in text


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
    assert text.count("?[2J[red]x[/red]") == 6


def test_of_many_that_ended_the_last_ones_are_shown() -> None:
    ended = {f"e{number}": STATUS["ended"]["early"] for number in range(50)}
    text = drawn(tasks_table({**STATUS, "ended": ended}))
    assert "e49" in text
    assert "e29 " not in text
    assert "... and 30 that ended before" in text


def test_progress_on_no_terminal_is_a_line_for_each_tenth(capsys) -> None:
    with app_progress("knn") as show:
        for n_done in range(101):
            show(app_row(tasks={"done": n_done, "running": 2, "ready": 98 - n_done}, delay=1.2))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11, "one at the beginning, too"
    assert lines[1].startswith("knn: 10 of 100 tasks are done, 2 run, delay 1.20x")


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
    assert result.stdout.count("applications") == 1
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
    return drawn(
        dags_table({"policy": "mps", "ended": rows, "apps": {}, "workers": {}, "problems": []}), width
    )


def test_a_name_can_be_copied_from_a_file() -> None:
    text = drawn_dags(FILE_WIDTH, **{NAME: dag_row()})
    (line,) = [line for line in text.splitlines() if NAME in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == [NAME, "preemptive", "done", "0", "8 of 8", "0.750", "3.0 s", "4.0 s", "-"]


@pytest.mark.parametrize("width", [80, 100])
def test_no_part_of_a_name_is_lost_on_a_narrow_terminal(width: int) -> None:
    lines = drawn_dags(width, **{NAME: dag_row()}).splitlines()
    cells = [line.strip("│").partition("│")[0].strip() for line in lines if line.startswith("│")]
    assert "".join(cells) == NAME


def test_costs_and_errors_have_lines_of_their_own() -> None:
    costs = {"n_moved": 2, "n_interrupted": 1, "lost_s": 2.5}
    failed = dag_row(state="failed", error="b/t1: exit code 1 \x1b[2J")
    text = drawn_dags(FILE_WIDTH, a=dag_row(dag=costs), b=failed, c=dag_row())
    notes = [line for line in text.splitlines() if line[:2] in {"a:", "b:", "c:"}]
    assert notes == [
        "a: 2 tasks moved to another worker before they started",
        "a: 1 attempts interrupted, after 2.5 s together",
        "b: b/t1: exit code 1 ?[2J",
    ]
