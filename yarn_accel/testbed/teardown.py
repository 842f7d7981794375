"""Removes a cluster by its names and marks alone, also one whose launcher was killed."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from yarn_accel.errors import ClusterError
from yarn_accel.testbed import netns
from yarn_accel.testbed.backends import remove_nodes, thaw_nodes
from yarn_accel.testbed.host_nodes import STOP_DEADLINE_S
from yarn_accel.testbed.plan import namespace_prefix
from yarn_accel.testbed.processes import Process, mark_of, members, stop_all
from yarn_accel.testbed.state import ClusterPaths, Report, known_names, load, locked, remove_lock, silent

# Application masters would try for half a minute to unregister from a ResourceManager that has gone.
STOP_GRACE_S = 3.0


def take_down(name: str, report: Report = silent) -> bool:
    """Take away everything that bears a cluster's name or mark; harmless when there is nothing.

    Returns:
        Whether there was anything.

    Raises:
        ConfigError: the name is not usable.
        ClusterError: something could not be taken away; the message lists it.
    """
    paths = ClusterPaths.of(name)
    with locked(paths, report):
        had_state = paths.root.exists()
        spec = None
        with contextlib.suppress(ClusterError):
            spec = load(paths)
        started_s = time.monotonic()
        thaw_nodes(paths, spec)
        n_stopped = _stop_members(paths)
        gone = remove_nodes(paths, spec)
        _remove_tree(paths.root)
        remove_lock(paths)
    if not (had_state or n_stopped or gone):
        report(f"there is no cluster {name}; nothing to do")
        return False
    report(
        f"cluster {name} is down after {time.monotonic() - started_s:.1f} s:"
        f" {n_stopped} processes stopped, {len(gone)} objects removed"
    )
    return True


def take_down_all(report: Report = silent) -> list[str]:
    """Take down every cluster of this user and return their names."""
    names = known_names()
    if not names:
        report("there is no cluster; nothing to do")
    return [name for name in names if take_down(name, report)]


def _stop_members(paths: ClusterPaths) -> int:
    mark = mark_of(paths.name, paths.tag)
    prefix = namespace_prefix(paths.name, paths.tag)
    seen: set[int] = set()

    def find() -> list[Process]:
        found = members(mark, netns.namespaces(prefix).values())
        seen.update(process.pid for process in found)
        return found

    left = stop_all(find, grace_s=STOP_GRACE_S, deadline_s=STOP_DEADLINE_S)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise ClusterError(
            f"processes of cluster {paths.name} do not end: {pids}", cure="see them: ps -fp PID"
        )
    return len(seen)


def _remove_tree(root: Path) -> None:
    for _ in range(5):
        if not root.exists():
            return
        shutil.rmtree(root, ignore_errors=True)
    if root.exists():
        raise ClusterError(f"{root} cannot be removed", cure="see who owns the files in it, then remove it")
