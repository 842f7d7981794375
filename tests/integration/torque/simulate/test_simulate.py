"""The command on a real log: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from torque_sched.commands.simulate import simulate

TRACES = Path(__file__).resolve().parents[4] / "benchmarks" / "traces"
LOG = str(TRACES / "ctc_1000.swf.gz")


def ask(*words: str) -> Result:
    return CliRunner().invoke(simulate, ["--counts", *words])


def figures(path: Path, *words: str) -> dict[str, Any]:
    result = ask("--trace", LOG, "--json", str(path), *words)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize(
    ("policy", "estimates", "mean_wait_s", "makespan_s"),
    [
        ("fcfs", "user", 20_553.85, 795_767),
        ("easy", "user", 5_680.33, 791_335),
        ("conservative", "user", 7_032.33, 791_335),
        ("conservative", "exact", 6_825.0, 791_335),
    ],
)
def test_figures_are_those_others_have(
    tmp_path: Path, policy: str, estimates: str, mean_wait_s: float, makespan_s: float
) -> None:
    found = figures(tmp_path / "a.json", "--policy", policy, "--estimates", estimates, "--check")
    assert found["mean_wait_s"] == pytest.approx(mean_wait_s, rel=0.001)
    assert found["makespan_s"] == makespan_s
    assert found["problems"] == []


def test_one_column_and_one_file_of_starts_for_each_policy(tmp_path: Path) -> None:
    starts = tmp_path / "starts.csv"
    result = ask("--trace", LOG, "--procs", "338", "--policy", "easy", "--compare", "fcfs,easy,conservative",
                 "--starts", str(starts), "--max-jobs", "100", "--check")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert re.search(r"easy\s+┃\s+fcfs\s+┃\s+conservative", result.output)
    assert "1,000 jobs in = 100 simulated + 900 rejected (beyond --max-jobs: 900)" in result.output
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"starts.csv", "starts-fcfs.csv", "starts-conservative.csv"}
    with starts.open() as lines:
        rows = list(csv.DictReader(lines))
    assert rows[0] == {"job": "1", "start_s": "0"}
    assert len(rows) == 100


def test_the_same_twice_is_the_same(tmp_path: Path) -> None:
    words = ("--policy", "conservative", "--estimates", "learned", "--max-jobs", "300")
    first, again = (figures(tmp_path / name, *words) for name in ("a.json", "b.json"))
    assert first["schedule_hash"] == again["schedule_hash"]
    assert first["n_events"] == again["n_events"] == 600


def test_the_report_is_one_file_that_needs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = ask("--trace", LOG, "--compare", "fcfs,easy", "--max-jobs", "200", "--html", str(path))
    assert result.exit_code == 0, result.output
    text = path.read_text()
    assert "://" not in text
    assert set(re.findall(r'src="([^,]*),', text)) == {"data:image/png;base64"}
    # Load and waits of both, and a Gantt chart of each.
    assert text.count("<img ") == 4
    assert "Content-Security-Policy" in text


def test_every_order_and_policy_runs(tmp_path: Path) -> None:
    for order in ("fcfs", "priority", "fair_share", "sjf"):
        found = figures(
            tmp_path / "a.json", "--compare", "fcfs,easy,conservative,selective", "--order", order,
            "--priority", "1=5,2=1", "--max-jobs", "150", "--check",
        )  # fmt: skip
        assert len(found["policies"]) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--policy", "best"), "no policy 'best': known are fcfs, easy, conservative, selective"),
        (("--estimates", "good"), "no estimates 'good': known are user, exact, learned, upper"),
        (("--order", "random"), "no order 'random'"),
        (("--priority", "high"), "--priority 'high': write QUEUE=NUMBER"),
    ],
)
def test_what_is_not_known_is_refused_with_what_is(words: tuple[str, ...], message: str) -> None:
    result = ask("--trace", LOG, *words)
    assert result.exit_code == 2
    assert message in result.output


JOB = "1 0 -1 5 32 -1 -1 32 9 -1 1 1 1 1 1 -1 -1 -1\n"


@pytest.mark.parametrize(
    ("text", "words", "code", "message"),
    [
        ("dear all\n", ("--procs", "4"), 1, "a.swf holds no job"),
        (None, ("--procs", "4"), 1, "a.swf: No such file"),
        (JOB, (), 2, "give --procs N"),
        ("; MaxNodes: 4 (of 8 processors each)\n" + JOB, (), 1, "and there is no MaxProcs: give --procs N"),
        (JOB, ("--procs", "4"), 2, "no job is left of 1 lines (wider than the machine: 1): give --procs N"),
        (JOB + "1 2 3\n", ("--procs", "32"), 0, "left out: line 2 is no job (3 numbers instead of 18)"),
    ],
)
@pytest.mark.parametrize("engine", [("--counts",), ()], ids=["counts", "nodes"])
def test_what_of_a_log_cannot_be_used_is_named(
    tmp_path: Path, text: str | None, words: tuple[str, ...], code: int, message: str, engine: tuple[str, ...]
) -> None:
    path = tmp_path / "a.swf"
    if text is not None:
        path.write_text(text)
    result = CliRunner().invoke(simulate, [*engine, "--trace", str(path), *words])
    assert result.exit_code == code
    assert message in result.output
