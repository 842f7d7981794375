"""The plan, the cells, the claims, the pictures and the run of the benchmark `yarn_paper`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.papers import yarn_paper
from benchmarks.papers.yarn_paper import draw, known_cells, running
from benchmarks.papers.yarn_paper.cells import (
    CLUSTERS,
    EMULATED,
    IMAGE_CPU_S,
    IMAGE_DEVICE_S,
    INTENSITIES,
    KERNELS,
    N_IMAGES,
    N_TASKS,
    PAYLOAD_MB,
    PAYLOADS_MB,
    REAL,
    SCALES,
    SECTIONS,
    Cell,
    Cells,
    Key,
    Scale,
    Stop,
    cell_of,
    device_factor,
    estimate_s,
    expected_speedup,
    plan,
    stops,
)
from benchmarks.papers.yarn_paper.claims import (
    CLAIMS,
    Claim,
    job_speedups,
    judge,
    paper_speedups,
    phase_speedups,
)
from benchmarks.papers.yarn_paper.shipped.entry import TaskRow
from benchmarks.papers.yarn_paper.views import cell_row, claim_rows, tables
from benchmarks.result import Report
from tests.unit.benchmarks.pretended import Pretended
from yarn_accel.errors import JobError

OVERHEAD_S = 11.0


def ideal_phase_s(key: Key) -> float:
    """Nothing but kernels."""
    if key.operation == "features":
        n = N_IMAGES[EMULATED] // 4
        each = IMAGE_CPU_S if key.policy == "none" else IMAGE_DEVICE_S
        return n * each * (1 if key.policy == "none" else device_factor(key))
    cpu_s, device_s = SCALES[key.operation].seconds(key.intensity)
    return 25 * (cpu_s if key.policy == "none" else device_s * device_factor(key))


def ideal(keys: list[Key], phase_s=ideal_phase_s) -> Cells:
    return Cells(
        Cell(
            *(key, phase_s(key), OVERHEAD_S + phase_s(key), 100, 100 if key.policy == "none" else 0),
            *(dict.fromkeys(("w1", "w2", "w3", "w4"), 25), {"s": 100}),
            **{"n_attempts": 4, "n_maps": 4},
        )
        for key in keys
    )


def by_name(cells: Cells) -> dict[str, Claim]:
    return {claim.claim: claim for claim in judge(cells)}


def claim_of(cells: Cells, words: str) -> Claim:
    (found,) = (claim for name, claim in by_name(cells).items() if words in name)
    return found


# ---- the paper's figures


def test_kernels_have_the_paper_s_speedups_and_a_node_s_tasks_stay_together() -> None:
    shown = {name: round(kernel.speedup, 1) for name, kernel in KERNELS.items()}
    assert shown == {"lu": 8.9, "qr": 16.6, "cholesky": 8.0}
    lu = KERNELS["lu"]
    assert expected_speedup(lu, 3) == expected_speedup(lu, 2) == lu.speedup / 2
    assert expected_speedup(lu, 3, is_per_node=False) == pytest.approx(lu.speedup * 3 / 4)


def test_one_factor_scales_time_and_payload() -> None:
    scale = Scale(KERNELS["lu"], 0.11)
    assert scale.factor == pytest.approx(1 / 500)
    assert scale.seconds(8) == pytest.approx((0.88, 8 * 6.2 / 500))
    assert scale.payload_bytes(50) == 100_000
    assert "1/500" in str(scale)
    assert str(scale).startswith("emulated lu")


# ---- the plan


def test_the_plan_has_every_cell_of_the_issue_once() -> None:
    keys = plan()
    assert len(keys) == len(set(keys))
    emulated = {(k.cluster, k.operation, k.intensity) for k in plan(["emulated"])}
    assert emulated == {(c, o, i) for c in CLUSTERS for o in KERNELS for i in INTENSITIES}
    payloads = {(k.cluster, k.operation, k.payload_mb) for k in plan(["payload"]) if k.policy == "paper"}
    assert payloads == {(c, o, p) for c in ("4-2", "4-3", "4-4") for o in KERNELS for p in PAYLOADS_MB}
    assert {k.instrument for k in keys} == {EMULATED, REAL}
    assert {k.policy for k in keys} == {"none", "paper", "container", "unweighted", "weighted"}
    assert len(plan(["emulated", "payload"])) < len(plan(["emulated"])) + len(plan(["payload"]))


def test_the_whole_benchmark_keeps_within_the_hour() -> None:
    assert estimate_s(plan()) <= 57 * 60
    assert estimate_s(plan(is_quick=True)) < estimate_s(plan())


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_can_be_run_alone_and_quickly(section: str) -> None:
    assert 0 < len(plan([section], is_quick=True)) <= len(plan([section]))


def test_cells_are_grouped_so_that_the_application_starts_seldom() -> None:
    found = [stop for stop, _ in stops(plan(), Cells())]
    assert len(found) == len(set(found)) == 7
    assert found[0] == Stop("4-0", "none")
    assert found[-1] == Stop("6-3", "weighted")
    keys = plan(["container"])
    assert [k for _, some in stops(keys, ideal(keys[:2])) for k in some] == keys[2:]


# ---- cells


def rows(n: int) -> list[TaskRow]:
    return [TaskRow(i, f"w{i % 4 + 1}", "s1", False, 0.5, 100.0 + i, 101.0 + i) for i in range(n)]


KEY = Key(EMULATED, "4-2", "paper", "lu", 8, 10)


def test_a_cell_adds_up_its_rows() -> None:
    cell = cell_of(KEY, rows(N_TASKS), 30.0, 5, 4, "abc", "now")
    assert cell.phase_s == pytest.approx(100.0)
    assert cell.per_node == {"w1": 25, "w2": 25, "w3": 25, "w4": 25}
    assert cell.is_even
    assert cell.n_surplus_attempts == 1
    assert cell.kernel_s == pytest.approx(50.0)
    assert Cell.from_mapping(json.loads(json.dumps(cell.to_mapping()))) == cell
    assert not cell_of(KEY, [replace(row, node="w1") for row in rows(100)], 30.0, 4, 4, "", "").is_even


@pytest.mark.parametrize("wrong", [[*rows(4), rows(4)[2]], [rows(4)[0], *rows(4)[2:]], []])
def test_no_task_may_be_missing_or_doubled(wrong: list[TaskRow]) -> None:
    with pytest.raises(ValueError, match="missing"):
        cell_of(KEY, wrong, 1.0, 4, 4, "", "")


def test_an_earlier_file_is_taken_up_with_the_version_that_made_it(tmp_path: Path) -> None:
    report = Report("yarn_paper", path=tmp_path / "one.json")
    report.series["cells"] = [cell.to_mapping() for cell in ideal(plan(["container"])).all()]
    report.save()
    found = known_cells(report.path).all()
    assert [cell.key for cell in found] == plan(["container"])
    assert all(cell.commit for cell in found)
    assert len(known_cells(tmp_path / "none.json")) == 0


# ---- claims


def test_kernels_alone_give_the_paper_s_picture() -> None:
    assert [claim.holds for claim in judge(Cells())] == [None] * len(CLAIMS)
    found = by_name(ideal(plan()))
    doubtful = [name for name, claim in found.items() if not claim.holds]
    assert [name for name in doubtful if "single node" not in name] == []
    assert claim_of(ideal(plan()), "4-4 over 4-2").value == pytest.approx(2.0)
    assert claim_of(ideal(plan()), "`container`").value == pytest.approx(1.5)
    assert claim_of(ideal(plan()), "`weighted`").value == pytest.approx(2.0)


def test_kernels_alone_are_never_faster_than_the_single_node_says() -> None:
    claim = claim_of(ideal(plan()), "single node")
    assert claim.holds is False
    assert claim.value == pytest.approx(1.0)
    assert "0 speculative attempts in 3 jobs" in claim.why


def test_what_speculation_did_is_read_from_its_own_cells() -> None:
    cells = ideal(plan())
    (on,) = (c for c in cells.all() if c.key.cluster == "4-0" and c.key.layout.endswith(" on"))
    cells.add(replace(on, n_attempts=on.n_attempts + 3, job_s=30.0))
    why = claim_of(cells, "single node").why
    assert "it started 3 in 4-0 and 0 in 4-4" in why
    assert "30.0 s with it" in why


def test_speculation_that_slows_the_cpus_down_makes_the_claim_hold() -> None:
    def slowed(key: Key) -> float:
        is_slow = key.policy == "none" and key.intensity == 8 and key.operation != "qr"
        return ideal_phase_s(key) * (1.3 if is_slow else 1.0)

    assert claim_of(ideal(plan(), slowed), "single node").holds is True


def slower(which) -> Cells:
    return ideal(plan(), lambda key: ideal_phase_s(key) * (2.5 if which(key) else 1.0))


@pytest.mark.parametrize(
    ("words", "which"),
    [
        ("4-4 over 4-2", lambda key: key.cluster == "4-4"),
        ("does not depend on the payload", lambda key: key.payload_mb == 50),
        ("emulated kernels: the image job", lambda key: key.cluster == "4-4" and key.operation == "features"),
        ("no better than 4-2", lambda key: key.cluster == "4-2"),
        ("`container`", lambda key: key.policy == "container"),
        ("`weighted`", lambda key: key.policy == "weighted"),
    ],
)
def test_a_claim_falls_when_its_cells_say_otherwise(words: str, which) -> None:
    assert claim_of(slower(which), words).holds is False


def test_a_speedup_that_shrinks_with_the_intensity_is_seen() -> None:
    cells = ideal(
        plan(), lambda key: ideal_phase_s(key) * (9 if key.policy != "none" else 1) ** (key.intensity / 8)
    )
    assert claim_of(cells, "grows").holds is False


def test_cells_of_real_compute_judge_figure_6_alone() -> None:
    keys = plan()
    skewed = ideal(
        keys,
        lambda key: ideal_phase_s(key) * (50 if key.instrument == REAL and key.cluster == "4-4" else 1),
    )
    before = {claim.claim: claim for claim in judge(ideal(keys))}
    changed = [claim for claim in judge(skewed) if claim != before[claim.claim]]
    assert [(claim.claim[:12], claim.holds) for claim in changed] == [("real kernels", False)]


def test_only_the_task_phase_is_scaled_back_to_the_paper() -> None:
    (key,) = [k for k in plan(["emulated"]) if (k.cluster, k.operation, k.intensity) == ("4-4", "lu", 1)]
    found = paper_speedups(ideal(plan(["emulated"])), "4-4", "lu")
    kernel = KERNELS["lu"]
    assert key.payload_mb == PAYLOAD_MB
    assert found[1] == pytest.approx((25 * kernel.cpu_s + OVERHEAD_S) / (25 * kernel.device_s + OVERHEAD_S))
    assert found[1] < found[8] < kernel.speedup
    cells = ideal(plan(["emulated"]))
    assert phase_speedups(cells, "4-4", "qr")[8] == pytest.approx(KERNELS["qr"].speedup)
    assert job_speedups(cells, "4-4", "qr")[1] < job_speedups(cells, "4-4", "qr")[8]


# ---- what is shown


def test_rows_say_which_instrument_and_what_went_wrong() -> None:
    cell = replace(ideal([KEY]).all()[0], n_fallback=3, per_node={"w1": 50, "w2": 50}, n_attempts=6)
    row = cell_row(cell)
    assert row.what == "emulated lu 4-2 paper, intensity 8, 10 MB: task phase"
    assert "3 on mappers' own CPUs" in row.note
    assert "unevenly placed" in row.note
    assert "2 attempts more" in row.note


def test_claims_are_rows_and_a_table() -> None:
    claims = judge(ideal(plan(["container"])))
    found = claim_rows(claims)
    assert len(found) == len(CLAIMS)
    assert {row.ok for row in found} == {None, True}
    assert [table.row_count for table in tables(Cells(), claims)] == [0, len(CLAIMS)]


def test_the_pictures_are_drawn_from_whatever_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs matplotlib")
    report = Report("yarn_paper")
    assert draw(report, str(tmp_path / "p")) == []
    report.series["cells"] = [c.to_mapping() for c in ideal(plan(["emulated", "images"])).all()]
    names = {Path(file).name for file in draw(report, str(tmp_path / "p"))}
    assert names == {"p-speedup.png", "p-images.png"}


# ---- the run over a pretended cluster


class PretendedGround(Pretended):
    def run(self, key: Key) -> Cell:
        self.note(key)
        return Cell(key, 2.0, 12.0, 100, 0, {"w1": 25, "w2": 25}, n_attempts=2, n_maps=2)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    found = PretendedGround()
    monkeypatch.setattr(running, "ground_up", found.up)
    return found


def run(path: Path, **options: Any) -> Report:
    report = Report("yarn_paper", path=path)
    yarn_paper.run(True, lambda line: None, report, **options)
    return report


def test_all_cells_are_run_on_two_clusters(pretended: Pretended, tmp_path: Path) -> None:
    report = run(tmp_path / "r.json")
    assert sorted(map(str, pretended.ran)) == sorted(map(str, plan(is_quick=True)))
    assert [workers for workers, *_ in pretended.started] == [4, 6]
    assert len(report.rows) == len(pretended.ran) + len(CLAIMS)
    document = json.loads((tmp_path / "r.json").read_text())
    assert len(document["series"]["cells"]) == len(pretended.ran)
    assert {claim["claim"] for claim in document["series"]["claims"]} == set(CLAIMS)
    assert document["machine"]["factors"].keys() == {"lu", "qr", "cholesky"}


def test_a_run_that_breaks_keeps_its_cells_and_another_one_adds_the_rest(
    pretended: Pretended, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    pretended.break_at = 2
    with pytest.raises(JobError):
        run(path, only=("container", "weighted"))
    assert len(json.loads(path.read_text())["series"]["cells"]) == 2
    first = list(pretended.ran)
    pretended.break_at = -1
    run(path, only=("container", "weighted"), resume=True)
    assert len(set(pretended.ran)) == len(pretended.ran) == 4
    assert pretended.ran[:2] == first
    assert len(json.loads(path.read_text())["series"]["cells"]) == 4
    run(path, only=("container", "weighted"))
    assert len(pretended.ran) == 8  # Nothing is taken up unless wanted.


def test_no_cell_is_begun_after_the_hour(
    pretended: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yarn_paper, "_LIMIT_S", -1.0)
    with pytest.raises(JobError, match="--resume"):
        run(tmp_path / "r.json")
    assert pretended.ran == []


@pytest.mark.parametrize(("cluster", "policy"), [("4-0", "none"), ("4-2", "paper")])
def test_mappers_without_an_application_get_no_agent(cluster: str, policy: str, tmp_path: Path) -> None:
    """With an agent to ask, each would look for a server for a minute, and the job seem so much slower."""
    ground: Any = object.__new__(running.Ground)
    ground.site, ground._runner = SimpleNamespace(run_dir="/r"), SimpleNamespace(properties={})
    ground._folder, ground._n_cells = tmp_path, 0
    ground._prepare(Key("emulated", cluster, policy, "lu", 1, 10), {"a": "b"})
    agents = {name for name, value in ground._runner.properties.items() if value.endswith("agent.sock")}
    assert len(agents) == int(policy != "none")
    assert ground._runner.properties["a"] == "b"
