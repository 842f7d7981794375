"""The cluster of all tests, seen by the launcher, and a look at all that a cluster leaves on a machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_server import run_command
from yarn_accel.errors import StartupError
from yarn_accel.testbed import Cluster, take_down
from yarn_accel.testbed.host_nodes import ETC_NETNS, NAMESPACES, interfaces, mount_points
from yarn_accel.testbed.processes import mark_of, members
from yarn_accel.testbed.software import ensure_hadoop
from yarn_accel.testbed.state import ClusterPaths

NAMES = ("second", "killed", "loop")
"""Of clusters that tests here bring up beside the one of all tests."""
NEIGHBOURS = re.compile(
    r"(interface |/run/netns/)(tsg|l)\d|mount .*/pytest-of-"
    # A container engine's.
    r"|interface (docker0|br-[0-9a-f]+|veth[0-9a-f]{7})$|mount .*/(overlay2|buildkit|containers|netns)/"
)
"""Of tests that run meanwhile in the other lane: networks of linked sites and lost nodes, small disks."""
ROOT = Path(__file__).resolve().parents[3]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="package", autouse=True)
def _hadoop(pytestconfig: pytest.Config) -> None:
    """Skip with the reason when this machine cannot start Hadoop."""
    try:
        ensure_hadoop(lambda _line: None)
    except StartupError as error:
        pytest.skip(f"Hadoop cannot be started here: {error}")


@pytest.fixture(autouse=True)
def _root(request: pytest.FixtureRequest) -> None:
    """Skip the tests of netns mode without root."""
    if request.node.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")


@pytest.fixture
def cluster(hadoop_cluster: Cluster) -> Cluster:
    """Four workers in two racks, one of each with an accelerator and a server; tests leave it healthy."""
    return hadoop_cluster


@pytest.fixture(scope="package")
def command() -> Run:
    """Run ``yarn-accel cluster ...`` as a user does, in a process of its own."""

    def run(*words: str, input: str = "") -> subprocess.CompletedProcess[str]:
        return run_command("yarn_accel", ("cluster", *words), input=input)

    return run


@pytest.fixture
def start_command() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``yarn-accel cluster ...`` and return at once; what still runs is killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "yarn_accel", "cluster", *words]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(argv, cwd=ROOT, text=True, **quiet))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def trace() -> Iterator[Callable[[str], set[str]]]:
    """What there is of a cluster on the machine: processes, namespaces, interfaces, mounts, files."""
    before = _machine()

    def look(name: str) -> set[str]:
        paths = ClusterPaths.of(name)
        prefix = f"ya-{name}-{paths.tag}-"
        inodes = [path.stat().st_ino for path in NAMESPACES.glob(f"{prefix}*")]
        own = {f"process {process.pid}" for process in members(mark_of(name, paths.tag), inodes)}
        files = {str(path) for path in paths.root.parent.glob(f"*{name}*")}
        new = _machine() - before
        return own | files | {thing for thing in new if _may_be_of(thing, paths.tag, str(paths.root))}

    yield look
    for name in NAMES:
        take_down(name)


def _machine() -> set[str]:
    things = {f"interface {name}" for name in interfaces()}
    things |= {f"mount {point}" for point in mount_points(Path("/"))}
    for folder in (NAMESPACES, ETC_NETNS):
        things |= {f"file {path}" for path in (folder, *folder.glob("*")) if path.exists()}
    return things


def _may_be_of(thing: str, tag: str, root: str) -> bool:
    """Leave out what clusters of other people on this machine make meanwhile."""
    shared = any(word in thing for word in ("ya-", "interface ya", "/cluster-accel/clusters/"))
    shared = shared or thing.endswith(("/run/netns", "/etc/netns")) or bool(NEIGHBOURS.search(thing))
    return tag in thing or root in thing or not shared
