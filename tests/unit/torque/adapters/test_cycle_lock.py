"""The cycle's lock: one at a time, however the other ends; waiting ends with an error and a cure."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torque_sched.adapters.cycle_lock import CycleLock
from torque_sched.errors import SnapshotError

HOLDER = """
import sys
from pathlib import Path
from torque_sched.adapters.cycle_lock import CycleLock
with CycleLock(Path(sys.argv[1])).taken(5.0):
    print("held", flush=True)
    sys.stdin.readline()
"""


ORDERING = """
import asyncio, sys
from pathlib import Path
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.cycle_lock import CycleLock

async def main() -> None:
    async with CycleLock(Path(sys.argv[1])).taken_async(5.0) as held:
        orders = Commands().run(("sh", "-c", f"read line < {sys.argv[2]}; exit 0"), 60.0, keeps=held)
        order = asyncio.ensure_future(orders)
        await asyncio.sleep(0)
        print("held", flush=True)
        if sys.argv[3] == "lets go":
            await asyncio.sleep(0)
        else:
            await order
    print("let go", flush=True)
    await order

asyncio.run(main())
"""


def ordering(path: Path, pipe: Path, does: str) -> subprocess.Popen[str]:
    """Somebody who holds the lock and runs a command that ends when it can read a line from the pipe."""
    os.mkfifo(pipe)
    argv = [sys.executable, "-c", ORDERING, str(path), str(pipe), does]
    made = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    assert made.stdout.readline() == "held\n"
    return made


def test_an_order_that_outlives_its_daemon_keeps_the_lock(tmp_path: Path) -> None:
    path, pipe = tmp_path / "cycle.lock", tmp_path / "pipe"
    daemon = ordering(path, pipe, "waits")
    try:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(60)
        assert not asyncio.run(_is_free(path))
    finally:
        # It opens once the command reads from it.
        pipe.write_text("go on\n")
    assert asyncio.run(taken(path, 60.0)), "the order is over"
    assert daemon.stdout is not None
    daemon.stdout.close()


def test_whoever_lives_lets_go_whatever_its_orders_do(tmp_path: Path) -> None:
    path, pipe = tmp_path / "cycle.lock", tmp_path / "pipe"
    daemon = ordering(path, pipe, "lets go")
    assert daemon.stdout is not None
    try:
        assert daemon.stdout.readline() == "let go\n"
        assert asyncio.run(_is_free(path)), "though the order has not ended"
        assert daemon.poll() is None
    finally:
        pipe.write_text("go on\n")
        daemon.communicate(timeout=60)


def holder(path: Path) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "held\n"
    return made


async def taken(path: Path, wait_s: float) -> bool:
    async with CycleLock(path).taken_async(wait_s):
        return True


def test_only_one_has_it_and_death_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "cycle.lock"
    other = holder(path)
    try:
        with pytest.raises(SnapshotError, match=r"another process has held .*cycle\.lock for 0 s") as caught:
            asyncio.run(taken(path, 0.0))
        assert "fuser" in caught.value.cure
        with pytest.raises(SnapshotError, match="another process"), CycleLock(path).taken(0.0):
            pass
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate(timeout=60)
    assert asyncio.run(taken(path, 60.0))
    with CycleLock(path).taken(0.0):
        assert not asyncio.run(_is_free(path)), "also within one process"
    assert asyncio.run(_is_free(path))


async def _is_free(path: Path) -> bool:
    try:
        return await taken(path, 0.0)
    except SnapshotError:
        return False


def test_a_folder_that_is_not_ours_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file"), CycleLock(tmp_path / "no" / "lock").taken(0.0):
        pass


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
    with CycleLock(path).taken(0.0), pytest.raises(SnapshotError), CycleLock(path).taken(0.0):
        pass
