"""What reaches a running daemon without an event of the server: new settings, and reservations."""

from __future__ import annotations

import signal

import yaml

from tests.fixtures.waiting import until
from torque_sched.emulation import EmulatedTorque, Fault

from .conftest import Serve, comment, run


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


def test_a_shorter_pause_counts_for_what_failed_before(torque: EmulatedTorque, serve: Serve) -> None:
    torque.set_faults(Fault("qrun", "exit", code=2, text="qrun: something nobody has seen\n", times=1))
    daemon = serve(timer_s=0.2, back_off={"job": {"first_s": 3600.0, "longest_s": 3600.0}})
    job = torque.submit("-l", "nodes=1", runtime_s=600)
    until(lambda: "nobody has seen" in comment(torque, job), "the refusal")
    assert not daemon.running()
    other = {"fair_share": {"gpu_weight": 3}, "learning": {"best_of": 7}}
    settings = {**daemon.settings, "back_off": {"job": {"first_s": 0.2, "longest_s": 0.2}}, **other}
    (daemon.home / "sched_priv" / "torque_sched.yaml").write_text(yaml.safe_dump(settings))
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.running() == {job}, "the start")
    assert "settings in force from now on: back_off, fair_share" in daemon.log()
    assert "settings that count after a restart: learning" in daemon.log()
