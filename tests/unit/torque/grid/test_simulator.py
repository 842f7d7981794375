from __future__ import annotations

import pytest

from tests.unit.torque.grid.jobs import job
from torque_sched.errors import ConfigError
from torque_sched.grid.search import Block, Mode, Plan, SplitCost, Way
from torque_sched.grid.simulate.figures import figures_of, problems
from torque_sched.grid.simulate.simulator import (
    PRESETS,
    GridRun,
    GridSettings,
    Ran,
    parse_layout,
    simulate_grid,
)

LINEAR = SplitCost("linear", p=0.5, max_blocks=4, min_gain=1.0)


def test_later_jobs_fill_holes_and_delay_nobody() -> None:
    stream = [job(1, 0, 3, 100), job(2, 1, 4, 100), job(3, 2, 1, 98), job(4, 3, 1, 98)]
    done = simulate_grid(GridSettings(((4,),), Mode.HOME, LINEAR), [stream])
    assert [ran.plan.start_s for ran in done.jobs] == [0, 100, 2, 200]


def test_search_sends_a_job_where_it_ends_first_and_counts_messages() -> None:
    streams = [[job(1, 0, 4, 100), job(2, 1, 4, 50)], [], []]
    layout = ((4,), (2, 2), (4,))
    done = simulate_grid(GridSettings(layout, Mode.SEARCH, LINEAR), streams)
    assert [ran.plan.sites for ran in done.jobs] == [(0,), (2,)]
    # The first asked nobody; the second asked two sites and agreed with one.
    assert dict(done.messages) == {"discover": 4, "handshake": 4}


def test_what_is_too_wide_for_all_is_counted() -> None:
    done = simulate_grid(GridSettings(((4,), (4,)), Mode.SEARCH, LINEAR), [[job(1, 0, 5, 10)], []])
    assert (len(done.jobs), done.too_wide) == (0, 1)


def test_each_site_needs_its_stream() -> None:
    with pytest.raises(ConfigError, match="1 streams of jobs for 2 sites"):
        simulate_grid(GridSettings(((4,), (4,)), Mode.HOME, LINEAR), [[]])


def test_the_presets_hold_the_widest_job() -> None:
    for sites in PRESETS.values():
        assert all(sum(site) >= 336 for site in sites)
    assert [sum(site) for site in PRESETS["equal"]] == [432] * 4
    assert [len(site) for site in PRESETS["equal"]] == [1, 2, 4, 8]


def test_layouts_as_text() -> None:
    assert parse_layout("2x3,1x4+2x1") == ((3, 3), (4, 1, 1))
    assert parse_layout("equal") is PRESETS["equal"]
    for text in ("", "4", "0x4", "2x-1", "2x3;4x5"):
        with pytest.raises(ConfigError, match="no sites"):
            parse_layout(text)


def _ran(home: int, number: int, submit_s: float, start_s: float, run_s: float, *blocks: Block) -> Ran:
    procs = sum(block.procs for block in blocks)
    plan = Plan(0.0, start_s, LINEAR.length_s(run_s, len(blocks)), blocks)
    return Ran(home, job(number, submit_s, procs, run_s), plan, Way.SINGLE_NOW)


def test_figures_by_hand() -> None:
    run = GridRun(
        [
            _ran(0, 1, 0, 0, 100, Block(0, 0, 1)),
            _ran(0, 2, 0, 50, 100, Block(0, 0, 1), Block(1, 0, 2)),  # T' = 150, ends at 200
            _ran(1, 1, 10, 10, 5, Block(1, 0, 1)),
        ]
    )
    figures = figures_of(run, ((4,), (4,)))
    first, second = figures.sites
    assert first.awrt_s == pytest.approx((100 * 100 + 300 * 200) / 400)
    assert first.awrt_extended_s == pytest.approx((100 * 100 + 450 * 200) / 550)
    assert first.awwt_s == pytest.approx(300 * 50 / 400)
    assert first.mean_wait_s == 25
    assert (first.n_split, first.n_away) == (1, 1)
    assert first.bounded_slowdown == pytest.approx((1.0 + 2.0) / 2)
    assert second.awrt_s == 5
    assert second.bounded_slowdown == 1.0  # 5 s count as 10
    assert figures.blocks == {1: 2, 2: 1}
    assert figures.mean_extension == figures.max_extension == 0.5
    assert figures.spread == pytest.approx(175 / 5)
    assert figures.utilisation == pytest.approx((100 + 450 + 5) / (8 * 200))
    assert figures.overhead_share == pytest.approx(150 / 405)


@pytest.mark.parametrize(
    ("ran", "words"),
    [
        (_ran(0, 2, 60, 50, 10, Block(0, 0, 1)), "before it was submitted"),
        (_ran(0, 2, 0, 50, 10, Block(0, 0, 3)), "has 5 processors in use at 50"),
        (_ran(0, 2, 0, 200, 10, Block(0, 0, 1), Block(0, 0, 1)), "two blocks on one cluster"),
        (_ran(0, 2, 0, 200, 10, Block(0, 0, 1), Block(1, 0, 0)), "an empty block"),
        (_ran(0, 1, 0, 200, 10, Block(0, 0, 1)), "ran twice"),
        (_ran(0, 2, 0, 200, 10, Block(0, 0, 1))._replace(job=job(2, 0, 2, 10)), "not the processors"),
        (_ran(0, 2, 0, 200, 10, Block(0, 0, 1))._replace(job=job(2, 0, 1, 11)), "runs 10.0 s in 1 blocks"),
    ],
)
def test_the_check_finds_what_must_not_be(ran: Ran, words: str) -> None:
    right = _ran(0, 1, 0, 0, 100, Block(0, 0, 2))
    settings = GridSettings(((4,), (4,)), Mode.COALLOCATE, LINEAR)
    assert problems(GridRun([right]), settings) == []
    assert any(words in problem for problem in problems(GridRun([right, ran]), settings))
