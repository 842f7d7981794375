"""One node in the foreground, with programs that do nothing in place of Java."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.fixtures.waiting import until
from yarn_accel.errors import ClusterError, ConfigError
from yarn_accel.hadoop.java import HadoopInstall
from yarn_accel.testbed import container_node
from yarn_accel.testbed.container_node import CLIENT_HOST, ContainerNode, plan_as_master, plan_as_worker
from yarn_accel.testbed.plan import DaemonRole, UpOptions
from yarn_accel.testbed.software import Software
from yarn_accel.testbed.state import ClusterPaths, load

OPTIONS = UpOptions("hadoop", nodes=2, racks=2, accel_nodes=0)
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
WAIT_S = 60.0


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    return ClusterPaths.of("hadoop", tmp_path)


@pytest.fixture
def software(tmp_path: Path) -> Software:
    jar = tmp_path / "class-path.jar"
    return Software(HadoopInstall(tmp_path / "java/bin/java", tmp_path, jar, jar, "3.5.0", 0, 0), None)


class Node:
    """A worker in a thread; its daemons sleep."""

    def __init__(self, paths: ClusterPaths, software: Software) -> None:
        plan = plan_as_master(paths, OPTIONS, 200, software)
        self.said: list[str] = []
        self.stop = threading.Event()
        self.health_file = paths.root / "healthy"
        self.node = ContainerNode(plan, paths, "w1", software, self.said.append, self.health_file, self.stop)
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Node":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(WAIT_S)

    def _run(self) -> None:
        try:
            self.node.run()
        except ClusterError as error:
            self.failure = error

    @property
    def daemons(self) -> dict[DaemonRole, "subprocess.Popen[bytes]"]:
        return self.node._daemons


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What daemons, which sleep, say of their health when they are asked."""
    said = {"health": "healthy"}
    monkeypatch.setattr(container_node, "daemon_argv", lambda *_: SLEEPER)
    monkeypatch.setattr(container_node, "ask", lambda *_: said["health"])
    monkeypatch.setattr(container_node.Pages, "running_nodemanagers", lambda _self: {"w1"})
    monkeypatch.setattr(container_node, "ASK_INTERVALS_S", (0.0, 0.0))
    return said


def test_the_master_writes_what_workers_read(paths: ClusterPaths, software: Software):
    plan = plan_as_master(paths, OPTIONS, 7, software)
    spec = load(paths)
    assert spec is not None
    assert spec.plan(paths) == plan
    assert plan.master.address == "10.231.7.1"
    assert plan.workers[1].address == "10.231.7.3"
    assert f"127.0.0.1 {CLIENT_HOST}\n" in paths.hosts_file.read_text()
    assert (paths.conf_dir / "yarn-site.xml").exists()
    assert (paths.client_conf_dir / "core-site.xml").exists()


def test_a_worker_gives_up_on_a_master_that_never_answers(paths: ClusterPaths):
    with pytest.raises(ClusterError, match="master has not answered"):
        plan_as_worker(paths, lambda _line: None, threading.Event(), deadline_s=0.0)


def test_a_stopped_worker_ends_its_waiting(paths: ClusterPaths):
    stop = threading.Event()
    stop.set()
    assert plan_as_worker(paths, lambda _line: None, stop) is None


def test_a_node_that_the_cluster_does_not_have_is_refused(paths: ClusterPaths, software: Software):
    plan = plan_as_master(paths, OPTIONS, 200, software)
    with pytest.raises(ConfigError, match="no node 'w9'"):
        ContainerNode(
            plan, paths, "w9", software, lambda _line: None, paths.root / "healthy", threading.Event()
        )


def test_a_node_is_healthy_while_its_daemons_are_and_ends_them(
    paths: ClusterPaths, software: Software, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(container_node, "UNHEALTHY_AFTER_S", 0.0)
    with Node(paths, software) as run:
        until(run.health_file.exists)
        assert set(run.daemons) == {DaemonRole.DATANODE, DaemonRole.NODEMANAGER}
        answers["health"] = "starting"
        until(lambda: not run.health_file.exists())
    assert run.failure is None
    assert all(daemon.poll() is not None for daemon in run.daemons.values())


def test_a_busy_machine_makes_no_healthy_node_unhealthy(
    paths: ClusterPaths, software: Software, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    questions: list[str] = []

    def ask(*_: object) -> str:
        questions.append("")
        return "healthy" if len(questions) <= 2 else "starting"

    monkeypatch.setattr(container_node, "ask", ask)
    with Node(paths, software) as run:
        until(lambda: len(questions) > 5)
        assert run.health_file.exists()


def test_a_daemon_that_ends_by_itself_ends_the_node(
    paths: ClusterPaths, software: Software, answers: dict[str, str]
):
    answers["health"] = "starting"
    with Node(paths, software) as run:
        until(lambda: len(run.daemons) == 2)
        run.daemons[DaemonRole.DATANODE].kill()
        run.thread.join(WAIT_S)
    assert "datanode of node w1 ended with status -9" in str(run.failure)
    assert run.daemons[DaemonRole.NODEMANAGER].poll() is not None
