"""What must hold after every event; for tests, as it walks over everything."""

from __future__ import annotations

from yarn_accel.core.application.alarms import NEVER
from yarn_accel.core.application.bindings import Kind
from yarn_accel.core.application.places import Node, Phase, Place
from yarn_accel.core.application.servers import serves
from yarn_accel.core.application.slots import Mode, shares
from yarn_accel.core.application.world import World

__all__ = ["check"]


def check(world: World, wake_s: float) -> None:
    """Check every invariant.

    Raises:
        AssertionError: naming what is broken.
    """
    assert not world.dirty, f"left dirty: {list(world.dirty)}"
    assert not world.orders, "orders were left behind"
    next_s = world.alarms.next_s()
    assert wake_s <= next_s, f"nobody is woken at {next_s}, but at {wake_s}"
    _check_index(world)
    for node in world.nodes.values():
        if world.alarms.at(node.host) <= world.now_s:
            continue
        for place in node.places.values():
            _check_place(world, node, place)
        _check_server(world, node)
    if world.bindings.is_open:
        _check_bindings(world)
        _check_slots(world)


def _check_index(world: World) -> None:
    places = [place for node in world.nodes.values() for place in node.places.values()]
    held = {container: place for place in places for container in place.held}
    assert held == world.staff.holders, "containers and their index differ"
    asked = {place.request_id: place for place in places if place.request_id is not None}
    assert asked == world.staff.requests, "requests and their index differ"


def _check_place(world: World, node: Node, place: Place) -> None:
    where = f"{place.role.name} on {place.node}"
    live = list(place.live())
    if not world.life.is_registered or node.view is None:
        return
    assert len(live) <= 1, f"{where}: {len(live)} live containers"
    assert not (live and place.request_id is not None), f"{where}: has a container and asks for one"
    assert not any(held.phase is Phase.GRANTED for held in live), f"{where}: granted and not launched"
    if place.held or place.request_id is not None:
        assert world.alarms.at(node.host) < NEVER, f"{where}: nobody looks after it"
    if not node.is_usable:
        assert not place.held, f"{where}: its node is gone"
        assert place.request_id is None, f"{where}: asks for a node that is gone"
    elif not place.role.fits(node.view.is_accelerator) or world.life.stopping_s is not None:
        assert place.request_id is None, f"{where}: asks for what is not wanted"
    elif not (live or node.view.is_leaving or node.host in world.drained or place.is_done):
        is_waiting = place.is_vacating() or place.backoff.until_s > world.now_s
        assert is_waiting or place.request_id is not None, f"{where}: nothing there and nothing asked"
    if place.report is not None:
        assert any(held.container.id == place.report.container for held in live), f"{where}: hears the dead"


def _check_server(world: World, node: Node) -> None:
    place = world.server_place(node)
    if place is None:
        return
    is_serving = serves(node, place, world.now_s) is not None
    assert node.is_serving == is_serving, f"{node.host}: is_serving is {node.is_serving}"
    station = world.bindings.stations.get(node.host)
    assert is_serving == (station is not None and station.kind is Kind.ANODE), f"{node.host}: {station}"
    if station is not None:
        assert node.view is not None, f"{node.host}: not reported, but {station}"
        assert station.rack == node.view.rack, f"{node.host}: in {node.view.rack}, but {station}"
        assert world.life.stopping_s is None, f"{node.host}: stopping, but {station}"


def _check_bindings(world: World) -> None:
    bindings = world.bindings
    bindings.policy.validate()
    assert bindings.bound == dict(bindings.policy.bound()), "our bindings are not the policy's"
    anodes = {host for host, station in bindings.stations.items() if station.kind is Kind.ANODE}
    assert bindings.members.keys() == anodes, "our servers are not the ANodes"
    members = {(server, node) for server, nodes in bindings.members.items() for node in nodes}
    assert members == {(server, node) for node, server in bindings.bound.items()}, "members are not the bound"
    in_racks = {node for nodes in bindings.racks.values() for node in nodes}
    assert in_racks == anodes, "servers by rack are not the ANodes"


def _check_slots(world: World) -> None:
    slots, bindings = world.slots, world.bindings
    expected: dict[str, int] = {}
    for server, members in bindings.members.items():
        expected.update(shares(bindings.stations[server].capacity, server, members))
    for host, node in world.nodes.items():
        if slots.mode is Mode.RESTORE:
            assert slots.wanted(host) is None, f"{host}: wants slots when they are restored"
        else:
            assert slots.wanted(host) == expected.get(host, 0), f"{host}: wants {slots.wanted(host)} slots"
        is_to_wait = world.alarms.at(host) <= world.now_s
        if is_to_wait or world.slots_kept_s(node) > world.now_s:
            continue
        if node.is_usable and world.life.is_registered and slots.mode is not Mode.WAIT and not slots.refusal:
            given = slots.given(host)
            assert given is not None, f"{host}: its slots were never set"
            assert given[0] == slots.wanted(host), f"{host}: has {given[0]} slots"
            assert given[1] or world.alarms.at(host) < NEVER, f"{host}: nobody sees to its slots"
