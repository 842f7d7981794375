"""How the emulated server's journal becomes the figures of a burst."""

from __future__ import annotations

from pathlib import Path

from benchmarks.torque_transport import Burst, journal_lines
from torque_sched.emulation import EmulatedTorque


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
