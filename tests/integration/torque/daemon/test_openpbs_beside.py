"""The daemon on an emulated OpenPBS beside and after another scheduler, and fair share from our own table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fixtures.waiting import until
from torque_sched.emulation import EmulatedOpenPbs, EmulatedTorque

from .conftest import Daemon, free_port, spy, starts
from .test_shadow import ALL


@pytest.fixture(name="pbs")
def _pbs(tmp_path: Path) -> Iterator[EmulatedOpenPbs]:
    with EmulatedOpenPbs.create(tmp_path / "cluster", shape="2xnp=4") as made:
        yield made


class Daemons:
    """Makes daemons for one server; ends them with the test."""

    def __init__(self, pbs: EmulatedOpenPbs) -> None:
        self._torque = cast("EmulatedTorque", pbs)
        self.made: list[Daemon] = []

    def __call__(self, *options: str, **settings: Any) -> Daemon:
        daemon = Daemon(self._torque, free_port(), *options, **{"timer_s": 0.3, **settings})
        self.made.append(daemon)
        daemon.start()
        return daemon


@pytest.fixture(name="serve")
def _serve(pbs: EmulatedOpenPbs) -> Iterator[Daemons]:
    made = Daemons(pbs)
    yield made
    for daemon in made.made:
        if daemon.process is not None:
            daemon.kill()
        assert "Traceback" not in daemon.errors()


def n_starts(pbs: EmulatedOpenPbs) -> dict[str, int]:
    """How often each job was started, by the server's own accounting."""
    return starts(cast("EmulatedTorque", pbs))


def native_start(pbs: EmulatedOpenPbs, job: str, vnode: str, n_cpus: int) -> bool:
    """What the native scheduler does to start a job; whether the server took it."""
    return pbs.run("qrun", "-H", f"({vnode}:ncpus={n_cpus})", job, user="root").returncode == 0


def native_cycle(pbs: EmulatedOpenPbs) -> list[str]:
    """Start what is queued where a processor is free, by the server's figures; the jobs it started."""
    free = {
        name: int(each["resources_available.ncpus"]) - int(each.get("resources_assigned.ncpus", "0"))
        for name, each in pbs.nodes().items()
    }
    started = []
    for job, attributes in pbs.jobs().items():
        vnode = max(free, key=lambda name: free[name])
        if attributes["job_state"] == "Q" and free[vnode] > 0 and native_start(pbs, job, vnode, 1):
            free[vnode] -= 1
            started.append(job)
    return started


def test_a_shadow_beside_the_native_scheduler_compares_and_touches_nothing(
    pbs: EmulatedOpenPbs, serve: Daemons
) -> None:
    job = pbs.submit("-l", "select=1:ncpus=3", "-l", "walltime=01:00:00", runtime_s=60)
    calls = spy(cast("EmulatedTorque", pbs), *(name for name in ALL if (pbs.path / name).exists()))
    shadow = serve("--shadow", shadow_timer_s=0.2)
    until(lambda: f"would start {job} on " in shadow.log(), "the wish")
    until(lambda: len(calls.read_text(encoding="utf-8").splitlines()) > 12, "several looks")
    asked = set(calls.read_text(encoding="utf-8").splitlines())
    assert asked == {
        "qstat --version", "qmgr -c print server", "pbsnodes -av", "qstat -f -t -w", "qstat -Q -f -w",
        "qstat -B -f -w",
    }  # fmt: skip
    assert n_starts(pbs) == {}
    time.sleep(1.5)  # OpenPBS counts whole seconds
    assert native_start(pbs, job, "node1", 3)
    report = shadow.own / "report.json"

    def told() -> dict[str, Any]:
        return json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}

    until(lambda: told().get("n_started") == 1, "the comparison")
    found = told()
    assert found["jobs"][0]["job"] == job
    assert found["waited_longer_s"] > 0
    assert found["n_judged"] == 1
    assert n_starts(pbs) == {job: 1}


def test_a_swap_of_schedulers_starts_nothing_twice(pbs: EmulatedOpenPbs, serve: Daemons) -> None:
    ids: list[str] = []

    def submit(n: int) -> None:
        ids.extend(
            pbs.submit_many({"arguments": ["-l", "select=1:ncpus=1"], "runtime_s": 1.5} for _ in range(n))
        )

    submit(10)
    daemon = serve()
    until(lambda: len(n_starts(pbs)) >= 4, "starts of ours")
    daemon.kill()  # with orders on their way
    submit(6)
    of_others: list[str] = []
    until(lambda: of_others.extend(native_cycle(pbs)) or len(of_others) >= 6, "starts of the other one")  # type: ignore[func-returns-value]
    submit(6)
    daemon.start()
    # Both at once: the switch of an administrator who was too slow.
    native_cycle(pbs)
    until(lambda: n_starts(pbs).keys() >= set(ids), "all")
    assert n_starts(pbs) == dict.fromkeys(ids, 1)


def test_fair_share_is_of_our_own_table_and_outlives_the_daemon(pbs: EmulatedOpenPbs, serve: Daemons) -> None:
    """OpenPBS's own table (pbsfs) is the native scheduler's: ours counts what ran before."""
    order = {"name": "fair_share", "shares": [{"name": "alice", "shares": 50}, {"name": "bob", "shares": 50}]}
    daemon = serve(order=order)
    used = [
        pbs.submit("-l", "select=1:ncpus=4", "-l", "walltime=01:00:00", user="alice", runtime_s=3)
        for _ in range(2)
    ]
    until(lambda: n_starts(pbs).keys() == set(used) and not pbs.jobs(), "what alice used")
    daemon.stop()
    whole = ("-l", "select=2:ncpus=4", "-l", "place=scatter", "-l", "walltime=01:00:00")
    of_alice, of_bob = (pbs.submit(*whole, user=user, runtime_s=600) for user in ("alice", "bob"))
    daemon.start()
    until(lambda: bool(daemon.running()), "a start")
    assert (daemon.running(), pbs.jobs()[of_alice]["job_state"]) == ({of_bob}, "Q")
