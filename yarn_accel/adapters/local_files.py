"""Files of our own on this machine, which readers see whole."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from yarn_accel.local_filesystem import check_replaceable

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def write_atomic(path: Path, text: str, mode: int = 0o644, *, is_for_all: bool = False) -> None:
    """Write one of our own files so that readers see the old or the new text and nothing between.

    Nothing is left beside it when writing fails.  It is not forced to the disk: these files describe what
    runs now, and a machine that lost power runs nothing.

    Args:
        path: the file; the folders above it are made.
        text: all of it, written as UTF-8.
        mode: its permissions, less the umask.
        is_for_all: whatever the umask, as others must read it.

    Raises:
        OSError: it cannot be written, or what has the name is no regular file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(os.open(temporary, _CREATE, mode), "w", encoding="utf-8") as file:  # noqa: PTH123 -- has a mode
            if is_for_all:
                os.fchmod(file.fileno(), mode)
            file.write(text)
        check_replaceable(path)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
