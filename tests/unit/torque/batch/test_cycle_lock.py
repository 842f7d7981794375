"""The cycle's lock: one at a time, however the other ends; overdue orders of the dead are ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.fixtures.waiting import until
from torque_sched.batch.cycle_lock import CycleLock, end_overdue
from torque_sched.errors import SnapshotError

HANGS = """#!/bin/sh
echo $$ > "$0.pid"
sleep 1000 &
wait
"""
SCHEDULER = """
import asyncio, sys
from pathlib import Path
from torque_sched.adapters.commands import Commands
from torque_sched.batch.cycle_lock import CycleLock

async def main(lock, how, *argv):
    async with CycleLock(Path(lock)).taken_async(5.0) as held:
        order = asyncio.ensure_future(Commands().run(argv, 1000.0, keeps=held))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if how == "waits":
            await order
    print("let go", flush=True)
    await order

asyncio.run(main(*sys.argv[1:]))
"""
QRUN = ("qrun", "-a", "-H")
WORDS = (*QRUN[1:], "n1:ppn=1", "7.head")


@contextmanager
def scheduler(
    folder: Path, name: str = "qrun", how: str = "waits"
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A scheduler that took the lock, and the process id of its order, which never ends by itself."""
    program, told = folder / name, folder / f"{name}.pid"
    program.write_text(HANGS, encoding="utf-8")
    program.chmod(0o755)
    argv = [sys.executable, "-c", SCHEDULER, str(folder / "cycle.lock"), how, str(program), *WORDS]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as made:
        order = int(until(lambda: told.exists() and told.read_text(encoding="utf-8").strip(), "the order"))
        try:
            yield made, order
        finally:
            with suppress(ProcessLookupError):
                os.killpg(order, signal.SIGKILL)
            made.kill()


def killed(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def taken(lock: CycleLock, wait_s: float) -> bool:
    async with lock.taken_async(wait_s):
        return True


def refused(lock: CycleLock, words: str = "another process has held") -> SnapshotError:
    """Nobody gets it at once."""
    with pytest.raises(SnapshotError, match=words) as caught, lock.taken(0.0):
        pass
    return caught.value


async def test_whoever_waits_ends_an_overdue_order_of_the_dead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then it keeps the lock that its scheduler had, for it may still be answered."""
    path = tmp_path / "cycle.lock"
    with scheduler(tmp_path) as (process, order):
        assert end_overdue(path, QRUN, 0.0) == [], "the order of one that lives is its own matter"
        error = refused(CycleLock(path))
        assert "cycle.lock for 0 s" in str(error)
        assert "fuser" in error.cure
        with pytest.raises(SnapshotError):
            await taken(CycleLock(path), 0.0)
        killed(process)
        for lock in (CycleLock(path), CycleLock(path, QRUN, 1000.0)):
            with pytest.raises(SnapshotError, match="has held"), lock.taken(0.5):
                pass
        assert is_alive(order)
        with CycleLock(path, QRUN, 0.2).taken(60.0):
            # Whoever dies closes its files, this lock too, a moment before it is dead.
            until(lambda: not is_alive(order), "it is ended")
            refused(CycleLock(path))
    assert await taken(CycleLock(path), 0.0)
    assert "ended an order left by a scheduler that is gone" in caplog.text
    assert "qrun -a -H n1:ppn=1 7.head" in caplog.text


def test_whoever_lives_lets_go_whatever_its_orders_do(tmp_path: Path) -> None:
    with scheduler(tmp_path, how="lets go") as (process, order):
        assert process.stdout is not None
        assert process.stdout.readline() == b"let go\n"
        with CycleLock(tmp_path / "cycle.lock").taken(0.0):
            assert is_alive(order)
            assert process.poll() is None


def test_what_is_no_order_or_holds_another_lock_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for folder, name in ((tmp_path, "other"), (tmp_path / "a", "qrun")):
        with scheduler(folder, name) as (process, order):
            killed(process)
            assert end_overdue(tmp_path / "cycle.lock", QRUN, 0.0) == []
            assert is_alive(order)
            ended = [f"{tmp_path}/a/qrun -a -H n1:ppn=1 7.head"] if name == "qrun" else []
            assert end_overdue(folder / "cycle.lock", QRUN, 0.0) == ended


def test_a_folder_that_is_not_ours_is_told(tmp_path: Path) -> None:
    refused(CycleLock(tmp_path / "no" / "lock"), "No such file")


def test_a_disk_that_can_no_longer_be_written_keeps_nobody_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel mounts a bad disk again for reading only."""
    path = tmp_path / "cycle.lock"
    path.touch()
    real = os.open

    def read_only(name: Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(name, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with CycleLock(path).taken(0.0):
        refused(CycleLock(path))
