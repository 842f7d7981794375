"""``cycle.lock``: one process at a time looks at the cluster and changes it by what it saw.

The daemon holds it from its look to the end of its starts; the grid's site service while it looks and places
a hold. So neither acts on a picture that the other has just made untrue. It ends with the process however
that ends, but not before the commands that were given its descriptor: a start that outlives a killed daemon
must not take effect behind the back of the next one.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from torque_sched.adapters.left_orders import end_overdue
from torque_sched.errors import SnapshotError

logger = logging.getLogger(__name__)

LOCK_NAME = "cycle.lock"
"""In ``sched_priv``."""
_TRY_AGAIN_S = 0.005
_LOOK_AGAIN_S = 0.2


class CycleLock:
    """The lock of one scheduler's home; each taking is one of its own, also within one process.

    Args:
        path: its file.
        order_timeout_s: whoever waits ends orders that have run longer and whose scheduler is gone.
    """

    def __init__(self, path: Path, order_timeout_s: float = math.inf) -> None:
        self._path = path
        self._order_timeout_s = order_timeout_s

    @contextmanager
    def taken(self, wait_s: float) -> Iterator[int]:
        """Hold it meanwhile; gives the descriptor that holds it.

        Raises:
            SnapshotError: another process had it all the time, or the file cannot be made.
        """
        fd = self._open()
        try:
            waiting = self._waits(wait_s)
            while not self._try(fd):
                next(waiting)
                time.sleep(_TRY_AGAIN_S)
            yield fd
        finally:
            _let_go(fd)

    @asynccontextmanager
    async def taken_async(self, wait_s: float) -> AsyncIterator[int]:
        """The same without stopping the event loop.

        Raises:
            SnapshotError: another process had it all the time, or the file cannot be made.
        """
        fd = self._open()
        try:
            waiting = self._waits(wait_s)
            while not self._try(fd):
                next(waiting)
                await asyncio.sleep(_TRY_AGAIN_S)
            yield fd
        finally:
            _let_go(fd)

    def _open(self) -> int:
        flags = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            try:
                return os.open(self._path, flags | os.O_RDWR, 0o644)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                # A disk that went bad is mounted again without writing; jobs are to start all the same.
                return os.open(self._path, flags | os.O_RDONLY)
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

    def _waits(self, wait_s: float) -> Iterator[None]:
        """To be asked after each try that failed."""
        began_s = looked_s = time.monotonic()
        while (now_s := time.monotonic()) < began_s + wait_s:
            if now_s >= looked_s + _LOOK_AGAIN_S and math.isfinite(self._order_timeout_s):
                looked_s = now_s
                self._end_left_orders()
            yield
        raise SnapshotError(
            f"another process has held {self._path} for {wait_s:g} s",
            cure=f"see which one (fuser {self._path}) and end it",
        )

    def _end_left_orders(self) -> None:
        for order in end_overdue(self._path, self._order_timeout_s):
            logger.warning(
                "ended an order left by a scheduler that is gone, without an answer for more than %g s: %s",
                self._order_timeout_s,
                order,
            )


def _let_go(fd: int) -> None:
    """Also where a command that cannot be ended still has a copy of the descriptor."""
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)
