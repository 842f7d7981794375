"""The cycle's lock: one at a time, however the other ends; waiting ends with an error and a cure."""

from __future__ import annotations

import asyncio
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
        other.communicate(timeout=10)
    assert asyncio.run(taken(path, 10.0))
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
