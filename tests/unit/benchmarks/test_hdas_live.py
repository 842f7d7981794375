"""`hdas_live` without a cluster: what is run, what runs amount to, how they compare, how one goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.papers import hdas_live
from benchmarks.papers.hdas_live import cluster, mapper, setting
from benchmarks.papers.hdas_live.runs import (
    MODES,
    LateKey,
    LateRun,
    LinkSample,
    LiveRun,
    LiveTask,
    RunKey,
    RunTable,
    late_apps,
    late_run,
    live_run,
    verdict_rows,
)
from benchmarks.papers.hdas_live.setting import (
    POLICIES,
    Overheads,
    ScaledApp,
    SimulatedRun,
    app_document,
    mix_apps,
    simulated_run,
    world,
)
from benchmarks.result import Report, Row
from benchmarks.tables import TABLES
from tests.unit.benchmarks.pretended import Pretended
from yarn_accel.core.tasks.outcome import RunOutcome, TaskOutcome, outcome_of
from yarn_accel.core.tasks.policies import make
from yarn_accel.core.tasks.values import AppId, Form, TaskId
from yarn_accel.errors import ConfigError, JobError
from yarn_accel.sim.simulator import simulate
from yarn_accel.tasks import load_app

OVERHEADS = Overheads(0.2, 0.1, 10e6)
APP = ScaledApp("KNN", 2, 8_000_000, (6.0, 0.0), (0.8, 0.2))


def test_the_shortest_task_of_all_takes_a_second() -> None:
    apps = [app for mix in "CKP" for app in mix_apps(mix)]
    assert min(sum(form) for app in apps for form in (app.cpu, app.gpu)) >= 0.999
    assert all(app.split_bytes / app.gpu[0] <= 1.001 * OVERHEADS.link_bytes_per_s for app in apps)


@pytest.mark.parametrize("mix", ["C", "K", "P"])
def test_the_service_and_the_simulator_get_the_same_figures(mix: str, tmp_path: Path) -> None:
    apps = mix_apps(mix)
    described = world(apps, "hdas", OVERHEADS, {app.name: 1.0 * n for n, app in enumerate(apps)})
    (tmp_path / "input").mkdir()
    for app, simulated in zip(apps, described.apps, strict=True):
        path = tmp_path / "app.yaml"
        path.write_text(yaml.safe_dump(app_document(app, "input", "output")))
        declared = load_app(path).figures
        assert declared is not None
        assert declared.split_bytes == round(simulated.split_mb * 1e6) == app.split_bytes
        for form in ("cpu", "gpu"):
            ours, theirs = getattr(declared, form), getattr(simulated, form)
            assert (ours.read_s, ours.compute_s) == (theirs.read_s, theirs.compute_s)


def test_pieces_and_samples_decide_who_gets_the_gpus_of_mix_p() -> None:
    # A slow reader that is seen all along has GPUs prefer BP, which reads nothing. As workers read and
    # sample, KNN and NB are often not delayed beside it: BP is left at the end, and goes to a core for 60 s.
    described = world(mix_apps("P"), "hdas", OVERHEADS, {"KNN": 0.0, "NB": 1.2, "BP": 2.1})
    exact = {"sample_interval_s": 0.0, "read_piece_mb": 0.0}
    evenly = described.model_copy(update={"options": described.options.model_copy(update=exact)})
    makespans_s = [simulate(each, make("hdas", each.settings)).makespan_s for each in (described, evenly)]
    assert makespans_s[0] > 1.5 * makespans_s[1]
    guarded = simulate(described, make("hdas+", described.settings))
    assert guarded.makespan_s < makespans_s[1]


def outcome_with(*tasks: tuple[int, str, float, float]) -> RunOutcome:
    """Of application KNN: (number, form, start, end)."""
    listed = [
        TaskOutcome(AppId("KNN"), TaskId(f"KNN/{n}"), "w3", Form(form), start_s, end_s, 1.0, "first")
        for n, form, start_s, end_s in tasks
    ]
    return outcome_of("fifo", {AppId("KNN"): 0.0}, listed)


def test_a_run_is_summed_up() -> None:
    outcome = outcome_with((0, "gpu", 0.1, 2.6), (1, "cpu", 0.1, 6.6))
    tasks = [LiveTask("KNN", 0, "w3", "gpu", 0.5, 2.1, 2.5), LiveTask("KNN", 1, "w3", "cpu", 0.5, 6.5, 6.5)]
    links = [LinkSample(0.0, 1000), LinkSample(4.0, 8_001_000), LinkSample(8.0, 16_001_000)]
    run = live_run(RunKey("C", "fifo", 0), [APP], outcome, 0.25, tasks, links, 1.5)
    assert run.makespan_s == 6.6
    assert run.delays == {"KNN": {"gpu": [1, pytest.approx(2.0)], "cpu": [1, pytest.approx(1.04)]}}
    assert run.mean_delay == pytest.approx(1.52)
    assert run.gpu_computing == pytest.approx(0.4 / (8 * 6.6))
    assert run.use == [[2.0, 0, 2_000_000], [6.0, 0, 2_000_000]]
    assert LiveRun.from_mapping(json.loads(json.dumps(run.to_mapping()))).key == run.key


@pytest.mark.parametrize(
    ("numbers", "n_reported"), [((0,), 1), ((0, 1, 1), 2), ((0, 2), 2), ((0, 1), 1), ((0, 1), 3)]
)
def test_a_run_that_lost_or_doubled_a_task_is_none(numbers: tuple[int, ...], n_reported: int) -> None:
    tasks = [LiveTask("KNN", number, "w3", "gpu", 0.0, 1.0, 1.0) for number in numbers]
    outcome = outcome_with(*((number, "gpu", 0.0, 1.0) for number in range(n_reported)))
    with pytest.raises(ValueError, match="each once"):
        live_run(RunKey("C", "fifo", 0), [APP], outcome, 0.0, tasks, [], 0.0)


def test_two_simulated_readers_share_a_link() -> None:
    found = simulated_run([APP], "fifo", OVERHEADS, {"KNN": 0.0})
    assert found.makespan_s == pytest.approx(0.2 + 1.6 + 0.2)
    assert found.mean_delay == pytest.approx(2.0 / 1.2)
    assert found.gpu_computing == pytest.approx(2 * 0.2 / (8 * 2.0), rel=0.05)
    assert found.link_used == pytest.approx(2 * 8.0 / (4 * 10.0 * 2.0), rel=0.05)


def run_of(policy: str, makespan_s: float, repeat: int = 0) -> LiveRun:
    return LiveRun(RunKey("C", policy, repeat), makespan_s, 1.2, {"KNN": 0.0}, {}, 0.5, 0.5, 0.1)


def verdict(
    live: Sequence[float], simulated: Sequence[float], policies: Sequence[str] = POLICIES
) -> dict[str, Row]:
    runs = RunTable(run_of(policy, each) for policy, each in zip(policies, live, strict=True))
    table = {
        ("C", policy): SimulatedRun(each, 1.2, 0.5, 0.5)
        for policy, each in zip(policies, simulated, strict=True)
    }
    return {row.what.split(",")[0]: row for row in verdict_rows(runs, table)}


def test_the_simulator_is_judged_by_its_errors_and_by_the_order() -> None:
    rows = verdict((40.0, 30.0, 30.0, 20.0), (40.0, 33.0, 31.0, 16.0))
    assert rows["mean error of makespan"].value == pytest.approx((0 + 0.1 + 1 / 30 + 0.2) / 4)
    assert rows["mean error of makespan"].ok
    [pairs] = [row for what, row in rows.items() if what.startswith("pairs")]
    assert (pairs.value, pairs.ok) == (1.0, True)  # model and hdas differ by less than 10 % simulated
    rows = verdict((30.0, 40.0, 30.0, 20.0), (40.0, 30.0, 30.0, 20.0))
    [pairs] = [row for what, row in rows.items() if what.startswith("pairs")]
    assert not pairs.ok
    assert "C, fifo and model" in pairs.note


def test_two_policies_are_enough_to_judge_and_one_is_not() -> None:
    rows = verdict((40.0, 20.0), (42.0, 20.0), ("fifo", "hdas+"))
    assert rows["mean error of makespan"].value == pytest.approx(0.025)
    assert [row.what for row in rows.values()][-1] == "time saved against fifo, hdas+"
    [row] = verdict_rows(RunTable([run_of("fifo", 30.0)]), {})
    assert row.n == 0


def test_the_mapper_notes_its_times_and_its_device() -> None:
    environ = {**os.environ, "mapreduce_task_partition": "3", "NM_HOST": "w3", "mapreduce_job_name": "KNN"}
    forms = json.dumps({"cpu": [0.01, 0.0], "gpu": [0.01, 0.02]})
    command = [sys.executable, "-I", "-S", mapper.__file__, forms, "100000"]
    for device, form in (("1", "gpu"), ("", "cpu")):
        env = {**environ, "CUDA_VISIBLE_DEVICES": device}
        done = subprocess.run(command, input=b"x" * 100_000, env=env, capture_output=True)
        row = json.loads(done.stdout)
        assert (row["app"], row["task"], row["node"], row["form"]) == ("KNN", 3, "w3", form)
        assert row["n_bytes"] == 100_000
        assert row["has_read_s"] - row["started_s"] >= 0.01
        assert row["ended_s"] - row["has_read_s"] >= (0.02 if device else 0.0)


# ---- the whole run over a pretended cluster


class PretendedCluster(Pretended):
    n_prepared = 0

    def measure_overheads(self) -> Overheads:
        self.n_measured += 1
        return OVERHEADS

    def run(self, key: RunKey, apps: Sequence[ScaledApp], overheads: Overheads) -> LiveRun:
        self.note(key)
        starts_s = {app.name: 1.0 * number for number, app in enumerate(apps)}
        return LiveRun(key, 20.0, 1.2, starts_s, {}, 0.5, 0.5, 0.1, use=[[0.5, 1, 2.0], [1.0, 0, 0.0]])

    def prepare_late_binding(self, link_bytes_per_s: float, n_mappers: int) -> None:
        self.n_prepared += 1

    def run_late(self, key: LateKey) -> LateRun:
        return LateRun(key, 60.0 if key.mode == "first" else 40.0, 1.1, 2.0, 20, 4, 0, 0.1)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> PretendedCluster:
    found = PretendedCluster()
    monkeypatch.setattr(cluster, "cluster_up", found.up)
    return found


def run_all(path: Path, only: Sequence[str] = ("C",), **options: Any) -> Report:
    report = Report("hdas_live", path=path)
    hdas_live.run(False, lambda line: None, report, only=only, **options)
    return report


def test_streaming_jobs_run_with_and_without_late_binding(
    pretended: PretendedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    run_all(path, only=("late-binding",))
    report = run_all(path, only=("late-binding",), resume=True)
    rows = {row.what: row for row in report.rows}
    assert (rows["late binding, without: time"].value, rows["late binding, with: time"].value) == (60.0, 40.0)
    assert rows["late binding, with: time"].n == 3
    assert pretended.n_prepared == 1


def test_a_late_run_counts_what_mappers_read_and_computed() -> None:
    apps = late_apps()
    mappers = [
        {
            **{"job": app.name, "form": "gpu", "waited_s": 2.0, "is_decided": True},
            **{"start_s": 100.0 + number, "end_s": 102.0 + number + 1.5 * app.alone_s("gpu")},
        }
        for app in apps
        for number in range(12)
    ]
    run = late_run(LateKey("agent", 0), apps, mappers, 0.5)
    assert run.mean_delay == pytest.approx(1.5)
    assert (run.mean_wait_s, run.n_gpu, run.n_cpu, run.n_undecided) == (2.0, 24, 0, 0)
    assert LateRun.from_mapping(json.loads(json.dumps(asdict(run)))) == run
    with pytest.raises(ValueError, match="23 mappers"):
        late_run(LateKey("agent", 0), apps, mappers[1:], 0.5)


def test_repeats_are_interleaved() -> None:
    keys = hdas_live.plan((), is_quick=False)
    assert len(keys) == len(set(keys)) == 3 * 3 * 4 + 3 * 3
    mixes = [key for key in keys if isinstance(key, RunKey)]
    assert keys[: len(mixes)] == mixes
    assert [key.repeat for key in mixes] == sorted(key.repeat for key in mixes)
    # One service for all mixes of a policy in a repeat.
    assert [key.mix for key in mixes[:3]] == ["C", "K", "P"]
    assert [key.policy for key in mixes[:12:3]] == list(POLICIES)
    assert [str(key) for key in keys[-3:]] == [
        "late binding, without, run 3",
        "late binding, with, run 3",
        "late binding, with, figures learned, run 3",
    ]


def test_a_run_that_breaks_keeps_what_it_has_and_another_one_adds_the_rest(
    pretended: PretendedCluster, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    pretended.break_at = 5
    with pytest.raises(JobError):
        run_all(path)
    assert len(json.loads(path.read_text())["series"]["runs"]) == 5
    pretended.break_at = -1
    report = run_all(path, resume=True)
    assert sorted(map(str, pretended.ran)) == sorted(map(str, hdas_live.plan(("C",), is_quick=False)))
    assert pretended.n_measured == 1
    assert [row.n for row in report.rows if row.what == "C, hdas+: makespan"] == [3]
    drawn = hdas_live.draw(report, str(tmp_path / "r"))
    assert [Path(each).stat().st_size > 0 for each in drawn] == [True]


def test_runs_of_other_parameters_are_not_mixed(pretended: PretendedCluster, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    hdas_live.run(True, lambda line: None, Report("hdas_live", path=path), only=("C",))
    n_ran = len(pretended.ran)
    with pytest.raises(ConfigError, match=r"r\.json was recorded with share_of_tasks 0\.03, this .* 0\.08"):
        run_all(path, resume=True)
    assert len(pretended.ran) == n_ran
    assert len(json.loads(path.read_text())["series"]["runs"]) == n_ran


def test_the_table_has_every_run_live_beside_simulated(pretended: PretendedCluster, tmp_path: Path) -> None:
    run_all(tmp_path / "r.json", only=("C", "late-binding"))
    lines = TABLES["hdas-live"]({"hdas_live": json.loads((tmp_path / "r.json").read_text())})
    assert [line.split()[:3] for line in lines[2:6]] == [["C,", policy, "20.0"] for policy in POLICIES]
    assert len({len(line) for line in lines[1:6]}) == 1
    assert any(line.startswith("mean error of makespan") for line in lines)
    assert any("two streaming jobs with late binding: 40 s" in line for line in lines)


def test_the_table_is_the_same_when_the_streaming_jobs_have_a_file_of_their_own(
    pretended: PretendedCluster, tmp_path: Path
) -> None:
    for name, only in (("both", ("C", "late-binding")), ("mixes", ("C",)), ("late", ("late-binding",))):
        run_all(tmp_path / f"{name}.json", only=only)
    both, mixes, late = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("both", "mixes", "late")
    )
    table = TABLES["hdas-live"]
    assert table({"hdas_live": mixes, "hdas_live-late": late}) == table({"hdas_live": both})
    assert len(table({"hdas_live": mixes})) == len(table({"hdas_live": both})) - len(MODES)


def test_no_run_begins_when_the_time_is_over(pretended: PretendedCluster, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(JobError, match="the time is over, and 12 runs are left; --resume runs them"):
        run_all(path, minutes=0.0)
    assert pretended.ran == []
    document = json.loads(path.read_text())
    assert document["series"]["overheads"] == asdict(OVERHEADS)
    assert document["machine"]["time_divided_by"] == setting.SLOWNESS
