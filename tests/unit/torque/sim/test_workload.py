"""From a log to jobs: every trap of real logs, and nothing lost without a reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.sim.logs import line, log
from torque_sched.errors import ConfigError, DocumentError
from torque_sched.parse.swf import parse_swf
from torque_sched.sim.workload import Choice, Overrun, Rejected, read_trace, workload_of


def test_a_job_past_its_limit_is_cut_or_runs_on() -> None:
    lines = [line(1, 0, 500, 2, 300)]
    assert log(lines).jobs[0].run_s == 300
    assert log(lines, overrun=Overrun.EXTEND).jobs[0].run_s == 500
    assert log(lines).n_overran == 1


@pytest.mark.parametrize("limit", [-1, 0])
def test_an_unknown_limit_is_the_run_time(limit: int) -> None:
    workload = log([line(1, 0, 500, 2, limit)])
    assert (workload.jobs[0].limit_s, workload.jobs[0].run_s, workload.n_without_limit) == (500, 500, 1)


def test_width_is_what_was_asked_for_or_else_what_it_got() -> None:
    lines = [line(1, 0, 5, 4, requested=-1), line(2, 0, 5, 4, requested=6)]
    assert [job.procs for job in log(lines).jobs] == [4, 6]
    assert [job.procs for job in log(lines, allocated=True).jobs] == [4, 4]


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


def test_a_job_wider_than_the_machine_may_be_capped() -> None:
    assert [job.procs for job in log([line(1, 0, 5, 11)], cap_width=True).jobs] == [10]


def test_jobs_come_by_submission_then_number_whatever_the_order_of_lines() -> None:
    lines = [line(3, 20, 5, 1), line(2, 10, 5, 1), line(1, 20, 5, 1)]
    assert [job.number for job in log(lines).jobs] == [2, 1, 3]


def test_the_first_jobs_are_the_first_that_count() -> None:
    lines = [line(1, 0, 0, 1), line(3, 20, 5, 1), line(2, 10, 5, 1)]
    workload = log(lines, max_jobs=1)
    assert [job.number for job in workload.jobs] == [2]
    assert workload.rejected[Rejected.NOT_CHOSEN] == 1


def test_whole_times_are_integers_and_others_stay() -> None:
    assert type(log([line(1, 0, 5, 1)]).jobs[0].run_s) is int
    assert log([line(1, 0.5, 5, 1)]).jobs[0].submit_s == 0.5


def test_the_header_says_how_large_the_machine_is() -> None:
    trace = parse_swf(["; MaxProcs: 7", line(1, 0, 5, 1)])
    assert workload_of(trace, Choice()).procs == 7
    with pytest.raises(ConfigError, match="--procs"):
        workload_of(parse_swf([line(1, 0, 5, 1)]), Choice())


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 50),
            st.integers(-1, 20),
            st.integers(-1, 12),
            st.integers(-1, 20),
            st.integers(-1, 12),
            st.booleans(),
        )
    ),
    st.integers(1, 5) | st.none(),
)
def test_nothing_is_lost(rows: list[tuple[int, int, int, int, int, bool]], most: int | None) -> None:
    lines = [
        line(n, submit, run, procs, limit, requested=requested) if whole else f"{n} {submit}"
        for n, (submit, run, procs, limit, requested, whole) in enumerate(rows)
    ]
    workload = log(lines, max_jobs=most)
    assert len(lines) == workload.n_lines == len(workload.jobs) + sum(workload.rejected.values())
    assert all(0 < job.run_s <= job.limit_s and 0 < job.procs <= 10 for job in workload.jobs)


def test_compressed_or_not(tmp_path: Path) -> None:
    text = line(1, 0, 5, 1) + "\n"
    plain, packed = tmp_path / "a.swf", tmp_path / "a.swf.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
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
