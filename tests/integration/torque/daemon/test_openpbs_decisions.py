"""On an emulated OpenPBS every decision is explained, and starts that were promised outlive kills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fixtures.waiting import until
from torque_sched.emulation import EmulatedOpenPbs, EmulatedTorque

from .conftest import Daemon, free_port, run

QUEUES = {
    "workq": {},
    "gpuq": {"max_run": "[u:PBS_GENERIC=1]"},
    "bigq": {"max_run_res.ncpus": "[u:PBS_GENERIC=2]"},
    "stopq": {"started": "False"},
    "other": {"partition": "p2"},
}


@pytest.fixture(name="pbs")
def _pbs(tmp_path: Path) -> Iterator[EmulatedOpenPbs]:
    with EmulatedOpenPbs.create(tmp_path / "cluster", shape="3xnp=4,physmem=8gb", queues=QUEUES) as made:
        yield made


@pytest.fixture(name="daemon")
def _daemon(pbs: EmulatedOpenPbs) -> Iterator[Daemon]:
    made = Daemon(cast("EmulatedTorque", pbs), free_port(), timer_s=0.5, backfill="conservative")
    yield made
    made.end()


def submit(pbs: EmulatedOpenPbs, select: str, *words: str, hours: int = 1, **more: Any) -> str:
    return pbs.submit("-l", f"select={select}", "-l", f"walltime={hours}:00:00", *words, **more)


def test_every_decision_is_explained(pbs: EmulatedOpenPbs, daemon: Daemon) -> None:
    pbs.run("pbsnodes", "-o", "node3", user="root")
    runs = submit(pbs, "1:ncpus=3:host=node1")
    array = submit(pbs, "1:ncpus=1:host=node2", "-J", "0-1%1")
    of_gpuq = [submit(pbs, "1:ncpus=1:host=node2", "-q", "gpuq") for _ in "ab"]
    of_bigq = [submit(pbs, "1:ncpus=1:host=node2", "-q", "bigq"), submit(pbs, "1:ncpus=2", "-q", "bigq")]
    daemon.start()
    running = {runs, array.replace("[]", "[0]"), of_gpuq[0], of_bigq[0]}
    until(lambda: daemon.running() >= running, "what fits")
    waits = {
        submit(pbs, "2:ncpus=4", "-l", "place=scatter"): "guaranteed",
        submit(pbs, "1:ncpus=1:host=node3"): "1 down, offline or not reporting",
        submit(pbs, "1:ncpus=64"): "never",
        submit(pbs, "1:ncpus=1:feature=none"): "never",
        submit(pbs, "1:ncpus=1:mem=900gb"): "never",
        submit(pbs, "1:ncpus=1", "-h"): "held",
        submit(pbs, "1:ncpus=1", "-W", f"depend=afterok:{runs}"): "depend",
        submit(pbs, "1:ncpus=1", "-a", "12312359"): "Not to be started before",
        submit(pbs, "1:ncpus=1", "-q", "stopq"): "Queue not started",
        submit(pbs, "1:ncpus=1", "-q", "other"): "Queue not started",
        array.replace("[]", "[1]"): "Array slot limit of 1",
        of_gpuq[1]: "user alice in queue gpuq may have 1 jobs at once",
        of_bigq[1]: "in queue bigq",
    }
    wide = next(iter(waits))
    until(lambda: "Not Running" in pbs.jobs()[wide].get("comment", ""), "the comments")
    told = {job: run(pbs, "explain", job) for job in waits}
    assert {each.returncode for each in told.values()} == {0}
    untold = {job: told[job].stdout for job, words in waits.items() if words not in told[job].stdout}
    assert not untold, "\n".join(f"{waits[job]}: {text}" for job, text in untold.items())
    for job in running:
        assert "runs on node" in run(pbs, "explain", job).stdout
    assert "offline" in run(pbs, "explain", "node3").stdout
    assert run(pbs, "explain", "4711").returncode != 0


def start_of(pbs: EmulatedOpenPbs, job: str) -> dict[str, Any]:
    """What `showstart` says; nothing while no cycle has seen the job."""
    told = run(pbs, "showstart", "--json", job)
    assert told.returncode == 0 or "no job and no node" in told.stderr, told.stdout + told.stderr
    return dict(json.loads(told.stdout or "{}"))


def test_a_guaranteed_start_outlives_kills_of_scheduler_and_server(
    pbs: EmulatedOpenPbs, daemon: Daemon
) -> None:
    """And what was learned of how such jobs ended says that it will be much sooner."""
    daemon.start()
    for _ in range(4):
        submit(pbs, "1:ncpus=1", "-N", "sim", runtime_s=1)
    until(lambda: not pbs.jobs(), "the history")
    before = [submit(pbs, "1:ncpus=4", "-N", "sim", runtime_s=9999) for _ in "abc"]
    until(lambda: daemon.running() == set(before), "a full cluster")
    wide = submit(pbs, "3:ncpus=4", "-l", "place=scatter", runtime_s=5)
    until(lambda: start_of(pbs, wide).get("guaranteed_start_s"), "a guaranteed start")
    first = start_of(pbs, wide)
    assert first["expected_start_s"] < first["guaranteed_start_s"]
    daemon.kill()
    pbs.kill()
    pbs.start()
    daemon.start()
    late = submit(pbs, "1:ncpus=1", hours=20)
    until(lambda: late in pbs.jobs() and "Not Running" in pbs.jobs()[late].get("comment", ""), "a cycle")
    # The server's restart, when it knows of no vnode for seconds, has broken nothing.
    after = start_of(pbs, wide)
    assert after["n_broken"] == 0
    assert after["guaranteed_start_s"] <= first["guaranteed_start_s"] + 1
    for job in before:
        pbs.run("qdel", job, user="root")
    until(lambda: daemon.running() == {wide}, "its start, which the long one did not delay")
