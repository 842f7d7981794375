"""Small files of ours that others read while we run: the old text or the new, nothing between."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["lives", "write_atomic"]


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Write the file anew.

    It is not forced to the disk: it tells what runs now, and a machine that lost power runs nothing.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123 -- has a mode
            file.write(text)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


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
