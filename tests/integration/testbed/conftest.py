"""A real cluster for the tests of this folder, and a look at all that a cluster leaves on a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.testbed import Cluster, UpOptions, take_down, take_down_all
from yarn_accel.testbed.maven import ensure_hadoop
from yarn_accel.testbed.netns import ETC_NETNS, NAMESPACES, interfaces, mount_points
from yarn_accel.testbed.processes import mark_of, members
from yarn_accel.testbed.state import ClusterPaths

CHECKOUT = Path(__file__).resolve().parents[3]
NAMES = ("it", "second", "killed", "loop")
NEIGHBOURS = re.compile(r"(interface |/run/netns/)(tsg|l)\d|mount .*/pytest-of-")
"""Of tests that run meanwhile in the other lane: networks of linked sites and lost nodes, small disks."""
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


@pytest.fixture(scope="package", autouse=True)
def state_home() -> Iterator[Path]:
    """A paths of its own for these clusters' state, short enough for Unix sockets; emptied at the end."""
    home = Path(tempfile.mkdtemp(prefix="ya-it-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home))
        yield home
        take_down_all()
    shutil.rmtree(home)


@pytest.fixture(scope="package")
def cluster(state_home: Path) -> Cluster:
    """Two workers in two racks, one with an accelerator and a pipeline server; tests leave it healthy."""
    return Cluster.up(UpOptions(name="it", nodes=2, racks=2, accel_nodes=1))


@pytest.fixture(scope="package")
def command(state_home: Path) -> Run:
    """Run ``yarn-accel cluster ...`` as a user does, in a process of its own."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "yarn_accel", "cluster", *words]
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            argv, cwd=CHECKOUT, text=True, capture_output=True, check=False, timeout=240, **options
        )

    return run


@pytest.fixture
def trace(state_home: Path) -> Iterator[Callable[[str], set[str]]]:
    """What there is of a cluster on the machine: processes, namespaces, interfaces, mounts, files."""
    before = _machine()

    def look(name: str) -> set[str]:
        paths = ClusterPaths.of(name)
        prefix = f"ya-{name}-{paths.tag}-"
        inodes = [path.stat().st_ino for path in NAMESPACES.glob(f"{prefix}*")]
        own = {f"process {process.pid}" for process in members(mark_of(name, paths.tag), inodes)}
        files = {str(path) for path in paths.root.parent.glob(f"*{name}*")}
        new = _machine() - before
        return own | files | {thing for thing in new if _may_be_of(thing, paths.tag, str(state_home))}

    yield look
    for name in NAMES[1:]:
        take_down(name)


def _machine() -> set[str]:
    things = {f"interface {name}" for name in interfaces()}
    things |= {f"mount {point}" for point in mount_points(Path("/"))}
    for folder in (NAMESPACES, ETC_NETNS):
        things |= {f"file {path}" for path in (folder, *folder.glob("*")) if path.exists()}
    return things


def _may_be_of(thing: str, tag: str, home: str) -> bool:
    """Leave out what clusters of other people on this machine make meanwhile."""
    shared = any(word in thing for word in ("ya-", "interface ya", "/cluster-accel/clusters/"))
    shared = shared or thing.endswith(("/run/netns", "/etc/netns")) or bool(NEIGHBOURS.search(thing))
    return tag in thing or home in thing or not shared
