"""The state for people: an explanation of one node, and a snapshot of everything as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from yarn_accel.core.application.cluster_state import ClusterState
from yarn_accel.core.application.nodes import (
    ContainerRecord,
    Node,
    Phase,
    RoleInstance,
    StatusReport,
    reason_not_serving,
    serves,
)
from yarn_accel.core.units import format_duration_s

_N_NOTES = 8
_N_NAMED = 3


def explain_node(cluster: ClusterState, host: str) -> str:
    """Lines for an admin about one node."""
    node = cluster.nodes.get(host)
    if node is None:
        return f"{host} is not known: the resource manager has not reported it."
    lines = [_node_line(cluster, node)]
    lines += [
        _instance_line(cluster, node, instance)
        for instance in node.instances.values()
        if _is_worth_a_line(cluster, node, instance)
    ]
    lines.append(_binding_line(cluster, node))
    lines.append(_slots_line(cluster, host))
    lines += [
        f"{cluster.now_s - note.at_s:.1f} s ago: {note.what}" + (f" ({note.reason})" if note.reason else "")
        for note in cluster.history.about(host, _N_NOTES)
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """Counts and groups of all nodes, at a microsecond each.

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


def summarize(cluster: ClusterState) -> ClusterSummary:
    """Count and sort all nodes."""
    racks: dict[str, list[str]] = {}
    troubled: set[str] = set()
    serving: list[str] = []
    bound = cluster.bindings.bound
    n_usable = n_accelerators = n_unbound = n_failures = 0
    for host in sorted(cluster.nodes):
        node = cluster.nodes[host]
        view = node.view
        rack = view.rack if view is not None else ""
        racks.setdefault(rack, []).append(host)
        if node.is_serving:
            serving.append(host)
        if view is not None and view.is_usable:
            n_usable += 1
            n_accelerators += view.is_accelerator
            n_unbound += not view.is_accelerator and host not in bound
        if _is_troubled(cluster, node):
            troubled.add(rack)
        for instance in node.instances.values():
            n_failures += instance.backoff.n_failures
    counts = {"nodes": len(cluster.nodes), "usable": n_usable, "accelerators": n_accelerators}
    counts |= {"serving": len(serving), "bound": len(bound), "unbound": n_unbound, "failures": n_failures}
    return ClusterSummary(racks, frozenset(troubled), tuple(serving), counts)


def _is_troubled(cluster: ClusterState, node: Node) -> bool:
    if node.view is None or not node.view.is_usable:
        return True
    if not node.view.is_accelerator or node.is_serving or cluster.lacks_server(node.host):
        return False
    instance = cluster.server_instance(node)
    if instance is None or (instance.report is not None and not instance.report.is_healthy):
        return True
    return not any(record.phase in (Phase.GRANTED, Phase.LAUNCHING) for record in instance.records.values())


def snapshot(cluster: ClusterState, now_s: float, hosts: Iterable[str] | None = None) -> dict[str, Any]:
    """The whole state, for the tracking page and its JSON; `hosts` limits the nodes."""
    return {
        "attempt": cluster.life.attempt,
        "is_registered": cluster.life.is_registered,
        "is_stopping": cluster.life.stopping_s is not None,
        "version": cluster.bindings.version,
        "policy": cluster.bindings.policy.name,
        "slots": {"mode": cluster.slots.mode.value, "refusal": cluster.slots.refusal},
        "loads": dict(cluster.bindings.policy.loads()),
        "nodes": node_snapshots(cluster, now_s, sorted(cluster.nodes) if hosts is None else hosts),
        "notes": [asdict(note) | {"age_s": now_s - note.at_s} for note in cluster.history],
    }


def node_snapshots(cluster: ClusterState, now_s: float, hosts: Iterable[str]) -> dict[str, Any]:
    """The nodes among these that are known."""
    nodes = cluster.nodes
    return {host: _node_snapshot(cluster, nodes[host], now_s) for host in hosts if host in nodes}


def _node_snapshot(cluster: ClusterState, node: Node, now_s: float) -> dict[str, Any]:
    view = node.view
    binding = cluster.bindings.node_bindings.get(node.host)
    instance = cluster.server_instance(node)
    given = cluster.slots.given(node.host)
    wanted = cluster.slots.wanted(node.host) if not cluster.slots.refusal else None
    return {
        "rack": view.rack if view is not None else None,
        "state": _state(node),
        "is_accelerator": view is not None and view.is_accelerator,
        "is_drained": node.host in cluster.drained,
        "is_released": node.host in cluster.released,
        "kind": binding.kind.value if binding is not None else None,
        "bound": cluster.bindings.bound.get(node.host),
        "members": list(cluster.bindings.members.get(node.host, ())),
        "is_serving": node.is_serving,
        "load": _load(instance.report) if instance is not None and instance.report is not None else None,
        "age_s": now_s - node.reached_s if node.reached_s > float("-inf") else None,
        "slots": {"wanted": wanted, "is_set": given is not None and given[1]},
        "places": {name: _instance_snapshot(instance, now_s) for name, instance in node.instances.items()},
    }


def _load(report: StatusReport) -> dict[str, Any]:
    gauges = report.gauges
    return {
        "is_healthy": report.is_healthy,
        "detail": report.detail,
        "capacity": gauges.capacity,
        "open": gauges.n_open,
        "weight": gauges.weight,
    }


def _instance_snapshot(instance: RoleInstance, now_s: float) -> dict[str, Any]:
    return {
        "containers": [
            {"id": record.container.id, "phase": record.phase.value, "for_s": now_s - record.since_s}
            for record in instance.records.values()
        ],
        "asked_for_s": now_s - instance.first_asked_s if instance.request_id is not None else None,
        "is_draining": instance.ending_s is not None,
        "failures": instance.backoff.n_failures,
        "last_failure": instance.backoff.reason,
        "retry_in_s": max(instance.backoff.until_s - now_s, 0.0),
    }


def _state(node: Node) -> str:
    if node.view is None:
        return "unknown"
    if not node.view.is_usable:
        return "gone"
    return "leaving" if node.view.is_leaving else "usable"


def _node_line(cluster: ClusterState, node: Node) -> str:
    view = node.view
    if view is None:
        return f"{node.host} is not reported by the resource manager yet; what runs there is left alone."
    what = "with an accelerator" if view.is_accelerator else "without an accelerator"
    drained = ", drained by an admin" if node.host in cluster.drained else ""
    return f"{node.host} in {view.rack} is {_state(node)}, {what}{drained}."


def _binding_line(cluster: ClusterState, node: Node) -> str:
    """The policy explains bindings to serving servers; other servers are explained here."""
    bindings, host, view = cluster.bindings, node.host, node.view
    if not bindings.is_open:
        return "Bindings are not made yet."
    if host in bindings.bound or node.is_serving or view is None or not node.is_usable:
        return bindings.policy.explain(host)
    if view.is_accelerator:
        why = _idle_reason(cluster, node)
        others = list(bindings.servers_for(host, view.rack))
        used = f"the server of {others[0]}" if others else "its CPU"
        own = f"{host} has its own accelerator, whose server does not serve now ({why})"
        return f"{own}: its tasks use {used}."
    idle = [
        f"{other.host} ({_idle_reason(cluster, other)})"
        for other in cluster.nodes.values()
        if other.view is not None and other.view.is_accelerator and other.view.rack == view.rack
    ]
    if not idle:
        return bindings.policy.explain(host)
    named = ", ".join(idle[:_N_NAMED]) + (f" and {len(idle) - _N_NAMED} more" if len(idle) > _N_NAMED else "")
    return (
        f"{host} is not bound: no accelerator node of {view.rack} serves now: {named}; its tasks use its CPU."
    )


def _idle_reason(cluster: ClusterState, node: Node) -> str:
    if node.host in cluster.drained:
        return "drained"
    if node.host in cluster.released:
        return "released, nobody needed it"
    instance = cluster.server_instance(node)
    if instance is None:
        return "no server is to run there"
    phases = [record.phase.value for record in instance.live() if record.phase is not Phase.RUNNING]
    if node.is_usable and phases:
        return f"its server is {phases[0]}"
    return reason_not_serving(node, instance, cluster.now_s)


def _is_worth_a_line(cluster: ClusterState, node: Node, instance: RoleInstance) -> bool:
    fits = node.view is not None and cluster.fits(node, instance.role)
    return fits or bool(instance.records)


def _instance_line(cluster: ClusterState, node: Node, instance: RoleInstance) -> str:
    words = [_record_text(cluster, record) for record in instance.records.values()]
    if instance.request_id is not None:
        words.append(f"asked for since {cluster.now_s - instance.first_asked_s:.1f} s")
    wait_s = instance.backoff.until_s - cluster.now_s
    if not words and wait_s > 0:
        words.append(f"tried again in {wait_s:.1f} s")
    if instance.backoff.n_failures:
        words.append(f"failures in a row: {instance.backoff.n_failures}, the last: {instance.backoff.reason}")
    if instance.backoff.is_lasting and wait_s > 0:
        words.append(_lasting_text(cluster, instance))
    if instance.role.is_server and node.host in cluster.drained and not words:
        words.append("none, the node is drained")
    elif instance.role.is_server and node.host in cluster.released and not words:
        idle_s = format_duration_s(cluster.settings.idle_release_s)
        words.append(f"none, nobody needed it for {idle_s}; it returns when a task asks for a server")
    elif instance.role.is_server:
        is_serving = serves(node, instance, cluster.now_s) is not None
        words.append("serves" if is_serving else reason_not_serving(node, instance, cluster.now_s))
    return f"{instance.role.name}: {'; '.join(words) or 'none'}."


def _lasting_text(cluster: ClusterState, instance: RoleInstance) -> str:
    every = format_duration_s(cluster.settings.max_delay_s)
    cure = f"mend the node, then `yarn-accel undrain {instance.node}`"
    return f"this does not go away by itself, so it is tried every {every} only: {cure}"


def _record_text(cluster: ClusterState, record: ContainerRecord) -> str:
    words = f"{record.container.id} {record.phase.value} for {cluster.now_s - record.since_s:.1f} s"
    return f"{words} ({record.reason})" if record.phase is Phase.RETIRING else words


def _slots_line(cluster: ClusterState, host: str) -> str:
    if cluster.slots.refusal:
        return f"Slots are not set: {cluster.slots.refusal}."
    given = cluster.slots.given(host)
    if given is None:
        return "Slots are left as they are."
    text = "the configured value" if given[0] is None else str(given[0])
    return f"Slots: {text}, {'set' if given[1] else 'not confirmed yet'}."
