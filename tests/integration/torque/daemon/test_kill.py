"""SIGKILL at random moments: no job is started twice and none is forgotten; what it wrote stays readable."""

from __future__ import annotations

import random
import sqlite3
import time

from tests.examples import ALL
from tests.fixtures.waiting import until
from torque_sched.daemon.journal_form import read_journal
from torque_sched.emulation import EmulatedTorque, Fault

from .conftest import Daemon, Serve, spy, starts

KILLS = 8 if ALL else 4


def last_word(daemon: Daemon, job: str) -> str:
    """What the last cycle says of a job; empty where it started it, or did not see it."""
    return str(daemon.state().get("jobs", {}).get(job, {}).get("comment", ""))


def test_killed_at_random_points(torque: EmulatedTorque, serve: Serve) -> None:
    chance = random.Random(7)
    daemon = serve(timer_s=1.0)
    ids = torque.submit_many(
        {"arguments": ["-l", "nodes=1"], "runtime_s": chance.uniform(0.2, 1.5)} for _ in range(40)
    )
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.0, 0.4))
        daemon.kill()
        daemon.start()
    until(lambda: all(job["job_state"] == "C" for job in torque.jobs().values()), "the last end", 240.0)
    assert starts(torque) == dict.fromkeys(ids, 1)
    # Lines are written behind the cycles.
    until(lambda: list(read_journal(daemon.home / "sched_priv" / "journal")), "a line of the journal")
    with sqlite3.connect(daemon.home / "sched_priv" / "history.sqlite") as store:
        assert store.execute("pragma integrity_check").fetchone() == ("ok",)
    store.close()


def test_what_failed_is_left_alone_over_a_kill(torque: EmulatedTorque, serve: Serve) -> None:
    calls = spy(torque, "qrun")
    torque.set_faults(Fault("qrun", "exit", code=2, text="qrun: something nobody has seen\n"))
    steps = {"first_s": 600.0, "longest_s": 1200.0}
    daemon = serve(timer_s=0.2, back_off={"job": steps})
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    # The state is written after what failed is kept, the log before.
    until(lambda: "nobody has seen" in last_word(daemon, job), "the refusal")
    daemon.kill()
    daemon.start()
    began_s = time.time()
    until(lambda: daemon.state().get("now_s", 0.0) > began_s + 0.5, "some cycles")
    assert calls.read_text(encoding="utf-8").count("qrun") == 1
    assert "nobody has seen" in last_word(daemon, job)
    assert not daemon.running()


def test_comments_that_a_killed_daemon_owed_are_written_by_the_next(
    torque: EmulatedTorque, serve: Serve
) -> None:
    torque.set_faults(Fault("qalter", "hang", skip=60))
    ids = torque.submit_many({"arguments": ["-l", "nodes=1"], "runtime_s": 900.0} for _ in range(150))
    daemon = serve()

    def n_told() -> int:
        texts = [job.get("comment", "") for job in torque.jobs().values()]
        return sum(text.startswith(("Job started on ", "Not Running: ")) for text in texts)

    until(lambda: n_told() >= 60, "some comments")
    daemon.kill()
    assert n_told() < len(ids), "some are owed"
    torque.set_faults()
    daemon.start()
    until(lambda: n_told() == len(ids), "the other comments")
    assert set(starts(torque).values()) == {1}


def test_a_signal_ends_a_daemon_that_waits_for_the_answer_to_a_comment(
    torque: EmulatedTorque, serve: Serve
) -> None:
    torque.set_faults(Fault("qalter", "hang", skip=60))
    torque.submit_many({"arguments": ["-l", "nodes=1"], "runtime_s": 900.0} for _ in range(150))
    daemon = serve()
    until(lambda: sum("comment" in job for job in torque.jobs().values()) >= 60, "some comments")
    assert daemon.stop() == 1
