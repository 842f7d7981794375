"""The invariants that hold after every event; for tests, as the check visits all nodes."""

from __future__ import annotations

from yarn_accel.core.application.bindings import NodeKind
from yarn_accel.core.application.cluster_state import ClusterState
from yarn_accel.core.application.role_instance import Node, Phase, RoleInstance
from yarn_accel.core.application.servers import serves
from yarn_accel.core.application.slots import SlotMode, shares
from yarn_accel.core.application.timers import NEVER


def check(cluster: ClusterState, wake_s: float) -> None:
    """Check every invariant.

    Raises:
        AssertionError: naming what is broken.
    """
    assert not cluster.dirty, f"left dirty: {list(cluster.dirty)}"
    assert not cluster.commands, "orders were left behind"
    next_s = cluster.timers.next_s()
    assert wake_s <= next_s, f"nobody is woken at {next_s}, but at {wake_s}"
    _check_index(cluster)
    for node in cluster.nodes.values():
        if cluster.timers.at(node.host) <= cluster.now_s:
            continue
        for instance in node.instances.values():
            _check_instance(cluster, node, instance)
        _check_server(cluster, node)
    if cluster.bindings.is_open:
        _check_bindings(cluster)
        _check_slots(cluster)


def _check_index(cluster: ClusterState) -> None:
    instances = [instance for node in cluster.nodes.values() for instance in node.instances.values()]
    record = {container: instance for instance in instances for container in instance.records}
    assert record == cluster.containers.instances, "containers and their index differ"
    asked = {instance.request_id: instance for instance in instances if instance.request_id is not None}
    assert asked == cluster.containers.requests, "requests and their index differ"


def _check_instance(cluster: ClusterState, node: Node, instance: RoleInstance) -> None:
    where = f"{instance.role.name} on {instance.node}"
    live = list(instance.live())
    if not cluster.life.is_registered or node.view is None:
        return
    assert len(live) <= 1, f"{where}: {len(live)} live containers"
    assert not (live and instance.request_id is not None), f"{where}: has a container and asks for one"
    assert not any(record.phase is Phase.GRANTED for record in live), f"{where}: granted and not launched"
    if instance.records or instance.request_id is not None:
        assert cluster.timers.at(node.host) < NEVER, f"{where}: nobody looks after it"
    if not node.is_usable:
        assert not instance.records, f"{where}: its node is gone"
        assert instance.request_id is None, f"{where}: asks for a node that is gone"
    elif not cluster.fits(node, instance.role) or cluster.life.stopping_s is not None:
        assert instance.request_id is None, f"{where}: asks for what is not wanted"
    elif not (live or node.view.is_leaving or node.host in cluster.drained or instance.is_done):
        is_waiting = instance.is_vacating() or instance.backoff.until_s > cluster.now_s
        assert is_waiting or instance.request_id is not None, f"{where}: nothing there and nothing asked"
    if instance.report is not None:
        assert any(record.container.id == instance.report.container for record in live), (
            f"{where}: hears the dead"
        )


def _check_server(cluster: ClusterState, node: Node) -> None:
    instance = cluster.server_instance(node)
    if instance is None:
        return
    is_serving = serves(node, instance, cluster.now_s) is not None
    assert node.is_serving == is_serving, f"{node.host}: is_serving is {node.is_serving}"
    binding = cluster.bindings.node_bindings.get(node.host)
    assert is_serving == (binding is not None and binding.kind is NodeKind.ANODE), f"{node.host}: {binding}"
    if binding is not None:
        assert node.view is not None, f"{node.host}: not reported, but {binding}"
        assert binding.rack == node.view.rack, f"{node.host}: in {node.view.rack}, but {binding}"
        assert cluster.life.stopping_s is None, f"{node.host}: stopping, but {binding}"


def _check_bindings(cluster: ClusterState) -> None:
    bindings = cluster.bindings
    bindings.policy.validate()
    assert bindings.bound == dict(bindings.policy.bound()), "our bindings are not the policy's"
    anodes = {host for host, binding in bindings.node_bindings.items() if binding.kind is NodeKind.ANODE}
    assert bindings.members.keys() == anodes, "our servers are not the ANodes"
    members = {(server, node) for server, nodes in bindings.members.items() for node in nodes}
    assert members == {(server, node) for node, server in bindings.bound.items()}, "members are not the bound"
    in_racks = {node for nodes in bindings.racks.values() for node in nodes}
    assert in_racks == anodes, "servers by rack are not the ANodes"


def _check_slots(cluster: ClusterState) -> None:
    slots, bindings = cluster.slots, cluster.bindings
    expected: dict[str, int] = {}
    for server, members in bindings.members.items():
        expected.update(shares(bindings.node_bindings[server].capacity, server, members))
    for host, node in cluster.nodes.items():
        if slots.mode is SlotMode.RESTORE:
            assert slots.wanted(host) is None, f"{host}: wants slots when they are restored"
        else:
            assert slots.wanted(host) == expected.get(host, 0), f"{host}: wants {slots.wanted(host)} slots"
        is_to_wait = cluster.timers.at(host) <= cluster.now_s
        if is_to_wait or cluster.slots_kept_s(node) > cluster.now_s:
            continue
        if (
            node.is_usable
            and cluster.life.is_registered
            and slots.mode is not SlotMode.WAIT
            and not slots.refusal
        ):
            given = slots.given(host)
            assert given is not None, f"{host}: its slots were never set"
            assert given[0] == slots.wanted(host), f"{host}: has {given[0]} slots"
            assert given[1] or cluster.timers.at(host) < NEVER, f"{host}: nobody sees to its slots"
