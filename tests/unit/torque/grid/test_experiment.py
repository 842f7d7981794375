"""The benchmark's own arithmetic: windows, keys, claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers.grid import WINDOWS, Cell, cells_of, claim_rows, jobs_between, simulate
from torque_sched.errors import ConfigError

#: 26 June 1996, 21:06 UTC, as the CTC log; 1 July 0:00 in its zone is 370,440 s later.
BEGINS_S = 835823160
FIRST_S = 370440


def log(path: Path, *rows: tuple[float, int, float]) -> Path:
    """A log of jobs (submit, processors, run time)."""
    lines = [f"; UnixStartTime: {BEGINS_S}", "; MaxProcs: 338"]
    for number, (submit_s, procs, run_s) in enumerate(rows, start=1):
        lines.append(f"{number} {submit_s} 0 {run_s} {procs} -1 -1 -1 60 -1 1 1 1 1 1 -1 -1 -1")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_window_begins_at_midnight_of_the_log_and_caps_the_width(tmp_path: Path) -> None:
    file = log(tmp_path / "a.swf", (FIRST_S - 1, 1, 5), (FIRST_S, 338, 500), (FIRST_S + 5, 4, 0))
    chosen = jobs_between(file, *WINDOWS["CTC1"])
    assert [(job.number, job.procs, job.run_s) for job in chosen] == [(2, 336, 500)]
    with pytest.raises(ConfigError, match="no job from November 1996"):
        jobs_between(file, *WINDOWS["CTC2"])


def test_a_log_without_its_date_is_refused(tmp_path: Path) -> None:
    file = log(tmp_path / "b.swf", (FIRST_S, 1, 5))
    file.write_text(file.read_text(encoding="utf-8").replace("UnixStartTime", "Begins"), encoding="utf-8")
    with pytest.raises(ConfigError, match="UnixStartTime"):
        jobs_between(file, *WINDOWS["CTC1"])


def test_a_cell_is_json_with_all_figures(tmp_path: Path) -> None:
    file = log(tmp_path / "c.swf", *((FIRST_S + n, 100, 1000.0) for n in range(9)))
    result = json.loads(json.dumps(simulate(file, Cell("equal", 1.0, "CTC1", "c", 0.4))))
    assert result["problems"] == []
    assert result["n_jobs"] == 36
    assert sum(result["ways"].values()) == 36
    assert sum(result["blocks"].values()) == 36
    assert len(result["sites"]) == 4
    assert result["mean_awrt_s"] == pytest.approx(sum(site["awrt_s"] for site in result["sites"]) / 4)


def _results(awrt_s: dict[str, list[float]], n_split: dict[str, int]) -> dict[str, Any]:
    """Every cell of a mode the same."""
    return {
        cell.key: {
            "sites": [{"awrt_s": value} for value in awrt_s[cell.mode]],
            "n_split": n_split[cell.mode],
            "overhead_share": n_split[cell.mode] / 100,
            "spread": max(awrt_s[cell.mode]) / min(awrt_s[cell.mode]),
        }
        for cell in cells_of("equal", 1.0)
    }


def test_claims_are_shares_of_what_holds_and_name_what_does_not() -> None:
    awrt_s = {"a": [1.0, 2.0, 3.0, 4.0], "b": [1.5, 1.6, 1.7, 1.8], "c": [1.4, 1.5, 1.6, 1.9]}
    results = _results(awrt_s, {"a": 10, "b": 5, "c": 20})
    rows = {row.what.split(",")[0]: row for row in claim_rows(results, cells_of("equal", 1.0))}
    assert rows["G1"].value == pytest.approx(18 / 30)  # it grows with clusters, and not with p
    assert rows["G2 (b)"].value == 0.75
    assert "CTC1 p 0.1 site 1 (+50.0%)" in rows["G2 (b)"].note
    assert (rows["G4 (b)"].value, rows["G4 (c)"].value) == (1, 0)
    assert (rows["G4 area (b)"].value, rows["G4 area (c)"].value) == (1, 0)
    assert "10.0% to 20.0%" in rows["G4 area (c)"].note
    assert rows["G5 (b)"].value == rows["G5 (c)"].value == 1
    assert rows["G6 over (b)"].value == 0.75
    assert "and 4 more" not in rows["G6 over (b)"].note
    assert "site 4 (+5.6%)" in rows["G6 over (b)"].note
