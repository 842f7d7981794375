"""A launcher killed with -9 at a moment, which is an event on the machine and no time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping

from yarn_accel.testbed.processes import mark_of, snapshot
from yarn_accel.testbed.state import ClusterPaths

Start = Callable[..., subprocess.Popen[str]]
Moments = Mapping[str, Callable[[ClusterPaths], bool]]
WAIT_S = 900.0


def has_daemon(paths: ClusterPaths, word: str) -> bool:
    """Whether a process of the cluster has this in its arguments."""
    mark = mark_of(paths.name, paths.tag)
    return any(process.mark == mark and word in " ".join(process.argv) for process in snapshot())


DAEMONS: Moments = {
    "first-daemon-started": lambda paths: has_daemon(paths, "resourcemanager.ResourceManager"),
    "hdfs-formatted": lambda paths: paths.namenode_dir.exists(),
    "workers-started": lambda paths: has_daemon(paths, "datanode.DataNode"),
}
"""The last moments of ``up`` in every mode."""


def kill_launcher(start: Start, words: list[str], moments: Moments, moment: str) -> ClusterPaths:
    """Start ``up`` of the cluster "killed" with these words, and kill it when the moment has come."""
    paths = ClusterPaths.of("killed")
    launcher = start(*words)
    deadline = time.monotonic() + WAIT_S
    while not moments[moment](paths):
        assert launcher.poll() is None, f"the launcher ended before {moment}"
        assert time.monotonic() < deadline, f"{moment} did not come"
        time.sleep(0.002)
    launcher.kill()
    launcher.wait()
    return paths
