"""Nodes whose processes are this machine's own: commands, and pausing with real processes, no Hadoop."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.testbed.conftest import plan_of
from yarn_accel.errors import ConfigError
from yarn_accel.testbed import host_nodes
from yarn_accel.testbed.backends import open_backend
from yarn_accel.testbed.plan import ClusterPlan, NetworkMode, UpOptions, make_plan
from yarn_accel.testbed.processes import NODE_VARIABLE, marked_environ, snapshot
from yarn_accel.testbed.state import ClusterPaths

WAIT_S = 60.0
Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    return ClusterPaths.of(f"t{uuid.uuid4().hex[:8]}", tmp_path)


@pytest.fixture
def plan(paths: ClusterPaths) -> ClusterPlan:
    return make_plan(UpOptions(paths.name, nodes=2), NetworkMode.LOOPBACK, paths.scope, port_base=13000)


@pytest.fixture
def start(paths: ClusterPaths) -> Iterator[Start]:
    """Start a process that sleeps on a node."""
    started = []

    def act(node: str) -> subprocess.Popen[bytes]:
        env = {**marked_environ(paths), NODE_VARIABLE: node}
        started.append(subprocess.Popen(["sleep", "600"], env=env))
        deadline = time.monotonic() + WAIT_S
        while not any(each.pid == started[-1].pid and each.node == node for each in snapshot()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return started[-1]

    yield act
    for process in started:
        process.kill()
        process.wait()


def test_a_node_is_paused_and_goes_on_and_others_do_not_notice(
    plan: ClusterPlan, paths: ClusterPaths, start: Start
) -> None:
    backend = open_backend(plan, paths)
    paused, other = plan.node("w1"), plan.node("w2")
    for name in ("w1", "w1", "w2"):
        start(name)
    assert backend.condition(paused, snapshot()) == ""
    backend.pause(paused)
    assert [backend.condition(node, snapshot()) for node in (paused, other)] == ["paused", ""]
    backend.pause(paused)
    backend.resume(paused)
    assert backend.condition(paused, snapshot()) == ""


def test_up_has_a_paused_node_go_on(plan: ClusterPlan, paths: ClusterPaths, start: Start) -> None:
    backend = open_backend(plan, paths)
    start("w2")
    nothing: Any = SimpleNamespace()
    backend.pause(plan.node("w2"))
    assert backend.ensure(nothing, is_new=False) == ["paused w2"]
    assert backend.ensure(nothing, is_new=False) == []


def test_a_node_without_processes_is_not_paused(plan: ClusterPlan, paths: ClusterPaths) -> None:
    assert open_backend(plan, paths).condition(plan.node("w1"), snapshot()) == ""


def test_loopback_nodes_have_no_links(plan: ClusterPlan, paths: ClusterPaths) -> None:
    backend = open_backend(plan, paths)
    for disturb in (
        lambda node: backend.set_link(node, is_up=False),
        lambda node: backend.shape(node, "1mbit"),
    ):
        with pytest.raises(ConfigError, match="no links of their own"):
            disturb(plan.node("w1"))


def test_a_node_command_enters_both_namespaces_and_stays_one_process(paths: ClusterPaths) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    node = plan.node("w2")
    assert open_backend(plan, paths).exec_argv(node, ["ls", "-l"]) == [
        *("ip", "netns", "exec", node.namespace),
        *("nsenter", f"--uts={paths.uts_file('w2')}", "--", "ls", "-l"),
    ]


def test_mount_points_are_listed_below_a_directory_only() -> None:
    assert Path("/proc") in host_nodes.mount_points(Path("/proc"))
    assert Path("/proc") not in host_nodes.mount_points(Path("/pro"))
