from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.torque.grid.test_experiment import log
from torque_sched.commands.simulate_grid import simulate_grid


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return log(tmp_path / "small.swf", *((10 * n, 2 + n % 3, 100.0) for n in range(40)))


def test_all_modes_in_one_table_and_in_json(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = ["--trace", str(trace), "--sites", "1x4,2x2", "--check", "--json", str(file)]
    result = CliRunner().invoke(simulate_grid, options)
    assert result.exit_code == 0, result.output
    assert "AWRT of site 2 (2x2), s" in result.output
    found = json.loads(file.read_text(encoding="utf-8"))
    assert list(found) == ["home", "search", "coallocate"]
    assert all(sum(mode["ways"].values()) == 80 for mode in found.values())
    again = CliRunner().invoke(simulate_grid, [*options, "--mode", "search"])
    assert found["search"]["schedule"] in again.output


def test_with_a_delay_sites_agree_by_messages(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = ["--sites", "1x4,2x2", "--delay-s", "0.1", "--mode", "search", "--json", str(file), "--check"]
    result = CliRunner().invoke(simulate_grid, ["--trace", str(trace), *options])
    assert result.exit_code == 0, result.output
    messages = json.loads(file.read_text(encoding="utf-8"))["search"]["messages"]
    assert messages["confirm"] == messages["ready"] + messages.get("notready", 0) > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sites", "4y"], "no sites '4y'"),
        (["--formula", "cubic"], "known: constant, harmonic, linear, power"),
        (["--delay-s", "2"], "a message delay of 2.0 s"),
    ],
)
def test_bad_options_are_one_clear_line(trace: Path, options: list[str], words: str) -> None:
    result = CliRunner().invoke(simulate_grid, ["--trace", str(trace), *options])
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.splitlines()) == 1


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(simulate_grid, ["--trace", str(tmp_path / "none.swf")])
    assert result.exit_code == 1
    assert "none.swf" in result.output
