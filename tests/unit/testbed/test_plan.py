"""The layout of a cluster: what must hold for every number of nodes, racks and accelerators."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.errors import ConfigError
from yarn_accel.testbed.plan import (
    MAX_NODES,
    ClusterPlan,
    DaemonRole,
    NetworkMode,
    UpOptions,
    bound_servers,
    check_options,
    cluster_tag,
    make_plan,
    namespace_prefix,
    port_span,
    rate_bits_per_s,
    shape_argvs,
)

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
modes = st.sampled_from(NetworkMode)


@st.composite
def options(draw: st.DrawFn) -> UpOptions:
    nodes = draw(st.integers(1, MAX_NODES))
    return UpOptions(
        name=draw(names),
        nodes=nodes,
        racks=draw(st.integers(1, nodes)),
        accel_nodes=draw(st.integers(0, nodes)),
        pipeline=draw(st.booleans()),
    )


def plan_of(wanted: UpOptions, mode: NetworkMode, scope: str = "/state") -> ClusterPlan:
    return make_plan(wanted, mode, scope, subnet=7, port_base=12000)


@given(options(), modes)
def test_addresses_and_hosts_are_unique_and_differ_from_the_gateway(
    wanted: UpOptions, mode: NetworkMode
) -> None:
    plan = plan_of(wanted, mode)
    addresses = [node.address for node in plan.nodes]
    assert len(set(addresses)) == len(addresses) == wanted.nodes + 1
    assert len({node.host for node in plan.nodes}) == len(addresses)
    if mode is NetworkMode.NETNS:
        assert plan.gateway not in addresses
        assert all(address.startswith("10.231.7.") for address in addresses)
    assert all(0 < int(part) < 255 for address in addresses for part in address.split(".")[3:])


@given(options())
def test_interface_names_fit_the_kernel_and_never_meet(wanted: UpOptions) -> None:
    plans = [plan_of(wanted, NetworkMode.NETNS, scope) for scope in ("/state/a", "/state/b")]
    found = [name for plan in plans for name in (plan.bridge, *(node.interface for node in plan.nodes))]
    assert all(0 < len(name) <= 15 for name in found)
    assert len(set(found)) == len(found)


@given(names, names)
def test_namespaces_of_one_cluster_are_not_taken_for_those_of_another(first: str, second: str) -> None:
    if first == second:
        return
    tags = [cluster_tag(name, "/state") for name in (first, second)]
    own = plan_of(UpOptions(name=first, nodes=2, racks=1), NetworkMode.NETNS)
    assert all(node.namespace.startswith(namespace_prefix(first, tags[0])) for node in own.nodes)
    assert not any(node.namespace.startswith(namespace_prefix(second, tags[1])) for node in own.nodes)


@given(options(), modes)
def test_racks_are_balanced_and_all_used(wanted: UpOptions, mode: NetworkMode) -> None:
    sizes = Counter(node.rack for node in plan_of(wanted, mode).workers)
    assert len(sizes) == wanted.racks
    assert max(sizes.values()) - min(sizes.values()) <= 1


@given(options(), modes)
def test_every_rack_gets_its_first_accelerator_before_one_gets_a_second(
    wanted: UpOptions, mode: NetworkMode
) -> None:
    plan = plan_of(wanted, mode)
    assert len(plan.accel_nodes) == wanted.accel_nodes
    per_rack = Counter({node.rack: 0 for node in plan.workers})
    per_rack.update(node.rack for node in plan.accel_nodes)
    sizes = Counter(node.rack for node in plan.workers)
    for rack, count in per_rack.items():
        others = [other for other in per_rack if per_rack[other] < sizes[other]]
        assert all(count - per_rack[other] <= 1 for other in others), rack


@given(options(), modes)
def test_every_node_without_accelerator_is_bound_to_its_own_rack_when_that_has_one(
    wanted: UpOptions, mode: NetworkMode
) -> None:
    plan = plan_of(wanted, mode)
    bound = bound_servers(plan)
    accel = {node.name: node for node in plan.accel_nodes}
    plain = [node for node in plan.workers if not node.is_accel]
    assert set(bound) == ({node.host for node in plain} if accel else set())
    for node in plain if accel else ():
        near = {name for name, other in accel.items() if other.rack == node.rack}
        assert set(bound[node.host]) == (near or set(accel))
        assert len(set(bound[node.host])) == len(bound[node.host])


@given(options())
def test_loopback_ports_are_unique_and_fill_the_span(wanted: UpOptions) -> None:
    plan = plan_of(wanted, NetworkMode.LOOPBACK)
    ports = [*vars(plan.ports).values()]
    for node in plan.workers:
        ports += vars(node.ports).values()
    assert sorted(ports) == list(range(12000, 12000 + port_span(wanted.nodes)))


def test_a_late_worker_has_all_but_its_node_manager_from_the_start() -> None:
    made = plan_of(UpOptions(nodes=3, racks=1, accel_nodes=1, late=1), NetworkMode.NETNS)
    assert [node.name for node in made.late_nodes] == ["w3"]
    absent = {(node, role) for node in made.nodes for role in made.roles(node)} - set(made.daemons())
    assert absent == {(made.node("w3"), DaemonRole.NODEMANAGER)}
    assert plan_of(UpOptions(), NetworkMode.NETNS).late_nodes == ()


def test_storage_nodes_hold_all_data_and_the_others_run_all_containers() -> None:
    made = plan_of(
        UpOptions(nodes=5, racks=1, accel_nodes=0, storage_nodes=2, link="80mbit"), NetworkMode.NETNS
    )
    roles = {node.name: made.roles(node) for node in made.workers}
    assert roles == {
        **dict.fromkeys(("w1", "w2"), (DaemonRole.DATANODE,)),
        **dict.fromkeys(("w3", "w4", "w5"), (DaemonRole.NODEMANAGER,)),
    }
    assert [node.name for node in made.data_nodes] == ["w1", "w2"]
    links = {node.name: made.link_of(node) for node in made.nodes}
    assert links == {
        **dict.fromkeys(("master", "w1", "w2"), ""),
        **dict.fromkeys(("w3", "w4", "w5"), "80mbit"),
    }


def test_without_storage_nodes_every_worker_does_both_and_every_link_is_limited() -> None:
    made = plan_of(UpOptions(link="80mbit"), NetworkMode.NETNS)
    assert made.data_nodes == made.workers
    assert {made.link_of(node) for node in made.nodes} == {"80mbit"}


def test_the_default_cluster() -> None:
    plan = plan_of(UpOptions(), NetworkMode.NETNS)
    assert [node.name for node in plan.nodes] == ["master", "w1", "w2", "w3", "w4"]
    assert [node.rack for node in plan.workers] == ["/rack1", "/rack1", "/rack2", "/rack2"]
    assert [node.name for node in plan.accel_nodes] == ["w1", "w3"]
    assert bound_servers(plan) == {"w2": ("w1",), "w4": ("w3",)}
    assert plan.roles(plan.node("w1")) == (DaemonRole.DATANODE, DaemonRole.NODEMANAGER, DaemonRole.PIPELINE)
    assert plan.roles(plan.node("w2")) == (DaemonRole.DATANODE, DaemonRole.NODEMANAGER)
    assert len(plan.daemons()) == 13


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (UpOptions(nodes=0), "nodes"),
        (UpOptions(nodes=MAX_NODES + 1), "nodes"),
        (UpOptions(nodes=2, racks=3), "racks"),
        (UpOptions(nodes=2, accel_nodes=3), "accel-nodes"),
        (UpOptions(slots=-1), "slots"),
        (UpOptions(nodes=2, racks=1, late=3), "late"),
        (UpOptions(accel_nodes=0, storage_nodes=5), "storage-nodes"),
        (UpOptions(accel_nodes=1, storage_nodes=2), "storage-nodes"),
        (UpOptions(mode="podman"), "mode"),
        (UpOptions(link="fast"), "link"),
        (UpOptions(link="0gbit"), "link"),
        (UpOptions(delay="2 weeks"), "delay"),
        (UpOptions(node_memory="much"), "node-memory"),
        (UpOptions(node_memory="1mb"), "node-memory"),
        (UpOptions(node_cpus=-1), "node-cpus"),
        (UpOptions(mounts=("/data", "here")), "mount"),
        (UpOptions(mounts=("/",)), "mount"),
        (UpOptions(name=""), "name"),
        (UpOptions(name="../etc"), "name"),
        (UpOptions(name="A"), "name"),
        (UpOptions(name="x" * 33), "name"),
    ],
)
def test_options_that_make_no_cluster_are_refused(bad: UpOptions, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        plan_of(bad, NetworkMode.NETNS)


def test_an_unknown_node_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="master, w1, w2, w3, w4"):
        plan_of(UpOptions(), NetworkMode.NETNS).node("w9")


@pytest.mark.parametrize(
    ("text", "rate"), [("1gbit", 1e9), ("100mbit", 1e8), ("1.5Gbit", 1.5e9), ("10kbit", 1e4)]
)
def test_rates(text: str, rate: float) -> None:
    assert rate_bits_per_s(text) == rate


def test_links_are_shaped_by_rate_behind_delay() -> None:
    (rate,) = shape_argvs("eth0", "1gbit", "", "ns")
    assert rate[:8] == ["tc", "-n", "ns", "qdisc", "replace", "dev", "eth0", "root"]
    assert rate[rate.index("rate") + 1] == "1gbit"
    assert int(rate[rate.index("burst") + 1]) >= 256 * 1024
    delay, behind = shape_argvs("eth0", "1gbit", "2ms")
    assert "netem" in delay
    assert behind[behind.index("parent") + 1] == "1:1"
    assert shape_argvs("eth0", "", "") == []


def test_only_a_secure_cluster_has_a_kdc_and_options_of_security() -> None:
    roles = [
        make_plan(UpOptions(secure=secure), NetworkMode.NETNS, "/s").daemons()[0][1].value
        for secure in (True, False)
    ]
    assert roles == ["kdc", "namenode"]
    for options, message in (
        (UpOptions(protection="privacy"), "--protection needs --secure"),
        (UpOptions(token_life_s=60), "--token-life needs --secure"),
        (UpOptions(secure=True, protection="none"), "authentication or integrity or privacy"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_options(options)


def test_two_masters_have_both_namenodes_and_no_worker_less() -> None:
    plan = make_plan(UpOptions(ha=True, nodes=3, late=1), NetworkMode.NETNS, "/s", subnet=7)
    assert [node.name for node in plan.masters] == ["master", "master2"]
    assert [node.name for node in plan.workers] == ["w1", "w2", "w3"]
    assert [node.name for node in plan.late_nodes] == ["w3"]
    roles = [[role.value for role in plan.roles(node)] for node in plan.masters]
    assert roles == [
        ["zookeeper", "zkfc", "namenode", "resourcemanager", "historyserver"],
        ["namenode", "zkfc", "resourcemanager"],
    ]
    assert len({node.address for node in plan.nodes}) == len({node.interface for node in plan.nodes}) == 5
    largest = make_plan(UpOptions(ha=True, nodes=MAX_NODES), NetworkMode.NETNS, "/s", subnet=7)
    assert len({node.address for node in largest.nodes}) == MAX_NODES + 2
    secure = make_plan(UpOptions(ha=True, secure=True), NetworkMode.NETNS, "/s", subnet=7)
    assert [role.value for role in secure.roles(secure.master)] == ["kdc", *roles[0]]
