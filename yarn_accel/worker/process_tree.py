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
                yield parse_stat(Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace"))


def children_of(pid: int) -> list[int]:
    """The children of a process, also those that ended and are not waited for; none of one that is gone."""
    try:
        return [
            int(child)
            for thread in (_PROC / str(pid) / "task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
    except OSError:  # it is gone, or the kernel is without CONFIG_PROC_CHILDREN
        return [each.pid for each in listed_processes() if each.parent == pid]


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
            first = (_PROC / str(pid) / "io").read_text(encoding="ascii").split("\n", 1)[0]
            total += int(first.removeprefix("rchar:"))
    return total
