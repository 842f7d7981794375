"""The daemon on an emulated OpenPBS: select by chunks, arrays, backfilling, replay; SIGKILL in between."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_server import run_command
from tests.fixtures.waiting import until
from torque_sched.emulation import EmulatedOpenPbs

from .conftest import Daemon, free_port, run, starts

HISTORY = {"job_history_enable": "True"}


@pytest.fixture(name="pbs")
def _pbs(tmp_path: Path) -> Iterator[EmulatedOpenPbs]:
    made = EmulatedOpenPbs.create(tmp_path / "cluster", shape="2xnp=4+1xnp=8,gpus=2", server=HISTORY)
    with made:
        yield made


@pytest.fixture(name="daemon")
def _daemon(pbs: EmulatedOpenPbs) -> Iterator[Daemon]:
    made = Daemon(pbs, free_port(), timer_s=0.5)
    yield made
    made.end()


def states(pbs: EmulatedOpenPbs) -> dict[str, str]:
    return {name: job["job_state"] for name, job in pbs.jobs("-t").items()}


def test_a_cycle_places_chunks_arrays_and_backfills(pbs: EmulatedOpenPbs, daemon: Daemon) -> None:
    scattered = pbs.submit("-l", "select=2:ncpus=3:mem=1gb", "-l", "place=scatter", "-l", "walltime=01:00:00")
    wide = pbs.submit("-l", "select=3:ncpus=4", "-l", "place=scatter", "-l", "walltime=01:00:00")
    short = pbs.submit(
        "-l", "select=1:ncpus=1+1:ncpus=1:ngpus=1", "-l", "place=pack", "-l", "walltime=00:10:00"
    )
    long = pbs.submit("-l", "select=1:ncpus=8", "-l", "walltime=24:00:00")
    array = pbs.submit("-J", "0-3%2", "-l", "select=1:ncpus=1", "-l", "walltime=00:10:00")
    held = pbs.submit("-h", "-l", "select=1:ncpus=1")
    daemon.start()
    until(lambda: states(pbs).get(short) == "R", "the job that fits beside")
    until(lambda: "Not Running" in pbs.jobs()[wide].get("comment", ""), "the comments")
    jobs = pbs.jobs("-t")
    elements = re.findall(r"\((node[0-9]):ncpus=3:mem=1gb\)", jobs[scattered]["exec_vnode"])
    assert len(set(elements)) == 2
    assert jobs[short]["exec_vnode"] == "(node3:ncpus=1)+(node3:ncpus=1:ngpus=1)"
    number = array.partition("[")[0]
    members = sorted(state for name, state in states(pbs).items() if re.match(rf"{number}\[\d+\]", name))
    assert members == ["Q", "Q", "R", "R"]
    assert {jobs[name]["job_state"] for name in (wide, long)} == {"Q"}
    assert jobs[held]["job_state"] == "H"
    # The wide one has a guaranteed start, which the long one would delay.
    assert "guaranteed" in run(pbs, "showstart", wide).stdout
    assert run(pbs, "explain", long).returncode == 0
    asked = run(pbs, "whatif", "-l", "select=2:ncpus=5,place=scatter,walltime=1:00:00")
    assert "2 nodes with 5 slots" in asked.stdout, asked.stdout + asked.stderr
    daemon.stop()
    journal = daemon.home / "sched_priv" / "journal"
    replayed = run_command("torque_sched", ("replay", str(journal)), env=pbs.env)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_no_job_is_started_twice_or_forgotten_over_kills(pbs: EmulatedOpenPbs, daemon: Daemon) -> None:
    chance = random.Random(7)
    daemon.start()
    ids = pbs.submit_many(
        {
            "arguments": ["-l", f"select={chance.choice(('1:ncpus=1', '2:ncpus=1:mem=1gb', '1:ncpus=3'))}"],
            "runtime_s": chance.uniform(0.2, 1.5),
        }
        for _ in range(30)
    )
    for _ in range(4):
        time.sleep(chance.uniform(0.0, 0.5))
        daemon.kill()
        daemon.start()
    until(lambda: not pbs.jobs(), "the last end", 240.0)
    assert starts(pbs) == dict.fromkeys(ids, 1)


def test_how_jobs_ended_is_learned_from_the_servers_history(pbs: EmulatedOpenPbs, daemon: Daemon) -> None:
    daemon.start()
    for _ in range(3):
        pbs.submit("-l", "select=1:ncpus=1", "-l", "walltime=01:00:00", runtime_s=0.5)
    until(lambda: len(starts(pbs)) == 3 and not pbs.jobs(), "the ends")

    def n_ended() -> int:
        with sqlite3.connect(daemon.home / "sched_priv" / "history.sqlite") as store:
            (n,) = store.execute("select count(*) from jobs").fetchone()
        store.close()
        return int(n)

    until(lambda: n_ended() == 3, "three jobs in the history")
