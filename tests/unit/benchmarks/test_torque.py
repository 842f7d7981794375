"""Calls noted by the load benchmark, and the journal of the transport benchmark, become figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.torque import Burst, journal_lines
from benchmarks.torque_c import first_fit
from benchmarks.torque_contest import Seen, jobs
from benchmarks.torque_load import seconds_looked, within
from tests.fixtures.torque_builders import job
from torque_sched.emulation import EmulatedTorque

NOTES = """\
qstat 10.0 12.0 4
pbsnodes 11.0 13.0 1
qalter 12.0 12.5 5
qstat 20.0 25.0 4
"""


def test_calls_are_cut_to_the_time_that_is_watched() -> None:
    calls = within(NOTES, 11.0, 22.0)
    assert calls == [
        ("qstat", 11.0, 12.0, 4),
        ("pbsnodes", 11.0, 13.0, 1),
        ("qalter", 12.0, 12.5, 5),
        ("qstat", 20.0, 22.0, 4),
    ]
    assert seconds_looked(calls) == 4.0
    assert seconds_looked(within(NOTES, 0.0, 100.0)) == 8.0
    assert seconds_looked([]) == 0.0


def test_the_journal_says_when_jobs_started_and_got_the_reason_why_they_wait(tmp_path: Path) -> None:
    settings = {"scheduling": "False"}
    with EmulatedTorque.create(tmp_path, shape="1xnp=2", clock="manual", server=settings) as torque:
        first, second, third = torque.submit_many({"arguments": ["-l", "nodes=1"]} for _ in range(3))
        lines, burst = journal_lines(torque), Burst()
        began_s = torque.clock.now_s
        torque.run("qmgr", "-c", "set server scheduling = True")
        torque.clock.advance(1.0)
        torque.run("qrun", "-H", "node1", first)
        torque.clock.advance(1.0)
        torque.run("qalter", "-W", "comment=waits", second, third)
        torque.clock.advance(1.0)
        torque.run("qrun", "-H", "node1", second)
        torque.run("qalter", "-W", "comment=waits still", third)
        for line in iter(lines.__next__, ""):
            burst.take(line)
    assert burst.on_s == began_s
    assert burst.first_start_s == began_s + 1.0
    assert burst.started == {first, second}
    assert burst.waiting_explained_s == {third: began_s + 2.0}


def test_the_contest_has_narrow_and_wide_jobs() -> None:
    counts = Counter(slots for slots, _ in jobs(10_000))
    assert set(counts) == {1, 2, 3, 4, 8}
    assert counts[1] == pytest.approx(8000, rel=0.05)
    assert counts[8] == pytest.approx(500, rel=0.2)


def test_waits_and_gaps_come_from_the_journal() -> None:
    seen = Seen(100.0, {"1": 1, "2": 8, "3": 1})
    for now_s, job_id, state in (
        (100.5, "1", "Q"), (101.0, "1", "R"), (101.1, "1", "R"), (103.0, "2", "R"), (104.0, "1", "C"),
        (104.2, "3", "R"), (105.0, "2", "C"), (106.0, "3", "C"),
    ):  # fmt: skip
        seen.take(json.dumps({"now_s": now_s, "job": {job_id: {"state": state}, "9": None}}))
    assert (seen.makespan_s, seen.wait_s(8)) == (6.0, 3.0)
    assert seen.wait_s() == pytest.approx((1.0 + 3.0 + 4.2) / 3)
    assert seen.gaps_s == [pytest.approx(0.2)], "after the other ends nobody waits"


def test_the_stand_in_for_c_takes_the_first_nodes_that_fit() -> None:
    free = {"n1": 1, "n2": 4, "n3": 4}
    assert list(first_fit(job(1, "2:ppn=1"), free)) == [("n1", 1), ("n2", 1)]
    assert list(first_fit(job(2, "1:ppn=3"), free)) == [("n2", 3)]
    assert list(first_fit(job(3, "1:ppn=8"), free)) == []
    assert free == {"n1": 1, "n2": 4, "n3": 4}
