"""Daemons: their commands, their logs, and waiting for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.testbed.conftest import plan_of
from yarn_accel.errors import ClusterError
from yarn_accel.testbed import daemons
from yarn_accel.testbed.backends import open_backend
from yarn_accel.testbed.daemons import BringUp
from yarn_accel.testbed.plan import DaemonRole, NetworkMode, UpOptions, make_plan
from yarn_accel.testbed.software import Software
from yarn_accel.testbed.state import ClusterPaths

Start = Callable[[str, DaemonRole, list[str], set[str]], list[str]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Start:
    """Start one daemon that says these words, one at each look, beside DataNodes of these nodes alone."""
    paths = ClusterPaths.of("demo", tmp_path / "clusters")
    plan = make_plan(
        UpOptions(name="demo", nodes=2), NetworkMode.NETNS, paths.scope, subnet=9, port_base=13000
    )

    def act(name: str, role: DaemonRole, words: list[str], datanodes: set[str]) -> list[str]:
        report: list[str] = []
        seconds, said = iter(range(10_000)), iter(words)
        clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None)

        def running(
            _: ClusterPaths, daemons: Iterable[tuple[Any, DaemonRole]], __: object
        ) -> dict[tuple[str, DaemonRole], int]:
            keys = {(node.name, each) for node, each in daemons}
            alive = {(name, role), *((each, DaemonRole.DATANODE) for each in datanodes)}
            return dict.fromkeys(keys & alive, 1)

        monkeypatch.setattr(daemons, "time", clock)
        monkeypatch.setattr(daemons, "running", running)
        monkeypatch.setattr(daemons, "snapshot", list)
        monkeypatch.setattr(daemons, "start", lambda *_: None)
        monkeypatch.setattr(daemons, "ask", lambda *_: next(said, words[-1]))
        nobody: Any = SimpleNamespace()
        BringUp(nobody, plan, paths, nobody, report.append).run_one(plan.node(name), role)
        return report

    return act


def test_what_it_waits_for_is_said_once(start: Start) -> None:
    words = ["starting", "starting", "safe mode", "safe mode", "healthy"]
    assert start("master", DaemonRole.NAMENODE, words, {"w1", "w2"}) == [
        "starting namenode on master",
        "namenode of node master: safe mode",
    ]


def test_a_namenode_without_datanodes_ends_the_wait_in_safe_mode_only(start: Start) -> None:
    with pytest.raises(ClusterError, match=r"\(safe mode\): it waits for datanode on w1, w2, not running"):
        start("master", DaemonRole.NAMENODE, ["starting", "safe mode"], set())
    assert start("master", DaemonRole.NAMENODE, ["starting"] * 50 + ["healthy"], set())


def test_the_datanodes_that_run_get_time_to_report_their_blocks(start: Start) -> None:
    words = ["starting", *["safe mode"] * 8, "healthy"]
    assert start("master", DaemonRole.NAMENODE, words, {"w1"})
    with pytest.raises(ClusterError, match="waits for datanode on w1, w2, not running"):
        start("master", DaemonRole.NAMENODE, words, set())
    with pytest.raises(ClusterError, match="waits for datanode on w2, not running"):
        start("master", DaemonRole.NAMENODE, ["safe mode"], {"w1"})


@pytest.mark.parametrize(
    ("role", "needed"), [(DaemonRole.DATANODE, "namenode"), (DaemonRole.NODEMANAGER, "resourcemanager")]
)
def test_workers_do_not_wait_for_a_master_that_does_not_run(
    start: Start, role: DaemonRole, needed: str
) -> None:
    with pytest.raises(ClusterError, match=f"w2 runs, but is not healthy .* {needed} on master, not running"):
        start("w2", role, ["starting"], {"w1"})


def test_a_daemon_that_needs_nobody_has_all_its_time(start: Start) -> None:
    assert start("master", DaemonRole.RESOURCEMANAGER, ["starting"] * 30 + ["healthy"], set())


def test_loopback_daemons_listen_on_the_loopback_only_and_resolve_nothing(
    paths: ClusterPaths, software: Software
) -> None:
    plan = plan_of(paths, NetworkMode.LOOPBACK)
    argv = daemons.daemon_argv(plan, paths, plan.node("w2"), DaemonRole.DATANODE, software)
    assert "-Daccel.bind=127.0.0.12" in argv
    assert "-Daccel.bind.data=127.0.0.1" in argv
    assert f"-Djdk.net.hosts.file={paths.hosts_file}" in argv
    assert open_backend(plan, paths).exec_argv(plan.node("w2"), ["ls"]) == ["ls"]


def test_a_worker_reads_its_own_folder_first(paths: ClusterPaths, software: Software) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    argv = daemons.daemon_argv(plan, paths, plan.node("w1"), DaemonRole.NODEMANAGER, software)
    entries = argv[argv.index("-cp") + 1].split(":")
    own, shared = str(paths.node_dir("w1") / "conf"), str(paths.conf_dir)
    assert entries[0] == str(software.install.class_path_jar)
    assert entries.index(own) < entries.index(shared)
    assert "-Xmx256m" in argv
    assert daemons.signature(paths, plan.node("w1"), DaemonRole.NODEMANAGER) in argv


def test_the_callers_hadoop_does_not_leak_into_a_node(paths: ClusterPaths) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    caller = {
        "HADOOP_HOME": "/opt/h",
        "HADOOP_OPTS": "-Dx",
        "YARN_CONF_DIR": "/etc",
        "JAVA_HOME": "/j",
        "LANG": "C",
    }
    environ = daemons.node_environ(plan, paths, plan.node("w1"), None, caller)
    assert environ["HADOOP_CONF_DIR"] == str(paths.conf_dir)
    assert environ["YARN_ACCEL_CLUSTER"] == f"demo:{plan.tag}"
    assert (environ["JAVA_HOME"], environ["LANG"]) == ("/j", "C")
    assert not {"HADOOP_HOME", "HADOOP_OPTS", "YARN_CONF_DIR"} & set(environ)


def test_the_last_error_of_a_log_is_what_a_failure_shows(tmp_path: Path) -> None:
    log = tmp_path / "datanode.log"
    assert daemons.describe_log(log).endswith("it is empty")
    log.write_text("10:00 INFO a: fine\n")
    assert daemons.describe_log(log).endswith("10:00 INFO a: fine")
    log.write_text("10:00 ERROR a: first\n10:01 FATAL b: second\n10:02 INFO c: SHUTDOWN_MSG\n")
    assert daemons.describe_log(log) == f"see {log}: 10:01 FATAL b: second"
    assert daemons.tail(log, 1) == ["10:02 INFO c: SHUTDOWN_MSG"]
    assert daemons.tail(log, 0) == []
    trace = "java.io.IOException: no\n\tat a.B.c\nCaused by: java.net.BindException: in use\n\tat d.E\n"
    log.write_text(f"10:00 ERROR a: failed\n{trace}10:01 WARN b: other\nx.OtherException: later\n")
    assert daemons.describe_log(log).endswith("ERROR a: failed: Caused by: java.net.BindException: in use")
