"""Keeps the log files of a container small while its processes write to them.

The content is copied to ``stdout.1`` and the file is truncated.  Every writer appends to the open file,
worker processes and native libraries included, so none of them has to know.  What is written between the
copy and the truncation, some microseconds, is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_BYTES = 16 << 20
KEEP = 3
_INTERVAL_S = 5.0
_PIECE_BYTES = 1 << 20


def rotate_output(
    descriptors: Sequence[int] = (1, 2),
    max_bytes: int = MAX_BYTES,
    keep: int = KEEP,
    interval_s: float = _INTERVAL_S,
) -> threading.Event:
    """Watch this process' output files in a daemon thread, until the returned event is set.

    Only regular files opened for appending are rotated.
    """
    done = threading.Event()
    watched = [fd for fd in descriptors if _is_log(fd)]

    def watch() -> None:
        while not done.wait(interval_s):
            for fd in watched:
                with contextlib.suppress(OSError):
                    rotate(fd, max_bytes, keep)

    if watched:
        threading.Thread(target=watch, name="log-rotation", daemon=True).start()
    return done


def rotate(descriptor: int, max_bytes: int, keep: int) -> bool:
    """Rotate an open log file if it is longer than `max_bytes`; returns whether it was.

    Raises:
        OSError: no space for the copy, or the file was deleted; the file is truncated all the same.
    """
    if os.fstat(descriptor).st_size <= max_bytes:
        return False
    path = Path(f"/proc/self/fd/{descriptor}").readlink()
    try:
        for number in range(keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(f"{path.name}.{number}").replace(path.with_name(f"{path.name}.{number + 1}"))
        _copy(path, path.with_name(f"{path.name}.1"))
    finally:
        os.ftruncate(descriptor, 0)
    return True


def _copy(source: Path, target: Path) -> None:
    """Copy until the end, so that little time passes between the last read and the truncation."""
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while piece := reader.read(_PIECE_BYTES):
            writer.write(piece)


def _is_log(descriptor: int) -> bool:
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return is_file and bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND)
    except OSError:
        return False
