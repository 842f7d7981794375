"""Orders left by a killed scheduler: ended when overdue, and nothing else is ever ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from torque_sched.adapters.cycle_lock import CycleLock
from torque_sched.adapters.left_orders import end_overdue
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
from torque_sched.adapters.cycle_lock import CycleLock

async def main() -> None:
    async with CycleLock(Path(sys.argv[1])).taken_async(5.0) as held:
        await Commands().run(sys.argv[2:], 1000.0, keeps=held)

asyncio.run(main())
"""
WORDS = ("-a", "-H", "n1:ppn=1", "7.head")


@contextmanager
def scheduler(folder: Path, name: str = "qrun") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A scheduler that holds the lock, and the process id of its order, which never ends by itself."""
    program = folder / name
    program.write_text(HANGS, encoding="utf-8")
    program.chmod(0o755)
    made = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER, str(folder / "cycle.lock"), str(program), *WORDS]
    )
    told = folder / f"{name}.pid"
    while not (told.exists() and told.read_text(encoding="utf-8").strip()):
        assert made.poll() is None
        time.sleep(0.01)
    order = int(told.read_text(encoding="utf-8"))
    try:
        yield made, order
    finally:
        with suppress(ProcessLookupError):
            os.killpg(order, signal.SIGKILL)
        made.kill()
        made.wait()


def killed(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_whoever_waits_ends_an_overdue_order_of_the_dead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = tmp_path / "cycle.lock"
    with scheduler(tmp_path) as (process, order):
        killed(process)
        with pytest.raises(SnapshotError, match="has held"), CycleLock(lock, 1000.0).taken(0.5):
            pass
        assert is_alive(order), "it may still be answered"
        with CycleLock(lock, 0.2).taken(60.0):
            deadline = time.monotonic() + 60
            while is_alive(order):  # whoever dies closes its files, this lock too, a moment before it is dead
                assert time.monotonic() < deadline
                time.sleep(0.01)
    assert "ended an order left by a scheduler that is gone" in caplog.text
    assert "qrun -a -H n1:ppn=1 7.head" in caplog.text


def test_by_itself_a_lock_ends_nobody(tmp_path: Path) -> None:
    with scheduler(tmp_path) as (process, order):
        killed(process)
        with pytest.raises(SnapshotError), CycleLock(tmp_path / "cycle.lock").taken(0.5):
            pass
        assert is_alive(order)


def test_the_order_of_a_scheduler_that_lives_is_its_own_matter(tmp_path: Path) -> None:
    with scheduler(tmp_path) as (process, order):
        assert end_overdue(tmp_path / "cycle.lock", 0.0) == []
        assert process.poll() is None
        assert is_alive(order)


def test_what_is_no_order_or_holds_another_lock_is_left_alone(tmp_path: Path) -> None:
    with scheduler(tmp_path, "other") as (process, order):
        killed(process)
        assert end_overdue(tmp_path / "cycle.lock", 0.0) == []
        assert is_alive(order)
    (tmp_path / "a").mkdir()
    with scheduler(tmp_path / "a") as (process, order):
        killed(process)
        assert end_overdue(tmp_path / "cycle.lock", 0.0) == []
        assert is_alive(order)
        assert end_overdue(tmp_path / "a" / "cycle.lock", 0.0) == [f"{tmp_path}/a/qrun -a -H n1:ppn=1 7.head"]
