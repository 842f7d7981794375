"""Reports on runs of tasks and of DAGs: JSON, page and pictures in a folder."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.dag_worlds import paper_world
from tests.fixtures.page_reader import Reader
from tests.unit.master.tasks.test_views import BELIEF
from tests.unit.master.test_page import EVIL
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.dags.slowdown_series import SlowdownSeries
from yarn_accel.core.tasks.outcome import NodeUse, RunOutcome, TaskOutcome, form_summaries, outcome_of
from yarn_accel.core.tasks.use_over_time import NodePlace
from yarn_accel.core.tasks.values import AppId, Form, TaskId
from yarn_accel.errors import StartupError
from yarn_accel.report.runs import MAX_DRAWN_NODES, RunReport, report_page, write_report
from yarn_accel.sim.dag_simulator import simulate_dags

FORMULA = "$\\frac{1"
#: Names and texts of users -> writes a report into a folder; its pictures.
Write = Callable[[str, Path], list[str]]


def task(app: str = "knn", number: int = 0, form: Form = Form.GPU, **more: Any) -> TaskOutcome:
    values: dict[str, Any] = {"start_s": 1.0, "end_s": 7.0, "alone_s": 4.0, "reason": "because", **more}
    return TaskOutcome(AppId(app), TaskId(f"{app}/{number}"), "n1", form, **values)


def some_report(app: str = "knn", node: str = "n1", **more: Any) -> RunReport:
    use = {node: (NodeUse(0.0, 50e6, 2, 1, 0), NodeUse(4.0, math.nan, 2, 1, 1), NodeUse(7.0, 0.0, 0, 0, 0))}
    tasks = [task(app, predicted_s=5.0), task(app, 1, Form.CPU, alone_s=math.nan, reason=app)]
    outcome = outcome_of("hdas", {AppId(app): 0.0}, tasks, use)
    return RunReport(outcome, {node: NodePlace(4, 2, 100e6)}, **more)


@pytest.fixture(scope="module")
def outcome() -> RunOutcome:
    """The MPS paper's Figure 3(b)."""
    return simulate_dags(paper_world(), make_dag_policy("mps", 1.0))


def renamed(outcome: RunOutcome, dag: str, task: str) -> RunOutcome:
    """With one DAG, all of whose names are these."""
    tasks = tuple(replace(each, app=dag, task=task, node=task, reason=task) for each in outcome.tasks)
    slowdowns = {dag: outcome.slowdowns["A"]}
    return replace(outcome, apps={dag: outcome.apps["A"]}, tasks=tasks, slowdowns=slowdowns)


@pytest.fixture(params=["tasks", "DAGs"])
def write(request: pytest.FixtureRequest, outcome: RunOutcome) -> tuple[Write, set[str]]:
    if request.param == "tasks":
        return lambda name, folder: write_report(some_report(name, name), folder), {"use.png", "delays.png"}
    pictures = {"gantt.png", "slowdowns.png"}
    return lambda name, folder: write_report(RunReport(renamed(outcome, name, name)), folder), pictures


@pytest.mark.parametrize("name", ["knn", FORMULA])
def test_a_folder_has_everything_whatever_signs_names_have(write, name, tmp_path) -> None:
    make, pictures = write
    folder = tmp_path / "new" / "report"
    assert make(name, folder) == []
    assert {path.name for path in folder.iterdir()} == {"outcome.json", "index.html", *pictures}
    assert json.loads((folder / "outcome.json").read_text())["policy"]
    for picture in pictures:
        assert (folder / picture).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    make(name, folder)  # again


def test_without_matplotlib_there_are_no_pictures_and_the_command_says_so(
    write, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (note,) = write[0]("knn", tmp_path)
    assert "pip install 'cluster-accel[bench]'" in note
    assert {path.name for path in tmp_path.iterdir()} == {"outcome.json", "index.html"}


def test_a_folder_that_cannot_be_is_one_error(write, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="file"):
        write[0]("knn", tmp_path / "file" / "report")


def test_what_users_name_is_text(outcome) -> None:
    report = some_report(EVIL, EVIL, notes=[EVIL], figures={EVIL: [{**BELIEF, "accelerator": EVIL}]})
    for page in (report_page(report), report_page(RunReport(renamed(outcome, FORMULA + EVIL, EVIL)))):
        reader = Reader(page)
        assert not reader.all("script")
        assert EVIL not in page
        assert any(EVIL.replace("\u202e", "\ufffd") in text for text in reader.texts("td"))
        assert "http" not in page.replace('http-equiv="refresh"', "")
        assert "src=" not in page


# Tasks.


def test_means_by_form_leave_out_what_nobody_knows() -> None:
    cpu, gpu = form_summaries(some_report().outcome)
    assert (cpu.form, cpu.n_tasks, cpu.mean_s) == (Form.CPU, 1, 6.0)
    assert math.isnan(cpu.delay)
    assert math.isnan(cpu.predicted_delay)
    assert (gpu.form, gpu.delay, gpu.predicted_delay) == (Form.GPU, 1.5, 1.25)


def test_the_page_shows_what_is_known() -> None:
    reader = Reader(report_page(some_report(notes=["one thing"], figures={"knn": [BELIEF]})))
    words = " ".join(reader.texts("section"))
    for expected in ("knn", "1.50 ×", "1.25 ×", "not known", "one thing", "because", "gpu (a100)", "mean"):
        assert expected in words
    assert len(reader.all("svg", "use")) == 1


def test_a_report_on_nothing_done_is_a_report(tmp_path) -> None:
    nothing = outcome_of("fifo", {AppId("a"): 0.0}, [], ended_s={AppId("a"): math.nan})
    assert write_report(RunReport(nothing), tmp_path) == []
    assert "not known" in (tmp_path / "index.html").read_text()


def test_many_nodes_are_cut() -> None:
    report = some_report()
    use = {f"n{number}": report.outcome.use["n1"] for number in range(100)}
    made = RunReport(outcome_of("hdas", {AppId("knn"): 0.0}, [task()], use), report.places)
    assert f"{MAX_DRAWN_NODES} of 100 are drawn" in report_page(made)
    assert len(Reader(report_page(made)).all("svg", "use")) == MAX_DRAWN_NODES


# DAGs.


def test_slowdowns_are_those_that_the_policy_decided_by(outcome, tmp_path) -> None:
    write_report(RunReport(outcome), tmp_path)
    slowdowns = dict(json.loads((tmp_path / "outcome.json").read_text())["slowdowns"]["B"])
    assert slowdowns[13] == pytest.approx(-1.154, abs=5e-4)
    assert slowdowns[38] == pytest.approx(36 / 38)


def test_a_policy_that_does_not_go_by_slowdowns_has_them_by_its_plan() -> None:
    found = simulate_dags(paper_world(), make_dag_policy("round_robin_at_entry", 1.0))
    assert all(len({value for _, value in points}) > 2 for points in found.slowdowns.values())


def test_the_page_has_a_bar_for_each_task_twice(outcome) -> None:
    page = report_page(RunReport(outcome))
    assert page.count("A/A10 on M2: 86 to 93 s") == 2
    assert "unfairness 0.087 (mean deviation 0.048 of the mean SD), utilisation 0.606, 1 moved" in page


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
