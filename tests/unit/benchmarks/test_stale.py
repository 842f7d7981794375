"""Which files of results are older than the code they measure: real repositories of git."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import RESULTS, ROOT
from benchmarks.registry import BENCHMARKS, RECORDINGS, SUBJECTS, load, module_of
from benchmarks.stale import shown, verdicts
from yarn_accel.errors import ConfigError


class Checkout:
    """A repository with a file that the benchmark `hdas_paper` measures, and one that it does not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        self.write("yarn_accel/sim/disk.py", "one")
        self.write("README.md", "one")
        self.first = self.commit()

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *who, *words], cwd=self.root, check=True, capture_output=True, text=True
        ).stdout.strip()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a change")
        return self.git("rev-parse", "--short=12", "HEAD")

    def result(self, commit: str, name: str = "hdas_paper", stem: str = "r", **more: object) -> None:
        started_at = "2026-01-02T03:04:05+00:00"
        result = {"name": name, "commit": commit, "started_at": started_at, "rows": [], **more}
        self.write(f"benchmarks/results/{stem}.json", json.dumps(result))

    def why(self) -> str:
        (only,) = verdicts(self.root)
        assert (only.file, only.date) == ("r.json", "2026-01-02")
        return only.why


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_result_is_current_until_what_it_measures_changes(checkout: Checkout) -> None:
    checkout.result(checkout.first)
    assert checkout.why() == ""
    checkout.write("README.md", "two")
    checkout.commit()
    assert checkout.why() == ""
    checkout.write("yarn_accel/sim/disk.py", "two")
    checkout.commit()
    assert checkout.why() == "1 files changed since, such as yarn_accel/sim/disk.py"


def test_a_commit_of_another_history_counts_for_nothing(checkout: Checkout) -> None:
    checkout.write("README.md", "two")
    gone = checkout.commit()
    checkout.git("reset", "--quiet", "--hard", checkout.first)
    for commit in (gone, "0123456789ab", "", "unknown"):
        checkout.result(commit)
        assert checkout.why().startswith("its commit is none of this history: the history was rewritten")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"name": "gone"}, "there is no such benchmark any more"),
        ({"is_quick": True}, "measured in the quick form"),
        ({"state": "running"}, "its run did not end well: running"),
        ({"state": "complete", "is_quick": False}, ""),
    ],
)
def test_what_is_no_whole_result_is_named(checkout: Checkout, more: dict[str, Any], why: str) -> None:
    checkout.result(checkout.first, **more)
    assert checkout.why() == why
    checkout.result(f"{checkout.first}+uncommitted")
    assert checkout.why() == "measured with changes that were not committed"


def test_a_stale_result_comes_with_the_command_that_records_it_again(checkout: Checkout) -> None:
    checkout.result("0123456789ab", name="pipeline", stem="pipeline-echo")
    (only,) = verdicts(checkout.root)
    assert only.cure == (
        "python -m benchmarks pipeline --only echo --json benchmarks/results/pipeline-echo.json"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "hdas_paper"}'])
def test_a_file_that_is_no_result_is_one_error(checkout: Checkout, text: str) -> None:
    checkout.write("benchmarks/results/r.json", text)
    with pytest.raises(ConfigError, match=r"r\.json is no result of a benchmark"):
        list(verdicts(checkout.root))


def test_without_a_history_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no history"):
        list(verdicts(tmp_path))


def test_what_needs_more_than_this_machine_and_what_was_never_recorded_is_listed(checkout: Checkout) -> None:
    checkout.result("unknown", name="gpu", stem="gpu")
    (only,) = found = list(verdicts(checkout.root))
    assert only.needs == "a GPU with its driver"
    assert shown(found, ["gpu", "soak"]).row_count == 2


def test_each_benchmark_names_what_it_measures_and_it_is_there() -> None:
    assert SUBJECTS.keys() == BENCHMARKS.keys()
    paths = {path.removeprefix(":!") for several in SUBJECTS.values() for path in several}
    assert [path for path in paths if not list(ROOT.glob(path))] == []


#: Those that compute their figures in their own processes, of which all that they import may be a part.
SIMULATED = ("backfill", "grid", "hdas_paper", "mps_paper", "predictor", "torque_balance")
#: Errors, files and messages; what DAGs are, of which tasks alone have none; what measured a profile that is
#: read; the checkpoints of a command that records nothing; what draws.
BESIDE = re.compile(
    r"(yarn_accel|torque_sched)/(errors|extras|uris|users|storage|local_filesystem)\.py|yarn_accel/adapters/\w+\.py"
    r"|yarn_accel/core/dags/model\.py|yarn_accel/sim/dag_checkpoints\.py|yarn_accel/(report/\w+|core/units)\.py"
    r"|yarn_accel/core/(late_binding_reports|tasks/checked_document)\.py"
    r"|torque_sched/sampler/\w+\.py"
)


def imported_by(module: str) -> set[str]:
    """Files of this repository that a module imports, at whatever place, and those that they import."""
    found: set[str] = set()
    todo = [module]
    while todo:
        path = ROOT.joinpath(*todo.pop().split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        name = str(path.relative_to(ROOT))
        if not path.exists() or name in found:
            continue
        found.add(name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                todo += [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return {name for name in found if name.startswith(("yarn_accel/", "torque_sched/"))}


@pytest.mark.parametrize("name", SIMULATED)
def test_all_that_a_simulation_computes_with_is_what_it_measures(name: str) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--", *SUBJECTS[name]], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    missing = {each for each in imported_by(module_of(name)) if not BESIDE.fullmatch(each)} - set(listed)
    assert {each for each in missing if (ROOT / each).stat().st_size} == set()


def test_what_is_left_out_of_a_subject_makes_nothing_stale(checkout: Checkout) -> None:
    checkout.write("yarn_accel/core/dags/heft.py", "one")
    commit = checkout.commit()
    checkout.result(commit, name="mps_paper")
    checkout.write("yarn_accel/core/dags/live/slots.py", "two")
    checkout.commit()
    assert checkout.why() == ""
    checkout.write("yarn_accel/core/dags/heft.py", "two")
    checkout.commit()
    assert checkout.why() == "1 files changed since, such as yarn_accel/core/dags/heft.py"


def test_each_file_of_results_can_be_recorded_again() -> None:
    stems = {path.stem for path in RESULTS.glob("*.json")}
    assert stems - RECORDINGS.keys() == set()
    assert {each.benchmark for each in RECORDINGS.values()} == BENCHMARKS.keys()


def test_each_recording_names_sections_that_its_benchmark_has() -> None:
    for stem, recording in RECORDINGS.items():
        sections = {*recording.only, *recording.quick_only}
        if sections:
            assert sections <= set(load(recording.benchmark).SECTIONS), stem
