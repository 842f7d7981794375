"""A daemon of ours beside an emulated Torque, both as processes."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.command_server import run_command
from tests.fixtures.ports import held_port
from tests.fixtures.waiting import until
from torque_sched.emulation import EmulatedTorque

_SHORT_BOTH_WAYS = frozenset(
    {
        "test_an_event_starts_a_job_on_the_least_loaded_node",
        "test_a_burst_of_jobs_starts_each_once",
        "test_the_server_is_gone_and_comes_back",
    }
)
"""Run by Torque's protocol and by its commands in `make test`; the others by the protocol alone."""
_OF_COMMANDS = frozenset(
    {
        "test_doctor_tells_what_the_daemon_lacks",
        "test_what_failed_is_left_alone_over_a_kill",
        "test_comments_of_waiting_jobs_are_written_once",
        "test_scheduling_false_pauses_and_true_goes_on",
        "test_a_partial_snapshot_is_no_snapshot",
        "test_a_refused_start_is_told_and_tried_again_later",
        "test_without_rights_all_starts_of_a_cycle_are_given_up",
        "test_it_runs_nothing_but_pbsnodes_and_qstat",
        "test_a_start_that_outlives_its_daemon_is_over_before_the_next_one_looks",
        "test_a_start_that_hangs_is_ended_by_the_next_daemon",
    }
)
"""They count the commands' calls, or break the commands themselves."""
_OF_THE_PROTOCOL = frozenset(
    {
        "test_an_ordinary_user_asks_the_daemon_and_pbs_server_is_not_asked",
        "test_comments_that_a_killed_daemon_owed_are_written_by_the_next",
        "test_a_signal_ends_a_daemon_that_waits_for_the_answer_to_a_comment",
    }
)
"""They count calls of somebody else, or requests of which a command would make one for many jobs."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """By which way daemons ask the server: all tests both ways in `make test-all`."""
    if "way" not in metafunc.fixturenames:
        return
    name = metafunc.function.__name__
    ways: list[Any] = ["auto", "commands"]
    if name in _OF_COMMANDS:
        ways = ["commands"]
    elif name in _OF_THE_PROTOCOL:
        ways = ["auto"]
    elif name not in _SHORT_BOTH_WAYS:
        ways = ["auto", pytest.param("commands", marks=pytest.mark.slow)]
    metafunc.parametrize("way", ways)


NODES = "node1 np=2 slow\nnode2 np=4\nnode3 np=8 big\nnode4 np=4 gpus=2 gpunode\n"


_HELD_PORTS = ExitStack()
atexit.register(_HELD_PORTS.close)


def free_port() -> int:
    """A port that nobody else is given: held, but not listened on, as long as the tests run."""
    return held_port(_HELD_PORTS)


class Daemon:
    """``torque-sched serve`` as a process."""

    def __init__(self, torque: EmulatedTorque, port: int, *options: str, **settings: Any) -> None:
        self.torque = torque
        self.port = port
        self.home = torque.home
        self.options = options
        # The timer never rings while a test waits: what an event does, it does not do instead.
        self.settings = {"timer_s": 3600, "restricted": ["*"], "retry_s": 0.3, **settings}
        self.process: subprocess.Popen[bytes] | None = None
        (self.home / "sched_priv").mkdir(exist_ok=True)

    @property
    def own(self) -> Path:
        return self.home / "sched_priv" / ("shadow" if "--shadow" in self.options else "")

    def start(self) -> None:
        config = self.home / "sched_priv" / "torque_sched.yaml"
        config.write_text(yaml.safe_dump(self.settings), encoding="utf-8")
        argv = [sys.executable, "-m", "torque_sched", "serve", "-d", str(self.home), "-S", str(self.port)]
        env = {**self.torque.env, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.home / "daemon.err").open("ab") as errors:
            self.process = subprocess.Popen([*argv, *self.options], env=env, stderr=errors)
        pid = f"pbs_sched startup pid {self.process.pid}"
        until(lambda: pid in self.log() or self.process.poll() is not None, "start-up")  # type: ignore[union-attr]
        assert self.process.poll() is None, self.errors()
        until(lambda: self._hears(), "the event port")

    def end(self) -> None:
        """End it with its test; it may not have met a fault of its own."""
        if self.process is not None:
            self.kill()
        assert not re.search("fault of ours|Traceback", self.errors()), self.errors()

    def _hears(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(300)
        self.process = None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(300)
        self.process = None
        return code

    def log(self) -> str:
        folder = self.own / "logs" if "--shadow" in self.options else self.home / "sched_logs"
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        return "".join(path.read_text(encoding="utf-8") for path in files)

    def errors(self) -> str:
        return (self.home / "daemon.err").read_text(encoding="utf-8") + self.log()

    def state(self) -> dict[str, Any]:
        path = self.own / "torque_sched_state.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found

    def running(self) -> set[str]:
        return {name for name, job in self.torque.jobs().items() if job["job_state"] == "R"}


Serve = Callable[..., Daemon]


def comment(torque: EmulatedTorque, job: str) -> str:
    return torque.jobs()[job].get("comment", "")


def starts(torque: EmulatedTorque) -> dict[str, int]:
    """How often each job was started, by the server's own accounting."""
    records = [line.split(";")[1:3] for line in torque.accounting()]
    return dict(Counter(job for kind, job in records if kind == "S"))


def run(torque: EmulatedTorque, *words: str) -> subprocess.CompletedProcess[str]:
    """``torque-sched WORDS`` for the home of this Torque."""
    return run_command("torque_sched", (words[0], "-d", str(torque.home), *words[1:]), env=torque.env)


def spy(torque: EmulatedTorque, *names: str) -> Path:
    """Put note-takers in front of the emulated commands; each call adds ``NAME ARGUMENTS`` to the file."""
    calls = torque.directory / "calls"
    calls.touch()
    folder = torque.directory / "real"
    folder.mkdir(exist_ok=True)
    for name in names:
        program = torque.path / name
        program.rename(folder / name)
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\nexec {folder / name} "$@"\n', "utf-8")
        program.chmod(0o755)
    return calls


def complaints(done: subprocess.CompletedProcess[str]) -> str:
    """Standard error without what a busy machine adds: an answer takes long, the last look is old."""
    return "".join(
        line
        for line in done.stderr.splitlines(True)
        if "no answer yet from" not in line and "the scheduler last saw the cluster" not in line
    )


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def torque(tmp_path: Path, port: int) -> Iterator[EmulatedTorque]:
    made = EmulatedTorque.create(
        tmp_path / "cluster", nodes=NODES, event_target=f"127.0.0.1:{port}", server={"keep_completed": "300"}
    )
    with made:
        yield made


@pytest.fixture
def serve(torque: EmulatedTorque, port: int, way: str) -> Iterator[Serve]:
    """Start daemons; they are ended with the test, and none may have met a fault of its own."""
    made: list[Daemon] = []

    def start(*options: str, **settings: Any) -> Daemon:
        daemon = Daemon(torque, settings.pop("port", port), *options, **{"transport": way, **settings})
        made.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in made:
        daemon.end()
