"""Routing queues: the first destination that takes a job, who waits, who is refused."""

from __future__ import annotations

import pytest

from tests.unit.torque.emulation.in_memory import Bench
from torque_sched.emulation.routing import RETRY_S

QUEUES = {
    "route": {"queue_type": "Route", "route_destinations": "short,long,elsewhere@other"},
    "short": {"resources_max.walltime": "01:00:00", "resources_default.nodes": "1", "max_queuable": "2"},
    "long": {"resources_min.walltime": "01:00:01", "resources_default.nodes": "1"},
}


def queues(bench: Bench, *jobs: str) -> list[str]:
    return [bench.world.job(job).queue for job in jobs]


def test_the_first_destination_that_takes_it() -> None:
    bench = Bench(queues=QUEUES)
    short = bench.submit("-q", "route", "-l", "walltime=00:10:00")
    long = bench.submit("-q", "route", "-l", "walltime=09:00:00")
    assert queues(bench, short, long) == ["short", "long"]
    assert bench.world.job(short).resources["nodes"] == "1"
    assert "PBS_O_QUEUE=route" in bench.world.job(short).attributes["Variable_List"]
    bench.good("qrun", "-H", "node3", short)
    assert bench.state(short) == "R"


def test_refused_by_all_is_refused_at_once() -> None:
    only = {**QUEUES, "route": {**QUEUES["route"], "route_destinations": "short"}}
    answer = Bench(queues=only).ask(
        "qsub", "-q", "route", "-l", "walltime=09:00:00", user="alice", stdin="x\n"
    )
    assert answer.code == 15041 % 256
    assert "Job rejected by all possible destinations" in answer.err


def test_where_it_is_full_it_waits_and_goes_on_later() -> None:
    bench = Bench(queues=QUEUES, scheduling="True")
    jobs = [bench.submit("-q", "route", "-l", "walltime=00:10:00") for _ in range(3)]
    assert queues(bench, *jobs) == ["short", "short", "route"]
    answer = bench.ask("qrun", "-H", "node3", jobs[2])
    assert "attempt to start job in non-execution queue" in answer.err
    bench.good("qdel", jobs[0])
    bench.world.events.clear()
    bench.advance(RETRY_S + 1)
    assert queues(bench, jobs[2]) == ["short"]
    assert bench.world.events == [1]


def test_a_stopped_routing_queue_keeps_its_jobs() -> None:
    bench = Bench(queues=QUEUES)
    bench.good("qstop", "route")
    array = bench.submit("-q", "route", "-l", "walltime=02:00:00", "-t", "0-1")
    bench.advance(3 * RETRY_S)
    members = bench.world.job(array).members
    assert queues(bench, array, *members) == ["route"] * 3
    bench.good("qstart", "route")
    bench.advance(RETRY_S)
    assert queues(bench, array, *members) == ["long"] * 3


@pytest.mark.parametrize(("user", "code"), [("root", 0), ("alice", 2)])
def test_qterm_asks_who_it_is(user: str, code: int) -> None:
    bench = Bench()
    assert bench.ask("qterm", user=user).code == code
    assert bench.ask("qterm", "-t", "immediate", user=user).code == 1
