"""``cycle.lock``: one process at a time looks at the cluster and changes it by what it saw.

The daemon holds it from its look to the end of its starts; the grid's site service while it looks and places
a hold. So neither acts on a picture that the other has just made untrue. It ends with the process however
that ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from torque_sched.errors import SnapshotError

__all__ = ["LOCK_NAME", "CycleLock"]

LOCK_NAME = "cycle.lock"
"""In ``sched_priv``."""
_TRY_AGAIN_S = 0.005


class CycleLock:
    """The lock of one scheduler's home; each taking is one of its own, also within one process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def taken(self, wait_s: float) -> Iterator[None]:
        """Hold it meanwhile.

        Raises:
            SnapshotError: another process had it all the time, or the file cannot be made.
        """
        fd = self._open()
        try:
            until_s = time.monotonic() + wait_s
            while not self._try(fd):
                self._check(until_s, wait_s)
                time.sleep(_TRY_AGAIN_S)
            yield
        finally:
            os.close(fd)

    @asynccontextmanager
    async def taken_async(self, wait_s: float) -> AsyncIterator[None]:
        """The same without stopping the event loop.

        Raises:
            SnapshotError: another process had it all the time, or the file cannot be made.
        """
        fd = self._open()
        try:
            until_s = time.monotonic() + wait_s
            while not self._try(fd):
                self._check(until_s, wait_s)
                await asyncio.sleep(_TRY_AGAIN_S)
            yield
        finally:
            os.close(fd)

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SnapshotError(
                f"{self._path}: {error.strerror}", cure="give this user the folder, or run this as root"
            ) from error

    @staticmethod
    def _try(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _check(self, until_s: float, wait_s: float) -> None:
        if time.monotonic() >= until_s:
            raise SnapshotError(
                f"another process has held {self._path} for {wait_s:g} s",
                cure=f"see which one (fuser {self._path}) and end it",
            )
