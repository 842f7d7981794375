"""From a log to jobs: every trap of real logs, and nothing lost without a reason."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.unit.torque.simulate.logs import line, log
from torque_sched.errors import ConfigError, DocumentError
from torque_sched.simulate.swf import parse_swf
from torque_sched.simulate.workload import LogSelection, Overrun, Rejected, read_trace, workload_of


@pytest.mark.parametrize(
    ("lines", "choice", "field", "found"),
    [
        ([line(1, 0, 500, 2, 300)], {}, "run_s", [300]),
        ([line(1, 0, 500, 2, 300)], {"overrun": Overrun.EXTEND}, "run_s", [500]),
        ([line(1, 0, 500, 2, -1), line(2, 0, 500, 2, 0)], {}, "limit_s", [500, 500]),
        ([line(1, 0, 5, 4), line(2, 0, 5, 4, requested=6)], {}, "procs", [4, 6]),
        ([line(1, 0, 5, 4), line(2, 0, 5, 4, requested=6)], {"allocated": True}, "procs", [4, 4]),
        ([line(1, 0, 5, 11)], {"cap_width": True}, "procs", [10]),
        ([line(1, 0.5, 5, 1)], {}, "submit_s", [0.5]),
    ],
    ids=["cut at its limit", "runs on", "no limit", "width asked", "width got", "capped", "half seconds"],
)
def test_lengths_and_widths(lines: list[str], choice: dict[str, Any], field: str, found: list[float]) -> None:
    assert [getattr(job, field) for job in log(lines, **choice).jobs] == found


def test_overruns_and_missing_limits_are_counted_and_whole_times_are_integers() -> None:
    workload = log([line(1, 0, 500, 2, 300), line(2, 0, 500, 2)])
    assert (workload.n_overran, workload.n_without_limit) == (1, 1)
    assert type(workload.jobs[0].run_s) is int


def test_what_cannot_run_is_rejected_with_its_reason() -> None:
    lines = [
        line(1, 0, 0, 1), line(2, 0, -1, 1), line(3, 0, 5, -1), line(4, 0, 5, 0), line(5, 0, 5, 11),
        line(6, -1, 5, 1), "7 0 0", line(8, 0, 5, 10),
    ]  # fmt: skip
    workload = log(lines)
    assert [job.number for job in workload.jobs] == [8]
    assert workload.rejected == {
        Rejected.NEVER_RAN: 2, Rejected.NO_WIDTH: 2, Rejected.TOO_WIDE: 1, Rejected.NO_SUBMIT: 1,
        Rejected.DAMAGED: 1,
    }  # fmt: skip


def test_jobs_come_by_submission_then_number_whatever_the_order_of_lines() -> None:
    lines = [line(3, 20, 5, 1), line(2, 10, 5, 1), line(1, 20, 5, 1)]
    assert [job.number for job in log(lines).jobs] == [2, 1, 3]


def test_the_first_jobs_are_the_first_that_count() -> None:
    lines = [line(1, 0, 0, 1), line(3, 20, 5, 1), line(2, 10, 5, 1)]
    workload = log(lines, max_jobs=1)
    assert [job.number for job in workload.jobs] == [2]
    assert workload.rejected[Rejected.NOT_CHOSEN] == 1


def test_the_header_says_how_large_the_machine_is() -> None:
    trace = parse_swf(["; MaxProcs: 7", line(1, 0, 5, 1)])
    assert workload_of(trace, LogSelection()).procs == 7
    with pytest.raises(ConfigError, match="--procs"):
        workload_of(parse_swf([line(1, 0, 5, 1)]), LogSelection())


def test_compressed_or_not_in_utf_8_or_utf_16(tmp_path: Path) -> None:
    text = line(1, 0, 5, 1) + "\n"
    plain, packed = tmp_path / "a.swf", tmp_path / "a.swf.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode("utf-16")))
    assert read_trace(plain) == read_trace(packed)


def test_what_is_no_log_is_refused_with_its_name(tmp_path: Path) -> None:
    cut, text, none = tmp_path / "cut.swf.gz", tmp_path / "text.swf", tmp_path / "none.swf"
    cut.write_bytes(gzip.compress(b"1 2 3\n" * 1000)[:30])
    text.write_text("; only a header\nno job\n")
    for path in (cut, text, none):
        with pytest.raises(DocumentError, match=path.name):
            read_trace(path)
    not_packed = tmp_path / "plain.swf.gz"
    not_packed.write_text(line(1, 0, 5, 1))
    with pytest.raises(DocumentError, match="plain"):
        read_trace(not_packed)


def test_a_cut_archive_counts_up_to_the_cut(tmp_path: Path) -> None:
    lines = [f"{number} {number * 10} 0 10 4 -1 -1 4 20 -1 1 1 1 1 1 1 -1 -1\n" for number in range(1, 900)]
    packed = gzip.compress(("; MaxProcs: 64\n" + "".join(lines)).encode())
    path = tmp_path / "cut.swf.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = read_trace(path)
    assert 100 < len(trace.jobs) < 899
    assert "is damaged" in str(trace.problems[-1])
    made = workload_of(trace, LogSelection())
    assert made.n_lines == len(made.jobs) + sum(made.rejected.values())
