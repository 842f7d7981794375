"""How a Debian machine finds the daemon: pidof, start-stop-daemon, and what they cannot do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torque_sched.daemon.packaging import init_script_changes

SCRIPT = """#!{python}
import sys
sys.path[:0] = {path!r}
from torque_sched.daemon.process_name import be_called
be_called(sys.argv[0], sys.argv[1:])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A script called pbs_sched that has taken its name, and its process."""
    script = tmp_path / "pbs_sched"
    script.write_text(SCRIPT.format(python=sys.executable, path=sys.path), encoding="utf-8")
    script.chmod(0o755)
    with subprocess.Popen(
        [script, "-d", "/home of pbs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == b"ready\n"
        yield script, made.pid
        made.kill()


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} on this machine")


def test_ps_shows_the_command_line_of_the_c_daemon(daemon: tuple[Path, int]) -> None:
    script, pid = daemon
    shown = (Path("/proc") / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert shown == [str(script).encode(), b"-d", b"/home of pbs"]


def test_pidof_finds_it(daemon: tuple[Path, int]) -> None:
    needs("pidof")
    found = subprocess.run(["pidof", "pbs_sched"], capture_output=True, text=True, check=False)
    assert str(daemon[1]) in found.stdout.split()


def test_start_stop_daemon_finds_it_by_name_and_not_by_the_file(
    daemon: tuple[Path, int], tmp_path: Path
) -> None:
    """Why an init script with ``--exec`` has to be changed."""
    needs("start-stop-daemon")
    script, pid = daemon
    lock = tmp_path / "sched.lock"
    lock.write_text(f"{pid}\n\0")
    lock.chmod(0o644)

    def finds(*words: str) -> bool:
        argv = ["start-stop-daemon", "--stop", "--test", "--quiet", "--pidfile", str(lock), *words]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    assert finds("--name", "pbs_sched")
    assert not finds("--exec", str(script))
    begin = ["start-stop-daemon", "--start", "--test", "--name", "pbs_sched", "--startas", str(script)]
    assert subprocess.run(begin, capture_output=True, check=False).returncode == 1  # it runs already


def test_the_lines_of_an_init_script_that_cannot_find_it_are_named(tmp_path: Path) -> None:
    script = tmp_path / "pbs_sched"
    assert init_script_changes(script) == []
    script.write_text(
        "# start-stop-daemon --exec nothing\n"
        "start-stop-daemon --start --pidfile $PIDFILE --exec $DAEMON --test || return 1\n"
        "start-stop-daemon --stop --pidfile $PIDFILE --name $NAME\n"
        "start-stop-daemon -K -x /usr/sbin/pbs_sched\n"
    )
    wanted = "line {}: write `--name pbs_sched --startas {}` in the place of `{}`"
    assert init_script_changes(script) == [
        f"{script}, " + wanted.format(2, "$DAEMON", "--exec $DAEMON"),
        f"{script}, " + wanted.format(4, "/usr/sbin/pbs_sched", "-x /usr/sbin/pbs_sched"),
    ]
