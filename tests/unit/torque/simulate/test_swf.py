"""The Standard Workload Format: every trap of real logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from torque_sched.cli import main
from torque_sched.errors import RecordError
from torque_sched.simulate.swf import parse_swf

LINE = "1 10 5 100 8 90.5 -1 -1 3600 -1 1 7 3 42 2 -1 -1 -1"


def test_a_log_is_read_with_its_header() -> None:
    trace = parse_swf(["; MaxProcs: 338 (batch)", ";   Installation: CTC", "", LINE])
    assert trace.max_procs == 338
    assert trace.header["Installation"] == "CTC"
    (job,) = trace.jobs
    assert (job.number, job.user, job.executable, job.cpu_s) == (1, 7, 42, 90.5)
    assert (job.end_s, job.requested_procs, job.width) == (115, -1, 8), "as wide as what it got"
    (job,) = parse_swf([LINE.replace("10 5 100", "10 -1 -1")]).jobs
    assert job.end_s == 10, "it never waited nor ran"


def test_damaged_lines_are_named_and_the_rest_is_read() -> None:
    wrong = ("x", "nan", "inf", "1e18", "1_00", "\u0663", "0x64", "1,5")
    damaged = ["1 2 3", *(LINE.replace("100", text) for text in wrong), LINE.replace(" 8 ", " 2.5 ")]
    trace = parse_swf(["\ufeff; a byte order mark", LINE.replace("1 10", "2 20", 1), *damaged, LINE])
    assert [job.number for job in trace.jobs] == [2, 1], "in the order of the file"
    assert (trace.n_problems, trace.n_lines, trace.max_procs) == (10, 12, None)
    assert all(each.cure for each in trace.problems)
    assert "line 3" in str(trace.problems[0])
    assert "3 numbers instead of 18" in str(trace.problems[0])


@pytest.mark.parametrize(
    ("text", "procs"),
    [
        ("1,024", 1024), ("1,024 (of 8)", 1024), ("1'024", 1024), ("12_345_678", 12345678), ("338", 338),
        ("338 (batch)", 338), ("338;", 338), ("338.", 338), ("338 cores, 4 nodes", 338), ("-1", 9),
        ("unknown", 9), ("", 9), ("n/a", 9),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["MaxProcs", "maxprocs "])
def test_the_size_of_the_machine(text: str, procs: int, key: str) -> None:
    assert parse_swf(["; MaxNodes: 9 (of 8 processors each)", f"; {key}: {text}", LINE]).max_procs == procs


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *(("MaxProcs", text) for text in ("1.024", "1 024", "1e3", "0x400", "1,02", "about 1000", "12,3456")),
        *(("MaxProcs", text) for text in ("128+32", "128 + 32", "128 x 8", "128*8", "128 nodes of 8")),
        # A job has 8 processors, so these nodes have more than one each.
        ("MaxNodes", "7"),
    ],
)
def test_a_size_that_is_not_understood_is_no_other_size(key: str, text: str) -> None:
    trace = parse_swf(["; MaxNodes: 9"] * (key == "MaxProcs") + [f"; {key}: {text}", LINE])
    with pytest.raises(RecordError, match=f"{key}: .*give --procs N"):
        _ = trace.max_procs


def part(number: int, status: int) -> str:
    words = LINE.split()
    words[0], words[10] = str(number), str(status)
    return " ".join(words)


def test_parts_of_a_job_are_no_jobs_beside_its_summary() -> None:
    lines = [part(1, 1), part(1, 2), part(1, 2), part(1, 3), part(2, 2), part(2, 4), part(3, 5), part(2, 0)]
    trace = parse_swf(lines)
    assert [(job.number, job.status) for job in trace.jobs] == [(1, 1), (3, 5), (2, 0)]
    assert (trace.n_partial, trace.n_problems, trace.n_lines) == (5, 0, 8)


def test_parts_without_a_summary_are_all_that_is_known_of_a_job() -> None:
    trace = parse_swf([part(1, 2), part(1, 3), part(2, 1)])
    assert (len(trace.jobs), trace.n_partial) == (3, 0)


# ``torque-sched parse``: what is understood of a pasted output.


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


def test_an_output_that_windows_saved_is_read() -> None:
    text = (GOLDEN / "running-pbsnodes-a.txt").read_bytes().decode().replace("\n", "\r\n")
    for encoding in ("utf-16", "utf-8-sig"):
        result = CliRunner().invoke(main, ["parse", "pbsnodes", "-"], input=text.encode(encoding))
        assert "4 understood, 0 damaged" in result.output


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
