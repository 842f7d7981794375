"""What `dag status` and `dag top` show."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from yarn_accel.launch.application_cli import FILE_WIDTH
from yarn_accel.launch.dag_view import dags_table

NAME = "killed-resourcemanager-5f3a9c01"


def row(**more: Any) -> dict[str, Any]:
    dag = {"class": "preemptive", "sd": 0.75, "own_makespan_s": 3.0, "n_moved": 0}
    ended = {"tasks": {"done": 8}, "state": "done", "begun_at": 1.0, "ended_at": 5.0, "error": ""}
    return {**ended, "dag": {**dag, "n_interrupted": 0, "lost_s": 0.0, **more.pop("dag", {})}, **more}


def drawn(width: int, **rows: dict[str, Any]) -> str:
    answer = {"policy": "mps", "ended": rows, "apps": {}, "workers": {}, "problems": []}
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(dags_table(answer))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_name_can_be_copied_from_a_file() -> None:
    text = drawn(FILE_WIDTH, **{NAME: row()})
    (line,) = [line for line in text.splitlines() if NAME in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == [NAME, "preemptive", "done", "0", "8 of 8", "0.750", "3.0 s", "4.0 s", "-"]


@pytest.mark.parametrize("width", [80, 100])
def test_no_part_of_a_name_is_lost_on_a_narrow_terminal(width: int) -> None:
    lines = drawn(width, **{NAME: row()}).splitlines()
    cells = [line.strip("│").partition("│")[0].strip() for line in lines if line.startswith("│")]
    assert "".join(cells) == NAME


def test_costs_and_errors_have_lines_of_their_own() -> None:
    costs = {"n_moved": 2, "n_interrupted": 1, "lost_s": 2.5}
    failed = row(state="failed", error="b/t1: exit code 1 \x1b[2J")
    text = drawn(FILE_WIDTH, a=row(dag=costs), b=failed, c=row())
    notes = [line for line in text.splitlines() if line[:2] in {"a:", "b:", "c:"}]
    assert notes == [
        "a: 2 tasks moved to another worker before they started",
        "a: 1 attempts interrupted, after 2.5 s together",
        "b: b/t1: exit code 1 ?[2J",
    ]
