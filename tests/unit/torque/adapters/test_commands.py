"""Running commands: whole outputs or an error, limits in time and size, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from torque_sched.adapters.commands import Commands, Completed
from torque_sched.errors import CommandError


def run(*argv: str, timeout_s: float = 100.0, max_bytes: int = 1 << 20) -> Completed:
    return asyncio.run(Commands(max_bytes=max_bytes).run(argv, timeout_s))


def test_both_outputs_and_the_exit_code() -> None:
    done = run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert done.last_line() == "err"


def test_arguments_are_no_shell_text() -> None:
    assert run("printf", "%s", "$(id); `id` | 'x' \"y\"").stdout == b"$(id); `id` | 'x' \"y\""


def test_arguments_are_utf_8_whatever_the_locale_is() -> None:
    """Comments quote what the server printed, which has bytes of any language."""
    script = (
        "import asyncio\n"
        "from torque_sched.adapters.commands import Commands\n"
        "print(asyncio.run(Commands().run(('printf', '%s', 'gr\\xf6\\xdfe \\ufffd'), 10.0)).stdout)\n"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == repr("größe \ufffd".encode()), done.stderr


def test_a_large_output_is_whole() -> None:
    assert len(run("head", "-c", "3000000", "/dev/zero", max_bytes=1 << 22).stdout) == 3_000_000


def test_a_signal_is_a_negative_code() -> None:
    assert run("sh", "-c", "kill -9 $$").exit_code == -9


def test_too_long_kills_the_whole_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(CommandError, match="did not end within"):
        run("sh", "-c", f"echo $$ >{pids}; sleep 1000 & echo $! >>{pids}; wait", timeout_s=3.0)
    told = [int(pid) for pid in pids.read_text().split()]
    assert len(told) == 2
    until(lambda: not any(map(is_alive, told)))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children() -> set[int]:
    """Our child processes, dead ones that nobody reaped included; other tests have some, too."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_that_keeps_the_pipe_counts_as_too_long() -> None:
    with pytest.raises(CommandError, match="did not end within"):
        run("sh", "-c", "echo half; sleep 60 &", timeout_s=0.5)


def test_too_much_output_is_no_output() -> None:
    with pytest.raises(CommandError, match="more than 1000 bytes"):
        run("head", "-c", "100000", "/dev/zero", max_bytes=1000)


def test_an_absent_program_says_what_to_do() -> None:
    with pytest.raises(CommandError, match="not on PATH") as caught:
        run("no-such-program-anywhere")
    assert caught.value.cure


def test_many_at_once_leave_no_descriptor_and_no_zombie() -> None:
    others = children()

    async def many() -> None:
        commands = Commands()
        await commands.run(("true",), 100.0)
        before = open_files()
        await asyncio.gather(*(commands.run(("sh", "-c", f"echo {n}"), 100.0) for n in range(40)))
        assert open_files() == before

    asyncio.run(many())
    assert children() <= others


def test_a_cancelled_call_ends_its_command() -> None:
    others = children()

    async def cancelled() -> None:
        commands = Commands()
        task = asyncio.ensure_future(commands.run(("sleep", "1000"), 1000.0))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        deadline = time.monotonic() + 60
        while not children() <= others:  # a killed process still has to get a processor to end on
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
            await commands.run(("true",), 100.0)  # reaps it

    asyncio.run(cancelled())
