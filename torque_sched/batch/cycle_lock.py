"""``cycle.lock``: one process at a time looks at the cluster and changes it by what it saw.

The daemon holds it from its look to the end of its starts; the grid's site service while it looks and places
a hold. So neither acts on a picture that the other has just made untrue. It ends with the process however
that ends, but not before the commands that were given its descriptor: a start that outlives a killed daemon
must not take effect behind the back of the next one.

Who gives an order ends it after its time. Where that scheduler was killed nobody does, and an order that
hangs (a server that was stopped, a connection half open) would hold the lock for ever. Whoever waits for the
lock ends such orders, found by the lock that they still hold, and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

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
        start_command: words of the start command's process before its last two; empty: none is ended.
        order_timeout_s: whoever waits ends start commands that have run longer and whose scheduler is gone.
    """

    def __init__(self, path: Path, start_command: Sequence[str] = (), order_timeout_s: float = 0.0) -> None:
        self._path, self._start_command, self._order_timeout_s = path, start_command, order_timeout_s

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
            if now_s >= looked_s + _LOOK_AGAIN_S and self._start_command:
                looked_s = now_s
                self._end_left_orders()
            yield
        raise SnapshotError(
            f"another process has held {self._path} for {wait_s:g} s",
            cure=f"see which one (fuser {self._path}) and end it",
        )

    def _end_left_orders(self) -> None:
        for order in end_overdue(self._path, self._start_command, self._order_timeout_s):
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


_PROC = Path("/proc")
_PARENT, _GROUP, _START = 1, 2, 19
"""Places in ``/proc/PID/stat`` after the name (proc(5): fields 4, 5 and 22)."""


def end_overdue(lock: Path, start_command: Sequence[str], after_s: float) -> list[str]:
    """End start commands that hold a lock, have run longer than ``after_s``, and whose scheduler is gone.

    Returns:
        Their command lines.
    """
    path, ended, n_words = str(lock.resolve()), [], len(start_command) + 2
    for folder in _PROC.glob("[0-9]*"):
        # It may be gone meanwhile, or another user's.
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
            # Whatever interpreter is in front of it; nodes and job are behind it.
            named = [os.path.basename(each) for each in words[-n_words:-2]]  # noqa: PTH119
            if named == list(start_command) and _is_overdue(int(folder.name), path, after_s):
                os.killpg(int(folder.name), signal.SIGKILL)
                ended.append(" ".join(words[-n_words:]))
    return ended


def _is_overdue(pid: int, lock: str, after_s: float) -> bool:
    stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()
    started_s = int(fields[_START]) / os.sysconf("SC_CLK_TCK")
    # An order leads its own process group, and a scheduler that lives has the lock open, too.
    return (
        int(fields[_GROUP]) == pid
        and time.clock_gettime(time.CLOCK_BOOTTIME) - started_s > after_s
        and _has_open(str(pid), lock)
        and not _has_open(fields[_PARENT], lock)
    )


def _has_open(pid: str, path: str) -> bool:
    # By the text of the link: to ask the file itself might wait for a dead file server.
    with suppress(OSError):
        for link in (_PROC / pid / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(link) == path:  # noqa: PTH115 -- as text
                    return True
    return False
