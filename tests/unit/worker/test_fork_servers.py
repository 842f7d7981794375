from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from yarn_accel.worker.fork_servers import ForkServers

PROGRAM = (sys.executable, "program.py")


@pytest.mark.parametrize(
    ("argv", "own"),
    [
        ((sys.executable, "-c", "pass", "program.py"), ["v"]),
        ((sys.executable, "-m", "json", "program.py"), ["v"]),
        ((sys.executable, "-X", "dev", "program.py"), ["v"]),
        ((sys.executable, "program"), ["v"]),
        ((sys.executable,), ["v"]),
        (("/usr/bin/python3-config", "program.py"), ["v"]),
        (("sh", "program.py"), ["v"]),
        (("./python3", "program.py"), ["v"]),
        (PROGRAM, []),
    ],
)
def test_other_commands_are_never_forked(argv: tuple[str, ...], own: list[str]) -> None:
    servers = ForkServers(lambda: None)
    message = {"argv": list(argv), "env": {"m": "1"}, "mark": "m", "own": own}
    assert [servers.fork(message, []) for _ in range(9)] == [None] * 9
    assert servers.pids == set()


def test_commands_with_other_environments_are_of_other_kinds() -> None:
    servers = ForkServers(lambda: None)
    for number in range(200):
        message = {"argv": list(PROGRAM), "env": {"m": "1", "x": str(number)}, "mark": "m", "own": ["v"]}
        assert servers.fork(message, []) is None
    assert servers.pids == set()


#: Forks a program as a guard does. With the personality 8 the kernel tells servers that the machine is older.
FORKING = """
import ctypes, os, select, sys
from yarn_accel.worker.fork_servers import ForkServers
from yarn_accel.worker.guard import adopt_orphans

adopt_orphans()
forks = ForkServers(lambda: ctypes.CDLL(None).personality(int(sys.argv[1])))
environ = {**os.environ, "m": "attempt", "v": str(os.getpid())}
argv = [sys.executable, "-I", sys.argv[2]]
for _ in range(3):
    message = {"argv": argv, "env": environ, "cwd": "/", "mark": "m", "own": ["v"]}
    while (pid := forks.fork(message, [0, 1, 2])) is None:
        for channel in forks.starting:
            select.select([channel], [], [])
            forks.greet(channel)
    status, is_due = os.waitpid(pid, 0)[1], forks.fork_next_in_s is not None
    forks.fork_next()
    print(status, is_due, forks.fork_next_in_s, len(forks.pids), flush=True)
"""


@pytest.mark.parametrize("personality", [0, 8])
def test_a_forked_program_is_a_child_of_the_guard_on_any_machine(tmp_path: Path, personality: int) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import os\nprint(os.getppid() == int(os.environ['v']), os.environ['m'], os.uname().machine)\n"
    )
    argv = [sys.executable, "-c", FORKING, str(personality), str(path)]
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [each.rsplit(" ", 1)[0] for each in lines[::2]] == ["True attempt"] * 3, lines
    assert lines[1::2] == ["0 True None 2"] * 3, "it ended well; then there are a server and one that waits"
    machines = {each.split()[2] for each in lines[::2]}
    assert len(machines) == 1
    assert (machines == {os.uname().machine}) is (personality == 0)
