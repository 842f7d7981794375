"""The processes of this machine as ``/proc`` shows them, by session: all that one attempt has started.

Standard library only: the guard imports it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
_READ_BYTES = 1 << 20


class ProcessInfo(NamedTuple):
    """One process; `session` is the pid of the process that began its session."""

    pid: int
    parent: int
    session: int
    resident_bytes: int
    is_zombie: bool


def parse_stat(text: str) -> ProcessInfo:
    """Read ``/proc/PID/stat``; a program's name may have blanks and parentheses.

    >>> parse_stat("7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 4096 2 0").parent
    1
    """
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    return ProcessInfo(
        int(pid), int(fields[1]), int(fields[3]), int(fields[21]) * _PAGE_BYTES, fields[0] == "Z"
    )


def listed_processes() -> Iterator[ProcessInfo]:
    """Every process; one that ends meanwhile may be missing."""
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                yield parse_stat(_content(f"{entry.path}/stat").decode("utf-8", "replace"))


def processes_of(leaders: Iterable[int], processes: Iterable[ProcessInfo]) -> dict[int, list[ProcessInfo]]:
    """The processes of each session leader: those of its session, and all that these have started."""
    listed = {each.pid: each for each in processes}
    found: dict[int, list[ProcessInfo]] = {leader: [] for leader in leaders}
    for each in listed.values():
        seen: set[int] = set()
        at: ProcessInfo | None = each
        while at is not None and at.session not in found and at.pid not in seen:
            seen.add(at.pid)
            at = listed.get(at.parent)
        if at is not None and at.session in found:
            found[at.session].append(each)
    return found


def bytes_read(pids: Iterable[int]) -> int:
    """What these processes have read, from caches, too; those that ended do not count."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(_content(f"/proc/{pid}/io").split(b"\n", 1)[0].removeprefix(b"rchar:"))
    return total


def _content(path: str) -> bytes:
    """A file of ``/proc``, read in one call."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _READ_BYTES)
    finally:
        os.close(fd)
