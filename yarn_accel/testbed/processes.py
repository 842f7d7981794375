"""Which processes of this machine belong to a cluster, and how they are stopped.

Nothing is remembered. A process belongs to a cluster when it lives in one of its network namespaces, when it
carries its mark in its environment (daemons, the containers they start, commands run on nodes), or when
its arguments hold the mark as a Java property (job clients). The table in /proc is read anew each time, so a
launcher that died in the middle leaves nothing that its successor cannot find.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.testbed.state import ClusterPaths

MARK_VARIABLE = "YARN_ACCEL_CLUSTER"
NODE_VARIABLE = "YARN_ACCEL_NODE"
MARK_PROPERTY = "yarn.accel.cluster"
PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process as seen in /proc.

    Attributes:
        start_ticks: start time since boot, in clock ticks; with the pid it names a process for good.
        argv: its arguments; empty for kernel threads and zombies.
        mark: value of YARN_ACCEL_CLUSTER in the environment it was started with; empty when there is none.
        node: value of YARN_ACCEL_NODE, likewise.
        namespace: inode of its network namespace; 0 when it may not be seen.
        is_stopped: whether a signal such as SIGSTOP keeps it from running.
    """

    pid: int
    parent: int
    start_ticks: int
    argv: tuple[str, ...]
    mark: str
    node: str
    namespace: int
    is_stopped: bool = False


def mark_of(name: str, tag: str) -> str:
    """Return the mark that every process of a cluster carries."""
    return f"{name}:{tag}"


def marked_environ(paths: ClusterPaths, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment for commands that work on a cluster: whoever clears up finds them by it."""
    return {**(os.environ if environ is None else environ), MARK_VARIABLE: mark_of(paths.name, paths.tag)}


def snapshot(uid: int | None = None) -> tuple[Process, ...]:
    """Read all processes that may be looked into.

    Args:
        uid: leave out the marks of other users' processes (default: of all but our own), so that nobody gets
            another user's process stopped by setting a variable.
    """
    uid = os.geteuid() if uid is None else uid
    found = (_read(int(entry.name), uid) for entry in PROC.iterdir() if entry.name.isdigit())
    return tuple(process for process in found if process is not None)


def _read(pid: int, uid: int) -> Process | None:
    folder = PROC / str(pid)
    try:
        stat = (folder / "stat").read_text(errors="replace")
        argv = _split((folder / "cmdline").read_bytes())
        is_ours = folder.stat().st_uid == uid
    except OSError:
        return None
    # The second field is the program's name in brackets and may itself hold blanks and brackets.
    fields = stat[stat.rfind(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    variables = _environ(folder) if is_ours else {}
    return Process(
        pid=pid,
        parent=int(fields[1]),
        start_ticks=int(fields[19]),
        argv=argv if is_ours else (),
        mark=variables.get(MARK_VARIABLE, ""),
        node=variables.get(NODE_VARIABLE, ""),
        namespace=_namespace_inode(folder / "ns" / "net"),
        is_stopped=fields[0] == "T",
    )


def _split(raw: bytes) -> tuple[str, ...]:
    return tuple(part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def _environ(folder: Path) -> dict[str, str]:
    try:
        parts = _split((folder / "environ").read_bytes())
    except OSError:
        return {}
    return {name: value for name, equals, value in (part.partition("=") for part in parts) if equals}


def _namespace_inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def members(mark: str, namespaces: Iterable[int], table: Iterable[Process] | None = None) -> list[Process]:
    """Return the processes of a cluster, except this one and its ancestors.

    Args:
        mark: see `mark_of`.
        namespaces: inodes of the cluster's network namespaces.
        table: the processes to look through (default: a new `snapshot`).
    """
    everything = tuple(snapshot() if table is None else table)
    inodes = set(namespaces) - {0}
    argument = f"-D{MARK_PROPERTY}={mark}"
    spared = _lineage(os.getpid(), everything)
    return [
        process
        for process in everything
        if process.pid not in spared
        and (process.mark == mark or process.namespace in inodes or argument in process.argv)
    ]


def _lineage(pid: int, table: Iterable[Process]) -> set[int]:
    parents = {process.pid: process.parent for process in table}
    line = {pid}
    while (pid := parents.get(pid, 0)) and pid not in line:
        line.add(pid)
    return line


def find_daemon(mark: str, node: str, last_argument: str, table: Iterable[Process]) -> Process | None:
    """Return a node's daemon, recognized by its last argument (its main class or its settings file).

    The node's mark alone is not enough: what a daemon started may have inherited it. Nor is the main class
    anywhere among the arguments: a NameNode that is only formatting has it, too, with options behind it.
    """
    found = [
        process
        for process in table
        if (process.mark, process.node) == (mark, node) and process.argv[-1:] == (last_argument,)
    ]
    pids = {process.pid for process in found}
    return next((process for process in found if process.parent not in pids), None)


def send(process: Process, signum: int) -> bool:
    """Signal a process unless its pid has passed to another one meanwhile; tell whether it was there."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        now = _read(process.pid, os.geteuid())
        if now is None or now.start_ticks != process.start_ticks:
            return False
        signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def stop_all(find: Callable[[], list[Process]], *, grace_s: float, deadline_s: float) -> list[Process]:
    """Stop what `find` finds: SIGTERM, and SIGKILL to what is left after `grace_s`, until nothing is found.

    Args:
        find: looks anew at each call, so processes that start meanwhile are stopped too.
        grace_s: time to end in good order.
        deadline_s: give up after this time in all.

    Returns:
        What is still there at the deadline.
    """
    start = time.monotonic()
    asked: dict[tuple[int, int], Process] = {}
    # A process that is ending has no environment any more, but still its ports and files: so what was asked
    # to end is waited for, whether it is found again or not.
    while left := {**{_identity(process): process for process in find()}, **_still_there(asked)}:
        elapsed = time.monotonic() - start
        if elapsed > deadline_s:
            return list(left.values())
        for identity, process in left.items():
            if elapsed > grace_s:
                send(process, signal.SIGKILL)
            elif identity not in asked:
                send(process, signal.SIGTERM)
            asked[identity] = process
        time.sleep(0.1)
    return []


def _identity(process: Process) -> tuple[int, int]:
    return process.pid, process.start_ticks


def _still_there(asked: Mapping[tuple[int, int], Process]) -> dict[tuple[int, int], Process]:
    now = {identity: _read(identity[0], os.geteuid()) for identity in asked}
    return {
        identity: asked[identity]
        for identity, process in now.items()
        if process is not None and _identity(process) == identity
    }


@dataclass(frozen=True)
class Memory:
    """Memory of a process in bytes: resident, its fair share of that, and the largest resident size."""

    rss_bytes: int
    pss_bytes: int
    peak_bytes: int


def memory_of(pid: int) -> Memory:
    """Return what a process uses; zeros when it has gone."""
    status = _sizes(PROC / str(pid) / "status")
    shares = _sizes(PROC / str(pid) / "smaps_rollup")
    return Memory(status.get("VmRSS", 0), shares.get("Pss", 0), status.get("VmHWM", 0))


def _sizes(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {
        parts[0].rstrip(":"): int(parts[1]) * 1024 for parts in fields if len(parts) == 3 and parts[2] == "kB"
    }
