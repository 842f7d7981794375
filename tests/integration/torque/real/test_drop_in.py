"""An administrator's first evening: doctor, shadow, installing, an operator's account, going back."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable

import pytest

from tests.fixtures.torque_site import Daemon, TorqueSite
from tests.fixtures.waiting import until

from .conftest import Head, in_force

Serve = Callable[..., Daemon]
OPERATOR = "torquesched"


def lock_pid(site: TorqueSite) -> int:
    """The process in the scheduler's lock file, 0 without one."""
    path = site.home / "sched_priv" / "sched.lock"
    text = path.read_bytes() if path.exists() else b""
    return int(text.strip(b"\n\0") or b"0")


def ends(site: TorqueSite) -> None:
    """SIGTERM to whatever scheduler has the lock, as an init script does it."""
    pid = lock_pid(site)
    site.must("sh", "-c", f"kill -TERM {pid}")
    until(lambda: site.run("sh", "-c", f"kill -0 {pid}").returncode != 0, "the scheduler ends")


@pytest.fixture
def c_scheduler(site: TorqueSite) -> TorqueSite:
    """The C pbs_sched with what it needs, not started."""
    if site.torque.pbs_sched is None:
        pytest.skip("this Torque was installed without pbs_sched")
    (site.home / "sched_priv" / "accounting").mkdir()
    (site.home / "sched_priv" / "sched_config").write_text("by_queue: True ALL\nsort_by: no_sort ALL\n")
    return site


def test_doctor(site: TorqueSite, head: Head, serve: Serve) -> None:
    said = head.says("doctor")
    assert "WRONG" not in said
    assert "ok      snapshot: 4 nodes, " in said
    assert f"ok      version: Torque {site.torque.version}" in said
    assert "nobody listens on 15004" in said
    daemon = serve()
    assert f"is held by process {lock_pid(site)}" in head.says("doctor")
    assert "non-reserved port" not in daemon.log()
    with in_force(site, managers="bob@head", operators="carol@head"):
        assert "ok      rights: root on the server's host is a manager" in head.says("doctor")


def test_as_an_operator_without_root(site: TorqueSite, head: Head, serve: Serve) -> None:
    for name in ("sched_priv", "sched_logs"):
        shutil.chown(site.home / name, site.uid(OPERATOR), site.uid(OPERATOR))
    try:
        job = site.submit("-l", "nodes=1:ppn=2")
        daemon = serve(user=OPERATOR)
        until(lambda: "other users' jobs are hidden" in daemon.log(), "it says what it lacks")
        done = head.ours("doctor", user=OPERATOR)
        assert (done.returncode, f"operators += {OPERATOR}@head" in done.stdout) == (1, True), done.stdout
        site.qmgr(f"set server operators += {OPERATOR}@head")
        until(lambda: site.state(job) == "R", "the start")
        until(lambda: site.job(job).get("comment", "").startswith("Job started on"), "the comment")
        assert f"ok      rights: {OPERATOR} is a manager or operator" in head.says("doctor", user=OPERATOR)
        assert daemon.end() == 1
    finally:
        site.run("qmgr", "-c", f"set server operators -= {OPERATOR}@head")
        for name in ("sched_priv", "sched_logs"):
            shutil.chown(site.home / name, "root", "root")


def test_shadow_beside_the_real_pbs_sched(c_scheduler: TorqueSite, head: Head, serve: Serve) -> None:
    site = c_scheduler
    site.must("pbs_sched", "-d", str(site.torque.home))
    try:
        until(lambda: lock_pid(site), "pbs_sched has its lock")
        shadow = serve("--shadow", shadow_timer_s=1)
        ids = [site.submit("-l", "nodes=1") for _ in range(4)]
        until(lambda: all(site.state(each) == "R" for each in ids), "pbs_sched starts them")
        if site.torque.version.startswith("6."):
            procs = site.submit("-q", "bare", "-l", "procs=3")
            until(lambda: "PBS Error" in site.job(procs).get("comment", ""), "pbs_sched cannot")
            until(lambda: f"would start {procs}" in shadow.log(), "the shadow would")
            assert site.starts()[procs] == 0
        report = json.loads((shadow.own / "report.json").read_text())
        assert report["n_cycles"] >= 1
        assert "shadow: runs" in head.says("status", "--shadow")
        # One port and one lock for one scheduler.
        done = head.ours("serve")
        assert (done.returncode, "bind: Address already in use" in done.stderr) == (1, True), done.stderr
    finally:
        ends(site)


def test_swapping_and_going_back(c_scheduler: TorqueSite, head: Head) -> None:
    site = c_scheduler
    sbin, units = site.folder / "sbin", site.folder / "units"
    for folder in (sbin, units):
        folder.mkdir(exist_ok=True)
    original = sbin / "pbs_sched"
    assert site.torque.pbs_sched is not None
    shutil.copy(site.torque.pbs_sched, original)
    kept = original.read_bytes()
    records = ("--records", str(site.folder / "records"))
    words = ("install", "--sbin", str(sbin), "--units", str(units), *records)
    assert "would write" in head.says(*words)
    assert original.read_bytes() == kept
    head.says(*words, "--apply")
    assert "would write" in head.says(*words)
    assert "keep what is there" not in head.says(*words)
    home = str(site.torque.home)
    site.must(*site.python[:-1], str(original), "-d", home)
    try:
        job = site.submit("-l", "procs=2")
        until(lambda: site.state(job) == "R", "ours starts what pbs_sched cannot")
        assert lock_pid(site)
    finally:
        ends(site)
    head.says("install", "--undo", *records)
    assert original.read_bytes() == kept
    assert not list(units.iterdir())
    site.must(str(original), "-d", home)
    try:
        job = site.submit("-l", "nodes=1")
        until(lambda: site.state(job) == "R", "pbs_sched starts jobs again")
    finally:
        ends(site)


def test_jobs_one_after_the_other(site: TorqueSite, serve: Serve) -> None:
    """Events alone, for the timer is too slow to help; how long it takes is printed."""
    serve(timer_s=600)
    waits = []
    for _ in range(10):
        job, began_s = site.submit(script="sleep 0.1"), time.monotonic()
        until(lambda job=job: site.state(job) != "Q", "it starts", 20)  # type: ignore[misc]
        waits.append(time.monotonic() - began_s)
    print(f"qsub to start: {sorted(waits)[len(waits) // 2]:.2f} s, at most {max(waits):.2f} s")
    until(lambda: {job["job_state"] for job in site.jobs().values()} == {"C"}, "all ended")
