"""Docker mode without an engine: what a plan asks of one, and what is said when none can be used."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yarn_accel.errors import ClusterError, StartupError
from yarn_accel.testbed import docker_nodes, docker_specs
from yarn_accel.testbed.docker_specs import SPEC_LABEL, Surroundings, container_body, network_arguments
from yarn_accel.testbed.plan import ClusterPlan, NetworkMode, UpOptions, make_plan, memory_bytes
from yarn_accel.testbed.state import ClusterPaths

AROUND = Surroundings(
    image="yarn-accel/node:1",
    has_gpus=False,
    mark="demo:abc",
    root=Path("/srv/clusters/demo"),
    readable=(Path("/opt/jars"), Path("/usr"), Path("/usr/lib/jvm/java")),
    files={"/etc/hosts": Path("/srv/clusters/demo/hosts")},
    environ={"PATH": "/bin"},
)


def plan_of(**options: Any) -> ClusterPlan:
    wanted = UpOptions(name="demo", mode="docker", **options)
    return make_plan(wanted, NetworkMode.DOCKER, "/state", subnet=7)


def bodies(plan: ClusterPlan) -> dict[str, dict[str, Any]]:
    return {node.name: container_body(plan, node, AROUND) for node in plan.nodes}


def test_nodes_have_the_addresses_and_names_of_netns_mode() -> None:
    plan = plan_of()
    other = make_plan(plan.options, NetworkMode.NETNS, "/state", subnet=7)
    assert [(each.host, each.address, each.rack, each.ports) for each in plan.nodes] == [
        (each.host, each.address, each.rack, each.ports) for each in other.nodes
    ]
    made = bodies(plan)
    assert {name: body["Hostname"] for name, body in made.items()} == {name: name for name in made}
    (network,) = {body["HostConfig"]["NetworkMode"] for body in made.values()}
    endpoint = made["w2"]["NetworkingConfig"]["EndpointsConfig"][network]
    assert endpoint["IPAMConfig"]["IPv4Address"] == "10.231.7.3"
    arguments = network_arguments(plan, "demo:abc")
    assert arguments["name"] == network
    assert arguments["ipam"]["Config"] == [{"Subnet": "10.231.7.0/24", "Gateway": "10.231.7.254"}]
    assert arguments["options"]["com.docker.network.bridge.name"] == plan.bridge
    assert len(plan.bridge) <= 15


def test_a_node_has_one_capability_no_engine_and_nothing_to_write_but_its_own() -> None:
    for body in bodies(plan_of(mounts=("/data",))).values():
        host = body["HostConfig"]
        assert "Privileged" not in host
        assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], ["NET_ADMIN"])
        assert host["SecurityOpt"] == ["no-new-privileges"]
        assert "docker.sock" not in json.dumps(body)
        writable = {mount["Source"] for mount in host["Mounts"] if not mount["ReadOnly"]}
        assert writable == {"/data", "/srv/clusters/demo"}


def test_paths_are_the_same_on_both_sides_and_mounted_once() -> None:
    mounts = bodies(plan_of())["w1"]["HostConfig"]["Mounts"]
    assert {mount["Type"] for mount in mounts} == {"bind"}
    assert [mount["Target"] for mount in mounts] == [
        *("/opt/jars", "/usr"),
        *("/srv/clusters/demo", "/etc/hosts"),
    ]
    assert all(mount["Source"] == mount["Target"] for mount in mounts[:-1])


def test_limits_and_ports_only_where_they_are_asked_for() -> None:
    plain, limited = bodies(plan_of()), bodies(plan_of(node_memory="2gb", node_cpus=1.5, publish=True))
    assert not {"Memory", "NanoCpus"} & set(plain["w1"]["HostConfig"])
    assert plain["master"]["HostConfig"]["PortBindings"] == {}
    host = limited["w1"]["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (2**31, 2**31, 1_500_000_000)
    assert host["PortBindings"] == {}
    published = limited["master"]["HostConfig"]["PortBindings"]
    assert set(published) == {"8088/tcp", "9870/tcp", "19888/tcp"} == set(limited["master"]["ExposedPorts"])
    assert {binding["HostIp"] for (binding,) in published.values()} == {"127.0.0.1"}


def test_only_published_ports_give_the_network_a_way_out() -> None:
    assert network_arguments(plan_of(), "m")["internal"]
    assert not network_arguments(plan_of(publish=True), "m")["internal"]


def test_only_accelerator_nodes_get_gpus_and_only_where_the_engine_has_them() -> None:
    plan = plan_of()
    around = replace(AROUND, has_gpus=True)
    given = [
        node.name
        for node in plan.nodes
        if "DeviceRequests" in container_body(plan, node, around)["HostConfig"]
    ]
    assert given == ["w1", "w3"]
    assert not any("DeviceRequests" in body["HostConfig"] for body in bodies(plan).values())


def test_everything_bears_the_label_of_the_cluster() -> None:
    plan = plan_of()
    assert network_arguments(plan, "demo:abc")["labels"] == docker_specs.labels("demo:abc")
    for name, body in bodies(plan).items():
        assert body["Labels"].items() >= {**docker_specs.labels("demo:abc"), "yarn-accel.node": name}.items()


def test_a_container_made_from_another_body_is_recognized() -> None:
    plan = plan_of()
    node = plan.node("w1")
    first = container_body(plan, node, AROUND)["Labels"][SPEC_LABEL]
    assert container_body(plan, node, AROUND)["Labels"][SPEC_LABEL] == first
    assert container_body(plan, node, replace(AROUND, image="other"))["Labels"][SPEC_LABEL] != first
    assert container_body(plan_of(node_cpus=1), node, AROUND)["Labels"][SPEC_LABEL] != first


def test_a_link_is_limited_in_both_directions() -> None:
    argvs = docker_specs.limit_argvs("1gbit", "")
    limited = [argv[argv.index("dev") + 1] for argv in argvs if "tbf" in argv]
    assert limited == ["eth0", "ifb0"]
    assert sum("mirred" in argv for argv in argvs) == 1
    assert docker_specs.limit_argvs("", "") == []
    assert all("netem" in argv for argv in docker_specs.limit_argvs("", "2ms") if "replace" in argv)


def test_a_link_that_comes_back_gets_its_way_out_back() -> None:
    plan = plan_of()
    assert docker_specs.link_argvs(plan, is_up=False) == [["ip", "link", "set", "eth0", "down"]]
    assert docker_specs.link_argvs(plan, is_up=True)[1][-1] == plan.gateway


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("2gb", 2**31), ("800mb", 800 * 2**20), ("1.5G", 3 * 2**29), ("65536k", 2**26)]
)
def test_memory(text: str, n_bytes: int) -> None:
    assert memory_bytes(text) == n_bytes


# ---- engines that cannot be used


@pytest.mark.parametrize("address", ["tcp://10.0.0.5:2375", "ssh://me@server", "tcp://server:2376"])
def test_an_engine_on_another_machine_is_refused(address: str) -> None:
    with pytest.raises(StartupError, match=r"on another machine.*: run yarn-accel on that machine"):
        docker_nodes.check_address(address)
    for own in ("unix:///run/x.sock", "tcp://127.0.0.1:2375", "tcp://localhost:1"):
        docker_nodes.check_address(own)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"Name": "docker-desktop"}, "runs on docker-desktop, not on this machine"),
        ({"Name": "here", "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}, "rootless"),
        ({"Name": "here", "SecurityOptions": ["name=userns"]}, "userns-remap"),
    ],
)
def test_engines_that_cannot_share_this_machine(info: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        docker_nodes.check_info(info, "here")
    docker_nodes.check_info({"Name": "here", "SecurityOptions": ["name=seccomp"]}, "here")


def test_without_the_sdk_its_package_is_named_by_what_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("docker", "docker.errors", "requests"):
        monkeypatch.setitem(sys.modules, module, None)
    paths = ClusterPaths.of("demo", tmp_path)
    docker_nodes.thaw(paths, is_certain=False)
    assert docker_nodes.remove(paths, is_certain=False) == []
    with docker_nodes.engine_errors("have a cluster that has no containers go on"):
        pass
    with pytest.raises(StartupError, match=r"Docker SDK.*: pip install 'cluster-accel\[docker\]'"):
        docker_nodes.connect()


@pytest.fixture
def errors() -> Any:
    """Those of the Docker SDK."""
    return pytest.importorskip("docker.errors", reason="the Docker SDK is not installed")


@pytest.mark.usefixtures("errors")
def test_without_rights_the_group_is_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socket.socket.connect", refuse)
    with pytest.raises(StartupError, match=r"you may not use the Docker engine.*group docker"):
        docker_nodes.connect()


@pytest.mark.parametrize(
    ("explanation", "cure"),
    [
        ("write /x: no space left on device", "free some space"),
        ("Bind for 127.0.0.1:8088 failed: port is already allocated", "leave --publish out"),
        ("bind source path does not exist: /nowhere", "leave that --mount out"),
        ("something else", ""),
    ],
)
def test_the_engines_refusals_are_one_line_with_the_cure(errors: Any, explanation: str, cure: str) -> None:
    with pytest.raises(ClusterError) as caught, docker_nodes.engine_errors("start container x"):
        raise errors.APIError("500", None, explanation)
    assert caught.value.message == f"the Docker engine could not start container x: {explanation}"
    assert cure in caught.value.cure


@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize("version", [None, "9", "8"])
def test_an_image_of_another_version_is_refused(version: str | None) -> None:
    labels = {"org.opencontainers.image.version": version} if version else None
    client = SimpleNamespace(inspect_image=lambda _: {"Config": {"Labels": labels}})
    refusal = pytest.raises(StartupError, match="image x is of version 8, this is 9: build it")
    with refusal if version == "8" else contextlib.nullcontext():
        docker_nodes.check_image(client, "x", "9", "build it")


def test_removing_what_may_not_be_there_needs_no_engine_and_what_must_be_names_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    paths = ClusterPaths.of("demo", tmp_path)
    assert docker_nodes.remove(paths, is_certain=False) == []
    pytest.importorskip("docker.errors", reason="the Docker SDK is not installed")
    no_engine = r"no Docker engine answers at unix://.*systemctl start docker"
    with pytest.raises(StartupError, match=no_engine) as caught:
        docker_nodes.remove(paths, is_certain=True)
    assert "\n" not in str(caught.value)
