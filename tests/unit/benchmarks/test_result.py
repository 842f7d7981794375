"""A benchmark row states the median, the spread and an honest verdict; the JSON has the agreed shape."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.registry import BENCHMARKS
from benchmarks.result import Report, measured, not_measured, observed, ratio


def test_row_is_the_median_with_its_spread() -> None:
    row = measured("start", [3.0, 1.0, 2.0], "s", goal="<= 2")
    assert (row.value, row.n, row.spread, row.ok) == (2.0, 3, (1.0, 3.0), True)


def test_a_missed_goal_is_said() -> None:
    assert measured("rate", [1.0, 2.0, 3.0], "x", goal=">= 2.5").ok is False
    assert observed("peak", 7.0, "GiB").ok is None


def test_a_ratio_is_that_of_the_medians() -> None:
    row = ratio("rate", [1.0, 2.0, 9.0], [2.0, 2.0, 1.0], goal=">= 0.9")
    assert (row.value, row.n, row.spread, row.ok) == (1.0, 3, (0.5, 9.0), True)


def test_what_was_not_measured_claims_nothing() -> None:
    row = not_measured("GPU", "no device")
    assert (row.n, row.goal, row.ok, row.note) == (0, "", None, "not measured: no device")


def test_json_has_the_agreed_shape(tmp_path: Path) -> None:
    report = Report("demo", [observed("peak", 7.0, "GiB")])
    report.write(tmp_path / "deep" / "r.json")
    document = json.loads((tmp_path / "deep" / "r.json").read_text())
    assert set(document) == {"name", "commit", "machine", "started_at", "rows"}
    assert set(document["rows"][0]) == {"what", "value", "unit", "n", "spread", "goal", "ok", "note"}
    assert document["machine"]["cores"] >= 1


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_listed_benchmark_exists(name: str) -> None:
    assert find_spec(f"benchmarks.{name}") is not None


def test_without_a_name_they_are_listed() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 0
    assert all(name in result.output for name in BENCHMARKS)
