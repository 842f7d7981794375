"""The daemon and an emulated server: events, starts, comments, pauses, and what goes wrong on the way."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.fixtures.waiting import until
from torque_sched.emulation import EmulatedTorque, Fault

from .conftest import Daemon, Serve, comment, free_port, spy, starts


def times_of(daemon: Daemon, what: str) -> list[float]:
    """When the lines that end in this were written, in seconds."""
    found = re.findall(rf"^(.{{19}})\.(\d{{3}});.*{what}", daemon.log(), re.MULTILINE)
    return [time.mktime(time.strptime(at, "%m/%d/%Y %H:%M:%S")) + int(ms) / 1000 for at, ms in found]


def test_an_event_starts_a_job_on_the_least_loaded_node(torque: EmulatedTorque, serve: Serve) -> None:
    torque.set_node("node3", fixed_load=7.5)
    daemon = serve()
    job = torque.submit("-l", "nodes=1:ppn=2", runtime_s=60)
    until(lambda: daemon.running() == {job}, "the start")
    assert not torque.jobs()[job]["exec_host"].startswith("node3")
    until(lambda: comment(torque, job).startswith("Job started on "), "the comment")
    line = f";64; pbs_sched.{daemon.process.pid};Job;{job};Job Run\n"  # type: ignore[union-attr]
    until(lambda: line in daemon.log(), "the line, which comes after the comment")


def test_comments_of_waiting_jobs_are_written_once(torque: EmulatedTorque, serve: Serve) -> None:
    calls = spy(torque, "qalter")
    daemon = serve(pbs_sched_reasons_only=True, timer_s=0.3)
    torque.submit("-l", "nodes=1:ppn=8", runtime_s=600)
    until(lambda: len(daemon.running()) == 1)
    waiting = [torque.submit("-l", "nodes=1:ppn=8", runtime_s=600) for _ in range(3)]
    wanted = "Not Running: Not enough of the right type of nodes are available"
    until(lambda: {comment(torque, job) for job in waiting} == {wanted}, "the comments")
    before = calls.read_text(encoding="utf-8")
    n_cycles = daemon.log().count(";cycle;")
    until(lambda: daemon.log().count(";cycle;") >= n_cycles + 3, "three more cycles")
    assert calls.read_text(encoding="utf-8") == before


def test_scheduling_false_pauses_and_true_goes_on(torque: EmulatedTorque, serve: Serve) -> None:
    calls = spy(torque, "qrun", "qalter")
    torque.run("qmgr", "-c", "set server scheduling = False")
    daemon = serve(timer_s=0.2)
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    until(lambda: job in daemon.state().get("jobs", {}), "a look at the job")
    time.sleep(0.6)
    assert calls.read_text(encoding="utf-8") == ""
    torque.run("qmgr", "-c", "set server scheduling = True")
    until(lambda: daemon.running() == {job}, "the start")


def test_a_lost_event_costs_one_period_of_the_timer(torque: EmulatedTorque, serve: Serve) -> None:
    # It listens where nobody knocks, so every event is lost.
    daemon = serve(port=free_port(), timer_s=1.0)
    until(lambda: daemon.state(), "the first cycle")
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    until(lambda: daemon.running() == {job}, "the start")
    until(lambda: "(timer)" in daemon.log(), "the line")


def test_the_server_is_gone_and_comes_back(torque: EmulatedTorque, serve: Serve) -> None:
    daemon = serve(timer_s=0.5)
    until(lambda: daemon.state(), "the first cycle")
    torque.kill()
    until(lambda: "no cycle:" in daemon.log(), "the complaint")
    time.sleep(1.0)
    # A cycle that was under way may have lost it at another command than all that follow.
    complaints = re.findall("no cycle: .*", daemon.log())
    assert len(complaints) == len(set(complaints)) <= 2
    torque.start()
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    until(lambda: daemon.running() == {job}, "the start")
    until(lambda: "the server answers again" in daemon.log(), "the line")


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("pbsnodes", "partial"),
        ("qstat", "exit"),
        ("qstat", "hang"),
        pytest.param("qstat", "partial", marks=pytest.mark.slow),
        pytest.param("pbsnodes", "exit", marks=pytest.mark.slow),
        pytest.param("pbsnodes", "hang", marks=pytest.mark.slow),
    ],
)
def test_a_partial_snapshot_is_no_snapshot(
    torque: EmulatedTorque, serve: Serve, command: str, kind: str
) -> None:
    calls = spy(torque, "qrun")
    torque.set_faults(Fault(command, kind))
    daemon = serve(timer_s=0.5, **({"query_timeout_s": 3.0} if kind == "hang" else {}))
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    until(lambda: "no cycle:" in daemon.log(), "the complaint")
    time.sleep(1.0)
    assert calls.read_text(encoding="utf-8") == ""
    torque.set_faults()
    until(lambda: job in starts(torque), "the start")


def test_a_qrun_that_hangs_is_killed_and_the_job_not_started_twice(
    torque: EmulatedTorque, serve: Serve
) -> None:
    torque.set_faults(Fault("qrun", "hang", performs=True, times=1))
    daemon = serve(timer_s=0.3, order_timeout_s=4.0)  # which its comment has to keep, too
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    late = "did not end within|no reply of pbs_server within"
    until(lambda: re.search(late, daemon.log()), "the complaint")
    until(lambda: comment(torque, job).startswith("Job started on"), "the comment")
    assert starts(torque) == {job: 1}


REFUSALS = {
    "not-now": "qrun: Resource temporarily unavailable MSG=job allocation request exceeds currently "
    "available cluster nodes, 1 requested, 0 available 1.head",
    "never": "qrun: Unknown node in hostlist 'node1:ppn=3...' for job 1.head",
    "other": "qrun: something nobody has seen",
}
"""What a refusal means is decided by rules that are tested one by one; here, that each kind takes its way."""


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refused_start_is_told_and_tried_again_later(
    torque: EmulatedTorque, serve: Serve, kind: str
) -> None:
    calls = spy(torque, "qrun", "qalter")
    torque.set_faults(Fault("qrun", "exit", code=2, text=f"{REFUSALS[kind]}\n", times=1))
    steps = {"first_s": 2.0, "longest_s": 4.0}
    daemon = serve(timer_s=0.2, back_off={"job": steps, "pair": steps, "node": steps, "settle_s": 0.1})
    torque.set_node("node4", mom="stopped")
    job = torque.submit("-l", "nodes=1:ppn=8", runtime_s=60)  # only one node fits
    until(lambda: comment(torque, job).startswith("Job started on"), "the start")
    until(lambda: f"{job};Job Run\n" in daemon.log(), "the line")
    asked = calls.read_text(encoding="utf-8").splitlines()
    assert asked[0].startswith("qrun ")
    assert re.match('qalter -W comment="?Not Running', asked[1])
    assert sum(words.startswith("qrun ") for words in asked) == 2
    words = " ".join(REFUSALS[kind].removeprefix("qrun: ").split())
    assert words[:40] in daemon.log()
    # Left alone meanwhile, though there is a cycle every 0.2 s: by the log's own clock, as ours may be late.
    [refused_s] = times_of(daemon, f"start of {job} on .* refused")
    [started_s] = times_of(daemon, f"{job};Job Run")
    assert started_s - refused_s >= 1.99


def test_a_start_that_lost_the_server_is_tried_again_soon(torque: EmulatedTorque, serve: Serve) -> None:
    """As seen on a loaded machine: one client did not get through, and no event tells when the next would."""
    text = "qrun: cannot connect to server (null) (errno=15036) No server specified\n"
    torque.set_faults(Fault("qrun", "exit", code=2, text=text, times=1))
    daemon = serve(timer_s=600)
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    until(lambda: "starting was given up in this cycle: cannot connect" in daemon.log(), "the complaint")
    until(lambda: daemon.running() == {job}, "the start")
    assert starts(torque) == {job: 1}


def test_without_rights_all_starts_of_a_cycle_are_given_up(torque: EmulatedTorque, serve: Serve) -> None:
    calls = spy(torque, "qrun")
    text = "qrun: Unauthorized Request  MSG=operation not permitted 1.head\n"
    torque.set_faults(Fault("qrun", "exit", code=2, text=text))
    torque.run("qmgr", "-c", "set server scheduling = False")
    for _ in range(12):
        torque.submit("-l", "nodes=1", runtime_s=60)
    daemon = serve()
    until(daemon.state, "a cycle that may not start anything")  # so one cycle only does
    torque.run("qmgr", "-c", "set server scheduling = True")
    until(lambda: "starting was given up in this cycle: Unauthorized" in daemon.log(), "the complaint")
    assert calls.read_text(encoding="utf-8").count("qrun") <= 4


@pytest.mark.parametrize("mom", ["hanging", "stopped"])
def test_a_mom_that_does_not_start_jobs_delays_nobody_else(
    torque: EmulatedTorque, serve: Serve, mom: str
) -> None:
    torque.set_node("node3", mom=mom)
    daemon = serve(timer_s=0.5)
    big = torque.submit("-l", "nodes=node3:ppn=8", runtime_s=60)
    others = {torque.submit("-l", "nodes=1:ppn=2", runtime_s=60) for _ in range(2)}
    until(lambda: others <= daemon.running(), "the other starts")
    torque.set_node("node3", mom="up")
    until(lambda: big in daemon.running(), "the start after all")


def test_a_burst_of_jobs_starts_each_once(torque: EmulatedTorque, serve: Serve) -> None:
    daemon = serve()
    ids = torque.submit_many({"arguments": ["-l", "nodes=1"], "runtime_s": 600} for _ in range(30))
    until(lambda: len(daemon.running()) == 18, "eighteen starts")
    assert set(starts(torque).values()) == {1}
    assert daemon.running() == set(ids[:18])


def test_signals_end_it_as_they_end_pbs_sched(torque: EmulatedTorque, serve: Serve) -> None:
    daemon = serve()
    assert daemon.stop(signal.SIGTERM) == 1
    assert "die;caught signal 15\n" in daemon.log()
    daemon.start()
    assert daemon.stop(signal.SIGINT) == 1
    assert "die;caught signal 2\n" in daemon.log()
    assert daemon.log().endswith("Svr;Log;Log closed\n")


def test_an_alarm_makes_it_begin_anew_in_the_same_process(torque: EmulatedTorque, serve: Serve) -> None:
    daemon = serve()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGALRM)
    until(lambda: daemon.log().count("pbs_sched startup pid") == 2, "the second start")
    assert "toolong;alarm call" in daemon.log()
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    until(lambda: daemon.running() == {job}, "the start")


def test_a_second_scheduler_ends_with_1(torque: EmulatedTorque, serve: Serve) -> None:
    daemon = serve()
    assert daemon.process is not None
    lock = (daemon.home / "sched_priv" / "sched.lock").read_bytes()
    assert lock == f"{daemon.process.pid}\n\0".encode()
    taken = "bind: Address already in use"
    for port, words in ((daemon.port, taken), (free_port(), "another scheduler running")):
        argv = [sys.executable, "-m", "torque_sched", "serve", "-d", str(daemon.home), "-S", str(port)]
        done = subprocess.run(argv, env=torque.env, capture_output=True, text=True, check=False)
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr
        assert done.stderr.count("pbs_sched:") == 1
    assert (daemon.home / "sched_priv" / "sched.lock").read_bytes() == lock
    told = "pbs_sched;LOG_ERROR::Resource temporarily unavailable (11) in pbs_sched, pbs_sched: "
    assert f"{told}another scheduler running (process {daemon.process.pid})\n" in daemon.log()


def test_files_named_from_where_it_was_started_are_found_when_it_begins_anew(
    torque: EmulatedTorque, serve: Serve
) -> None:
    callers = torque.directory / "callers"
    callers.write_text("$restricted *\n", encoding="utf-8")
    daemon = serve("-c", os.path.relpath(callers), restricted=[])
    with socket.create_connection(("127.0.0.1", daemon.port)) as server:
        server.sendall(b"\0\0\0\x07")  # CONFIGURE
    until(lambda: daemon.log().count("pbs_sched startup pid") == 2, "the second start")
    assert "reconfig;Scheduler is reconfiguring\n" in daemon.log()
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    until(lambda: daemon.running() == {job}, "the start")


def test_the_log_goes_on_in_the_form_of_the_scheduler_before(torque: EmulatedTorque, serve: Serve) -> None:
    """Also the lines that come before the server's version is known."""
    logs = torque.home / "sched_logs"
    logs.mkdir(exist_ok=True)
    (logs / "20120101").write_text("01/01/2012 10:00:00;0040; pbs_sched.72;Job;1.head;Job Run\n")
    daemon = serve()
    head = daemon.log().splitlines()[1]
    assert re.fullmatch(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;0002; pbs_sched\.\d+;Svr;Log;Log opened", head), head
    # The server is a 6.1.3, and from its first answer on the lines are as that generation writes them.
    until(lambda: daemon.state(), "the first cycle")
    job = torque.submit("-l", "nodes=1", runtime_s=60)
    until(lambda: f";64; pbs_sched.{daemon.process.pid};Job;{job};Job Run\n" in daemon.log(), "the line")


def test_an_unauthorised_caller_is_not_heard(torque: EmulatedTorque, serve: Serve) -> None:
    daemon = serve(restricted=[])
    until(lambda: daemon.state())
    with socket.create_connection(("127.0.0.1", daemon.port)) as caller:
        caller.sendall(b"\0\0\0\x08")  # QUIT
    until(lambda: "non-reserved port" in daemon.log(), "the complaint")
    assert daemon.process is not None
    assert daemon.process.poll() is None
