"""Orders that outlived the scheduler that gave them: found by the lock they still hold, ended when overdue.

Who gives an order ends it after its time. Where that scheduler was killed nobody does, and one that hangs
(a server that was stopped, a connection half open) would hold ``cycle.lock`` for ever. It is ended here as it
would have been ended there; nothing else ever is.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_N_WORDS = 5
"""``qrun -a -H HOSTS JOB``, whatever interpreter is in front of it."""
_PARENT, _GROUP, _START = 1, 2, 19
"""Places in ``/proc/PID/stat`` after the name (proc(5): fields 4, 5 and 22)."""


def end_overdue(lock: Path, after_s: float) -> list[str]:
    """End orders that hold a lock, have run longer than ``after_s``, and whose scheduler is gone.

    Returns:
        Their command lines.
    """
    path, ended = str(lock.resolve()), []
    for folder in _PROC.glob("[0-9]*"):
        # It may be gone meanwhile, or another user's.
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
            if _is_order(words) and _is_overdue(int(folder.name), path, after_s):
                os.killpg(int(folder.name), signal.SIGKILL)
                ended.append(" ".join(words[-_N_WORDS:]))
    return ended


def _is_order(words: list[str]) -> bool:
    return [os.path.basename(each) for each in words[-_N_WORDS:-2]] == ["qrun", "-a", "-H"]  # noqa: PTH119


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
