"""The profile hadoop: four workers, Hadoop's commands in a client, pages on the loopback alone."""

import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.waiting import until
from tests.integration.compose.project import TEST_LIMIT_S, WAIT_S, Project, absent
from yarn_accel.testbed.single_node import free_ports

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(TEST_LIMIT_S)]
SUBNET = "239"


class Hadoop(Project):
    """With ports of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.rm, self.namenode, self.history = free_ports(3)
        ports = {"RM_PORT": self.rm, "NAMENODE_PORT": self.namenode, "HISTORY_PORT": self.history}
        super().__init__((), data, SUBNET=SUBNET, **{key: str(port) for key, port in ports.items()})

    def client(self, *words: str) -> str:
        """Run a command in a container of a client."""
        return self.said("run", "--rm", "-T", "client", *words)

    def n_nodes(self) -> int:
        """How many NodeManagers the ResourceManager holds for usable, asked from this machine."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.rm}/ws/v1/cluster/metrics", timeout=20) as answer:
            return int(json.load(answer)["clusterMetrics"]["activeNodes"])


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    reason = absent("node")
    if reason:
        pytest.skip(reason)
    project = Hadoop(tmp_path_factory.mktemp("data"))
    try:
        project.up()
        yield project
    finally:
        project.down()


def test_what_a_user_brings_runs(hadoop: Hadoop):
    (hadoop.data / "words").write_text("b\na\nb\n")
    hadoop.client("hdfs", "dfs", "-put", "/data/words", "words")
    job = ("-input", "words", "-mapper", "cat", "-reducer", "uniq -c")
    hadoop.client("mapred", "streaming", "-D", "mapreduce.job.reduces=1", *job, "-output", "counts")
    assert hadoop.client("hdfs", "dfs", "-cat", "counts/part-*").split() == ["1", "a", "2", "b"]
    jar = hadoop.client(
        "sh", "-c", "echo /opt/cache/cluster-accel/hadoop-*/lib/hadoop-streaming-*.jar"
    ).strip()
    hadoop.client("yarn", "jar", jar, "-D", "mapreduce.job.reduces=0", *job[:4], "-output", "again")
    assert "2" in hadoop.client("yarn", "application", "-list", "-appStates", "FINISHED")
    assert hadoop.client("torque-sched", "--version")


def test_pages_answer_on_the_loopback_and_nowhere_else(hadoop: Hadoop):
    assert hadoop.n_nodes() == 4
    shown = subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, text=True, check=True)
    own = {
        address["local"]
        for link in json.loads(shown.stdout)
        for address in link["addr_info"]
        if not address["local"].startswith("127.")
    }
    assert own
    for address in own:
        for port in (hadoop.rm, hadoop.namenode, hadoop.history):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((address, port), timeout=20)


def test_no_container_has_rights(hadoop: Hadoop):
    for container in hadoop.containers():
        shown = subprocess.run(["docker", "inspect", container], capture_output=True, text=True, check=True)
        (found,) = json.loads(shown.stdout)
        assert not found["HostConfig"]["Privileged"]
        assert not any("docker.sock" in mount["Source"] for mount in found["Mounts"])
        assert found["Config"]["User"] == "accel"
    assert "CapEff:\t0000000000000000" in hadoop.said("exec", "-T", "w1", "cat", "/proc/1/status")


def test_a_worker_that_dies_shows_and_comes_back(hadoop: Hadoop):
    hadoop.said("exec", "-T", "w4", "pkill", "-f", "server.nodemanager.NodeManager$")
    until(lambda: "w4" not in hadoop.said("ps", "--services").split(), "its container has ended", WAIT_S)
    hadoop.up()
    until(lambda: hadoop.n_nodes() == 4, "all are there", WAIT_S)


def test_data_outlive_the_containers(hadoop: Hadoop):
    hadoop.client("hdfs", "dfs", "-touchz", "kept")
    hadoop.said("down", "--timeout", "10")
    hadoop.up()
    assert "kept" in hadoop.client("hdfs", "dfs", "-ls")
