"""The search for a start among sites, the formulas of its choice, and the messages of an agreement."""

from __future__ import annotations

import math

import pytest

from tests.unit.torque.grid.jobs import job, table
from torque_sched.errors import ConfigError
from torque_sched.grid.search import Mode, SplitCost, Way, fewest_blocks, one_block, split_blocks
from torque_sched.grid.simulate.figures import problems
from torque_sched.grid.simulate.messages import LinkSettings, simulate_messages
from torque_sched.grid.simulate.simulator import GridSettings, simulate_grid


def test_fewest_blocks_takes_the_biggest_clusters() -> None:
    assert fewest_blocks([4, 10, 6], 10) == 1
    assert fewest_blocks([4, 10, 6], 11) == 2
    assert fewest_blocks([4, 10, 6], 17) == 3
    assert fewest_blocks([4, 10, 6], 21) == 0


def test_an_offer_of_a_moment_ago_is_asked_for_again() -> None:
    # From 0.875 on the second is free, and the first has too little from 1 to 1.25.
    tables = [table(3, (1, 1.0, 1.25)), table(1, (1, 0.0, 0.875))]
    assert split_blocks(tables, 4, 2, 0.25, 0.0, math.inf) == (1.25, ((0, 3), (1, 1)))


def test_one_block_prefers_the_cluster_with_most_free() -> None:
    tables = [table(8, (3, 0, 50)), table(8), table(8, (5, 0, 50))]
    assert one_block(tables, 2, 10, 0.0, math.inf) == (0.0, 1)


def test_a_split_fills_the_biggest_first_and_leaves_no_block_empty() -> None:
    tables = [table(4, (1, 0, 100)), table(4), table(4, (2, 0, 100))]
    assert split_blocks(tables, 6, 2, 10, 0.0, math.inf) == (0.0, ((1, 4), (0, 2)))
    assert split_blocks(tables, 4, 2, 10, 0.0, math.inf) == (0.0, ((1, 4),))


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        # Our table of candidates: f = 2, 3, 4, 8 at p = 0.4.
        ("power", (1.32, 1.55, 1.741, 2.30)),
        ("harmonic", (1.40, 1.60, 1.733, 2.04)),
        ("linear", (1.40, 1.80, 2.20, 3.80)),
        ("constant", (1.40, 1.40, 1.40, 1.40)),
    ],
)
def test_factors_at_p_04(name: str, factors: tuple[float, ...]) -> None:
    cost = SplitCost(name, 0.4)
    found = [cost.length_s(1000.0, f) / 1000.0 for f in (2, 3, 4, 8)]
    assert found == pytest.approx(factors, abs=0.005)


@pytest.mark.parametrize(
    ("made", "values", "words"),
    [
        (SplitCost, {"formula": "cubic"}, "known: constant, harmonic, linear, power"),
        (SplitCost, {"p": -0.1}, "p = -0.1"),
        (SplitCost, {"p": float("nan")}, "p = nan"),
        (SplitCost, {"min_gain": -1.0}, "lambda = -1"),
        (SplitCost, {"max_blocks": 0}, "f = 0"),
        (LinkSettings, {"delay_s": 0.0}, "delay"),
        (LinkSettings, {"delay_s": 0.7}, "delay"),
        (LinkSettings, {"fan_out": 0}, "."),
    ],
)
def test_bad_settings_are_named(made: type, values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(**values)


# Both sides of the handshake in the simulator: who is quicker gets it, the other is refused and goes on.


LINEAR = SplitCost("linear", p=0.1, max_blocks=4, min_gain=1.0)
LINK = LinkSettings(delay_s=0.1)


def test_two_homes_want_the_one_idle_site() -> None:
    # Sites 0 and 1 are full for long; site 2 is idle and has nobody of its own.
    streams = [[job(1, 0, 4, 1000), job(2, 10, 4, 100)], [job(1, 0, 4, 1000), job(3, 10, 4, 100)], []]
    settings = GridSettings(((4,), (4,), (4,)), Mode.SEARCH, LINEAR)
    run = simulate_messages(settings, streams, LINK)
    assert problems(run, settings) == []
    away = {(ran.home, ran.job.number): ran.plan for ran in run.jobs if ran.plan.sites == (2,)}
    assert set(away) == {(0, 2), (1, 3)}
    first, second = sorted(away.values(), key=lambda plan: plan.start_s)
    # A foreign job starts when its handshake can be over: five messages.
    assert first.start_s == pytest.approx(10.5)
    assert second.start_s == first.end_s
    assert sum(run.refusals.values()) == 1
    assert run.rounds == 1
    assert run.messages["confirm"] == 3
    assert run.messages["committed"] == 2


def test_a_split_over_sites_is_committed_everywhere() -> None:
    settings = GridSettings(((4,), (4,), (4,)), Mode.COALLOCATE, LINEAR)
    streams = [[job(1, 0, 2, 1000), job(2, 1, 10, 100)], [], []]
    run = simulate_messages(settings, streams, LINK)
    split = run.jobs[-1]
    assert split.way is Way.MULTI_NOW
    assert split.plan.sites == (0, 1, 2)
    assert split.plan.start_s == pytest.approx(1 + 9 * 0.1)
    assert run.messages["commit"] == 2  # and its own site
    assert problems(run, settings) == []


def test_one_job_at_a_time_as_without_messages() -> None:
    # Far apart, so that nobody's picture is out of date: the same plans, later by the handshake.
    stream = [job(n, 1000.0 * n, 3 + n % 4, 2500.0) for n in range(1, 30)]
    settings = GridSettings(((4, 4), (6,), (3, 3, 3)), Mode.COALLOCATE, LINEAR)
    streams = [stream, [], []]
    plain = simulate_grid(settings, streams)
    sent = simulate_messages(settings, streams, LinkSettings(delay_s=1e-6))
    assert [ran.plan.blocks for ran in sent.jobs] == [ran.plan.blocks for ran in plain.jobs]
    for mine, other in zip(sent.jobs, plain.jobs, strict=True):
        assert mine.plan.start_s == pytest.approx(other.plan.start_s, abs=0.01)
    assert not sent.refusals
    assert sum(len(ran.plan.blocks) > 1 for ran in sent.jobs) > 3


def test_asking_a_few_sends_fewer_messages() -> None:
    stream = [job(n, 10.0 * n, 4, 500.0) for n in range(1, 20)]
    settings = GridSettings(((4,),) * 6, Mode.SEARCH, LINEAR)
    streams = [stream, *([] for _ in range(5))]
    for link, n_asked in ((LINK, 5), (LinkSettings(delay_s=0.1, fan_out=2), 2)):
        run = simulate_messages(settings, streams, link)
        assert (run.messages["discover"], len(run.jobs)) == (n_asked * 18, 19)
        assert simulate_messages(settings, streams, link).schedule_hash() == run.schedule_hash()


@pytest.mark.parametrize(
    "submits_s",
    [(71.7, 222.29999999999998), (81.6, 416.09999999999997, 416.09999999999997)],
    ids=["before", "behind"],
)
def test_a_clock_a_rounding_error_off_a_submission(submits_s: tuple[float, ...]) -> None:
    assert submits_s[0] + (submits_s[1] - submits_s[0]) != submits_s[1]
    stream = [job(n, submit_s, 1, 0.5) for n, submit_s in enumerate(submits_s)]
    settings = GridSettings(((4,), (4,)), Mode.SEARCH, LINEAR)
    for run in (simulate_grid(settings, [stream, []]), simulate_messages(settings, [stream, []], LINK)):
        assert problems(run, settings) == []
        assert [ran.way for ran in run.jobs] == [Way.SINGLE_NOW] * len(submits_s)
