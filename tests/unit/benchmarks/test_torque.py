"""Calls noted by the load benchmark, and the journal of the transport benchmark, become figures."""

from __future__ import annotations

from pathlib import Path

from benchmarks.torque_load import seconds_looked, within
from benchmarks.torque_transport import Burst, journal_lines
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


def test_looks_that_overlap_count_once() -> None:
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
