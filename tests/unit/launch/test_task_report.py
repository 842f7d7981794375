"""A report's folder: JSON, page and pictures, of simulated and of live runs."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.task_master import T, answer, row
from tests.unit.master.reading import Reader
from tests.unit.master.test_page import EVIL
from tests.unit.master.test_task_page import BELIEF
from yarn_accel.core.tasks.outcome import NodeUse, TaskOutcome, form_summaries, outcome_of
from yarn_accel.core.tasks.use_over_time import NodePlace
from yarn_accel.core.tasks.values import AppId, Form, TaskId
from yarn_accel.errors import StartupError
from yarn_accel.launch.task_outcomes import live_report
from yarn_accel.launch.task_report import MAX_DRAWN_NODES, RunReport, report_page, write_report


def task(app: str = "knn", number: int = 0, form: Form = Form.GPU, **more: Any) -> TaskOutcome:
    values: dict[str, Any] = {"start_s": 1.0, "end_s": 7.0, "alone_s": 4.0, "reason": "because", **more}
    return TaskOutcome(AppId(app), TaskId(f"{app}/{number}"), "n1", form, **values)


def some_report(app: str = "knn", node: str = "n1", **more: Any) -> RunReport:
    use = {node: (NodeUse(0.0, 50e6, 2, 1, 0), NodeUse(4.0, math.nan, 2, 1, 1), NodeUse(7.0, 0.0, 0, 0, 0))}
    tasks = [task(app, predicted_s=5.0), task(app, 1, Form.CPU, alone_s=math.nan, reason=app)]
    outcome = outcome_of("hdas", {AppId(app): 0.0}, tasks, use)
    return RunReport(outcome, {node: NodePlace(4, 2, 100e6)}, **more)


def test_a_folder_has_everything(tmp_path) -> None:
    folder = tmp_path / "new" / "report"
    assert write_report(some_report(figures={"knn": [BELIEF]}), folder) == []
    assert {path.name for path in folder.iterdir()} == {"outcome.json", "index.html", "use.png", "delays.png"}
    assert json.loads((folder / "outcome.json").read_text())["apps"]["knn"]["delay"] == 1.5
    for name in ("use.png", "delays.png"):
        assert (folder / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    write_report(some_report(), folder)  # again


def test_without_matplotlib_there_are_no_pictures_and_the_command_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (note,) = write_report(some_report(), tmp_path)
    assert "pip install 'cluster-accel[bench]'" in note
    assert {path.name for path in tmp_path.iterdir()} == {"outcome.json", "index.html"}


def test_a_folder_that_cannot_be_is_one_error(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="file"):
        write_report(some_report(), tmp_path / "file" / "report")


def test_means_by_form_leave_out_what_nobody_knows() -> None:
    cpu, gpu = form_summaries(some_report().outcome)
    assert (cpu.form, cpu.n_tasks, cpu.mean_s) == (Form.CPU, 1, 6.0)
    assert math.isnan(cpu.delay)
    assert math.isnan(cpu.predicted_delay)
    assert (gpu.form, gpu.delay, gpu.predicted_delay) == (Form.GPU, 1.5, 1.25)


def test_the_page_shows_it_and_needs_nothing_else() -> None:
    text = report_page(some_report(notes=["one thing"], figures={"knn": [BELIEF]}))
    reader = Reader(text)
    assert "http" not in text
    assert not reader.all("script")
    words = " ".join(reader.texts("section"))
    for expected in ("knn", "1.50 ×", "1.25 ×", "not known", "one thing", "because", "gpu (a100)", "mean"):
        assert expected in words
    assert len(reader.all("svg", "use")) == 1


def test_markup_in_names_is_text(tmp_path) -> None:
    report = some_report(EVIL, EVIL, notes=[EVIL], figures={EVIL: [{**BELIEF, "accelerator": EVIL}]})
    reader = Reader(report_page(report))
    assert not reader.all("script")
    assert any(EVIL.replace("\u202e", "\ufffd") in text for text in reader.texts("td"))


def test_signs_of_mathematics_in_names_are_drawn_as_they_are(tmp_path) -> None:
    write_report(some_report("$\\frac{1", "$x_{"), tmp_path)
    assert (tmp_path / "use.png").stat().st_size > 1000


def test_a_report_on_nothing_done_is_a_report(tmp_path) -> None:
    outcome = outcome_of("fifo", {AppId("a"): 0.0}, [], ended_s={AppId("a"): math.nan})
    assert write_report(RunReport(outcome), tmp_path) == []
    assert "not known" in (tmp_path / "index.html").read_text()


def test_many_nodes_are_cut() -> None:
    report = some_report()
    use = {f"n{number}": report.outcome.use["n1"] for number in range(100)}
    made = RunReport(outcome_of("hdas", {AppId("knn"): 0.0}, [task()], use), report.places)
    assert f"{MAX_DRAWN_NODES} of 100 are drawn" in report_page(made)
    assert len(Reader(report_page(made)).all("svg", "use")) == MAX_DRAWN_NODES


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
