"""The simulator that counts processors makes the schedules of `tests/recordings/torque/schedules.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.fixtures.recorded_torque import FOLDER
from torque_sched.commands.simulate import simulate

TRACES = Path(__file__).resolve().parents[4] / "benchmarks" / "traces"
COUNTS = ("--counts",)
"""Options that choose the simulator that knows no nodes."""
ROWS = [json.loads(line) for line in (FOLDER / "schedules.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['log']} {row['options']}".strip())
def test_schedules_are_those_of_before(row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    words = ["--trace", str(TRACES / f"{row['log']}.swf.gz"), "--compare", ",".join(row["hashes"])]
    result = CliRunner().invoke(simulate, [*COUNTS, *words, *row["options"].split(), "--json", str(path)])
    assert result.exit_code == 0, result.output
    policies = json.loads(path.read_text(encoding="utf-8"))["policies"]
    assert {name: found["schedule_hash"] for name, found in policies.items()} == row["hashes"]
