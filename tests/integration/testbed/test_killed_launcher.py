"""A launcher killed with -9 at any moment: ``down`` leaves nothing, and ``up`` finishes what was begun.

The moments are events, not times: the first sign of each stage of ``up`` on the machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.integration.testbed.killing import DAEMONS, Moments, Start, kill_launcher
from yarn_accel.testbed import Cluster
from yarn_accel.testbed.host_nodes import NAMESPACES, interfaces
from yarn_accel.testbed.plan import interface_prefix, namespace_prefix
from yarn_accel.testbed.state import ClusterPaths

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Run = Callable[..., subprocess.CompletedProcess[str]]
Kill = Callable[[str], ClusterPaths]


MOMENTS: Moments = {
    "spec-written": lambda paths: paths.state_file.exists(),
    "bridge-made": lambda paths: bool(interfaces(interface_prefix(paths.tag))),
    "last-namespace-made": lambda paths: (NAMESPACES / f"{namespace_prefix('killed', paths.tag)}w1").exists(),
    **DAEMONS,
}


@pytest.fixture
def kill(start_command: Start) -> Kill:
    """Kill the launcher of a small cluster at one of the moments."""
    words = ["up", "killed", "--nodes", "1", "--racks", "1", "--accel-nodes", "1"]
    return lambda moment: kill_launcher(start_command, words, MOMENTS, moment)


#: After a daemon has started; the test below has one started, too.
LATE = tuple(DAEMONS)


@pytest.mark.parametrize(
    "moment", [pytest.param(name, marks=pytest.mark.slow if name in LATE else ()) for name in MOMENTS]
)
def test_down_leaves_nothing(moment: str, kill: Kill, command: Run, trace: Callable[[str], set[str]]) -> None:
    kill(moment)
    assert trace("killed"), "there was nothing to clear up"
    done = command("down", "killed")
    assert done.returncode == 0, done.stderr
    assert trace("killed") == set()


@pytest.mark.slow
def test_up_finishes_what_was_begun(kill: Kill, command: Run, trace: Callable[[str], set[str]]) -> None:
    kill("first-daemon-started")
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


def test_down_needs_no_state_file(kill: Kill, command: Run, trace: Callable[[str], set[str]]) -> None:
    paths = kill("first-daemon-started")
    paths.state_file.write_text("not JSON")
    assert command("status", "killed").returncode == 1
    done = command("down", "killed")
    assert done.returncode == 0, done.stderr
    own = {thing for thing in trace("killed") if not thing.endswith(("/run/netns", "/etc/netns"))}
    assert own == set()
