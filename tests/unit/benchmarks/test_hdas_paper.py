"""The HDAS benchmark: nothing of the paper is left out, and what does not hold says why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.papers.hdas_paper import draw, series
from benchmarks.papers.hdas_paper.beyond import (
    READINGS,
    beyond_jobs,
    reading_jobs,
    reading_rows,
    scale_rows,
    scale_world,
)
from benchmarks.papers.hdas_paper.claims import (
    Mixes,
    Rates,
    claim_rows,
    goal_rows,
    load_rates,
    pair_delays,
    rank_correlation,
)
from benchmarks.papers.hdas_paper.paper import (
    EXCEPTIONS,
    MIXES,
    POLICIES,
    SETS,
    Job,
    Run,
    mix_world,
    run_world,
)
from benchmarks.result import Report
from yarn_accel.core.tasks.contention import READ_SECONDS
from yarn_accel.core.tasks.policies import registry
from yarn_accel.sim.world import world_of


def some_run(makespan_s: float, mean_delay: float = 1.0) -> Run:
    forms = {app: {"cpu": (1, 1.0), "gpu": (9, mean_delay)} for app in ("KNN", "NB", "BP")}
    return Run(makespan_s, mean_delay, 10, 1.0, forms)


def test_letters_are_the_papers() -> None:
    assert (len(MIXES), MIXES["A"], MIXES["B"]) == (25, ("KNN", "Kmeans"), ("KNN", "RS"))
    assert (MIXES["K"], MIXES["P"]) == (("KNN", "Kmeans", "RS"), ("KNN", "NB", "BP"))
    assert len(EXCEPTIONS) == 7


def test_shares_of_reading_are_the_papers() -> None:
    for parameters in SETS.values():
        for name, share in (("KNN", 0.828), ("Kmeans", 0.240), ("NB", 0.539)):
            app = parameters.apps[name]
            assert app.gpu_read_s / (app.gpu_read_s + app.gpu_compute_s) == pytest.approx(share, abs=0.001)


def test_every_statement_is_judged_and_says_why_not() -> None:
    mixes = Mixes({(letter, policy): some_run(100.0, 3.3) for letter in MIXES for policy in POLICIES})
    rows = claim_rows("S2", mixes)
    assert len(rows) >= 50
    assert {row.ok for row in rows} == {True, False}
    assert all(row.goal.startswith("paper: ") for row in rows)
    assert [row.what for row in rows if not row.ok and not row.note] == []


def test_goals_are_judged_by_the_mean() -> None:
    runs = {
        (letter, policy): some_run({"hadoop": 2000.0}.get(policy, 100.0))
        for letter in MIXES
        for policy in POLICIES
    }
    rows = goal_rows("S2", Mixes(runs), {"hdas": 19.5, "hdas+": 22.5})
    assert [(row.value, row.ok) for row in rows[:2]] == [(20.0, True), (20.0, False)]


def test_a_run_is_condensed() -> None:
    world = mix_world(("BP",), SETS["S2"], "fifo")
    world["apps"][0]["tasks"] = 40
    run = run_world(Job(("small",), world, "node-1"))
    assert run.n_tasks == sum(n for n, _ in run.forms["BP"].values()) == 40
    assert 0 < run.gpu_computing <= 1
    assert 0 < run.io_used < 0.1
    assert run.share("BP", "gpu") > 0.5


def test_other_clusters_are_worlds() -> None:
    jobs = list(beyond_jobs(("P",)))
    assert len({job.key for job in jobs}) == len(jobs) > 40
    for job in jobs:
        world_of(job.world, "job")
    world = world_of(scale_world(100, 1000, 5, "hdas"), "scale")
    assert (len(world.apps), world.nodes[0].count) == (100, 1000)


def test_readings_are_worlds_and_rows() -> None:
    jobs = list(reading_jobs("P"))
    for job in jobs:
        world = world_of(job.world, "job")
        registry.make(world.policy, world.settings)
    rows = reading_rows({job.key: some_run(100.0) for job in jobs})
    assert [row.value for row in rows] == [1.0] * len(READINGS)


def test_decisions_are_timed() -> None:
    rows = scale_rows(5, 3, 4)
    assert {row.unit for row in rows} == {"us"}
    assert all(row.value > 0 for row in rows)


def test_equal_orders_have_rank_correlation_1() -> None:
    assert rank_correlation([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert rank_correlation([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    assert rank_correlation([(1, 1), (1, 2), (2, 3)]) == pytest.approx(0.866, abs=0.001)


def test_a_pair_is_predicted_from_each_job_beside_its_twin() -> None:
    # a uses half of the GPU, b all of it: together they need 1.5 of it.
    rates = Rates({"a": 10.0, "b": 10.0}, {("a", "a"): (10, 10), ("b", "b"): (5, 5), ("a", "b"): (10, 5)})
    [(predicted, measured)] = pair_delays(rates, "equal-share")
    assert (predicted, measured) == (1.5, 1.5)


@pytest.mark.parametrize("gpu", ["k80", "p100", "v100"])
def test_the_extract_is_whole(gpu) -> None:
    rates = load_rates(gpu)
    assert len(rates.alone) == 26
    assert len(rates.pairs) > 250
    for form in READ_SECONDS:
        assert len(pair_delays(rates, form)) > 240


def test_figures_are_drawn_from_a_report(tmp_path) -> None:
    mixes = Mixes(
        {
            (letter, policy): dataclasses.replace(some_run(100.0), use=[(0.0, 1.0, 2.0), (1.0, 0.0, 0.5)])
            for letter in MIXES
            for policy in POLICIES
        }
    )
    report = Report("hdas_paper", series={"S2": series(mixes)})
    files = draw(report, str(tmp_path / "drawn"))
    assert [Path(file).name for file in files] == ["drawn-S2-mixes.png", "drawn-S2-P.png"]
    assert all(Path(file).stat().st_size > 10_000 for file in files)
