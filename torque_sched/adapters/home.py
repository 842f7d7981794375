"""The PBS home of a scheduler: its folder, who may write to it, and the lock that there is only one."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from torque_sched.errors import StartupError

__all__ = ["LockFile", "check_folder", "pid_in"]

_HIGHEST_TRUSTED_UID = 10


def check_folder(folder: Path) -> None:
    """Refuse a folder that others could change, as the C daemon does.

    It and every folder above must belong to a system account (uid up to 10) or to this process's user, and
    be writable neither for its group nor for others. A folder above with the sticky bit (``/tmp``) will do.

    Raises:
        StartupError: which folder, and what to do.
    """
    trusted = {os.geteuid(), *range(_HIGHEST_TRUSTED_UID + 1)}
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
            owner = pid_in(self._path)
            os.close(fd)
            raise StartupError(
                "pbs_sched: another scheduler running" + (f" (process {owner})" if owner else ""),
                cure="stop it first, or name another home with -d",
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n\0".encode("ascii"), 0)
        self._fd = fd

    def release(self) -> None:
        """Give it back; the file stays, as the C daemon's does."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def pid_in(path: Path) -> int:
    """The process id in a lock file, 0 when there is none."""
    try:
        return int(path.read_text(encoding="ascii").strip("\0\n "))
    except (OSError, ValueError):
        return 0
