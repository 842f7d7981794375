"""Numbers of a new cluster: two test beds of one machine never get the same ones."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from yarn_accel.testbed import allocation
from yarn_accel.testbed.allocation import allocate
from yarn_accel.testbed.plan import NetworkMode, UpOptions
from yarn_accel.testbed.state import ClusterPaths, ClusterSpec


@pytest.fixture(autouse=True)
def _nothing_is_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither has made its bridge, or started a daemon."""
    monkeypatch.setattr(allocation.netns, "used_subnets", lambda _: {})
    monkeypatch.setattr(allocation.netns, "absent_now", lambda: ())


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
