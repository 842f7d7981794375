"""`yarn-accel tasks simulate`, and the example worlds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from benchmarks.papers.hdas_paper.paper import FOLDER, example_worlds
from tests.unit.sim.test_world import SMALL
from yarn_accel.errors import ConfigError
from yarn_accel.sim import world as world_module
from yarn_accel.sim.cli import simulate
from yarn_accel.sim.world import load_world

DOCUMENT = Path(__file__).parents[3] / "docs" / "hdas-simulate.md"


def write(folder: Path, **changes: Any) -> str:
    path = folder / "world.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}), encoding="utf-8")
    return str(path)


def test_it_prints_a_table_and_writes_all(tmp_path) -> None:
    out = tmp_path / "out.json"
    result = CliRunner().invoke(simulate, [write(tmp_path), "--policy", "fifo", "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "policy fifo" in result.stdout
    assert "makespan" in result.stdout
    outcome = json.loads(out.read_text())
    assert set(outcome) == {"policy", "makespan_s", "mean_delay", "apps", "tasks"}
    assert set(outcome["apps"]) == {"a", "b"}
    assert len(outcome["tasks"]) == 6
    assert all(task["reason"] for task in outcome["tasks"])


def test_a_report_is_a_folder_with_the_same_json(tmp_path) -> None:
    out, folder = tmp_path / "out.json", tmp_path / "report"
    result = CliRunner().invoke(simulate, [write(tmp_path), "--json", str(out), "--report", str(folder)])
    assert result.exit_code == 0, result.output
    assert (folder / "outcome.json").read_text() == out.read_text()
    page = (folder / "index.html").read_text()
    assert page.count('class="use"') == sum(1 for _ in load_world(tmp_path / "world.yaml").resources())
    assert (folder / "use.png").exists()


def test_another_policy_keeps_the_settings_that_it_knows(tmp_path) -> None:
    path = write(tmp_path, settings={"learns": False, "progress": "rate"})
    assert CliRunner().invoke(simulate, [path, "--policy", "fifo"]).exit_code == 0


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        (["--policy", "best"], {}, "--policy: no policy is called 'best'; known: fifo, "),
        ([], {"policy": "best"}, "world.yaml: no policy is called 'best'; known: fifo, "),
        ([], {"settings": {"speed": 1}}, "world.yaml: 'hdas' has no setting 'speed'; it has: "),
        ([], {"apps": []}, "world.yaml: apps: there are none"),
    ],
)
def test_what_is_wrong_is_one_error(tmp_path, options, changes, message) -> None:
    result = CliRunner().invoke(simulate, [write(tmp_path, **changes), *options])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_the_example_worlds_are_as_written() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == example_worlds()
    assert len(example_worlds()) == 25


def test_the_example_worlds_are_worlds() -> None:
    for path in FOLDER.iterdir():
        assert load_world(path).policy == "hdas"


def test_every_key_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    models = [
        getattr(world_module, name)
        for name in ("DiskEntry", "NodeEntry", "CpuForm", "GpuForm", "AppEntry", "Options")
    ]
    keys = {key for model in models for key in model.model_fields}
    assert [key for key in sorted(keys) if f"{key}`" not in text and f"`{key}" not in text] == []
