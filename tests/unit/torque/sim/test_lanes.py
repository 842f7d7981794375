"""Lanes of a picture: exactly as many as the job is wide, and never two jobs on one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.sim.logs import job, reference_easy, scheduled
from torque_sched.sim.lanes import lanes_of
from torque_sched.sim.workload import Workload

JOBS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 10)), max_size=25)


@given(JOBS)
def test_no_two_jobs_share_a_processor(rows: list[tuple[int, int, int]]) -> None:
    jobs = [job(n, submit, run, procs) for n, (submit, run, procs) in enumerate(sorted(rows))]
    starts = reference_easy(Workload(10, tuple(jobs), len(jobs)))
    used: set[tuple[int, float]] = set()
    for each, start, lanes in zip(jobs, starts, lanes_of(scheduled(jobs, starts)), strict=True):
        procs = [p for low, high in lanes for p in range(low, high)]
        cells = {(p, start + s) for p in procs for s in range(int(each.run_s))}
        assert len(cells) == each.procs * each.run_s
        assert not cells & used
        used |= cells


def test_more_than_there_is_has_no_picture() -> None:
    with pytest.raises(ValueError, match="more processors"):
        lanes_of(scheduled([job(1, 0, 10, 6), job(2, 0, 10, 6)], [0, 0]))
