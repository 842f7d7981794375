"""Nodes that fail, a server that restarts, a scheduler that is killed."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator

import pytest

from tests.fixtures.torque_site import Daemon, TorqueSite
from tests.fixtures.waiting import until
from torque_sched.daemon.journal_form import read_journal

from .conftest import Head, in_force

Serve = Callable[..., Daemon]
KILLS = 12


@pytest.fixture
def whole(site: TorqueSite) -> Iterator[TorqueSite]:
    """Afterwards every node can be used again."""
    yield site

    def all_up() -> bool:
        states = ",".join(site.node_states().values())
        return "down" not in states and "offline" not in states

    until(all_up, "all nodes up")


def everything_ended(site: TorqueSite, ids: list[str], within_s: float) -> None:
    wanted = set(ids)
    states = {"Q"}

    def ended() -> bool:
        states.clear()
        states.update(job["job_state"] for name, job in site.jobs().items() if name in wanted)
        return states == {"C"}

    until(ended, "all jobs ended", within_s)


def test_an_offline_node_and_back(whole: TorqueSite, serve: Serve) -> None:
    site = whole
    serve()
    site.must("pbsnodes", "-o", "-N", "disk", "node3")
    job = site.submit("-l", "nodes=1:ppn=8")
    until(lambda: "offline" in site.job(job).get("comment", ""), "it is told")
    assert site.state(job) == "Q"
    site.must("pbsnodes", "-c", "node3")  # of this no event tells
    until(lambda: site.state(job) == "R", "it starts")


def test_a_dead_mom(whole: TorqueSite, serve: Serve) -> None:
    """Starts fail there until the server knows; the job runs when the mom is back."""
    site = whole
    serve(back_off={"pair": {"first_s": 2, "longest_s": 4}, "job": {"first_s": 1, "longest_s": 2},
                    "node": {"first_s": 2, "longest_s": 4}})  # fmt: skip
    site.stop_mom("node3")
    try:
        job = site.submit("-l", "nodes=1:big")
        other = site.submit("-l", "nodes=1")
        until(lambda: site.state(other) == "R", "another node is used")
        until(lambda: "Not Running" in site.job(job).get("comment", ""), "it is told", 90)
    finally:
        site.start_mom("node3")
    until(lambda: site.job(job).get("substate") == "42", "it runs", 90)
    assert site.state(other) == "R"


def test_a_hanging_mom(whole: TorqueSite, serve: Serve) -> None:
    """qrun -a does not wait for moms, so other jobs start while one hangs."""
    site = whole
    serve()
    site.stop_mom("node3", signal.SIGSTOP)
    try:
        stuck = site.submit("-l", "nodes=1:big")
        until(lambda: site.job(stuck).get("job_state") == "R", "it was asked for")
        began_s = time.monotonic()
        other = site.submit("-l", "nodes=1:gpunode")
        until(lambda: site.job(other).get("substate") == "42", "another one runs", 30)
        print(f"beside a hanging mom: {time.monotonic() - began_s:.1f} s")
    finally:
        site.stop_mom("node3", signal.SIGCONT)
    until(lambda: site.job(stuck).get("substate") == "42", "the stuck one runs", 90)


@pytest.mark.parametrize("how", ["qterm", "kill"])
def test_a_server_restart(whole: TorqueSite, head: Head, serve: Serve, how: str) -> None:
    site = whole
    daemon = serve()
    running = site.submit("-l", "nodes=2:ppn=2")
    until(lambda: site.job(running).get("substate") == "42", "its moms have it")
    if how == "qterm":
        site.stop_server()
    else:
        site.signal_server(signal.SIGKILL)
    until(lambda: "no cycle: " in daemon.log(), "it is noticed")
    done = head.ours("status")
    said = done.stdout + done.stderr
    assert (done.returncode, "it could not see the cluster" in said) == (1, True), said
    site.start_server()
    until(lambda: site.run("qstat").returncode == 0, "the server is back")
    job = site.submit("-l", "nodes=1")
    until(lambda: site.state(job) == "R", "jobs start again")
    assert site.state(running) == "R"
    assert "the server answers again" in daemon.log()
    assert site.starts()[running] == 1


def test_three_hundred_jobs(whole: TorqueSite, serve: Serve) -> None:
    site = whole
    serve(timer_s=30)
    began_s = time.monotonic()
    ids = site.submit_many(300, 1)
    everything_ended(site, ids, 300)
    print(f"300 jobs of a second on 18 slots: {time.monotonic() - began_s:.0f} s")
    starts = site.starts()
    assert {starts[each] for each in ids} == {1}


def test_kill_at_random_points(whole: TorqueSite, serve: Serve) -> None:
    site = whole
    chance = random.Random(5)
    ids = site.submit_many(80, 2)
    daemon = serve(timer_s=1)
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.0, 0.8))
        daemon.end(signal.SIGKILL)
        daemon.start()
    everything_ended(site, ids, 180)
    starts = site.starts()
    assert {each: starts[each] for each in ids} == dict.fromkeys(ids, 1)
    assert list(read_journal(site.home / "sched_priv" / "journal"))
    with sqlite3.connect(site.home / "sched_priv" / "history.sqlite") as store:
        assert store.execute("pragma integrity_check").fetchone() == ("ok",)
    store.close()


def test_nobody_is_shown_other_peoples_jobs(site: TorqueSite, head: Head) -> None:
    """An ordinary user sees his own alone; a look that hides jobs is no snapshot. Carol never had one."""
    site.submit(user="bob")
    site.submit(user="bob")
    with in_force(site, query_other_jobs="False"):
        done = head.ours("cycle", "--dry-run", user="carol")
        assert (done.returncode, "qstat shows 0 of the " in done.stderr) == (1, True), done.stderr
