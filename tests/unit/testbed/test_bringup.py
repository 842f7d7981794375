"""Waiting for one daemon: what is said, and when it is in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yarn_accel.errors import ClusterError
from yarn_accel.testbed import bringup
from yarn_accel.testbed.bringup import BringUp
from yarn_accel.testbed.plan import DaemonRole, NetworkMode, UpOptions, make_plan
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

        monkeypatch.setattr(bringup, "time", clock)
        monkeypatch.setattr(bringup, "running", running)
        monkeypatch.setattr(bringup, "snapshot", list)
        monkeypatch.setattr(bringup, "start", lambda *_: None)
        monkeypatch.setattr(bringup, "ask", lambda *_: next(said, words[-1]))
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
