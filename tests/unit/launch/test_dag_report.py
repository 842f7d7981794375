"""The report of `yarn-accel dag simulate`."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.fixtures.dag_worlds import paper_world
from tests.unit.master.reading import Reader
from tests.unit.master.test_page import EVIL
from yarn_accel.core.dags.outcome import DagRunOutcome
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.dags.slowdown_series import SlowdownSeries
from yarn_accel.errors import StartupError
from yarn_accel.launch.dag_report import dag_report_page, write_dag_report
from yarn_accel.sim.dag_simulator import simulate_dags


@pytest.fixture(scope="module")
def outcome() -> DagRunOutcome:
    """The paper's Figure 3(b)."""
    return simulate_dags(paper_world(), make_dag_policy("mps", 1.0))


def test_slowdowns_are_those_that_the_policy_decided_by(outcome, tmp_path) -> None:
    assert write_dag_report(outcome, tmp_path) == []
    slowdowns = dict(json.loads((tmp_path / "outcome.json").read_text())["slowdowns"]["B"])
    assert slowdowns[13] == pytest.approx(-1.154, abs=5e-4)
    assert slowdowns[38] == pytest.approx(36 / 38)


def test_a_policy_that_does_not_go_by_slowdowns_has_them_by_its_plan() -> None:
    found = simulate_dags(paper_world(), make_dag_policy("round_robin", 1.0))
    assert all(len({value for _, value in points}) > 2 for points in found.slowdowns.values())


def test_the_page_has_a_bar_for_each_task_twice_and_needs_nothing_else(outcome) -> None:
    page = dag_report_page(outcome)
    assert page.count("A/A10 on M2: 86 to 93 s") == 2
    assert "unfairness 0.087, utilisation 0.606, 1 moved" in page
    assert "src=" not in page
    assert "http" not in page


def test_what_users_name_is_text(outcome) -> None:
    name = f"$\\frac{{1{EVIL}"
    evil = replace(
        outcome,
        dags={name: outcome.dags["A"]},
        tasks=tuple(replace(each, dag=name, task=EVIL, machine=EVIL, reason=EVIL) for each in outcome.tasks),
        slowdowns={name: outcome.slowdowns["A"]},
    )
    page = dag_report_page(evil)
    Reader(page)
    assert EVIL not in page


def test_names_are_no_formulas_in_pictures(outcome, tmp_path) -> None:
    name = "$\\frac{1"
    tasks = tuple(replace(each, dag=name, task=name, machine=name) for each in outcome.tasks)
    odd = replace(
        outcome, dags={name: outcome.dags["A"]}, tasks=tasks, slowdowns={name: outcome.slowdowns["A"]}
    )
    assert write_dag_report(odd, tmp_path) == []


def test_without_matplotlib_there_are_no_pictures_and_the_command_says_so(
    outcome, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (note,) = write_dag_report(outcome, tmp_path)
    assert "pip install 'cluster-accel[bench]'" in note
    assert {path.name for path in tmp_path.iterdir()} == {"outcome.json", "index.html"}


def test_a_folder_that_cannot_be_is_one_error(outcome, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="file"):
        write_dag_report(outcome, tmp_path / "file" / "report")


def test_long_runs_keep_some_decisions_over_all_of_the_time() -> None:
    series = SlowdownSeries(most_kept=10)
    n_asked = 0
    for number in range(1000):
        n_asked += series.is_next_kept
        series.add(float(number), {"a": float(number)} if series.is_next_kept else {})
    points = series.by_dag(["a", "b"])
    assert points["b"] == []
    at_s = [each for each, _ in points["a"]]
    assert 5 <= len(at_s) <= 10
    assert n_asked < 60
    steps = {after - before for before, after in pairwise(at_s)}
    assert len(steps) == 1
    assert at_s[0] == 0
