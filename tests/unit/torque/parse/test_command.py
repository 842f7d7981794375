"""``torque-sched parse``: what is understood of a pasted output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from torque_sched.cli import main

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "torque"


@pytest.mark.parametrize(
    ("form", "name", "understood"),
    [
        ("pbsnodes", "running-pbsnodes-x", 4),
        ("pbsnodes", "v42-pbsnodes-a", 2),
        ("qstat", "running-qstat-f-t-x", 12),
        ("qstat", "running-qstat-f", 9),
        ("qstat", "idle-qstat-f", 0),
        ("qstat", "running-qstat-Q-f-1", 2),
        ("qstat", "idle-qstat-B-f", 1),
        ("qmgr", "qmgr-print-server", 3),
        ("accounting", "accounting-log", 471),
    ],
)
def test_json_counts_and_values(form: str, name: str, understood: int) -> None:
    result = CliRunner().invoke(main, ["parse", form, str(GOLDEN / f"{name}.txt"), "--json"])
    assert result.exit_code == 0
    report = json.loads(result.output)
    assert (report["records"], report["understood"], report["damaged"]) == (understood, understood, [])
    assert len(report["items"]) == understood


def test_the_summary_names_each_record(tmp_path: Path) -> None:
    pasted = tmp_path / "pasted"
    pasted.write_bytes((GOLDEN / "down-pbsnodes-a.txt").read_bytes().rstrip())
    result = CliRunner().invoke(main, ["parse", "pbsnodes", str(pasted)])
    assert result.exit_code == 0
    assert "4 understood, 0 damaged" in result.output
    assert "node2  job-exclusive,offline" in result.output


def test_damage_gives_exit_code_1_and_the_rest() -> None:
    text = "Queue: a\n    started = maybe\n\nQueue: b\n    started = True\n"
    result = CliRunner().invoke(main, ["parse", "qstat", "-", "--json"], input=text)
    assert result.exit_code == 1
    assert "queue a: started" in result.output
    assert '"name": "b"' in result.output


def test_an_unusable_output_says_what_to_do() -> None:
    result = CliRunner().invoke(main, ["parse", "pbsnodes", "-"], input="<Data><Node>")
    assert result.exit_code == 1
    assert "cut off" in result.output


@pytest.mark.parametrize(
    ("form", "name", "command"),
    [
        ("qstat", "baseline-qstat-n-1", "qstat -f -t -x"),
        ("qstat", "running-qstat", "qstat -f -t -x"),
        ("qstat", "idle-qstat-Q", "qstat -Q -f"),
        ("pbsnodes", "down-pbsnodes-l-down", "pbsnodes -x"),
    ],
)
def test_a_table_for_people_names_the_command_in_one_line(form: str, name: str, command: str) -> None:
    done = CliRunner().invoke(main, ["parse", form, str(GOLDEN / f"{name}.txt")])
    assert done.exit_code == 1
    [line] = done.output.splitlines()
    assert f"this is a table of {form} for people" in line
    assert command in line
