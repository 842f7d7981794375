"""What is learned of jobs on a real Torque: from qstat, from accounting, and from the sampler through mom."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.fixtures.torque_site import ROOT, Daemon, TorqueSite
from tests.fixtures.waiting import until

from .conftest import Head

Serve = Callable[..., Daemon]


def remembered(site: TorqueSite) -> list[dict[str, object]]:
    """The jobs in the history, oldest first."""
    path = site.home / "sched_priv" / "history.sqlite"
    if not path.exists():
        return []
    store = sqlite3.connect(path)
    store.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in store.execute("select * from jobs order by rowid")]
    finally:
        store.close()


def names(site: TorqueSite) -> list[object]:
    return [row["job"] for row in remembered(site)]


def test_each_ended_job_is_learned_once(site: TorqueSite, serve: Serve) -> None:
    """It is in qstat as completed and in accounting as an E record, and yet one job."""
    serve(timer_s=1)
    ids = [site.submit(script="sleep 1") for _ in range(3)]
    array = site.submit("-t", "0-1", script="sleep 1")
    members = [array.replace("[]", f"[{number}]") for number in range(2)]
    until(lambda: set(names(site)) >= {*ids, *members}, "all are learned")
    assert sorted(each for each in names(site) if each in {*ids, *members}) == sorted([*ids, *members])


def test_accounting_of_before_is_learned(site: TorqueSite, serve: Serve) -> None:
    job = site.submit(script="sleep 1")
    site.must("qrun", job)
    until(lambda: site.state(job) == "C", "it ended")
    site.must("qdel", "-p", job)
    until(lambda: site.state(job) == "-", "the server has forgotten it")
    serve(timer_s=1)
    until(lambda: job in names(site), "it is learned from accounting")
    row = next(row for row in remembered(site) if row["job"] == job)
    assert row["source"] == "accounting"


@pytest.fixture
def sampled(site: TorqueSite) -> Iterator[TorqueSite]:
    """node2 with the sampler, and mom's $varattr that prints its file."""
    config = site.folder / "node2" / "home" / "mom_priv" / "config"
    before = config.read_text()
    # Short paths: mom cuts a line of its settings after some 120 characters and takes the rest for another.
    # The script is not in aux, which mom empties at its start; the sampler's file comes back by itself.
    sample, script = f"{site.torque.home}/aux/sample", f"{site.torque.home}/varattr.sh"
    shutil.copy(ROOT / "torque_sched" / "sampler" / "varattr.sh", site.folder / "node2" / "home")
    config.write_text(f"{before}$varattr 5 {script} {sample}\n")
    words = (*site.python, "-m", "torque_sched.sampler", "--file", sample, "--interval", "1")
    sampler = subprocess.Popen(site.argv(*words, host="node2"), env=site.env, cwd="/")
    site.restart_mom("node2")
    try:
        yield site
    finally:
        config.write_text(before)
        site.restart_mom("node2")
        sampler.kill()
        sampler.wait()
        until(lambda: site.node_states()["node2"] == "free", "node2 is up")


def test_the_sampler_reaches_the_scheduler(sampled: TorqueSite, head: Head, serve: Serve) -> None:
    site = sampled
    serve(timer_s=1)
    job = site.submit("-l", "nodes=node2", script="timeout 25 sh -c 'while :; do :; done'")
    until(lambda: site.state(job) == "R", "it runs")
    until(lambda: "by the sampler" in head.says("explain", "node2"), "its node tells by the sampler")
    until(lambda: job in names(site), "it ended and is learned", 90)
    row = next(row for row in remembered(site) if row["job"] == job)
    # A loop for most of its time; accounting alone would give cput over walltime.
    print(f"{row['cpu_cores']:.2f} cores, {row['mem_bytes']:.0f} bytes, by {row['source']}")
    assert isinstance(row["cpu_cores"], float)
    assert row["cpu_cores"] > 0
