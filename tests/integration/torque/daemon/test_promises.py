"""`backfill: conservative` live: a wide job is promised its start, short ones go ahead, the promise is kept.

Also over kill -9 at any moment: what was told to a job before is still so after, or there is a reason.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from tests.fixtures.waiting import until
from tests.integration.torque.daemon.conftest import Daemon, Serve, spy, starts
from tests.integration.torque.daemon.test_reserve import ours
from torque_sched.daemon.journal_form import read_journal
from torque_sched.decide.decide import decide
from torque_sched.emulation import EmulatedTorque
from torque_sched.errors import StartupError
from torque_sched.learn.promises import BETTER, MADE, Change, KeptPromise, Outcome
from torque_sched.learn.store import Store

CONSERVATIVE = {"backfill": "conservative", "timer_s": 0.3}
EXACT = {"backfill": {"name": "conservative", "slack_s": 2.0, "resolution_s": 1.0}, "timer_s": 0.3}
KILLS = 4
RESERVED = "Nodes are reserved for it"


def stored(daemon: Daemon) -> tuple[dict[str, KeptPromise], dict[str, Outcome]]:
    """Promises and outcomes as they stand in the file, by job."""
    store = Store.read_only(daemon.home / "sched_priv" / "history.sqlite")
    try:
        promises = {row.key[0]: row for row in store.promises()}
        return promises, {row.key[0]: row for row in store.outcomes()}
    finally:
        store.close()


def promise_of(daemon: Daemon, job: str) -> KeptPromise:
    def look() -> KeptPromise | None:
        try:
            return stored(daemon)[0].get(job)
        except StartupError:
            return None

    found: KeptPromise = until(look, f"a promise to {job}")
    return found


def both_starts_are_told(torque: EmulatedTorque, ended: str, waits: str) -> None:
    until(lambda: torque.jobs()[ended]["job_state"] == "C", "the short one's end")
    until(lambda: "expected: 20" in ours(torque, "showstart", waits), "what the ended one taught")
    assert "guaranteed: not later than 20" in ours(torque, "showstart", waits)
    assert "it starts not later than 20" in torque.jobs()[waits]["comment"]


def test_a_wide_job_is_promised_short_ones_go_ahead_and_the_promise_is_kept(
    torque: EmulatedTorque, serve: Serve
) -> None:
    daemon = serve(**EXACT)
    first = torque.submit("-l", "nodes=node3:ppn=4,walltime=400", "-N", "first", runtime_s=1000)
    until(lambda: first in daemon.running(), "the first start")
    began_s = float(torque.jobs()[first]["start_time"])
    wide = torque.submit("-l", "nodes=1:ppn=8,walltime=60", "-N", "wide", runtime_s=2)
    told = promise_of(daemon, wide)
    assert told.promise.allocation[0].node == "node3"
    assert began_s + 400 <= told.promise.first_s <= began_s + 400 + 5

    short = torque.submit("-l", "nodes=node3:ppn=4,walltime=10", "-N", "short", runtime_s=2)
    late = torque.submit("-l", "nodes=node3:ppn=4,walltime=3000", "-N", "late", runtime_s=1)
    until(lambda: short in starts(torque), "the short one's start")
    later = promise_of(daemon, late)
    assert later.promise.start_s >= told.promise.start_s + 60
    shown = json.loads(ours(torque, "showstart", wide, "--json"))
    assert shown["is_guaranteed"]
    assert shown["guaranteed_start_s"] == pytest.approx(told.promise.start_s, abs=1.0)
    assert [each["node"] for each in shown["nodes"]] == ["node3"]
    asked = json.loads(ours(torque, "showstart", "--submit", "nodes=1:ppn=8", "--walltime", "0:30", "--json"))
    assert asked["start_s"] >= told.promise.start_s + 60
    assert "guaranteed start: by" in ours(torque, "explain", wide)
    both_starts_are_told(torque, short, late)
    assert torque.run("qdel", first).returncode == 0
    until(lambda: wide in starts(torque), "the wide one's start")
    assert float(torque.jobs()[wide]["start_time"]) <= told.promise.first_s
    until(lambda: torque.jobs()[late]["job_state"] == "C", "the last end")
    records = [tuple(line.split(";")[1:3]) for line in torque.accounting()]
    assert records.index(("E", wide)) < records.index(("S", late))
    _, outcomes = until(lambda: (found := stored(daemon)) and late in found[1] and found, "the outcomes")
    assert outcomes[wide].first_error_s < 0
    assert outcomes[wide].n_broken == 0
    assert "before its first guaranteed start" in ours(torque, "explain", wide)
    assert "before its first guaranteed start" in ours(torque, "showstart", wide)
    assert "no start had been guaranteed" in ours(torque, "showstart", first)
    page = torque.home / "report.html"
    assert "guaranteed starts" in ours(torque, "report", "--html", str(page))
    assert "2 jobs had a guaranteed start" in page.read_text(encoding="utf-8")

    daemon.stop()
    cycles = list(read_journal(daemon.home / "sched_priv" / "journal"))
    assert any(cycle.context.promises for cycle in cycles)
    for cycle in cycles:
        assert decide(cycle.snapshot, cycle.settings, cycle.context) == cycle.decisions


def test_a_failed_node_and_a_reservation_put_promises_off_and_it_is_told(
    torque: EmulatedTorque, serve: Serve
) -> None:
    daemon = serve(**EXACT)
    running = {
        torque.submit("-l", "nodes=node2:ppn=4,walltime=2000", runtime_s=1000),
        torque.submit("-l", "nodes=node3:ppn=8,walltime=600", runtime_s=1000),
        torque.submit("-l", "nodes=node4:ppn=4,walltime=9000", runtime_s=1000),
    }
    until(lambda: daemon.running() == running, "three starts")
    job = torque.submit("-l", "nodes=1:ppn=4,walltime=60", runtime_s=1)
    assert promise_of(daemon, job).promise.allocation[0].node == "node3"

    def last_change() -> Change:
        return promise_of(daemon, job).changes[-1]

    assert torque.run("pbsnodes", "-o", "node3").returncode == 0
    until(lambda: last_change().kind == "node-failed", "the broken promise")
    assert "node3" in last_change().why
    assert promise_of(daemon, job).promise.allocation[0].node == "node2"
    ours(torque, "reserve", "--start", "+1900", "--length", "600", "--nodes", "node2", "--name", "course")
    until(lambda: last_change().kind == "reservation", "the other broken promise")
    row = promise_of(daemon, job)
    assert row.n_broken == 2
    assert row.promise.start_s >= (row.changes[-1].from_s or 0.0) + 400
    until(lambda: daemon.log().count(f"Job;{job};Guaranteed start ") == 2, "the log lines")
    told = ours(torque, "explain", job)
    assert "broken (node-failed)" in told
    assert "broken (reservation)" in told
    assert "course" in told


def hanging_qrun(torque: EmulatedTorque) -> tuple[Path, Path]:
    """Its first call waits until a line can be read from a pipe; returns the file of calls, and the pipe."""
    calls, gate = spy(torque, "qrun"), torque.directory / "gate"
    os.mkfifo(gate)
    qrun = torque.path / "qrun"
    noted, _, ordered = qrun.read_text(encoding="utf-8").rpartition("exec")
    waits = f"[ $(wc -l < {calls}) -gt 1 ] || read line < {gate}"
    qrun.write_text(f"{noted}{waits}\nexec{ordered}", encoding="utf-8")
    return calls, gate


def test_a_start_that_outlives_its_daemon_is_over_before_the_next_one_looks(
    torque: EmulatedTorque, serve: Serve
) -> None:
    """Else its slots look free, others are promised them, and that is broken a moment later."""
    calls, gate = hanging_qrun(torque)
    daemon = serve(**CONSERVATIVE, limits={"lock_s": 0.3}, order_timeout_s=600.0)
    first = torque.submit("-l", "nodes=node3:ppn=8,walltime=90", runtime_s=60)
    until(lambda: calls.read_text(encoding="utf-8"), "the order")
    daemon.kill()
    wide = torque.submit("-l", "nodes=node3:ppn=8,walltime=90", runtime_s=1)
    daemon.start()
    until(lambda: "another process has held" in daemon.log(), "a cycle that waits")
    assert not daemon.running()
    gate.write_text("go on\n", encoding="utf-8")
    row = promise_of(daemon, wide)
    assert [change.kind for change in row.changes] == [MADE]
    assert daemon.running() == {first}
    assert calls.read_text(encoding="utf-8").count("qrun") == 1


def test_a_start_that_hangs_is_ended_by_the_next_daemon(torque: EmulatedTorque, serve: Serve) -> None:
    calls, _ = hanging_qrun(torque)
    daemon = serve(**CONSERVATIVE, order_timeout_s=5.0)
    job = torque.submit("-l", "nodes=node3:ppn=8,walltime=90", runtime_s=60)
    until(lambda: calls.read_text(encoding="utf-8"), "the order")
    daemon.kill()
    daemon.start()
    until(lambda: daemon.running() == {job}, "the start")
    assert "ended an order left by a scheduler that is gone" in daemon.log()
    assert calls.read_text(encoding="utf-8").count("qrun") == 2
    assert starts(torque) == {job: 1}


def test_killed_at_random_points_no_promise_gets_later_without_a_reason(
    torque: EmulatedTorque, serve: Serve
) -> None:
    chance = random.Random(11)
    daemon = serve(**CONSERVATIVE)

    def job() -> dict[str, object]:
        asked = f"nodes=1:ppn={chance.choice((2, 4, 4, 8))},walltime={chance.choice((10, 30, 90))}"
        return {"arguments": ["-l", asked], "runtime_s": chance.uniform(1.5, 4.0)}

    ids = torque.submit_many(job() for _ in range(14))
    seen: dict[str, KeptPromise] = {}

    def compare() -> None:
        now = stored(daemon)[0]
        for job, row in now.items():
            was = seen.get(job)
            # No node failed, no job ran over its limit, nobody reserved anything: nothing excuses a break.
            assert {change.kind for change in row.changes} <= {MADE, BETTER}, row
            if was is not None:
                assert row.promise.first_s == was.promise.first_s
                assert row.promise.start_s <= was.promise.start_s + 0.001
        seen.update(now)

    until(lambda: stored(daemon)[0], "the first promises")
    for _ in range(KILLS):
        compare()
        time.sleep(chance.uniform(0.0, 0.8))
        daemon.kill()
        compare()
        kept = stored(daemon)
        dry = json.loads(ours(torque, "cycle", "--dry-run", "--json"))["decisions"]
        for each in dry:
            row = kept[0].get(each["job"])
            if each.get("promise") and row is not None and not row.is_withdrawn:
                assert each["promise"]["first_made_s"] == row.promise.first_made_s, "a dry run knows it"
        assert stored(daemon) == kept, "and leaves them as they are"
        told = {name for name, job in torque.jobs().items() if RESERVED in job.get("comment", "")}
        assert told <= set().union(*stored(daemon)), "somebody was told what is not kept"
        daemon.start()
        compare()
    until(lambda: all(job["job_state"] == "C" for job in torque.jobs().values()), "the last end", 300.0)
    assert starts(torque) == dict.fromkeys(ids, 1)
    _, outcomes = until(lambda: not (found := stored(daemon))[0] and found, "the last outcome")
    assert seen
    assert outcomes.keys() >= seen.keys()
    for job, outcome in outcomes.items():
        assert outcome.n_broken == 0, (job, outcome)
        assert outcome.first_error_s <= 60.0, (job, outcome)


def test_a_promised_start_needs_no_event_and_no_timer(torque: EmulatedTorque, serve: Serve) -> None:
    """When maintenance ends, nothing happens at the server: the daemon wakes by itself."""
    daemon = serve(**{**EXACT, "timer_s": 3600.0})
    ours(torque, "reserve", "--start", "+0", "--length", "0:00:15", "--nodes", "node3", "--name", "disks")
    job = torque.submit("-l", "nodes=1:ppn=8,walltime=60", runtime_s=2)
    told = promise_of(daemon, job)
    until(lambda: job in starts(torque), "its start")
    assert float(torque.jobs()[job]["start_time"]) >= told.promise.first_s - EXACT["backfill"]["slack_s"] - 1
    _, outcomes = until(lambda: (found := stored(daemon)) and job in found[1] and found, "the outcome")
    assert outcomes[job].n_broken == 0
