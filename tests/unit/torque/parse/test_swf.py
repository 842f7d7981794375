"""The Standard Workload Format: every trap of real logs."""

from __future__ import annotations

from torque_sched.parse.swf import parse_swf

LINE = "1 10 5 100 8 90.5 -1 -1 3600 -1 1 7 3 42 2 -1 -1 -1"


def test_a_log_is_read_with_its_header() -> None:
    trace = parse_swf(["; MaxProcs: 338 (batch)", ";   Installation: CTC", "", LINE])
    assert trace.max_procs == 338
    assert trace.header["Installation"] == "CTC"
    (job,) = trace.jobs
    assert (job.number, job.user, job.executable, job.cpu_s) == (1, 7, 42, 90.5)
    assert job.end_s == 115


def test_unknown_width_is_what_it_got() -> None:
    (job,) = parse_swf([LINE]).jobs
    assert job.requested_procs == -1
    assert job.width == 8


def test_a_job_that_never_waited_nor_ran_ends_when_it_came() -> None:
    (job,) = parse_swf([LINE.replace("10 5 100", "10 -1 -1")]).jobs
    assert job.end_s == 10


def test_order_is_that_of_the_file() -> None:
    trace = parse_swf([LINE.replace("1 10", "2 20", 1), LINE])
    assert [job.number for job in trace.jobs] == [2, 1]


def test_damaged_lines_are_named_and_the_rest_is_read() -> None:
    lines = [
        LINE,
        "1 2 3",
        LINE.replace("100", "x"),
        LINE.replace("100", "nan"),
        LINE.replace("100", "inf"),
        LINE,
    ]
    trace = parse_swf(lines)
    assert len(trace.jobs) == 2
    assert trace.n_problems == 4
    assert trace.n_lines == 6
    assert "line 2" in str(trace.problems[0])
    assert "3 numbers instead of 18" in str(trace.problems[0])


def test_a_log_without_a_header_has_no_size() -> None:
    assert parse_swf([LINE]).max_procs is None
