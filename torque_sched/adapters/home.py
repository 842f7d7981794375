"""The PBS home of a scheduler: its folder, who may write to it, and the lock that there is only one."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

from torque_sched.errors import StartupError

__all__ = ["HIGHEST_TRUSTED_UID", "LockFile", "check_folder", "holder_of", "pid_in"]

HIGHEST_TRUSTED_UID = 10
"""The C daemon trusts folders of system accounts up to this."""


def check_folder(folder: Path) -> None:
    """Refuse a folder that others could change, as the C daemon does.

    It and every folder above must belong to a system account (uid up to 10) or to this process's user, and
    be writable neither for its group nor for others. A folder above with the sticky bit (``/tmp``) will do.

    Raises:
        StartupError: which folder, and what to do.
    """
    trusted = {os.geteuid(), *range(HIGHEST_TRUSTED_UID + 1)}
    place = folder.resolve()
    for each in (place, *place.parents):
        try:
            status = each.stat()
        except OSError as error:
            raise StartupError(f"{each}: {error.strerror}", cure="name the PBS home with -d") from error
        if not stat.S_ISDIR(status.st_mode):
            raise StartupError(f"{each} is no folder", cure="name the PBS home with -d")
        if status.st_uid not in trusted:
            raise StartupError(f"Security violation: {each} belongs to uid {status.st_uid}", cure="chown it")
        is_open = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_open and (each == place or not status.st_mode & stat.S_ISVTX):
            raise StartupError(
                f"Security violation: {each} is writable for group or others", cure=f"chmod go-w {each}"
            )


class LockFile:
    """``sched.lock``: a write lock held while the daemon lives; the file names its process.

    The lock ends with the process however that ends, so a file left behind hinders nobody.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> None:
        """Take the lock and write the process id, a newline and a zero byte, as the C daemon does.

        Raises:
            StartupError: another daemon has it, or the file cannot be written.
        """
        try:
            fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StartupError(
                f"{self._path}: {error.strerror}",
                cure="give this user the folder, or name another with -d",
            ) from error
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = holder_of(self._path) or pid_in(self._path)
            os.close(fd)
            raise StartupError(
                "pbs_sched: another scheduler running" + (f" (process {owner})" if owner else ""),
                cure="stop it first, or name another home with -d",
            ) from error
        self._fd = fd
        told = f"{os.getpid()}\n\0".encode("ascii")
        # The rest is cut off afterwards, so that a full disk leaves the place that there is. Without any the
        # lock counts all the same, and the kernel tells whose it is.
        with suppress(OSError):
            os.pwrite(fd, told, 0)
            os.ftruncate(fd, len(told))

    def release(self) -> None:
        """Give it back; the file stays, as the C daemon's does."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1


_FLOCK = "hhqqi"
"""``struct flock``: type, whence, start, length, process."""


def holder_of(path: Path) -> int | None:
    """The process that has the lock by the kernel's word, 0 when none has; None: we may not look.

    Not for the holder itself: closing the file would end its lock.
    """
    try:
        with path.open("rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError as error:
        return 0 if error.errno == errno.ENOENT else None
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def pid_in(path: Path) -> int:
    """The process id in a lock file, 0 when there is none."""
    try:
        return int(path.read_text(encoding="ascii").strip("\0\n "))
    except (OSError, ValueError):
        return 0
