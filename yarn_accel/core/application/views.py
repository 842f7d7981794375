"""What people see: an explanation of one node, and a picture of everything as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from yarn_accel.core.application.places import Held, Node, Phase, Place, Report
from yarn_accel.core.application.servers import serves, why_not
from yarn_accel.core.application.world import World

__all__ = ["explain_node", "picture"]

_N_NOTES = 8


def explain_node(world: World, host: str) -> str:
    """Lines for an admin about one node."""
    node = world.nodes.get(host)
    if node is None:
        return f"{host} is not known: the resource manager has not reported it."
    lines = [_node_line(world, node)]
    lines += [
        _place_line(world, node, place) for place in node.places.values() if _is_worth_a_line(node, place)
    ]
    lines.append(
        world.bindings.policy.explain(host) if world.bindings.is_open else "Bindings are not made yet."
    )
    lines.append(_slots_line(world, host))
    lines += [
        f"{world.now_s - note.at_s:.1f} s ago: {note.what}" + (f" ({note.reason})" if note.reason else "")
        for note in world.history.about(host, _N_NOTES)
    ]
    return "\n".join(lines)


def picture(world: World, now_s: float) -> dict[str, Any]:
    """Everything, for the tracking page and its JSON."""
    return {
        "attempt": world.life.attempt,
        "is_registered": world.life.is_registered,
        "is_stopping": world.life.stopping_s is not None,
        "version": world.bindings.version,
        "policy": world.bindings.policy.name,
        "slots": {"mode": world.slots.mode.value, "refusal": world.slots.refusal},
        "loads": dict(world.bindings.policy.loads()),
        "nodes": {host: _node_picture(world, node, now_s) for host, node in sorted(world.nodes.items())},
        "notes": [asdict(note) | {"age_s": now_s - note.at_s} for note in world.history],
    }


def _node_picture(world: World, node: Node, now_s: float) -> dict[str, Any]:
    view = node.view
    station = world.bindings.stations.get(node.host)
    place = world.server_place(node)
    given = world.slots.given(node.host)
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
        "slots": {"wanted": world.slots.wanted(node.host), "is_set": given is not None and given[1]},
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


def _binding_line(world: World, host: str) -> str:
    if not world.bindings.is_open:
        return "Bindings are not made yet."
    if host not in world.bindings.stations:
        return "It takes no part in the bindings now."
    return world.bindings.policy.explain(host)


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
    if place.role.is_server:
        is_serving = serves(node, place, world.settings, world.now_s) is not None
        words.append("serves" if is_serving else why_not(node, place, world.settings, world.now_s))
    return f"{place.role.name}: {'; '.join(words) or 'none'}."


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
