"""What runs a command in a forked process gives it all that a started one has, and reports its end."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.fixtures.command_server import run_command


def test_output_exit_code_and_environment_are_those_of_a_started_process() -> None:
    done = run_command("yarn_accel", ["--version"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("yarn-accel, version ")
    done = run_command(
        "yarn_accel", ["cluster", "status", "nobody"], env={**os.environ, "XDG_STATE_HOME": "/x"}
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no cluster nobody" in done.stderr
    assert run_command("yarn_accel", ["no-such-command"]).returncode == 2


def test_standard_input_arrives() -> None:
    done = run_command("torque_sched", ["parse", "accounting", "-"], input="nonsense\n")
    assert done.returncode == 1
    assert "1 damaged" in done.stdout


def test_a_command_without_end_is_killed_and_the_next_one_runs() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_command("torque_sched", ["top", "-d", "/", "--interval", "60"], timeout=5.0)
    assert run_command("torque_sched", ["--version"]).returncode == 0


def test_an_interrupted_one_is_killed_and_its_answer_is_not_taken_for_the_next_ones() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_command("torque_sched", ["top", "-d", "/", "--interval", "60"])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert run_command("yarn_accel", ["no-such-command"]).returncode == 2
