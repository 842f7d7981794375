"""The daemon under an ordinary user's id: what it says it cannot do, and that an operator can run it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.fixtures.waiting import until

from .conftest import free_port, starts
from .stranger import NEEDS, USER, Stranger, stranger_beside

pytestmark = NEEDS


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def stranger(port: int) -> Iterator[Stranger]:
    with stranger_beside(port) as found:
        settings = {"restricted": ["*"], "retry_s": 0.3, "timer_s": 3600}
        file = found.torque.home / "sched_priv" / "torque_sched.yaml"
        file.write_text(yaml.safe_dump(settings), "utf-8")
        yield found


def test_an_operator_without_root_schedules(stranger: Stranger, port: int) -> None:
    torque = stranger.torque
    job = torque.submit("-l", "nodes=1:ppn=2", runtime_s=600)
    argv = stranger.argv("serve", "-d", str(torque.home), "-S", str(port))
    with (stranger.place / "err").open("wb") as errors:
        daemon = subprocess.Popen(argv, env=stranger.env, cwd="/", stderr=errors)
    try:
        until(lambda: f"startup pid {daemon.pid}" in stranger.log() or daemon.poll() is not None, "start-up")
        owner = (Path("/proc") / str(daemon.pid) / "status").read_text("utf-8")
        assert f"Uid:\t{pwd.getpwnam(USER).pw_uid}\t" in owner
        said = stranger.log()
        assert "not root: this user must be a Torque operator" in said
        assert "not root: the server's accounting cannot be read" in said
        assert "sched_logs is not writable" not in said
        # An ordinary user of Torque: he is not even shown the others' jobs, and says what would help.
        until(lambda: "other users' jobs are hidden from this user" in stranger.log(), "the complaint")
        torque.run("qmgr", "-c", "set server query_other_jobs = True")
        until(lambda: "Unauthorized Request" in stranger.log(), "the refusal")
        assert starts(torque) == {}
        # The right that the facts name is all it takes.
        torque.run("qmgr", "-c", "set server query_other_jobs = False")
        torque.run("qmgr", "-c", f"set server operators += {USER}@head")
        until(lambda: torque.jobs()[job]["job_state"] == "R", "the start")
        until(lambda: torque.jobs()[job].get("comment", "").startswith("Job started on"), "the comment")
        assert starts(torque) == {job: 1}
        daemon.terminate()
        assert daemon.wait(300) == 1
        assert "die;caught signal 15\n" in stranger.log()
        assert "Traceback" not in stranger.log() + (stranger.place / "err").read_text("utf-8")
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()


def test_what_it_cannot_do_is_said_before_it_begins(stranger: Stranger) -> None:
    home = stranger.torque.home
    shutil.chown(home / "sched_logs", "root")
    done = stranger.run("serve", "-d", str(home), "-S", str(free_port()))
    assert (done.returncode, "name a log with -L" in done.stderr) == (1, True), done.stderr
    shutil.chown(home / "sched_priv", "root")
    done = stranger.run("serve", "-d", str(home), "-S", str(free_port()), "-L", os.devnull)
    assert (done.returncode, "sched.lock: Permission denied" in done.stderr) == (1, True), done.stderr
    done = stranger.run("serve", "-d", str(home), "-S", "604", "-L", os.devnull)
    assert (done.returncode, "ports below 1024 are root's" in done.stderr) == (1, True), done.stderr
    done = stranger.run("doctor", "-d", str(home))
    assert f"is not writable for {USER}" in done.stdout
    assert f"qmgr -c 'set server operators += {USER}@" in done.stdout
