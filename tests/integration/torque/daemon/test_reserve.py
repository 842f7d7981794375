"""``torque-sched reserve`` beside a daemon: in force from the next cycle on, over kill -9, until deleted."""

from __future__ import annotations

import json
import time

from click.testing import CliRunner

from tests.fixtures.waiting import until
from tests.integration.torque.daemon.conftest import Daemon, Serve, starts
from torque_sched.batch.cycle_lock import CycleLock
from torque_sched.cli import main
from torque_sched.daemon.journal_form import read_journal
from torque_sched.decide.decide import decide
from torque_sched.emulation import EmulatedTorque
from torque_sched.learn.reservations import Reservations
from torque_sched.model.cluster import NodeName


def ours(torque: EmulatedTorque, *words: str, code: int = 0, complains: bool = False) -> str:
    """Standard output, or what it complained of."""
    done = CliRunner(env=torque.env).invoke(main, [*words[:1], "-d", str(torque.home), *words[1:]])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.stderr if code or complains else done.stdout


def held_long(daemon: Daemon, job: str, n_cycles: int = 3) -> None:
    """The job still waits after some more cycles."""
    for _ in range(n_cycles):
        last_s = until(daemon.state, "a cycle")["now_s"]
        until(lambda last_s=last_s: daemon.state()["now_s"] > last_s, "a cycle")  # type: ignore[misc]
    assert job not in daemon.running()


def test_maintenance_keeps_jobs_off_over_a_kill_until_it_is_deleted(
    torque: EmulatedTorque, serve: Serve
) -> None:
    daemon = serve(timer_s=0.2)
    until(daemon.state, "the first cycle")
    ours(torque, "reserve", "--start", "+200", "--length", "600", "--nodes", "1:big", "--name", "disks")
    (made,) = json.loads(ours(torque, "reserve", "--list", "--json"))
    assert (made["name"], made["nodes"], made["users"]) == ("disks", ["node3"], [])
    until(lambda: "reserved: disks, 1 nodes, " in ours(torque, "status"), "the look that heeds it")
    long = torque.submit("-l", "nodes=1:ppn=8,walltime=10:00", runtime_s=60)
    short = torque.submit("-l", "nodes=1:ppn=8,walltime=20", runtime_s=1)
    until(lambda: short in starts(torque), "the short one's start")
    until(lambda: "disks" in torque.jobs()[long].get("comment", ""), "the comment")
    daemon.kill()
    daemon.start()
    until(lambda: torque.jobs()[short]["job_state"] == "C", "the short one's end")
    held_long(daemon, long)
    assert "disks: deleted" in ours(torque, "reserve", "--delete", "disks")
    until(lambda: long in daemon.running(), "the start")
    time.sleep(0.5)
    daemon.stop()
    cycles = list(read_journal(daemon.home / "sched_priv" / "journal"))
    assert any(each.name == "disks" for cycle in cycles for each in cycle.context.reservations)
    for cycle in cycles:
        assert decide(cycle.snapshot, cycle.settings, cycle.context) == cycle.decisions


def test_a_reservation_lets_its_users_in(torque: EmulatedTorque, serve: Serve) -> None:
    daemon = serve(timer_s=0.2)
    words = ("--start", "now", "--end", "+1:00:00", "--nodes", "node3", "--user", "bob,carol")
    told = ours(torque, "reserve", *words)
    assert told.startswith("reservation-1: node3 ")
    others = torque.submit("-l", "nodes=1:ppn=8,walltime=60", runtime_s=60)
    own = torque.submit("-l", "nodes=1:ppn=8,walltime=60", runtime_s=60, user="bob")
    until(lambda: daemon.running() == {own}, "the start of bob's")
    held_long(daemon, others)


def test_what_the_settings_keep_and_limit_holds_live_and_in_replay(
    torque: EmulatedTorque, serve: Serve
) -> None:
    course = {"name": "course", "nodes": ["node3"], "start": "00:00", "end": "24:00", "users": ["bob"]}
    daemon = serve(
        timer_s=0.2,
        standing_reservations=[course],
        throttling={"users": {"*": {"max_procs": 8}}},
        qos={"urgent": {"users": ["bob"], "priority": 1}},
    )
    others = torque.submit("-l", "nodes=1:ppn=8,walltime=600", runtime_s=600)
    refused = torque.submit("-l", "nodes=1,walltime=600,qos=urgent", runtime_s=600)
    for job, words in (
        (others, "run into course, which keeps nodes from"),
        (refused, "It may not run as asked: QoS urgent is not open to user"),
    ):
        until(lambda job=job, words=words: words in torque.jobs()[job].get("comment", ""), words)  # type: ignore[misc]
    own = torque.submit("-l", "nodes=1:ppn=8,walltime=600", runtime_s=600, user="bob")
    more = torque.submit("-l", "nodes=1,walltime=600", "-W", "x=QOS:urgent", runtime_s=600, user="bob")
    until(lambda: daemon.running() & {own, more}, "a start of bob's")
    (waits,) = {own, more} - daemon.running()
    words = "user bob may have 8 processors at once: "
    until(lambda: words in torque.jobs()[waits].get("comment", ""), words)
    (shown,) = json.loads(ours(torque, "reserve", "--list", "--json"))
    assert (shown["name"], shown["again"], shown["users"]) == ("course", "daily 00:00 to 24:00", ["bob"])
    span = ("--start", "+60", "--length", "600")
    assert "overlaps 'course'" in ours(torque, "reserve", *span, "--nodes", "node3", code=2)
    assert "take it out of `standing_reservations`" in ours(torque, "reserve", "--delete", "course", code=2)
    assert "limit of user bob: 8 processors" in ours(torque, "explain", waits)
    daemon.stop()
    for cycle in read_journal(daemon.home / "sched_priv" / "journal"):
        assert decide(cycle.snapshot, cycle.settings, cycle.context) == cycle.decisions


def test_what_cannot_be_is_refused_with_its_cure(torque: EmulatedTorque, serve: Serve) -> None:
    daemon = serve()
    until(daemon.state, "the first cycle")
    span = ("--start", "+60", "--length", "600")
    ours(torque, "reserve", *span, "--nodes", "node1,node2", "--name", "a")
    for words, told in (
        ((*span, "--nodes", "node9"), "no node node9: there are node1, node2, node3, node4"),
        ((*span, "--nodes", "node2", "--name", "b"), "overlaps 'a' on node2"),
        ((*span, "--nodes", "node3", "--name", "a"), "there is a reservation 'a'"),
        ((*span, "--nodes", "3"), "there are 4, of which 2 are up and not reserved then"),
        (("--start", "2001-01-01", "--length", "60", "--nodes", "1"), "is over"),
        (("--start", "now", "--nodes", "1"), "either --end or --length is needed"),
        (("--length", "60"), "--start and --nodes missing"),
        (("--list", "--delete", "a"), "do not go together"),
        (("--delete", "c"), "no reservation 'c': there are: a"),
    ):
        error = ours(torque, "reserve", *words, code=2)
        assert told in error, error
        assert "Traceback" not in error
    assert [each["name"] for each in json.loads(ours(torque, "reserve", "--list", "--json"))] == ["a"]
    busy = torque.submit("-l", "nodes=node4:ppn=4,walltime=10:00", runtime_s=60)
    until(lambda: busy in daemon.running(), "the start")
    told = ours(torque, "reserve", *span, "--nodes", "node4", complains=True)
    assert f"note: {busy} on node4 may run until" in told


def test_a_held_node_is_left_alone_until_it_is_released_or_the_lease_ends(
    torque: EmulatedTorque, serve: Serve
) -> None:
    """What the grid's site service does: look and hold under the lock, beside a daemon."""
    daemon = serve(timer_s=0.2)
    until(daemon.state, "the first cycle")
    sched_priv = torque.home / "sched_priv"
    site = Reservations.open(sched_priv / "history.sqlite")
    now_s = time.time()
    end_s = now_s + 3600
    with CycleLock(sched_priv / "cycle.lock").taken(30.0):
        assert site.hold("t1", {NodeName("node3")}, now_s, end_s, lease_s=600.0, now_s=now_s)
        assert site.hold("t2", {NodeName("node1")}, now_s, end_s, lease_s=1.0, now_s=now_s)
        held = torque.submit("-l", "nodes=1:ppn=8,walltime=60", runtime_s=60)
        short = torque.submit("-l", "nodes=node1:ppn=2,walltime=60", runtime_s=60)
        other = torque.submit("-l", "nodes=1:ppn=1,walltime=60", runtime_s=60)
        time.sleep(0.6)
        assert not daemon.running(), "a cycle started something while the site looked"
    until(lambda: other in daemon.running(), "the start elsewhere")
    until(lambda: short in daemon.running(), "the start after the lease")
    assert not site.commit("t2", time.time())
    held_long(daemon, held, 2)
    assert site.release("t1")
    until(lambda: held in daemon.running(), "the start after the release")
    site.close()


def test_a_site_that_hangs_with_the_lock_is_told_and_only_delays(
    torque: EmulatedTorque, serve: Serve
) -> None:
    daemon = serve(timer_s=0.2, limits={"lock_s": 0.3})
    until(daemon.state, "the first cycle")
    with CycleLock(torque.home / "sched_priv" / "cycle.lock").taken(30.0):
        job = torque.submit("-l", "nodes=1", runtime_s=60)
        until(lambda: "another process has held" in daemon.log(), "the complaint")
        assert not daemon.running()
    until(lambda: job in daemon.running(), "the start")


def test_nothing_runs_into_dedicated_time_and_is_told(torque: EmulatedTorque, serve: Serve) -> None:
    now_s = time.time()
    span = [time.strftime("%m/%d/%Y %H:%M", time.localtime(now_s + each)) for each in (240, 1200)]
    (torque.home / "sched_priv").mkdir(exist_ok=True)
    (torque.home / "sched_priv" / "dedicated_time").write_text(f"{span[0]} {span[1]}\n", encoding="ascii")
    daemon = serve(timer_s=0.2, backfill="conservative")
    long = torque.submit("-l", "nodes=1:ppn=2,walltime=1:00:00", runtime_s=60)
    short = torque.submit("-l", "nodes=1:ppn=2,walltime=20", runtime_s=60)
    until(lambda: daemon.running() == {short}, "the short one's start")
    until(lambda: torque.jobs()[long].get("comment"), "the comment")
    held_long(daemon, long, 2)
    shown = json.loads(ours(torque, "showstart", long, "--json"))
    assert shown["start_s"] >= now_s + 1140
    assert any("dedicated time from" in each for each in shown["evidence"])
