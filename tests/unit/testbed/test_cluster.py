"""A new cluster's numbers, an old one's options, and which cluster a command means."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.testbed import cluster
from yarn_accel.testbed.cluster import allocate, ports_of
from yarn_accel.testbed.cluster_cli import group
from yarn_accel.testbed.plan import NetworkMode, UpOptions
from yarn_accel.testbed.state import ClusterPaths, ClusterSpec, load


@pytest.fixture(autouse=True)
def _nothing_is_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither has made its bridge, or started a daemon."""
    monkeypatch.setattr(cluster.host_nodes, "used_subnets", lambda _: {})
    monkeypatch.setattr(cluster.host_nodes, "absent_now", lambda: ())


def begun(folder: Path, mode: NetworkMode, reservations: contextlib.ExitStack) -> ClusterSpec:
    """A cluster of somebody who has a state folder of his own, and sees no other's."""
    paths = ClusterPaths.of("test", folder)
    options = UpOptions("test", nodes=2, mode=mode.value)
    return allocate(paths, None, options, mode, reservations)


@pytest.mark.parametrize("mode", [NetworkMode.NETNS, NetworkMode.LOOPBACK])
def test_two_state_folders_at_once_get_different_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: NetworkMode
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "empty"))
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        ours = begun(tmp_path / "a", mode, first)
        theirs = begun(tmp_path / "b", mode, second)
        if mode is NetworkMode.NETNS:
            assert ours.subnet != theirs.subnet
        else:
            assert ours.port_base != theirs.port_base


def test_an_existing_cluster_keeps_its_numbers_and_reserves_nothing(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        before = begun(tmp_path / "a", NetworkMode.NETNS, stack)
    paths = ClusterPaths.of("test", tmp_path / "a")
    with contextlib.ExitStack() as stack:
        again = allocate(paths, before, before.options, NetworkMode.NETNS, stack)
        assert again == before
        assert stack.pop_all().close() is None


def test_a_new_loopback_cluster_gets_ports_that_another_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with contextlib.ExitStack() as held:
        mode = NetworkMode.LOOPBACK
        intents = [
            allocate(ClusterPaths.of(name), None, UpOptions(name, mode="loopback"), mode, held)
            for name in ("a", "b")
        ]
    assert abs(intents[0].port_base - intents[1].port_base) >= 42
    assert load(ClusterPaths.of("b")) == intents[1]
    wanted = ports_of(intents[0].plan(ClusterPaths.of("a")), intents[0].plan(ClusterPaths.of("a")).daemons())
    assert len({port for _, port in wanted}) == len(wanted)


def test_what_cannot_change_is_refused_and_what_can_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    paths = ClusterPaths.of("a")
    first = ClusterSpec(UpOptions(name="a"), NetworkMode.NETNS, 4, 0, 1.0)

    def changed(mode: NetworkMode = NetworkMode.NETNS, /, **options: Any) -> ClusterSpec:
        return allocate(paths, first, UpOptions(name="a", **options), mode, contextlib.ExitStack())

    with pytest.raises(ConfigError, match=r"nodes 4, not 3.*cluster down a"):
        changed(nodes=3)
    with pytest.raises(ConfigError, match="netns mode, not loopback"):
        changed(NetworkMode.LOOPBACK, mode="loopback")
    assert changed(link="1gbit", pipeline=False).subnet == 4
    assert json.loads(paths.state_file.read_text())["options"]["link"] == "1gbit"


def status_error(*words: str) -> str:
    """What ``cluster status`` says when it cannot open the cluster it takes to be meant."""
    error = CliRunner().invoke(group, ["status", *words]).exception
    assert isinstance(error, AccelError), error
    return str(error)


def test_without_a_name_the_only_cluster_is_meant(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    clusters = tmp_path / "cluster-accel" / "clusters"
    assert "default" in status_error()
    (clusters / "demo").mkdir(parents=True)
    assert "demo" in status_error()
    (clusters / "other").mkdir()
    assert "name one of demo, other" in status_error()
    assert "other" in status_error("other")
    (clusters / "default").mkdir()
    assert "default" in status_error()
    assert not CliRunner().invoke(group, ["down", "--all"]).exception
    assert not any(clusters.glob("*"))
