"""Reservations of the emulated OpenPBS: as captured, through their time, and as the scheduler keeps them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.openpbs_outputs import golden
from torque_sched.adapters.commands import Commands
from torque_sched.batch.openpbs.pbs import OpenPbs
from torque_sched.batch.system import OrderKind
from torque_sched.decide.context import Context
from torque_sched.decide.decide import decide
from torque_sched.decide.rules import NodeRules
from torque_sched.decide.settings import Settings
from torque_sched.emulation import EmulatedOpenPbs
from torque_sched.model.decisions import Start

_TIMES = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d \d{4}")


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path) -> Iterator[EmulatedOpenPbs]:
    made = EmulatedOpenPbs.create(
        tmp_path / "cluster", shape="1xnp=2+1xnp=4+1xnp=8,gpus=2", clock="manual", next_job=457
    )
    with made:
        yield made


def _reserve(cluster: EmulatedOpenPbs, *, in_s: float = 600.0) -> str:
    """Four processors of node3 for ten minutes, asked for by alice and confirmed."""
    start = time.strftime("%Y%m%d%H%M.%S", time.localtime(cluster.clock.now_s + in_s))
    arguments = ("-N", "maint", "-R", start, "-D", "00:10:00", "-l", "select=1:ncpus=4")
    done = cluster.run("pbs_rsub", *arguments, user="alice")
    assert (done.returncode, done.stdout) == (0, "R457.head UNCONFIRMED\n"), done.stderr
    assert "RESV_UNCONFIRMED" in cluster.run("pbs_rstat", "-f").stdout
    cluster.control("confirm", "R457.head", "(node3:ncpus=4)")
    return "R457.head"


def test_a_confirmed_one_is_shown_as_captured(cluster: EmulatedOpenPbs) -> None:
    _reserve(cluster)
    shown = cluster.run("pbs_rstat", "-f").stdout
    real = golden("rstat-f").decode()
    assert _TIMES.sub("TIME", shown) == _TIMES.sub("TIME", real)
    queue = cluster.run("qstat", "-Q", "-f", "-w", "R457").stdout
    for line in ("acl_users = alice@head", "resources_max.ncpus = 4", "started = False"):
        assert f"    {line}\n" in queue
    vnodes = {part.split("\n")[0]: part for part in cluster.run("pbsnodes", "-av").stdout.split("\n\n")}
    assert "     resv = R457.head\n" in vnodes["node3"]
    assert "resv = " not in vnodes["node2"]


def test_it_outlives_its_server_and_goes_with_its_end(cluster: EmulatedOpenPbs) -> None:
    name = _reserve(cluster)
    cluster.kill()
    cluster.start()
    cluster.clock.advance(601)
    assert "RESV_RUNNING" in cluster.run("pbs_rstat", "-f", name).stdout
    assert "started = True" in cluster.run("qstat", "-Q", "-f", "-w", "R457").stdout
    job = cluster.submit("-q", "R457", "-l", "select=1:ncpus=1", runtime_s=9e5)
    cluster.clock.advance(600)
    assert cluster.run("pbs_rstat", "-f").stdout == ""
    assert "R457" not in cluster.run("qstat", "-Q", "-f", "-w").stdout
    assert cluster.jobs("-x")[job]["job_state"] == "F"


def test_only_who_asked_for_it_and_operators_end_it(cluster: EmulatedOpenPbs) -> None:
    name = _reserve(cluster)
    assert cluster.run("pbs_rdel", name, user="bob").returncode == 1
    assert cluster.run("pbs_rdel", "R9.head").stderr == "pbs_rdel: Unknown Reservation Id R9.head\n"
    assert cluster.run("pbs_rdel", name, user="alice").returncode == 0
    assert cluster.run("pbs_rstat", "-f").stdout == ""
    assert cluster.run("pbs_rsub", "-l", "select=1:ncpus=1").returncode == 2


def test_the_scheduler_keeps_it_and_starts_its_jobs_there(cluster: EmulatedOpenPbs) -> None:
    _reserve(cluster)
    cluster.clock.advance(601)
    inside = [cluster.submit("-q", "R457", "-l", "select=1:ncpus=2", runtime_s=9e5) for _ in range(3)]
    others = [
        cluster.submit("-l", f"select=1:ncpus={n}:vnode=node3", "-l", "walltime=1:00:00", runtime_s=9e5)
        for n in (3, 2)
    ]

    async def cycle() -> None:
        server = OpenPbs(Commands(cluster.env), lambda: cluster.clock.now_s)
        snapshot = (await server.look()).snapshot
        settings = Settings(nodes=NodeRules(cores_per_idle_gpu=0))
        for each in decide(snapshot, settings, Context(reservations=snapshot.reservations)):
            if isinstance(each, Start):
                result = await server.start(snapshot.job_by_id[each.job], each.allocation)
                assert result.kind is OrderKind.STARTED, result

    for _ in range(2):
        asyncio.run(cycle())
        cluster.clock.advance(5)
    running = {name for name, job in cluster.jobs().items() if job["job_state"] == "R"}
    # Two of two processors fill the reservation; of the other four one job has three.
    assert running == {*inside[:2], others[0]}
    assert cluster.jobs()[inside[0]]["exec_vnode"] == "(node3:ncpus=2)"
