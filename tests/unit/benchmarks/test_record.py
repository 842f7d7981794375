"""The one quiet run that records what is stale: its order, its minutes, and that it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import record
from benchmarks.papers.report import running
from benchmarks.papers.report.claims import PAPERS
from benchmarks.record import record_stale, recording_plan
from benchmarks.registry import RECORDINGS
from benchmarks.result import current_commit

LOGS = [Path(f"{each.log}.gz") for each in RECORDINGS.values() if each.log]


@pytest.fixture
def everything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has what benchmarks need."""
    monkeypatch.setattr(running, "needs_of", lambda stem, benchmark="": "")


def stale(wall_s: float) -> running.Result:
    return running.Result({"wall_s": wall_s}, "old", is_taken=True)


def test_what_judges_a_claim_comes_first_and_all_of_it_fits_into_170_minutes() -> None:
    plan = recording_plan({}, LOGS, 170)
    chosen = [each.stem for each in plan.chosen]
    of_report = {stem for stem in running.names(PAPERS) if RECORDINGS[stem].rank != 2} - set(plan.lacks)
    assert of_report <= set(chosen)
    assert {"yarn_master", "yarn_faults", "hadoop"} <= set(chosen)
    assert sum(each.estimate_s for each in plan.chosen) <= 170 * 60
    assert {*chosen, *(each.stem for each in plan.later), *plan.lacks} == RECORDINGS.keys()


@pytest.mark.usefixtures("everything_runs")
def test_what_it_took_last_time_is_what_it_is_planned_with() -> None:
    plan = recording_plan({"soak": stale(60.0)}, [], 1e6)
    assert {each.stem: each.estimate_s for each in plan.chosen}["soak"] == 60.0


@pytest.mark.usefixtures("everything_runs")
def test_what_is_current_is_left_alone() -> None:
    current = running.Result({"wall_s": 1.0}, "", is_taken=True)
    plan = recording_plan({"soak": current}, [], 1e6)
    assert "soak" not in {each.stem for each in plan.chosen}


def test_what_was_recorded_before_it_was_killed_is_kept(tmp_path: Path, monkeypatch) -> None:
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.setattr(record, "RESULTS", results)
    chosen = tuple(
        running.Experiment(stem, RECORDINGS[stem], None, 1.0) for stem in ("fair", "images", "soak")
    )
    plan = record.RecordingPlan(chosen, (), {})
    monkeypatch.setattr(record, "recording_plan", lambda *args: plan)
    ran = []

    def run(self: running.Runner, todo, console) -> None:
        for each in todo:
            ran.append(each.stem)
            if each.stem == "images" and len(ran) == 2:
                raise KeyboardInterrupt
            document = {
                "commit": current_commit(), "state": "complete", "is_quick": False,
                "machine": {"cluster_mode": ""}, "name": each.stem, "started_at": "2026-01-02",
            }  # fmt: skip
            self.result(each.stem).parent.mkdir(parents=True, exist_ok=True)
            self.result(each.stem).write_text(json.dumps(document))

    monkeypatch.setattr(running.Runner, "run", run)
    out = ["--out", str(tmp_path / "out")]
    assert CliRunner().invoke(record_stale, out).exit_code == 130
    assert sorted(path.stem for path in results.iterdir()) == ["fair"]
    found = CliRunner().invoke(record_stale, out)
    assert found.exit_code == 0, found.output
    assert ran == ["fair", "images", "images", "soak"]
    assert sorted(path.stem for path in results.iterdir()) == ["fair", "images", "soak"]


def test_a_dry_run_runs_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    found = CliRunner().invoke(record_stale, ["--dry-run", "--minutes", "10", "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.output
    assert "next run" in found.output
    assert not (tmp_path / "out").exists()
