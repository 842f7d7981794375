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

from yarn_accel.cluster import Cluster
from yarn_accel.cluster.netns import NAMESPACES, interfaces
from yarn_accel.cluster.plan import interface_prefix, namespace_prefix
from yarn_accel.cluster.processes import mark_of, snapshot
from yarn_accel.cluster.state import Place

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Run = Callable[..., subprocess.CompletedProcess[str]]
OPTIONS = ("--nodes", "1", "--racks", "1", "--accel-nodes", "1")
WAIT_S = 120.0


def has_daemon(place: Place, word: str) -> bool:
    mark = mark_of(place.name, place.tag)
    return any(process.mark == mark and word in " ".join(process.argv) for process in snapshot())


MOMENTS: dict[str, Callable[[Place], bool]] = {
    "intent-written": lambda place: place.state_file.exists(),
    "bridge-made": lambda place: bool(interfaces(interface_prefix(place.tag))),
    "last-namespace-made": lambda place: (NAMESPACES / f"{namespace_prefix('killed', place.tag)}w1").exists(),
    "first-daemon-started": lambda place: has_daemon(place, "resourcemanager.ResourceManager"),
    "hdfs-formatted": lambda place: place.namenode_dir.exists(),
    "workers-started": lambda place: has_daemon(place, "datanode.DataNode"),
}


def kill_launcher_at(moment: str) -> None:
    place = Place.of("killed")
    argv = [sys.executable, "-m", "yarn_accel", "cluster", "up", "killed", *OPTIONS]
    launcher = subprocess.Popen(
        argv, cwd=Path(__file__).resolve().parents[3], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + WAIT_S
    while not MOMENTS[moment](place):
        assert launcher.poll() is None, f"the launcher ended before {moment}"
        assert time.monotonic() < deadline, f"{moment} did not come"
        time.sleep(0.002)
    launcher.kill()
    launcher.wait()


@pytest.mark.parametrize("moment", MOMENTS)
def test_down_leaves_nothing(moment: str, command: Run, trace: Callable[[str], set[str]]) -> None:
    kill_launcher_at(moment)
    assert trace("killed"), "there was nothing to clear up"
    done = command("down", "killed")
    assert done.returncode == 0, done.stderr
    assert trace("killed") == set()


def test_up_finishes_what_was_begun(command: Run, trace: Callable[[str], set[str]]) -> None:
    kill_launcher_at("first-daemon-started")
    done = command("up", "killed", "--link", "10gbit")
    assert done.returncode == 0, done.stderr
    cluster = Cluster.open("killed")
    assert cluster.status().is_healthy
    _check_failure_is_explained(cluster, command)
    leftover = subprocess.Popen(cluster.exec_argv("w1", ["setsid", "sleep", "600"]))
    cluster.down()
    assert leftover.wait(60) != 0
    assert trace("killed") == set()


def _check_failure_is_explained(cluster: Cluster, command: Run) -> None:
    """A NameNode that cannot start: the launcher says which daemon, where its log is, and what it holds."""
    cluster.kill("master", "namenode")
    version = Place.of("killed").namenode_dir / "current" / "VERSION"
    version.write_text("storageType=NONSENSE\n")
    done = command("up", "killed")
    assert done.returncode == 1
    failure = done.stderr.splitlines()[-1]
    assert "namenode of node master ended: see " in failure
    assert "master/namenode.log: " in failure
    assert " ERROR " in failure


def test_down_needs_no_state_file(command: Run, trace: Callable[[str], set[str]]) -> None:
    kill_launcher_at("first-daemon-started")
    place = Place.of("killed")
    place.state_file.write_text("not JSON")
    assert command("status", "killed").returncode == 1
    done = command("down", "killed")
    assert done.returncode == 0, done.stderr
    own = {thing for thing in trace("killed") if not thing.endswith(("/run/netns", "/etc/netns"))}
    assert own == set()
