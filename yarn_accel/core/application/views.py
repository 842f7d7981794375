"""What people see: an explanation of one node, and a picture of everything as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from yarn_accel.core.application.places import Held, Node, Phase, Place, Report
from yarn_accel.core.application.servers import serves, why_not
from yarn_accel.core.application.world import World
from yarn_accel.core.units import format_duration_s

__all__ = ["Outline", "explain_node", "outline", "picture", "pictures"]

_N_NOTES = 8
_N_NAMED = 3


def explain_node(world: World, host: str) -> str:
    """Lines for an admin about one node."""
    node = world.nodes.get(host)
    if node is None:
        return f"{host} is not known: the resource manager has not reported it."
    lines = [_node_line(world, node)]
    lines += [
        _place_line(world, node, place) for place in node.places.values() if _is_worth_a_line(node, place)
    ]
    lines.append(_binding_line(world, node))
    lines.append(_slots_line(world, host))
    lines += [
        f"{world.now_s - note.at_s:.1f} s ago: {note.what}" + (f" ({note.reason})" if note.reason else "")
        for note in world.history.about(host, _N_NOTES)
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Outline:
    """All nodes at a glance, at a microsecond each: enough to choose whom to look at.

    Attributes:
        racks: hosts by rack, each in order of their names; a rack not known is empty.
        troubled: racks with a node that is gone, or a server that neither serves nor is about to.
        serving: nodes whose servers serve.
        counts: nodes, usable, accelerators, serving, bound, unbound, failures.
    """

    racks: dict[str, list[str]]
    troubled: frozenset[str]
    serving: tuple[str, ...]
    counts: dict[str, int]


def outline(world: World) -> Outline:
    """Count and sort all nodes."""
    racks: dict[str, list[str]] = {}
    troubled: set[str] = set()
    serving: list[str] = []
    bound = world.bindings.bound
    n_usable = n_accelerators = n_unbound = n_failures = 0
    for host in sorted(world.nodes):
        node = world.nodes[host]
        view = node.view
        rack = view.rack if view is not None else ""
        racks.setdefault(rack, []).append(host)
        if node.is_serving:
            serving.append(host)
        if view is not None and view.is_usable:
            n_usable += 1
            n_accelerators += view.is_accelerator
            n_unbound += not view.is_accelerator and host not in bound
        if _is_troubled(world, node):
            troubled.add(rack)
        for place in node.places.values():
            n_failures += place.backoff.n_failures
    counts = {"nodes": len(world.nodes), "usable": n_usable, "accelerators": n_accelerators}
    counts |= {"serving": len(serving), "bound": len(bound), "unbound": n_unbound, "failures": n_failures}
    return Outline(racks, frozenset(troubled), tuple(serving), counts)


def _is_troubled(world: World, node: Node) -> bool:
    if node.view is None or not node.view.is_usable:
        return True
    if not node.view.is_accelerator or node.is_serving or node.host in world.drained:
        return False
    place = world.server_place(node)
    if place is None or (place.report is not None and not place.report.is_healthy):
        return True
    return not any(held.phase in (Phase.GRANTED, Phase.LAUNCHING) for held in place.held.values())


def picture(world: World, now_s: float, hosts: Iterable[str] | None = None) -> dict[str, Any]:
    """Everything, for the tracking page and its JSON; of nodes all, or these."""
    return {
        "attempt": world.life.attempt,
        "is_registered": world.life.is_registered,
        "is_stopping": world.life.stopping_s is not None,
        "version": world.bindings.version,
        "policy": world.bindings.policy.name,
        "slots": {"mode": world.slots.mode.value, "refusal": world.slots.refusal},
        "loads": dict(world.bindings.policy.loads()),
        "nodes": pictures(world, now_s, sorted(world.nodes) if hosts is None else hosts),
        "notes": [asdict(note) | {"age_s": now_s - note.at_s} for note in world.history],
    }


def pictures(world: World, now_s: float, hosts: Iterable[str]) -> dict[str, Any]:
    """The nodes among these that are known."""
    nodes = world.nodes
    return {host: _node_picture(world, nodes[host], now_s) for host in hosts if host in nodes}


def _node_picture(world: World, node: Node, now_s: float) -> dict[str, Any]:
    view = node.view
    station = world.bindings.stations.get(node.host)
    place = world.server_place(node)
    given = world.slots.given(node.host)
    wanted = world.slots.wanted(node.host) if not world.slots.refusal else None
    return {
        "rack": view.rack if view is not None else None,
        "state": _state(node),
        "is_accelerator": view is not None and view.is_accelerator,
        "is_drained": node.host in world.drained,
        "kind": station.kind.value if station is not None else None,
        "bound": world.bindings.bound.get(node.host),
        "members": list(world.bindings.members.get(node.host, ())),
        "is_serving": node.is_serving,
        "load": _load(place.report) if place is not None and place.report is not None else None,
        "age_s": now_s - node.reached_s if node.reached_s > float("-inf") else None,
        "slots": {"wanted": wanted, "is_set": given is not None and given[1]},
        "places": {name: _place_picture(place, now_s) for name, place in node.places.items()},
    }


def _load(report: Report) -> dict[str, Any]:
    gauges = report.gauges
    return {
        "is_healthy": report.is_healthy,
        "detail": report.detail,
        "capacity": gauges.capacity,
        "open": gauges.n_open,
        "weight": gauges.weight,
    }


def _place_picture(place: Place, now_s: float) -> dict[str, Any]:
    return {
        "containers": [
            {"id": held.container.id, "phase": held.phase.value, "for_s": now_s - held.since_s}
            for held in place.held.values()
        ],
        "asked_for_s": now_s - place.first_asked_s if place.request_id is not None else None,
        "is_draining": place.ending_s is not None,
        "failures": place.backoff.n_failures,
        "last_failure": place.backoff.reason,
        "retry_in_s": max(place.backoff.until_s - now_s, 0.0),
    }


def _state(node: Node) -> str:
    if node.view is None:
        return "unknown"
    if not node.view.is_usable:
        return "gone"
    return "leaving" if node.view.is_leaving else "usable"


def _node_line(world: World, node: Node) -> str:
    view = node.view
    if view is None:
        return f"{node.host} is not reported by the resource manager yet; what runs there is left alone."
    what = "with an accelerator" if view.is_accelerator else "without an accelerator"
    drained = ", drained by an admin" if node.host in world.drained else ""
    return f"{node.host} in {view.rack} is {_state(node)}, {what}{drained}."


def _binding_line(world: World, node: Node) -> str:
    """The policy knows servers that serve; what else there is must be said here."""
    bindings, host, view = world.bindings, node.host, node.view
    if not bindings.is_open:
        return "Bindings are not made yet."
    if host in bindings.bound or node.is_serving or view is None or not node.is_usable:
        return bindings.policy.explain(host)
    if view.is_accelerator:
        why = _idle_words(world, node)
        return (
            f"{host} has its own accelerator, whose server does not serve now ({why}): its tasks use its CPU."
        )
    idle = [
        f"{other.host} ({_idle_words(world, other)})"
        for other in world.nodes.values()
        if other.view is not None and other.view.is_accelerator and other.view.rack == view.rack
    ]
    if not idle:
        return bindings.policy.explain(host)
    named = ", ".join(idle[:_N_NAMED]) + (f" and {len(idle) - _N_NAMED} more" if len(idle) > _N_NAMED else "")
    return (
        f"{host} is not bound: no accelerator node of {view.rack} serves now: {named}; its tasks use its CPU."
    )


def _idle_words(world: World, node: Node) -> str:
    if node.host in world.drained:
        return "drained"
    place = world.server_place(node)
    if place is None:
        return "no server is to run there"
    phases = [held.phase.value for held in place.live() if held.phase is not Phase.RUNNING]
    if node.is_usable and phases:
        return f"its server is {phases[0]}"
    return why_not(node, place, world.now_s)


def _is_worth_a_line(node: Node, place: Place) -> bool:
    fits = node.view is not None and place.role.fits(node.view.is_accelerator)
    return fits or bool(place.held)


def _place_line(world: World, node: Node, place: Place) -> str:
    words = [_held_words(world, held) for held in place.held.values()]
    if place.request_id is not None:
        words.append(f"asked for since {world.now_s - place.first_asked_s:.1f} s")
    wait_s = place.backoff.until_s - world.now_s
    if not words and wait_s > 0:
        words.append(f"tried again in {wait_s:.1f} s")
    if place.backoff.n_failures:
        words.append(f"failures in a row: {place.backoff.n_failures}, the last: {place.backoff.reason}")
    if place.backoff.is_lasting and wait_s > 0:
        words.append(_lasting_words(world, place))
    if place.role.is_server and node.host in world.drained and not words:
        words.append("none, the node is drained")
    elif place.role.is_server:
        is_serving = serves(node, place, world.now_s) is not None
        words.append("serves" if is_serving else why_not(node, place, world.now_s))
    return f"{place.role.name}: {'; '.join(words) or 'none'}."


def _lasting_words(world: World, place: Place) -> str:
    every = format_duration_s(world.settings.max_delay_s)
    cure = f"mend the node, then `yarn-accel undrain {place.node}`"
    return f"this does not go away by itself, so it is tried every {every} only: {cure}"


def _held_words(world: World, held: Held) -> str:
    words = f"{held.container.id} {held.phase.value} for {world.now_s - held.since_s:.1f} s"
    return f"{words} ({held.reason})" if held.phase is Phase.RETIRING else words


def _slots_line(world: World, host: str) -> str:
    if world.slots.refusal:
        return f"Slots are not set: {world.slots.refusal}."
    given = world.slots.given(host)
    if given is None:
        return "Slots are left as they are."
    text = "the configured value" if given[0] is None else str(given[0])
    return f"Slots: {text}, {'set' if given[1] else 'not confirmed yet'}."
