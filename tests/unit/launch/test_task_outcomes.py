"""`tasks report`: what the master answers becomes the JSON that a simulation writes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.unit.launch.task_master import T, answer, row
from yarn_accel.cli import root
from yarn_accel.errors import ConfigError, RejectedError
from yarn_accel.launch.task_outcomes import live_outcome, what_is_missing


def test_seconds_begin_with_the_first_submission() -> None:
    outcome = live_outcome(
        {"a": answer([row("0", 2, 12), row("1", 3, 8)]), "b": answer([row("0", 7, 14)], begun_at=T + 5)}
    )
    assert outcome.as_json() == {
        "policy": "hdas",
        "makespan_s": 14.0,
        "mean_delay": pytest.approx((2 + 1 + 1.4) / 3),
        "apps": {
            "a": {"start_s": 0.0, "end_s": 12.0, "delay": pytest.approx(1.5)},
            "b": {"start_s": 5.0, "end_s": 14.0, "delay": pytest.approx(1.4)},
        },
        "tasks": [
            {
                "app": name,
                "task": f"{name}/{task}",
                "node": "n1",
                "form": "gpu",
                "start_s": start_s,
                "end_s": end_s,
                "reason": "(a) least delay 1",
            }
            for name, task, start_s, end_s in (("a", "0", 2, 12), ("a", "1", 3, 8), ("b", "0", 7, 14))
        ],
    }


def test_what_nobody_knows_is_null_and_is_said() -> None:
    answers = {
        "a": answer([row("0", 2, 12, None), row("1", 3, 8)], ended_at=None, state="running"),
        "b": answer([], state="cancelled", ended_at=T + 3),
        "c": answer([], tasks={"done": 7}),
    }
    found = live_outcome(answers).as_json()
    assert found["makespan_s"] is None
    assert found["apps"]["a"] == {"start_s": 0.0, "end_s": None, "delay": 1.0}
    assert found["apps"]["b"] == {"start_s": 0.0, "end_s": 3.0, "delay": None}
    assert found["apps"]["c"]["end_s"] == 100.0
    json.dumps(found, allow_nan=False)
    assert list(what_is_missing(answers)) == [
        "a runs: 2 of its 2 tasks are done so far",
        "a: tasks whose delay is not known: 1 of 2, "
        "for nobody knew how long it takes alone, or it was not measured",
        "b cancelled: its owner ended it",
        "c: its 7 tasks are not kept any more, as others ended since",
    ]


def test_the_command_asks_for_all_and_writes_them(master, tmp_path) -> None:
    out = tmp_path / "out.json"
    result = CliRunner().invoke(root, ["tasks", "report", "--json", str(out)])
    assert result.exit_code == 0, result.exception
    found = json.loads(out.read_text())
    assert set(found["apps"]) == {"a", "b"}
    assert [task["start_s"] for task in found["tasks"]] == [0, 1, 2, 3, 4]
    assert [document["first"] for verb, document in master.asked if verb == "tasks-outcome"] == [0, 2, 4, 0]


def test_the_command_asks_for_those_that_are_named(master, tmp_path) -> None:
    out = tmp_path / "out.json"
    assert CliRunner().invoke(root, ["tasks", "report", "a", "--json", str(out)]).exit_code == 0
    assert set(json.loads(out.read_text())["apps"]) == {"a"}
    wrong = CliRunner().invoke(root, ["tasks", "report", "nobody", "--json", str(out)])
    assert isinstance(wrong.exception, RejectedError)
    master.apps.clear()
    nothing = CliRunner().invoke(root, ["tasks", "report", "--json", str(out)])
    assert isinstance(nothing.exception, ConfigError)


def test_the_command_writes_a_folder(master, tmp_path) -> None:
    result = CliRunner().invoke(root, ["tasks", "report", "a", "--out", str(tmp_path / "report")])
    assert result.exit_code == 0, result.exception
    assert result.stdout == f"{tmp_path}/report/index.html\n"
    assert set(json.loads((tmp_path / "report" / "outcome.json").read_text())["apps"]) == {"a"}
    assert ("tasks-use", {"nodes": ["n1"]}) in master.asked
    assert CliRunner().invoke(root, ["tasks", "report", "a"]).exit_code == 2
