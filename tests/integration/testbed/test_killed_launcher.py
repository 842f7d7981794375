"""A launcher killed with -9 at any moment: ``down`` leaves nothing, and ``up`` finishes what was begun.

The moments are events, not times: the first sign of each stage of ``up`` on the machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from yarn_accel.testbed import Cluster
from yarn_accel.testbed.host_nodes import NAMESPACES, interfaces
from yarn_accel.testbed.plan import interface_prefix, namespace_prefix
from yarn_accel.testbed.processes import mark_of, snapshot
from yarn_accel.testbed.state import ClusterPaths

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Run = Callable[..., subprocess.CompletedProcess[str]]
OPTIONS = ("--nodes", "1", "--racks", "1", "--accel-nodes", "1")
WAIT_S = 120.0


def has_daemon(paths: ClusterPaths, word: str) -> bool:
    mark = mark_of(paths.name, paths.tag)
    return any(process.mark == mark and word in " ".join(process.argv) for process in snapshot())


MOMENTS: dict[str, Callable[[ClusterPaths], bool]] = {
    "spec-written": lambda paths: paths.state_file.exists(),
    "bridge-made": lambda paths: bool(interfaces(interface_prefix(paths.tag))),
    "last-namespace-made": lambda paths: (NAMESPACES / f"{namespace_prefix('killed', paths.tag)}w1").exists(),
    "first-daemon-started": lambda paths: has_daemon(paths, "resourcemanager.ResourceManager"),
    "hdfs-formatted": lambda paths: paths.namenode_dir.exists(),
    "workers-started": lambda paths: has_daemon(paths, "datanode.DataNode"),
}


def kill_launcher_at(moment: str) -> None:
    paths = ClusterPaths.of("killed")
    argv = [sys.executable, "-m", "yarn_accel", "cluster", "up", "killed", *OPTIONS]
    launcher = subprocess.Popen(
        argv, cwd=Path(__file__).resolve().parents[3], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + WAIT_S
    while not MOMENTS[moment](paths):
        assert launcher.poll() is None, f"the launcher ended before {moment}"
        assert time.monotonic() < deadline, f"{moment} did not come"
        time.sleep(0.002)
    launcher.kill()
    launcher.wait()


#: After a daemon has started; the test below has one started, too.
LATE = ("first-daemon-started", "hdfs-formatted", "workers-started")


@pytest.mark.parametrize(
    "moment", [pytest.param(name, marks=pytest.mark.slow if name in LATE else ()) for name in MOMENTS]
)
def test_down_leaves_nothing(moment: str, command: Run, trace: Callable[[str], set[str]]) -> None:
    kill_launcher_at(moment)
    assert trace("killed"), "there was nothing to clear up"
    done = command("down", "killed")
    assert done.returncode == 0, done.stderr
    assert trace("killed") == set()


@pytest.mark.slow
def test_up_finishes_what_was_begun(command: Run, trace: Callable[[str], set[str]]) -> None:
    kill_launcher_at("first-daemon-started")
    done = command("up", "killed", "--link", "10gbit")
    assert done.returncode == 0, done.stderr
    cluster = Cluster.open("killed")
    assert cluster.status().is_healthy
    _check_failure_is_explained(cluster, command)
    leftover = subprocess.Popen(cluster.exec_argv("w1", ["setsid", "sleep", "600"]))
    cluster.down()
    assert leftover.wait(300) != 0
    assert trace("killed") == set()


def _check_failure_is_explained(cluster: Cluster, command: Run) -> None:
    """A NameNode that cannot start: the launcher says which daemon, where its log is, and what it holds."""
    cluster.kill("master", "namenode")
    version = ClusterPaths.of("killed").namenode_dir / "current" / "VERSION"
    version.write_text("storageType=NONSENSE\n")
    done = command("up", "killed")
    assert done.returncode == 1
    failure = done.stderr.splitlines()[-1]
    assert "namenode of node master ended: see " in failure
    assert "master/namenode.log: " in failure
    assert " ERROR " in failure


def test_down_needs_no_state_file(command: Run, trace: Callable[[str], set[str]]) -> None:
    kill_launcher_at("first-daemon-started")
    paths = ClusterPaths.of("killed")
    paths.state_file.write_text("not JSON")
    assert command("status", "killed").returncode == 1
    done = command("down", "killed")
    assert done.returncode == 0, done.stderr
    own = {thing for thing in trace("killed") if not thing.endswith(("/run/netns", "/etc/netns"))}
    assert own == set()
