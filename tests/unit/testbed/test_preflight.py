"""What the machine must offer: each lack is one error with its cure."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.testbed import preflight
from yarn_accel.testbed.plan import NetworkMode, UpOptions, make_plan


@pytest.mark.parametrize(
    ("mode", "euid", "chosen"),
    [
        ("auto", 0, NetworkMode.NETNS),
        ("auto", 1000, NetworkMode.LOOPBACK),
        ("netns", 0, NetworkMode.NETNS),
        ("loopback", 0, NetworkMode.LOOPBACK),
        ("loopback", 1000, NetworkMode.LOOPBACK),
        ("docker", 1000, NetworkMode.DOCKER),
    ],
)
def test_the_mode_follows_from_wish_and_rights(mode: str, euid: int, chosen: NetworkMode) -> None:
    assert preflight.choose_mode(UpOptions(mode=mode), euid) is chosen


def test_netns_mode_needs_root() -> None:
    with pytest.raises(StartupError, match="root"):
        preflight.choose_mode(UpOptions(mode="netns"), 1000)


@pytest.mark.parametrize("options", [UpOptions(link="1gbit"), UpOptions(delay="1ms")])
def test_link_options_need_links(options: UpOptions) -> None:
    with pytest.raises(ConfigError, match="netns"):
        preflight.choose_mode(options, 1000)


@pytest.mark.parametrize(
    "options",
    [{"image": "x"}, {"node_memory": "1gb"}, {"node_cpus": 1}, {"mounts": ("/d",)}, {"publish": True}],
)
def test_what_containers_alone_have_needs_containers(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^--[a-z-]+ needs --mode docker$"):
        preflight.choose_mode(UpOptions(**options), 0)


@pytest.mark.parametrize("missing", ["ip", "tc", "unshare", "nsenter", "hostname"])
def test_a_missing_program_is_named_with_its_package(missing: str) -> None:
    with pytest.raises(StartupError, match=rf"^{missing} .*apt-get install"):
        preflight.check_commands(lambda name: None if name == missing else f"/bin/{name}")


def test_a_machine_without_a_hosts_file_gets_the_cure(tmp_path) -> None:
    with pytest.raises(StartupError, match=r"hosts is not there.*echo '127.0.0.1 localhost' >"):
        preflight.check_commands(lambda name: f"/bin/{name}", tmp_path / "hosts")


def test_little_memory_is_refused_in_numbers() -> None:
    with pytest.raises(StartupError, match=r"1\.0 GiB of memory are available, 4 nodes need 2\.9"):
        preflight.check_memory(4, "MemTotal: 9 kB\nMemAvailable:    1048576 kB\n")
    preflight.check_memory(4, "MemAvailable:    4194304 kB\n")
    preflight.check_memory(4, "nothing is known\n")


def test_a_disk_above_the_limit_of_the_nodemanagers_is_refused(tmp_path: Path) -> None:
    preflight.check_disk(tmp_path / "not" / "yet", 100.0)
    with pytest.raises(StartupError, match="% full"):
        preflight.check_disk(tmp_path, 0.0)


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MIN_DISK_BYTES", 2**62)
    with pytest.raises(StartupError, match="are free at"):
        preflight.check_disk(tmp_path, 100.0)


@given(st.sets(st.integers(0, 255), max_size=255))
def test_the_lowest_free_subnet_is_chosen(used: set[int]) -> None:
    chosen = preflight.choose_subnet(used)
    assert chosen not in used
    assert set(range(chosen)) <= used


def test_no_free_subnet() -> None:
    with pytest.raises(StartupError, match="down --all"):
        preflight.choose_subnet(range(256))


@given(st.sets(st.integers(12000, 14000), max_size=20), st.integers(1, 300))
def test_a_port_block_avoids_listeners_and_other_clusters(busy: set[int], span: int) -> None:
    reserved = [range(12000, 12100), range(12500, 12600)]
    base = preflight.choose_port_base(span, reserved, lambda port: port not in busy)
    wanted = set(range(base, base + span))
    assert not wanted & busy
    assert not any(wanted & set(block) for block in reserved)


def test_no_free_ports() -> None:
    with pytest.raises(StartupError, match="in a row"):
        preflight.choose_port_base(10, [], lambda _port: False)


def test_a_port_that_somebody_listens_on_is_named_with_the_daemon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not preflight.is_port_free(port)
        with pytest.raises(StartupError, match=f"port {port} of namenode"):
            preflight.check_fixed_ports([("namenode of node master", port)])
    assert preflight.is_port_free(port)
    preflight.check_fixed_ports([("namenode of node master", port)])


def test_a_network_that_somebody_else_took_is_refused() -> None:
    plan = make_plan(UpOptions(), NetworkMode.NETNS, "/state", subnet=3)
    preflight.check_subnet(plan, 3, {3: f"interface {plan.bridge}", 4: "interface other"})
    preflight.check_subnet(plan, 3, {3: f"a route through {plan.bridge}"})
    with pytest.raises(StartupError, match=r"10\.231\.3\.0/24 is in use by interface vpn0"):
        preflight.check_subnet(plan, 3, {3: "interface vpn0"})
