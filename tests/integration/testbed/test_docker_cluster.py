"""Docker mode on a small cluster of its own: what makes a container differ from a namespace, and bad input.

What all modes share is tested on either, see ``--cluster-mode docker``.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.cluster_mode import docker_options
from tests.integration.testbed.docker_things import docker, in_the_engine
from tests.integration.testbed.killing import DAEMONS, Moments, Start, kill_launcher
from yarn_accel.errors import StartupError
from yarn_accel.testbed import Cluster, UpOptions, take_down
from yarn_accel.testbed.docker_nodes import check_engine
from yarn_accel.testbed.preflight import is_port_free
from yarn_accel.testbed.state import ClusterPaths

#: A cluster's start is part of the first test, on a machine that others may keep busy.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]
NAME = "docked"
Run = Callable[..., subprocess.CompletedProcess[str]]
Kill = Callable[[str], ClusterPaths]


def small(name: str, **more: Any) -> UpOptions:
    return UpOptions(name, nodes=1, racks=1, accel_nodes=1, **docker_options(), **more)


def words(options: UpOptions) -> list[str]:
    """What a user types for them."""
    found = ["up", options.name, "--nodes", "1", "--racks", "1", "--accel-nodes", "1", "--mode", "docker"]
    return [*found, *(["--image", options.image] if options.image else [])]


@pytest.fixture(scope="module", autouse=True)
def _engine() -> None:
    """Skip with the reason where no engine answers or the image is missing."""
    try:
        check_engine(small("x"))
    except StartupError as error:
        pytest.skip(f"no cluster in containers: {error}")
    if shutil.which("docker") is None:
        pytest.skip("no cluster in containers: the program docker is missing")


@pytest.fixture(scope="module")
def docked() -> Iterator[Cluster]:
    """A master and a worker with limits; the tests leave it healthy."""
    take_down(NAME)
    limited = small(NAME, link="400mbit", node_memory="2gb", node_cpus=1.5)
    try:
        yield Cluster.up(limited)
    finally:
        take_down(NAME)


def on_node(cluster: Cluster, *argv: str) -> str:
    done = subprocess.run(cluster.exec_argv("w1", argv), capture_output=True, text=True, check=True)
    return done.stdout


def test_it_is_healthy_and_up_again_has_nothing_to_do(docked: Cluster, command: Run) -> None:
    assert docked.status().is_healthy
    assert {f"container {node.namespace}" for node in docked.plan.nodes} < in_the_engine(NAME)
    done = command("up", NAME)
    assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stderr


def test_a_node_may_do_little(docked: Cluster) -> None:
    lines = dict(line.split(":\t") for line in on_node(docked, "cat", "/proc/self/status").splitlines())
    assert int(lines["CapBnd"], 16) == 1 << 12, "NET_ADMIN alone"
    assert lines["NoNewPrivs"] == "1"
    assert lines["Uid"].split() == [str(os.geteuid())] * 4
    product = str(Path(__file__).resolve().parents[3] / "yarn_accel")
    script = f"touch {product}/x 2>&1; ls /var/run/docker.sock /run/docker.sock 2>&1 || :"
    said = on_node(docked, "sh", "-c", script)
    assert "Read-only file system" in said
    assert said.count("No such file") == 2
    outside = subprocess.run(
        docked.exec_argv("w1", ["timeout", "5", "bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/80"]),
        capture_output=True,
        check=False,
    )
    assert outside.returncode != 0, "no way out"


def test_limits_reach_the_kernel(docked: Cluster) -> None:
    host = json.loads(docker("inspect", "--format", "{{json .HostConfig}}", docked.plan.node("w1").namespace))
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (1_500_000_000, 2**31, 2**31)
    script = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || :"
    assert str(2**31) in on_node(docked, "sh", "-c", script)
    limited = on_node(docked, "tc", "qdisc", "show")
    assert limited.count("rate 400Mbit") == 2, "out and in"


def test_a_daemon_is_killed_and_started_alone(docked: Cluster, command: Run) -> None:
    before = {daemon.role: daemon.pid for daemon in docked.status().daemons}
    docked.kill("w1", "pipeline")
    docked.start("w1", "pipeline")
    after = {daemon.role: daemon.pid for daemon in docked.status().daemons}
    assert {role for role in after if after[role] != before[role]} == {"pipeline"}


def test_cut_heal_pause_and_resume(docked: Cluster, command: Run) -> None:
    for fault, cure, seen in (("cut", "heal", "cut off"), ("pause", "resume", "paused")):
        assert command(fault, "-c", NAME, "w1").returncode == 0
        health = {daemon.health for daemon in docked.status().daemons if daemon.node == "w1"}
        assert health == {seen}
        assert command(cure, "-c", NAME, "w1").returncode == 0
    reach = "import socket; socket.create_connection(('master', 8020), 30).close()"
    on_node(docked, "python3", "-c", reach)
    assert command("up", NAME).returncode == 0
    assert docked.status().is_healthy


def test_what_cannot_be_is_one_line_with_its_cure(
    command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refusal(*more: str) -> str:
        done = command("up", "second", "--mode", "docker", *more)
        assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
        return done.stderr

    assert "has no image nobody/none: build it (make docker-images)" in refusal("--image", "nobody/none")
    own = os.environ.get("DOCKER_HOST", "")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "no Docker engine answers at unix://" in refusal()
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    assert "an engine on another machine" in refusal()
    monkeypatch.setenv("DOCKER_HOST", own)
    assert in_the_engine("second") == set()


def test_a_port_that_is_taken_is_named(command: Run) -> None:
    if not all(is_port_free(port) for port in (8088, 9870)):
        pytest.skip("another program has the port that this test would take")
    options = small("second", publish=True)
    with socket.create_server(("127.0.0.1", 9870)):
        done = command(*words(options), "--publish")
    assert done.returncode == 3
    assert "port 9870 of namenode is in use" in done.stderr.splitlines()[-1]
    assert command("down", "second").returncode == 0
    assert in_the_engine("second") == set()


@pytest.mark.slow
def test_pages_are_published_at_the_loopback_alone(docked: Cluster, command: Run) -> None:
    # Last of those on this cluster: from now on it has the ports that the test above must find free.
    pages = {8088: "ws/v1/cluster/info", 9870: "jmx?qry=java.lang:type=Runtime", 19888: "ws/v1/history/info"}
    if not all(is_port_free(port) for port in pages):
        pytest.skip(f"not all of the ports {', '.join(map(str, pages))} are free on this machine")
    done = command("up", NAME, "--publish")
    assert done.returncode == 0, done.stderr
    for port, page in pages.items():
        urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=300).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((docked.plan.gateway, port), 30)


def test_down_leaves_nothing_even_of_a_paused_node(command: Run, docked: Cluster) -> None:
    docked.pause("w1")
    done = command("down", NAME)
    assert done.returncode == 0, done.stderr
    assert in_the_engine(NAME) == set()
    assert not ClusterPaths.of(NAME).root.exists()


# ---- a launcher killed with -9


MOMENTS: Moments = {
    "spec-written": lambda paths: paths.state_file.exists(),
    "network-made": lambda paths: any(each.startswith("network") for each in in_the_engine(paths.name)),
    "first-container-made": lambda paths: any(
        each.startswith("container") for each in in_the_engine(paths.name)
    ),
    "all-containers-made": lambda paths: len(in_the_engine(paths.name)) == 3,
    **DAEMONS,
}


@pytest.fixture
def kill(start_command: Start) -> Kill:
    """Kill the launcher of a small cluster at one of the moments."""
    return lambda moment: kill_launcher(start_command, words(small("killed")), MOMENTS, moment)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_down_leaves_nothing_of_a_killed_launcher(
    moment: str, kill: Kill, command: Run, trace: Callable[[str], set[str]]
) -> None:
    kill(moment)
    done = command("down", "killed")
    assert done.returncode == 0, done.stderr
    assert in_the_engine("killed") == set()
    assert trace("killed") == set()
    time.sleep(1.0)  # what the engine was still doing then has been done by now
    assert in_the_engine("killed") == set()


@pytest.mark.slow
def test_down_needs_the_labels_alone(kill: Kill, command: Run, trace: Callable[[str], set[str]]) -> None:
    paths = kill("all-containers-made")
    shutil.rmtree(paths.root)
    done = command("down", "killed")
    assert done.returncode == 0, done.stderr
    assert in_the_engine("killed") == set()
    assert trace("killed") == set()


@pytest.mark.slow
def test_up_finishes_what_was_begun(kill: Kill, command: Run, trace: Callable[[str], set[str]]) -> None:
    kill("first-container-made")
    done = command(*words(small("killed")))
    assert done.returncode == 0, done.stderr
    assert Cluster.open("killed").status().is_healthy
    assert command("down", "killed").returncode == 0
    assert in_the_engine("killed") == set()
