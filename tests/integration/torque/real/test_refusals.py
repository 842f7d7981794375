"""What a real server answers to a qrun, and that each answer is understood."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fixtures.torque_site import TorqueSite
from tests.fixtures.waiting import until
from torque_sched.batch.system import OrderKind
from torque_sched.batch.torque.parse.qrun import classify_qrun

Prepare = Callable[[TorqueSite], tuple[str, ...]]


def kind_of(site: TorqueSite, *words: str, user: str = "root") -> OrderKind:
    done = site.run("qrun", "-a", *words, user=user)
    kind = classify_qrun(done.returncode, done.stderr).kind
    print(done.returncode, done.stderr.strip(), "->", kind.value)
    return kind


def running(site: TorqueSite, *words: str) -> str:
    job = site.submit(*words)
    site.must("qrun", job)
    until(lambda: site.state(job) == "R", "it runs")
    return job


CASES: dict[str, tuple[OrderKind, Prepare]] = {
    "accepted": (OrderKind.STARTED, lambda site: ("-H", "node2:ppn=1", site.submit())),
    "unknown job": (OrderKind.UNKNOWN_JOB, lambda site: ("-H", "node2", "99999")),
    "malformed id": (OrderKind.BAD_ID, lambda site: ("-H", "node2", "abc")),
    "already running": (OrderKind.ALREADY_RUNNING, lambda site: ("-H", "node2", running(site))),
    "waits for its time": (OrderKind.WRONG_STATE, lambda site: ("-H", "node2", site.submit("-a", "2359"))),
    "whole array": (OrderKind.ARRAY_PARENT, lambda site: ("-H", "node2", site.submit("-t", "0-1"))),
    "no such node": (OrderKind.NEVER, lambda site: ("-H", "nosuch", site.submit())),
    "more than the node has": (OrderKind.NEVER, lambda site: ("-H", "node1:ppn=3", site.submit())),
    "no GPU there": (OrderKind.NEVER, lambda site: ("-H", "node2:ppn=1:gpus=1", site.submit())),
    "procs without nodes": (OrderKind.NO_REQUEST, lambda site: (site.submit("-q", "bare", "-l", "procs=2"),)),
}


@pytest.mark.parametrize("name", CASES)
def test_answers(site: TorqueSite, name: str) -> None:
    expected, prepare = CASES[name]
    assert kind_of(site, *prepare(site)) is expected


def test_no_room_now(site: TorqueSite) -> None:
    running(site, "-l", "nodes=node1:ppn=2")
    assert kind_of(site, "-H", "node1:ppn=1", site.submit()) is OrderKind.NOT_NOW


def test_an_offline_node(site: TorqueSite) -> None:
    site.must("pbsnodes", "-o", "node2")
    try:
        assert kind_of(site, "-H", "node2:ppn=1", site.submit()) is OrderKind.NOT_NOW
    finally:
        site.must("pbsnodes", "-c", "node2")
    until(lambda: site.node_states()["node2"] == "free", "it is free")


def test_a_property_for_a_node(site: TorqueSite) -> None:
    """Refused by 6.x alone; 4.2 takes any node that has it."""
    expected = OrderKind.NEVER if site.torque.version.startswith("6.") else OrderKind.STARTED
    assert kind_of(site, "-H", "big:ppn=2", site.submit()) is expected


def test_an_array_at_its_limit(site: TorqueSite) -> None:
    array = site.submit("-t", "0-2%1").replace("[]", "[{}]")
    assert kind_of(site, "-H", "node2:ppn=1", array.format(0)) is OrderKind.STARTED
    until(lambda: site.job(array.format(0)).get("substate") == "42", "the first runs")
    done = site.run("qrun", "-H", "node2:ppn=1", array.format(1))
    assert classify_qrun(done.returncode, done.stderr).kind is OrderKind.ARRAY_LIMIT, done.stderr
    # Asked not to wait, the server may say yes and leave it held: keeping the limit is up to the scheduler.
    site.run("qrun", "-a", "-H", "node2:ppn=1", array.format(2))
    assert site.state(array.format(2)) == "H"


def test_a_stopped_queue(site: TorqueSite) -> None:
    job = site.submit()
    site.qmgr("set queue batch started = False")
    try:
        assert kind_of(site, "-H", "node2:ppn=1", job) is OrderKind.QUEUE_STOPPED
    finally:
        site.qmgr("set queue batch started = True")


def test_an_ordinary_user(site: TorqueSite) -> None:
    assert kind_of(site, "-H", "node2", site.submit(), user="bob") is OrderKind.UNAUTHORISED


def test_a_dead_server(site: TorqueSite) -> None:
    job = site.submit()
    site.stop_server()
    try:
        assert kind_of(site, "-H", "node2", job) is OrderKind.SERVER_GONE
    finally:
        site.start_server()
        until(lambda: set(site.node_states().values()) == {"free"}, "nodes are back")
