"""Finding and stopping processes, with real children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from yarn_accel.testbed import processes
from yarn_accel.testbed.processes import MARK_PROPERTY, MARK_VARIABLE, NODE_VARIABLE, Process

Spawn = Callable[..., "subprocess.Popen[str]"]
PYTHON_SLEEP = "import sys, time; print('ready', flush=True); time.sleep(600)"
PYTHON_STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + PYTHON_SLEEP
# A detached grandchild whose parent has gone, as a container's process is after its NodeManager died.
PYTHON_ORPHAN = (
    "import os, subprocess, sys; "
    "code = 'import time; time.sleep(600)'; "
    "child = subprocess.Popen([sys.executable, '-c', code], start_new_session=True, stdout=-3); "
    "print(child.pid, flush=True); os._exit(0)"
)


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark of this test's own; what bears it afterwards is stopped."""
    mark = f"test:{uuid.uuid4().hex[:6]}"
    yield mark
    processes.stop_all(lambda: processes.members(mark, ()), grace_s=0.0, deadline_s=60.0)


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a Python program that prints a line when it is ready; it is killed with the test."""
    children: list[subprocess.Popen[str]] = []

    def act(code: str, mark: str = "", *arguments: str) -> subprocess.Popen[str]:
        env = {**os.environ, NODE_VARIABLE: "", **({MARK_VARIABLE: mark} if mark else {})}
        argv = [sys.executable, "-c", code, *arguments]
        children.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True))
        assert children[-1].stdout is not None
        children[-1].stdout.readline()
        return children[-1]

    yield act
    for child in children:
        child.kill()
        child.communicate()


def has_begun(pid: int) -> None:
    """Wait for its environment: Popen returns when exec has closed its descriptors, just before it is set."""
    until_s = time.monotonic() + 60.0
    while not Path(f"/proc/{pid}/environ").read_bytes():
        assert time.monotonic() < until_s, "it never began"


def test_a_child_with_the_mark_is_found_and_others_are_not(mark: str, spawn: Spawn) -> None:
    marked, _ = spawn(PYTHON_SLEEP, mark), spawn(PYTHON_SLEEP)
    assert [process.pid for process in processes.members(mark, ())] == [marked.pid]
    assert processes.members(mark + "0", ()) == []
    marked.kill()
    marked.wait(300)
    assert processes.members(mark, ()) == []


def test_a_java_property_is_as_good_as_the_variable(mark: str, spawn: Spawn) -> None:
    child = spawn(PYTHON_SLEEP, "", f"-D{MARK_PROPERTY}={mark}")
    assert [process.pid for process in processes.members(mark, ())] == [child.pid]


def test_a_detached_grandchild_is_found_and_stopped(mark: str) -> None:
    parent = subprocess.run(
        [sys.executable, "-c", PYTHON_ORPHAN],
        env={**os.environ, MARK_VARIABLE: mark},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    orphan = int(parent.stdout)
    has_begun(orphan)
    assert [process.pid for process in processes.members(mark, ())] == [orphan]
    assert processes.stop_all(lambda: processes.members(mark, ()), grace_s=60.0, deadline_s=60.0) == []
    assert orphan not in {process.pid for process in processes.snapshot()}


def test_sigterm_is_followed_by_sigkill(mark: str, spawn: Spawn) -> None:
    polite, stubborn = spawn(PYTHON_SLEEP, mark), spawn(PYTHON_STUBBORN, mark)
    assert processes.stop_all(lambda: processes.members(mark, ()), grace_s=3.0, deadline_s=60.0) == []
    codes = [child.wait(300) for child in (polite, stubborn)]
    assert codes == [-signal.SIGTERM, -signal.SIGKILL]


def test_this_process_and_its_ancestors_are_spared() -> None:
    own = [process for process in processes.snapshot() if process.pid == os.getpid()]
    assert len(own) == 1
    namespace = own[0].namespace
    assert namespace > 0
    found = {process.pid for process in processes.members("nobody:000000", [namespace])}
    assert not {os.getpid(), os.getppid()} & found


def test_a_pid_that_passed_to_another_process_is_not_signalled(mark: str, spawn: Spawn) -> None:
    child = spawn(PYTHON_SLEEP, mark)
    (process,) = processes.members(mark, ())
    earlier = Process(**{**vars(process), "start_ticks": process.start_ticks - 1})
    assert not processes.send(earlier, signal.SIGKILL)
    assert child.poll() is None
    assert processes.send(process, signal.SIGKILL)
    assert child.wait(300) == -signal.SIGKILL


def entry(pid: int, parent: int, mark: str = "m:1", node: str = "w1", *argv: str) -> Process:
    return Process(pid, parent, 0, argv, mark, node, 0)


def test_a_daemon_differs_from_its_children_its_neighbours_and_its_orphans() -> None:
    table = [
        entry(9, 5, "m:1", "w1", "java", "NodeManager"),  # a child that inherited everything
        entry(5, 1, "m:1", "w1", "java", "NodeManager"),
        entry(6, 1, "m:1", "w2", "java", "NodeManager"),
        entry(7, 1, "other:1", "w1", "java", "NodeManager"),
        entry(8, 1, "m:1", "w1", "bash", "launch_container.sh"),
        entry(4, 1, "m:1", "w1", "java", "NodeManager", "-format"),
    ]
    found = processes.find_daemon("m:1", "w1", "NodeManager", table)
    assert found is not None
    assert found.pid == 5
    assert processes.find_daemon("m:1", "w1", "DataNode", table) is None


def test_memory_of_a_real_process_and_of_none() -> None:
    memory = processes.memory_of(os.getpid())
    assert 0 < memory.pss_bytes <= memory.rss_bytes <= memory.peak_bytes
    assert processes.memory_of(2**22 + 1).rss_bytes == 0


def test_other_users_marks_do_not_count(mark: str, spawn: Spawn) -> None:
    spawn(PYTHON_SLEEP, mark)
    assert processes.members(mark, (), processes.snapshot(uid=os.geteuid() + 1)) == []


def test_names_with_brackets_and_blanks_do_not_confuse_the_reader(mark: str, tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "600"], env={MARK_VARIABLE: mark})
    try:
        has_begun(child.pid)
        found = processes.members(mark, ())
        assert [(process.pid, process.parent) for process in found] == [(child.pid, os.getpid())]
    finally:
        child.kill()
        child.wait()
