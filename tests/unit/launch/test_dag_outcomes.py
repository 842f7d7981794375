"""What became of live DAGs, in the form of a simulation, and its report."""

from __future__ import annotations

import json

import pytest

from yarn_accel.core.tasks.service.history import EndedTask
from yarn_accel.errors import ConfigError
from yarn_accel.launch.dag_outcomes import live_dag_outcome
from yarn_accel.launch.dag_report import write_dag_report


def task(name, start, end, node="n1"):
    """A task that is done, as the master gives it."""
    values = dict.fromkeys(EndedTask._fields)
    values |= {"name": name, "node": node, "form": "cpu", "started_at": start, "ended_at": end, "reason": "r"}
    return list(values.values())


def answer(begun_at, rows, **more):
    """What the master says of one DAG."""
    dag = {"class": "high", "sd": 0.5, "own_makespan_s": 2.0, "n_moved": 2, "n_interrupted": 1, "lost_s": 0.5}
    return {"policy": "mps", "state": "done", "begun_at": begun_at, "rows": rows, "dag": dag, **more}


ANSWERS = {
    "a": answer(
        100.0,
        [task("x", 100, 102), task("y", 101, 104)],
        slowdowns=[(99.0, 9.0), (100.5, 1.0), (102.5, 0.75), (104.5, 0.1)],
    ),
    "b": answer(101.0, [task("x", 102, 105, "n2")], slowdowns=[]),
    "c": answer(101.0, [task("x", 102, 105)], state="running"),
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
