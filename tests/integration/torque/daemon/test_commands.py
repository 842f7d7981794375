"""The commands around the daemon: cycle, check-config, doctor, install, and pbs_sched's own habits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torque_sched.emulation import EmulatedTorque

from .conftest import Daemon, free_port, spy, starts, until


def ours(torque: EmulatedTorque, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**torque.env, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    argv = [sys.executable, "-m", "torque_sched", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def home(torque: EmulatedTorque) -> str:
    (torque.home / "sched_priv").mkdir(exist_ok=True)
    return str(torque.home)


def test_a_dry_cycle_decides_and_changes_nothing(torque: EmulatedTorque, home: str) -> None:
    job = torque.submit("-l", "nodes=1:ppn=2", runtime_s=60)
    calls = spy(torque, "qrun", "qalter")
    before = sorted(Path(home, "sched_priv").iterdir())
    done = ours(torque, "cycle", "--dry-run", "--json", "-d", home)
    assert done.returncode == 0, done.stderr
    [decision] = json.loads(done.stdout)["decisions"]
    assert (decision["job"], decision["is"]) == (job, "start")
    assert calls.read_text(encoding="utf-8") == ""
    assert sorted(Path(home, "sched_priv").iterdir()) == before


def test_a_cycle_acts(torque: EmulatedTorque, home: str) -> None:
    job = torque.submit("-l", "nodes=1:ppn=2", runtime_s=60)
    done = ours(torque, "cycle", "-d", home)
    assert (done.returncode, "1 started" in done.stdout) == (0, True), done.stdout + done.stderr
    assert starts(torque) == {job: 1}


def test_hidden_jobs_are_no_snapshot(torque: EmulatedTorque, home: str) -> None:
    for _ in range(3):
        torque.submit("-l", "nodes=1", runtime_s=60, user="bob")
    torque.run("qmgr", "-c", "set server query_other_jobs = False")
    assert ours(torque, "cycle", "--dry-run", "-d", home).returncode == 0
    done = ours(torque, "cycle", "--dry-run", "-d", home, EMULATED_USER="alice")
    assert (done.returncode, "qstat shows 0 of the 3 jobs" in done.stderr) == (1, True), done.stderr
    assert "operators +=" in done.stderr


def test_doctor_finds_all_well_and_a_dead_server(torque: EmulatedTorque, home: str) -> None:
    done = ours(torque, "doctor", "-d", home)
    assert done.returncode == 0, done.stdout
    assert "ok      snapshot: 4 nodes" in done.stdout
    assert "emulated" in done.stdout
    torque.kill()
    done = ours(torque, "doctor", "-d", home)
    assert done.returncode == 1
    assert "WRONG   snapshot: " in done.stdout
    assert "cure: is pbs_server running" in done.stdout


def test_check_config_names_unknown_keys(torque: EmulatedTorque, home: str) -> None:
    done = ours(torque, "check-config", "-d", home)
    assert (done.returncode, "timer_s: 30.0" in done.stdout) == (0, True), done.stderr
    Path(home, "sched_priv", "sched_config").write_text("round_robbin: true\nstrict_fifo: true\n")
    done = ours(torque, "check-config", "-d", home)
    assert done.returncode == 1
    assert done.stderr.count("warning:") == 1
    assert "strict=True" in done.stdout
    Path(home, "sched_priv", "torque_sched.yaml").write_text("nodes: {avoid_bussy: true}\n")
    done = ours(torque, "check-config", "-d", home)
    assert done.returncode == 2
    assert "nodes.avoid_bussy: unknown key; known: avoid_busy" in done.stderr


def test_version_and_usage_as_pbs_sched(torque: EmulatedTorque, home: str) -> None:
    done = ours(torque, "serve", "--version")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("version: ")
    done = ours(torque, "serve", "-x")
    assert (done.returncode, done.stderr.startswith("Usage:")) == (1, True)
    done = ours(torque, "serve", "-d", f"{home}/nowhere")
    assert (done.returncode, "is no folder" in done.stderr) == (1, True)


def test_an_open_folder_is_refused(torque: EmulatedTorque, home: str) -> None:
    Path(home, "sched_priv").chmod(0o777)
    done = ours(torque, "serve", "-d", home)
    assert done.returncode == 1
    assert "Security violation" in done.stderr


def test_installed_shim_goes_into_the_background_and_back(
    torque: EmulatedTorque, home: str, port: int, tmp_path: Path, serve: Callable[..., Daemon]
) -> None:
    sbin, units = tmp_path / "sbin", tmp_path / "units"
    sbin.mkdir()
    units.mkdir()
    original = "#!/bin/sh\necho the original\n"
    (sbin / "pbs_sched").write_text(original)
    words = ("install", "-d", home, "--sbin", str(sbin), "--units", str(units))
    done = ours(torque, *words)
    assert (done.returncode, (sbin / "pbs_sched").read_text()) == (0, original)
    assert "would write" in done.stdout
    for _ in range(2):
        assert ours(torque, *words, "--apply").returncode == 0
    assert (sbin / "pbs_sched.torque-original").read_text() == original
    assert "ExecStart=" in (units / "torque-sched.service").read_text()

    env = {**torque.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [str(sbin / "pbs_sched"), "-d", home, "-S", str(port)]
    assert subprocess.run(argv, env=env, check=False, timeout=60).returncode == 0
    pid = int(Path(home, "sched_priv", "sched.lock").read_text().strip("\0\n"))
    try:
        again = subprocess.run(
            [*argv[:-1], str(free_port())], env=env, capture_output=True, text=True, check=False
        )
        assert (again.returncode, "another scheduler running" in again.stderr) == (1, True)
        until(
            lambda: f"startup pid {pid}" in "".join(p.read_text() for p in Path(home, "sched_logs").iterdir())
        )
    finally:
        os.kill(pid, signal.SIGTERM)

    assert ours(torque, *words, "--undo").returncode == 0
    assert (sbin / "pbs_sched").read_text() == original
    assert [path.name for path in (*sbin.iterdir(), *units.iterdir())] == ["pbs_sched"]
    assert ours(torque, *words, "--undo").returncode == 3
