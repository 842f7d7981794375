"""Who puts a guaranteed start off in a simulation of made-up sites: nobody, or a job of higher priority."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fixtures.torque_builders import node
from tests.unit.torque.simulate.worlds import coming, rules, simulated, site
from torque_sched.decide.order import FcfsOrder
from torque_sched.decide.settings import Settings
from torque_sched.simulate.check import kept_promises

JOBS = st.lists(
    st.tuples(
        st.integers(0, 400),  # seconds since the job before
        st.sampled_from(["1:ppn=1", "1:ppn=2", "1:ppn=4", "2:ppn=2", "2:ppn=4"]),
        st.integers(100, 2000),  # run time
        st.integers(0, 1000),  # by which the limit is longer
        st.integers(-1, 2),  # priority
    ),
    min_size=2,
    max_size=16,
)


@pytest.mark.parametrize("outrank", ["never", "priority"])
@settings(deadline=None, max_examples=examples(60))
@given(JOBS)
def test_a_guaranteed_start_is_put_off_by_a_higher_priority_alone(
    outrank: str, rows: list[tuple[int, str, int, int, int]]
) -> None:
    jobs, at_s = [], 0
    for number, (after_s, spec, run_s, more_s, priority) in enumerate(rows, 1):
        at_s += after_s
        made = coming(number, at_s, run_s, spec, limit_s=run_s + more_s, priority=priority)
        jobs.append(made)
    how = rules(
        "conservative", Settings(order=FcfsOrder(by_priority=True)), outrank=outrank, slack_s=0.0,
        resolution_s=1.0,
    )  # fmt: skip
    schedule = simulated(site([node("n1"), node("n2")], jobs), how)
    assert not list(kept_promises(schedule))
    assert {each.why for each in schedule.broken} <= ({"outranked"} if outrank == "priority" else set())
    for each in schedule.broken:
        assert rows[each.place][4] < max(priority for *_, priority in rows)
    if outrank == "priority":
        plain = [replace(each, job=replace(each.job, priority=0)) for each in jobs]
        assert not simulated(site([node("n1"), node("n2")], plain), how).broken
