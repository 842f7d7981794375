"""One grid job seen from home, through its whole life among three sites in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.torque.grid.sites import World
from torque_sched.grid.handshake.blocks import BlockReport, BlockState, Go
from torque_sched.grid.handshake.guest import BlockEnded, BlockFailed
from torque_sched.grid.handshake.home_job import (
    Cancel,
    Dropped,
    Finished,
    HomeJob,
    Requeue,
    Reschedule,
    Stage,
)
from torque_sched.grid.handshake.messages import From, SiteId

A, B, C = (SiteId(name) for name in "abc")
ALL = [("a", 1), ("b", 2), ("c", 1)]


def submitted(wishes: list[list[tuple[str, int]]], later_s: float = 0.0) -> World:
    """A job at a, among three sites of two nodes."""
    world = World(dict.fromkeys("abc", 2))
    world.submit("a", "1", wishes, later_s)
    return world


@pytest.fixture
def world() -> World:
    return submitted([ALL])


def flow(world: World, rounds: int = 4, step_s: float = 1.0) -> None:
    for _ in range(rounds):
        for _ in range(20):
            world.deliver_all()
        world.wait(step_s)


def take_all(world: World) -> None:
    for site in world.sites.values():
        while site.pending:
            site.take(0, works=True)


def take_due(world: World) -> None:
    for site in world.sites.values():
        site.take_due()


def arrive(world: World, *names: SiteId) -> None:
    for name in names:
        for job in world.sites[name].batch:
            if not job.over:
                world.sites[name].arrive(job)


def home(world: World) -> HomeJob:
    return world.sites[A].jobs["1"]


def result(world: World) -> list[Any]:
    return world.results.get((A, "1"), [])


def taken(world: World, *names: SiteId) -> World:
    """All blocks are batch jobs, and those of these sites are at the barrier."""
    flow(world)
    take_all(world)
    arrive(world, *names)
    return world


def started(world: World) -> None:
    flow(taken(world, A, B, C))
    assert world.bodies == {home(world).token: {A, B, C}}
    assert home(world).state.stage is Stage.RUNNING


def end(world: World, *names: SiteId) -> None:
    for site in map(world.sites.__getitem__, names):
        site.end(next(job for job in site.batch if not job.over))


def test_it_starts_everywhere_or_not_yet_and_ends_everywhere(world: World) -> None:
    flow(taken(world, A, B))
    assert world.bodies == {}
    arrive(world, C)
    flow(world)
    assert world.bodies == {home(world).token: {A, B, C}}
    end(world, A, B, C)
    flow(world)
    assert result(world) == [Finished(((A, 0), (B, 0), (C, 0)))]
    assert home(world).finished
    world.settle()


def test_every_block_hears_of_all_hosts(world: World) -> None:
    taken(world, A, B, C)
    (before,) = world.sites[B].guest.state.blocks
    flow(world)
    (block,) = world.sites[B].guest.state.blocks
    assert (before.index, before.count, block.sites) == (1, 3, (A, B, C))
    assert [len(hosts) for hosts in block.all_hosts] == [1, 2, 1]


def test_a_block_that_cannot_be_submitted_cancels_all_and_queues_again(world: World) -> None:
    flow(world)
    world.sites[B].take(0, works=False)
    flow(world, 2)
    assert result(world) == [Requeue(2, "block at b failed to start")]
    assert world.bodies == {}
    world.settle()


def test_a_block_that_does_not_arrive_in_time_cancels_all(world: World) -> None:
    flow(taken(world, A, B))
    world.wait(61)
    assert result(world)[0] == Requeue(2, "block at c did not arrive in time")
    assert world.bodies == {}
    world.settle()


def test_a_block_lost_while_it_runs_stops_all_before_it_is_queued_again(world: World) -> None:
    started(world)
    (lost,) = world.sites[B].batch
    lost.over = True
    world.sites[B].tell_guest(BlockFailed(lost.token, "its node is down"))
    flow(world, 2)
    assert home(world).state.stage is Stage.STOPPING
    assert result(world) == []
    end(world, A, C)
    flow(world)
    assert result(world)[0] == Requeue(2, "block at b was lost")


def test_a_peer_that_cannot_be_reached_is_waited_for(world: World) -> None:
    started(world)
    world.cut = {frozenset((A, B)), frozenset((A, C))}
    world.wait(300)
    assert home(world).state.stage is Stage.RUNNING
    end(world, B)
    world.cut.clear()
    flow(world, 12)
    end(world, A, C)
    flow(world, 12)
    assert result(world) == [Finished(((A, 0), (B, 0), (C, 0)))]


def test_a_peer_that_never_comes_back_leaves_its_exit_unknown_and_is_not_run_twice(world: World) -> None:
    started(world)
    world.cut = {frozenset((A, B)), frozenset((B, C))}
    world.letters.clear()
    end(world, A, C)
    flow(world, 12)
    assert result(world) == []
    world.wait(700)
    assert result(world) == [Finished(((A, 0), (B, None), (C, 0)))]


@pytest.mark.parametrize("after", range(6))
def test_a_home_killed_around_the_decision_to_go_goes_on_or_starts_nothing(world: World, after: int) -> None:
    taken(world, A, B)
    flow(world, 3)
    arrive(world, C)
    world.sites[A].die_after = after
    world.deliver_all()
    world.sites[A].die_after = None
    flow(world, 6)
    assert world.bodies == {home(world).token: {A, B, C}}


def test_a_home_killed_between_confirm_and_commit_leaves_nothing_and_tries_again(world: World) -> None:
    while not world.sites[B].guest.grants(world.sites[B].now):
        world.deliver_all()
    world.sites[A].restart()
    assert result(world) == [Requeue(2, "coordinator restarted")]
    flow(world, 1)
    tokens = {grant.token.attempt for site in world.sites.values() for grant in site.guest.grants(site.now)}
    assert tokens == {2}


@pytest.mark.parametrize("when", ["asking", "starting", "running"])
def test_a_cancelled_job_is_dropped_when_nothing_is_left_of_it(world: World, when: str) -> None:
    if when == "running":
        started(world)
    elif when == "starting":
        flow(world)
        take_all(world)
    world.sites[A].tell_job("1", Cancel())
    assert result(world) == []
    world.settle()
    assert result(world) == [Dropped()]
    assert all(not site.guest.grants(site.now) for site in world.sites.values())


def test_no_candidate_that_fits_queues_it_again_with_the_reason() -> None:
    w = submitted([[("b", 3)]])
    flow(w, 2)
    assert result(w)[0] == Requeue(2, "busy at b")


def test_an_old_report_does_not_undo_a_newer_one(world: World) -> None:
    started(world)
    token, seen_s = home(world).token, home(world).state.blocks[1].seen_s
    unknown, submitted_, cancelled = (BlockState[name] for name in ("UNKNOWN", "SUBMITTED", "CANCELLED"))
    for state, after_s in ((unknown, -1.0), (submitted_, -1.0), (cancelled, -1.0), (unknown, 1.0)):
        assert home(world).state.stage is Stage.RUNNING
        world.sites[A].tell_job("1", From(B, BlockReport(token, B, seen_s + after_s, state)))
    assert home(world).state.stage is Stage.STOPPING


def test_go_is_said_only_by_home_and_only_once_decided(world: World) -> None:
    taken(world, A, B, C)
    token = home(world).token
    fake = Go(token, B, world.sites[B].now.wall_s, (A, B, C), (("n0",),) * 3)
    world.sites[B].tell_guest(From(C, fake))
    assert world.bodies == {}


def test_a_start_that_is_reserved_waits_until_then_and_asks_only_now_and_then() -> None:
    world = submitted([ALL], 500.0)
    flow(world, 6)
    assert home(world).state.stage is Stage.STARTING
    assert [len(site.pending) for site in world.sites.values()] == [1, 1, 1]
    world.letters.clear()
    asked_s = []
    for _ in range(60):
        world.deliver_all()
        before = len(world.letters)
        world.wait(1.0)
        asked_s += [world.at_s] if len(world.letters) > before else []
    assert len(asked_s) <= 8
    take_due(world)
    assert not any(site.batch for site in world.sites.values())
    flow(world, 440)
    take_due(world)
    arrive(world, A, B, C)
    flow(world)
    assert world.bodies == {home(world).token: {A, B, C}}
    world.settle()


def test_a_reserved_start_that_one_site_has_given_back_is_queued_again() -> None:
    """beta hears nothing of home for longer than it keeps its claim."""
    world = submitted([ALL], 3000.0)
    flow(world, 6)
    world.cut = {frozenset((A, B))}
    flow(world, 100, step_s=10.0)
    assert not world.sites[B].guest.grants(world.sites[B].now)
    assert world.sites[C].guest.grants(world.sites[C].now)
    world.sites[B].pending.clear()
    world.cut.clear()
    flow(world, 15)
    assert result(world)[0] == Requeue(2, "block at b failed to start")
    world.settle()


def test_what_a_site_could_not_bring_home_is_told_with_the_exits(world: World) -> None:
    world.sites[B].stages = world.sites[C].stages = True
    started(world)
    end(world, A, B, C)
    for name, works in ((B, False), (C, True)):
        world.sites[name].stage(0, works=works)
    flow(world, 12)
    assert home(world).state.stage is Stage.RUNNING
    assert home(world).state.blocks[1].why == "no space"
    world.sites[B].tell_guest(BlockEnded(home(world).token, 0, "given up"))
    flow(world, 12)
    assert result(world) == [Finished(((A, 0), (B, 0), (C, 0)), ((B, "given up"),))]


def test_files_may_come_home_after_the_claims_end(world: World) -> None:
    world.sites[B].stages = True
    started(world)
    end(world, A, B, C)
    flow(world, 12)
    world.wait(1000.0)
    assert home(world).state.stage is Stage.RUNNING
    world.wait(3600.0)
    assert result(world) == [Finished(((A, 0), (B, 0), (C, 0)))]


def test_a_reserved_start_is_given_up_for_a_sooner_one_and_only_a_reserved_one(world: World) -> None:
    flow(world)
    world.sites[A].tell_job("1", Reschedule())
    assert result(world) == []
    world.settle()
    later = submitted([ALL], 500.0)
    flow(later, 6)
    assert home(later).reserved_s(later.sites[A].now) > 480.0
    later.later_s[A, "1"] = 0.0
    later.sites[A].tell_job("1", Reschedule())
    assert result(later) == [Requeue(2, "")]
    later.settle()
    assert later.at_s < 100.0
    assert [type(each) for each in result(later)] == [Requeue, Finished]
