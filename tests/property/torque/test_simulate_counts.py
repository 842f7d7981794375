"""On nodes of one slot the live scheduler starts each job when the engine that counts processors does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.torque.simulate.logs import line
from tests.unit.torque.simulate.worlds import rules, simulated
from torque_sched.errors import ConfigError
from torque_sched.simulate.check import problems
from torque_sched.simulate.comparison import compare
from torque_sched.simulate.counts.experiment import Plan, run
from torque_sched.simulate.counts.scheduler import PolicySettings
from torque_sched.simulate.schedule import Schedule
from torque_sched.simulate.site import equal_nodes, site_of_log
from torque_sched.simulate.swf import parse_swf
from torque_sched.simulate.workload import LogSelection, Overrun, workload_of

N_NODES = 8

JOBS = st.lists(
    st.tuples(
        st.integers(0, 6),  # seconds since the job before
        st.integers(1, N_NODES),  # processors
        st.integers(1, 20),  # limit
        st.integers(1, 24),  # run time; the limit ends it
    ),
    min_size=1,
    max_size=25,
)


def both(
    jobs: list[tuple[int, int, int, int]], policy: str, *, at_once: bool = True
) -> tuple[Schedule, Schedule]:
    """The schedule of the live scheduler, and that of the counts."""
    at_s, lines = 0, []
    for number, (after_s, procs, limit_s, run_s) in enumerate(jobs, 1):
        at_s += after_s
        lines.append(line(number, at_s, run_s, procs, limit_s))
    trace, choice = parse_swf(lines), LogSelection(procs=N_NODES)
    plan = Plan(policies=(policy,), choice=choice, settings=PolicySettings(at_once=at_once))
    (counted,) = run("made up", trace, plan).results
    site = site_of_log("made up", trace, workload_of(trace, choice), equal_nodes(N_NODES, 1))
    # All times are whole, so planning by whole seconds rounds nothing.
    return simulated(site, rules(policy, resolution_s=1.0, slack_s=0.0)), counted.schedule


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "selective"])
@settings(deadline=None, max_examples=examples(100))
@given(JOBS)
def test_every_job_starts_when_processors_alone_say_so(
    policy: str, jobs: list[tuple[int, int, int, int]]
) -> None:
    live, counted = both(jobs, policy)
    assert live.never == ()
    assert live.starts == counted.starts
    assert live.digest == counted.digest


@settings(deadline=None, max_examples=examples(60))
@given(JOBS)
def test_where_no_job_ends_early_reservations_move_alike_however_often(
    jobs: list[tuple[int, int, int, int]],
) -> None:
    """The counts move reservations after each early end, the live scheduler in each cycle."""
    live, counted = both([(gap, n, limit, limit) for gap, n, limit, _ in jobs], "conservative", at_once=False)
    assert live.starts == counted.starts
    assert live.digest == counted.digest


@pytest.mark.parametrize(
    ("lines", "overrun", "starts"),
    [
        # Tenths of a second are no exact numbers: nothing may overlap by their last bit.
        ([line(n, n / 10, 0.3, 1 + n % 2, 0.7) for n in range(12)], Overrun.KILL, None),
        ([line(1, 0, 500, 2, 100), line(2, 10, 50, 2, 100)], Overrun.KILL, [0, 100]),
        ([line(1, 0, 500, 2, 100), line(2, 10, 50, 2, 100)], Overrun.EXTEND, [0, 500]),
    ],
    ids=["fractions", "ended at the limit", "runs past its limit"],
)
def test_a_log_stays_within_its_machine(
    lines: list[str], overrun: Overrun, starts: list[float] | None
) -> None:
    trace, choice = parse_swf(lines), LogSelection(2, overrun)
    site = site_of_log("made up", trace, workload_of(trace, choice), equal_nodes(2, 1))
    schedule = simulated(site, rules("fcfs"))
    assert problems(schedule, is_fcfs=True) == []
    assert starts in (None, schedule.starts)


@pytest.mark.parametrize("ran_s", [110, 150, 500])
def test_a_reservation_that_a_job_past_its_limit_puts_off_is_said_to_be_broken(ran_s: int) -> None:
    trace = parse_swf([line(1, 0, ran_s, 2, 100), line(2, 10, 50, 1, 100), line(3, 20, 10, 1, 10)])
    choice, asked = LogSelection(2, Overrun.EXTEND), rules("conservative")
    site = site_of_log("made up", trace, workload_of(trace, choice), equal_nodes(2, 1))
    (result,) = compare(site, [asked], is_checked=True).results
    assert result.problems == ()
    is_late = ran_s == 500
    assert {each.why for each in result.schedule.broken} == ({"overrun"} if is_late else set())


def test_a_machine_too_large_to_simulate_is_refused() -> None:
    with pytest.raises(ConfigError, match="--counts"):
        equal_nodes(10**12, 1)
