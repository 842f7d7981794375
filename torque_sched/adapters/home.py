"""The PBS home of a scheduler: its folder, who may write to it, and the lock that there is only one.

Root's rights are not used on files of an ordinary account (`act_as_owner`): who owns them could point them
anywhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from torque_sched.adapters.state_file import open_plain, read_plain
from torque_sched.errors import StartupError

HIGHEST_TRUSTED_UID = 10
"""The C daemon trusts folders of system accounts up to this."""
_MAX_LINKS = 40
"""As the kernel follows on one path."""


def path_elements(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and link on the way to a path, from the root on, each with its own status.

    Raises:
        OSError: an element is not there, cannot be seen, or links lead in a circle.
    """
    place, rest = Path("/"), list(reversed(path.absolute().parts[1:]))
    n_links = 0
    yield place, place.lstat()
    while rest:
        part = rest.pop()
        if part == "..":
            place = place.parent
            continue
        each = place / part
        status = each.lstat()
        yield each, status
        if not stat.S_ISLNK(status.st_mode):
            place = each
            continue
        n_links += 1
        if n_links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = each.readlink()
        place = Path("/") if target.is_absolute() else place
        rest.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))


def check_folder(folder: Path) -> None:
    """Refuse a folder that others could change, as the C daemon does.

    It, every folder above and every link on the way must belong to a system account (uid up to 10) or to this
    process's user, and no folder be writable for its group or for others. A folder above with the sticky bit
    (``/tmp``) will do.

    Raises:
        StartupError: which folder, and what to do.
    """
    trusted = {os.geteuid(), *range(HIGHEST_TRUSTED_UID + 1)}
    try:
        elements = list(path_elements(folder))
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}", cure="name the PBS home with -d") from error
    place = elements[-1][0]
    for each, status in elements:
        if status.st_uid not in trusted:
            raise StartupError(f"Security violation: {each} belongs to uid {status.st_uid}", cure="chown it")
        if stat.S_ISLNK(status.st_mode):
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise StartupError(f"{each} is no folder", cure="name the PBS home with -d")
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
            fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
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
        content = f"{os.getpid()}\n\0".encode("ascii")
        # The rest is cut off afterwards, so that a full disk leaves the place that there is. Without any the
        # lock counts all the same, and the kernel tells whose it is.
        with suppress(OSError):
            os.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))

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
        with open_plain(path) as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError as error:
        return 0 if error.errno == errno.ENOENT else None
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def pid_in(path: Path) -> int:
    """The process id in a lock file, 0 when there is none."""
    try:
        return int(read_plain(path).decode("ascii").strip("\0\n "))
    except (OSError, ValueError):
        return 0


def act_as_owner(folder: Path) -> None:
    """Where root works in a folder of an ordinary account, go on as that account, for good.

    Args:
        folder: ``sched_priv``. The first element of its path that is an ordinary account's, a folder above or
            a link also, tells whose it is. System accounts (uid up to 10) change nothing.
    """
    if os.geteuid() != 0:
        return
    with suppress(OSError):
        for _, status in path_elements(folder):
            if status.st_uid > HIGHEST_TRUSTED_UID:
                _become(status.st_uid, status.st_gid)
                return


def _become(uid: int, gid: int) -> None:
    try:
        account = pwd.getpwuid(uid)
        os.initgroups(account.pw_name, account.pw_gid)
        gid = account.pw_gid
    except KeyError:
        os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
