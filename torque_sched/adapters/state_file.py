"""Small files of ours that others read while we run: the old text or the new, nothing between.

A folder may belong to another account than the process, so nothing that lies there is followed or believed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_MAX_BYTES = 1 << 20
_MAX_PLAIN_BYTES = 256 << 20


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Write the file anew.

    It is not forced to the disk: it tells what runs now, and a machine that lost power runs nothing.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, mode)
    try:
        with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123 -- has a mode
            file.write(text)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def open_plain(path: Path) -> BinaryIO:
    """A file open for reading, whoever wrote it; a device is opened as well.

    Raises:
        OSError: it cannot be read, or would have to be waited for (a FIFO).
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        os.close(fd)
        raise OSError(errno.EINVAL, "is no plain file", str(path))
    return open(fd, "rb")  # noqa: PTH123 -- has flags


def read_plain(path: Path) -> bytes:
    """What is in a file, whoever wrote it.

    Raises:
        OSError: as `open_plain`, or it is too long.
    """
    with open_plain(path) as file:
        data = file.read(_MAX_PLAIN_BYTES + 1)
    if len(data) > _MAX_PLAIN_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def read_trusted(path: Path) -> str:
    """The text of a file that nobody but root or this process's user can have written.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is a link, no plain file, somebody else's, one that others may write, or too long.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 -- has flags
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no plain file")
        if status.st_uid not in {0, os.geteuid()}:
            raise OSError(f"{path} belongs to uid {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_nlink != 1:
            raise OSError(f"{path} can be written by others, or has another name")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(f"{path} is longer than {_MAX_BYTES} bytes")
    return data.decode("utf-8")


def lives(pid: int) -> bool:
    """Whether the process that wrote its number into such a file still runs, also as another user."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
