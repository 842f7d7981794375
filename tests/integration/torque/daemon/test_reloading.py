"""What reaches a running daemon without an event of the server: new settings, and reservations."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import yaml

from torque_sched.emulation import EmulatedTorque

from .conftest import Daemon, until

Serve = Callable[..., Daemon]


def run(torque: EmulatedTorque, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "torque_sched", words[0], "-d", str(torque.home), *words[1:]]
    env = {**torque.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)


def comment(torque: EmulatedTorque, job: str) -> str:
    return torque.jobs()[job].get("comment", "")


def test_a_signal_brings_new_settings_and_wrong_ones_change_nothing(
    torque: EmulatedTorque, serve: Serve
) -> None:
    daemon = serve(answers=False)  # so that `status` reads the settings itself
    torque.submit("-l", "nodes=1:ppn=8", runtime_s=600)
    waiting = torque.submit("-l", "nodes=1:ppn=8", runtime_s=600)
    words = "Not Running: Not enough of the right type of nodes are available"
    until(lambda: comment(torque, waiting).startswith(f"{words} ("), "the comment with its figures")
    file = daemon.home / "sched_priv" / "torque_sched.yaml"
    file.write_text(yaml.safe_dump({**daemon.settings, "pbs_sched_reasons_only": True, "port": 16001}))
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: comment(torque, waiting).rstrip() == words, "the comment in pbs_sched's words")
    assert "settings in force from now on: pbs_sched_reasons_only" in daemon.log()
    assert "settings that count after a restart: port" in daemon.log()

    file.write_text("look_rest: [\n")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "not YAML" in daemon.log(), "the complaint")
    shown = run(torque, "status")
    assert f"serve: runs (process {daemon.process.pid})" in shown.stdout
    assert "it goes on with the settings that it read before" in shown.stdout
    assert (shown.returncode, "not YAML" in shown.stderr) == (2, True)


def test_a_deleted_reservation_leaves_at_once(torque: EmulatedTorque, serve: Serve) -> None:
    """No event comes and no timer rings: the command itself has the daemon decide."""
    daemon = serve()
    until(lambda: daemon.state().get("last_cycle"), "the first cycle")
    done = run(torque, "reserve", "--start", "now", "--length", "9:00:00", "--nodes", "4", "--name", "all")
    assert done.returncode == 0, done.stderr
    job = torque.submit("-l", "nodes=1", runtime_s=600)
    until(lambda: "run into all, which keeps nodes" in comment(torque, job), "the comment")
    assert run(torque, "reserve", "--delete", "all").returncode == 0
    until(lambda: daemon.running() == {job}, "the start")
    until(lambda: comment(torque, job).startswith("Job started on"), "the comment")
    until(lambda: "(asked)" in daemon.log(), "the line")
