"""The site of `make docs`: it builds without a warning, and its reference has what the code has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.tables import _gpu_goals
from docs.reference import github_anchor, pages
from torque_sched.cli import COMMANDS as TORQUE_COMMANDS
from torque_sched.daemon.config import Config
from torque_sched.daemon.startup import AT_ONCE
from yarn_accel.cli import COMMANDS as YARN_COMMANDS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return {name: page() for name, page in pages().items()}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strict: a link or an anchor that leads nowhere, or a page that no menu has, is an error."""
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    built = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= built
    assert {Path(name).stem for name in pages()} <= built
    home = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert 'href="repository/index.html' in home


def test_every_command_is_there(made: dict[str, str]) -> None:
    for program, commands in (("yarn-accel", YARN_COMMANDS), ("torque-sched", TORQUE_COMMANDS)):
        headings = re.findall(r"^## (.+)$", made[f"reference-{program}.md"], re.MULTILINE)
        assert {f"{program} {name}" for name in commands} <= set(headings)
        assert len(headings) == len(set(headings))
    assert "yarn-accel cluster cut" in made["reference-yarn-accel.md"]


def test_every_setting_has_its_meaning(made: dict[str, str]) -> None:
    for name in ("reference-settings-yarn.md", "reference-settings-torque.md"):
        rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.*) \|$", made[name], re.MULTILINE)
        assert len(rows) > 100
        assert [key for key, _, meaning in rows if not meaning] == []
    assert "| `server.vcores` | `2` |" in made["reference-settings-yarn.md"]
    assert "| `learning.predictors` |" in made["reference-settings-torque.md"]


def test_the_settings_of_torque_say_when_they_count(made: dict[str, str]) -> None:
    page = made["reference-settings-torque.md"].partition("## Reload and restart")[2]
    now, _, later = page.partition("After a restart:")
    assert set(re.findall("`([a-z_]+)`", now)) == AT_ONCE
    assert set(re.findall("`([a-z_]+)`", later)) == set(Config.model_fields) - AT_ONCE


def test_every_program_has_its_metrics(made: dict[str, str]) -> None:
    names = re.findall(r"^\| `(\w+)` \|", made["reference-metrics.md"], re.MULTILINE)
    prefixes = {re.match("[a-z]+_[a-z]+_[a-z]+", name)[0] for name in names}
    wanted = {"yarn_accel_pipeline", "yarn_accel_master", "yarn_accel_node", "torque_sched_site"}
    assert wanted <= prefixes
    assert "yarn_accel_master_task_core_seconds_total" in names
    assert len(names) == len(set(names))


def test_hits_and_misses_of_a_gpu_stand_beside_each_other(made: dict[str, str]) -> None:
    """Each goal of the record, with the device that was measured."""
    document = json.loads((ROOT / "benchmarks/results/gpu.json").read_text(encoding="utf-8"))
    page, judged = made["benchmarks-gpu-goals.md"], [row for row in document["rows"] if row["goal"]]
    assert f"**{document['machine']['gpu']}**" in page
    assert page.count(" | yes |  |") == sum(bool(row["ok"]) for row in judged)
    assert page.count(" |  | **no** |") == sum(not row["ok"] for row in judged)
    assert [row["what"] for row in judged if f"| {row['what']} |" not in page] == []


def test_without_a_record_the_page_of_a_gpu_says_so() -> None:
    assert "No GPU has been measured yet" in "\n".join(_gpu_goals(None))


def test_anchors_are_those_of_github() -> None:
    assert github_anchor("The report: five papers, claim by claim") == "the-report-five-papers-claim-by-claim"
    assert github_anchor("YARN's isolation, and ours") == "yarns-isolation-and-ours"
