"""What became of live tasks and DAGs: the master's answers become the JSON that a simulation writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.launch.task_master import T, answer, row
from tests.unit.master.test_task_page import BELIEF
from yarn_accel.cli import root
from yarn_accel.core.tasks.service.history import EndedTask
from yarn_accel.core.tasks.use_over_time import NodePlace
from yarn_accel.errors import ConfigError, RejectedError
from yarn_accel.launch.outcomes import live_dag_outcome, live_outcome, live_report, what_is_missing
from yarn_accel.report.runs import report_page, write_dag_report, write_report


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


# The use of nodes.


def use_document() -> dict[str, Any]:
    """I/O of node n1 from 10 s before the first submission on, with a gap."""
    about = {"node": "n1", "n_cores": 4, "n_gpus": 2, "bandwidth_bytes_per_s": 1e8}
    series = {"cores": [], "gpus": [], "bytes_per_s": [1.0, 2.0, 3.0, None, 5.0]}
    return {"step_s": 5.0, "workers": {"n1": {**about, **series, "from_at": T - 10}}}


def test_the_use_of_nodes_comes_from_tasks_and_samples() -> None:
    answers = {"a": answer([row("0", 1, 9), row("1", 2, 12)])}
    report = live_report(answers, use_document(), {"knn": [BELIEF], "other": []})
    assert report.places == {"n1": NodePlace(4, 2, 1e8)}
    assert list(report.figures) == ["knn"]
    found = [
        (each.at_s, each.n_cores_held, each.n_gpus_held, each.n_gpus_computing, each.io_bytes_per_s)
        for each in report.outcome.use["n1"]
    ]
    # Each task computes in its last two seconds.
    assert found[:4] == [
        (0.0, 0, 0, 0, 3.0),
        (1.0, 1, 1, 0, 3.0),
        (2.0, 2, 2, 0, 3.0),
        (5.0, 2, 2, 0, pytest.approx(math.nan, nan_ok=True)),
    ]
    assert found[4:8] == [
        (7.0, 2, 2, 1, pytest.approx(math.nan, nan_ok=True)),
        (9.0, 1, 1, 0, pytest.approx(math.nan, nan_ok=True)),
        (10.0, 1, 1, 1, 5.0),
        (12.0, 0, 0, 0, 5.0),
    ]
    assert report_page(report)


def test_a_master_that_has_no_samples_any_more_is_no_obstacle(tmp_path: Path) -> None:
    report = live_report({"a": answer([row("0", 1, 9)])}, {"step_s": 5.0, "workers": {}}, {})
    assert math.isnan(report.outcome.use["n1"][0].io_bytes_per_s)
    assert write_report(report, tmp_path) == []


# DAGs.


def dag_task(name, start, end, node="n1"):
    """A task that is done, as the master gives it."""
    values = dict.fromkeys(EndedTask._fields)
    values |= {"name": name, "node": node, "form": "cpu", "started_at": start, "ended_at": end, "reason": "r"}
    return list(values.values())


def dag_answer(begun_at, rows, **more):
    """What the master says of one DAG."""
    dag = {"class": "high", "sd": 0.5, "own_makespan_s": 2.0, "n_moved": 2, "n_interrupted": 1, "lost_s": 0.5}
    return {"policy": "mps", "state": "done", "begun_at": begun_at, "rows": rows, "dag": dag, **more}


ANSWERS = {
    "a": dag_answer(
        100.0,
        [dag_task("x", 100, 102), dag_task("y", 101, 104)],
        slowdowns=[(99.0, 9.0), (100.5, 1.0), (102.5, 0.75), (104.5, 0.1)],
    ),
    "b": dag_answer(101.0, [dag_task("x", 102, 105, "n2")], slowdowns=[]),
    "c": dag_answer(101.0, [dag_task("x", 102, 105)], state="running"),
}


def test_slowdowns_are_those_that_were_noted_and_end_exactly():
    outcome = live_dag_outcome(ANSWERS)
    assert outcome.slowdowns == {"a": [(0.5, 1.0), (2.5, 0.75), (4.0, 0.5)], "b": [(5.0, 0.5)]}
    assert {each.machine for each in outcome.tasks} == {"n1#0", "n1#1", "n2#0"}
    assert outcome.moved == 4
    assert outcome.unfairness == 0


def test_a_live_report_is_that_of_a_simulation(tmp_path):
    assert write_dag_report(live_dag_outcome(ANSWERS), tmp_path) == []
    document = json.loads((tmp_path / "outcome.json").read_text())
    assert document["dags"]["b"] == {
        "arrival": 1.0,
        "end": 5.0,
        "makespan": 4.0,
        "own_makespan": 2.0,
        "sd": 0.5,
    }
    page = (tmp_path / "index.html").read_text()
    assert page.count("a/y on n1#1: 1 to 4 s; r") == 2
    assert "a: SD 0.500 at 4 s" in page
    assert (tmp_path / "gantt.png").stat().st_size
    assert (tmp_path / "slowdowns.png").stat().st_size


def test_without_a_dag_that_is_done():
    with pytest.raises(ConfigError, match="none of these is a DAG that is done"):
        live_dag_outcome({"c": ANSWERS["c"]})


def test_utilisation_is_that_of_the_machines_that_were_there():
    there = {"a": (10.0, 42.0), "b": (14.0, 50.0)}
    answers = {
        name: {
            **ANSWERS[name],
            "dag": {**ANSWERS[name]["dag"], "core_s_before": before, "core_s_after": after},
        }
        for name, (before, after) in there.items()
    }
    # Tasks ran for 8 s on three cores of eight, which were there for five seconds.
    assert live_dag_outcome(answers).utilisation == 8 / 40
    assert live_dag_outcome(ANSWERS).utilisation == 8 / 15
