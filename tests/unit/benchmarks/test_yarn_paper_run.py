"""The run of `yarn_paper` over a pretended cluster: what is written when, and what a second run adds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import yarn_paper
from benchmarks.__main__ import main
from benchmarks.result import Report
from benchmarks.yarn_paper import planning, running
from benchmarks.yarn_paper.cells import Cell, Key
from benchmarks.yarn_paper.claims import CLAIMS
from yarn_accel.errors import JobError


class Pretended:
    """Answers every cell at once; breaks at a given one."""

    def __init__(self) -> None:
        self.ran: list[Key] = []
        self.clusters: list[int] = []
        self.break_at = -1

    @contextmanager
    def ground_up(self, workers: int, folder: Path, say: Any, mode: str) -> Iterator[Pretended]:
        self.clusters.append(workers)
        yield self

    def run(self, key: Key) -> Cell:
        if len(self.ran) == self.break_at:
            raise JobError("broken")
        self.ran.append(key)
        return Cell(key, 2.0, 12.0, 100, 0, {"w1": 25, "w2": 25}, n_attempts=2, n_maps=2)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    found = Pretended()
    monkeypatch.setattr(running, "ground_up", found.ground_up)
    return found


def run(path: Path, **options: Any) -> Report:
    report = Report("yarn_paper", path=path)
    yarn_paper.run(True, lambda line: None, report, **options)
    return report


def test_all_cells_are_run_on_two_clusters(pretended: Pretended, tmp_path: Path) -> None:
    report = run(tmp_path / "r.json")
    assert sorted(map(str, pretended.ran)) == sorted(map(str, planning.plan(is_quick=True)))
    assert pretended.clusters == [4, 6]
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


def test_nothing_is_taken_up_unless_wanted(pretended: Pretended, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    run(path, only=("container",))
    run(path, only=("container",))
    assert len(pretended.ran) == 2 * len(planning.plan(["container"], is_quick=True))


def test_no_cell_is_begun_after_the_hour(
    pretended: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yarn_paper, "_LIMIT_S", -1.0)
    with pytest.raises(JobError, match="--resume"):
        run(tmp_path / "r.json")
    assert pretended.ran == []


@pytest.mark.parametrize("words", [["pipeline", "--resume", "--json", "x.json"], ["yarn_paper", "--resume"]])
def test_only_this_benchmark_with_a_file_resumes(words: list[str]) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "resumes" in result.output


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
