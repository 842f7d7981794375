"""Takes the next step of one node from its observed to its desired state.

::

    node, by the RM     role, server     desired state            to the policy
    ─────────────────   ──────────────   ──────────────────────   ────────────────────────────────────────────
    unknown             any              left alone               nothing
    gone                any              given up                 nothing
    usable              fits             RUNNING                  ANode while its server serves; NNode without
                                                                  an accelerator, or without a server for a
                                                                  while
    usable, drained     server           RETAINED, ABSENT         NNode
    usable, not needed  server           RETAINED, ABSENT         NNode
    leaving, or Stop    server           RETAINED, ABSENT         NNode; on Stop nothing
                        others           RETAINED until the server has ended, then ABSENT
                        chosen nodes     RETAINED while chosen; on Stop ABSENT
    usable              chosen nodes     ABSENT where not chosen; RETAINED until the first `NodesChosen`
"""

from __future__ import annotations

from yarn_accel.core.application.bindings import NodeBinding, NodeKind
from yarn_accel.core.application.cluster_state import ClusterState
from yarn_accel.core.application.events import NodeView
from yarn_accel.core.application.nodes import (
    NEVER,
    DesiredState,
    Node,
    RoleInstance,
    StatusReport,
    reason_not_serving,
    serves,
)
from yarn_accel.core.binding.stacks import MAX_WEIGHT
from yarn_accel.core.units import format_duration_s

_MAX_CAPACITY = 100_000
_LEAST_WEIGHT = 0.001


def reconcile(cluster: ClusterState, node: Node) -> None:
    """Take the next step of a node, and set its timer for the one after it."""
    next_s = NEVER
    if node.view is not None and not node.view.is_usable and cluster.life.is_registered:
        for instance in node.instances.values():
            cluster.containers.abandon(instance, "its node is gone", cluster.now_s)
        cluster.slots.forget(node.host)
    if node.view is not None:
        for instance in node.instances.values():
            desired, desired_s = _desired(cluster, node, node.view, instance)
            next_s = min(next_s, desired_s)
            if cluster.life.is_registered:
                next_s = min(next_s, cluster.containers.keep(instance, desired, node, cluster.now_s))
    cluster.timers.set(node.host, min(next_s, _serve(cluster, node)))


def _desired(
    cluster: ClusterState, node: Node, view: NodeView, instance: RoleInstance
) -> tuple[DesiredState, float]:
    """The desired state of a role on the node, and when it changes by itself."""
    role = instance.role
    is_stopping = cluster.life.stopping_s is not None
    is_barred = is_stopping or view.is_leaving
    next_s = NEVER
    if role.is_server:
        next_s = _release_if_idle(cluster, node, instance)
        is_barred = is_barred or cluster.lacks_server(node.host)
    if view.is_usable and cluster.fits(node, role) and not is_barred:
        instance.ending_s = None
        return DesiredState.RUNNING, next_s
    if next(instance.live(), None) is None:
        instance.ending_s = None
        return DesiredState.ABSENT, NEVER
    if role.is_server:
        return _drain_step(cluster, instance, is_stopping)
    if view.is_usable and cluster.keeps(node, role):
        return DesiredState.RETAINED, NEVER
    server = cluster.server_instance(node)
    is_needed = server is not None and bool(server.records) and role.fits(view.is_accelerator)
    return (DesiredState.RETAINED if is_needed else DesiredState.ABSENT), NEVER


def _release_if_idle(cluster: ClusterState, node: Node, instance: RoleInstance) -> float:
    """Release a server that nobody needs, or take it back; returns when it is to be released."""
    host, idle_s = node.host, cluster.settings.idle_release_s
    if idle_s <= 0 or host in cluster.drained or not cluster.fits(node, instance.role):
        cluster.released.discard(host)
        return NEVER
    if host not in cluster.released and instance.well_since_s is None:
        return NEVER  # It has not served yet: whoever waits for the start of the servers needs it.
    release_s = max(cluster.wanted_s, instance.used_s, instance.well_since_s or 0.0) + idle_s
    if cluster.now_s < release_s:
        if host in cluster.released:
            cluster.released.discard(host)
            cluster.note(host, "server wanted again", "somebody asks for servers")
        return release_s
    if host not in cluster.released:
        cluster.released.add(host)
        cluster.note(host, "server released", f"nobody needed it for {format_duration_s(idle_s)}")
    return NEVER


def _drain_step(
    cluster: ClusterState, instance: RoleInstance, is_stopping: bool
) -> tuple[DesiredState, float]:
    """Whether a draining server may still finish its requests, and when to look again.

    It is stopped when it reports no open request after `drain_grace_s`, in which its clients learn of their
    new server, or when `drain_limit_s` has passed. A server that never reported is stopped at once.
    """
    settings, now_s = cluster.settings, cluster.now_s
    if instance.ending_s is None:
        instance.ending_s = now_s
    limit_s = instance.ending_s + (settings.stop_drain_s if is_stopping else settings.drain_limit_s)
    grace_s = instance.ending_s + (0.0 if is_stopping else settings.drain_grace_s)
    report = instance.report
    if report is None or now_s >= limit_s or (report.gauges.n_open <= 0 and report.at_s >= grace_s):
        return DesiredState.ABSENT, NEVER
    return DesiredState.RETAINED, limit_s


def _serve(cluster: ClusterState, node: Node) -> float:
    """Update the node's role in the policy; returns when it changes by itself."""
    instance = cluster.server_instance(node)
    report = serves(node, instance, cluster.now_s) if instance is not None else None
    if instance is not None and node.is_serving != (report is not None):
        node.is_serving = report is not None
        reason = "" if node.is_serving else reason_not_serving(node, instance, cluster.now_s)
        cluster.note(node.host, "server serves" if node.is_serving else "server serves no more", reason)
    if report is None or node.view is None:
        return _without_server(cluster, node, instance)
    node.down_s = None
    cluster.bindings.set(node.host, server_binding(node.view, report), cluster.now_s)
    return report.silent_from_s


def _without_server(cluster: ClusterState, node: Node, instance: RoleInstance | None) -> float:
    """Make a node without a serving server an NNode, or unknown to the policy; returns when that changes."""
    view, now_s = node.view, cluster.now_s
    since_s, node.down_s = node.down_s, None
    if view is None or not view.is_usable or cluster.life.stopping_s is not None:
        cluster.bindings.set(node.host, None, now_s)
        return NEVER
    is_expected = instance is not None and cluster.fits(node, instance.role) and not view.is_leaving
    if is_expected and not cluster.lacks_server(node.host):
        node.down_s = since_s if since_s is not None else now_s
        guest_s = node.down_s + cluster.settings.guest_after_s
        if now_s < guest_s:
            cluster.bindings.set(node.host, None, now_s)
            return guest_s
    cluster.bindings.set(node.host, NodeBinding(NodeKind.NNODE, view.rack), now_s)
    return NEVER


def server_binding(view: NodeView, report: StatusReport) -> NodeBinding:
    """The node of a serving server, as the policy sees it; reported figures are kept in bounds."""
    gauges = report.gauges
    capacity = min(max(gauges.capacity, 1), _MAX_CAPACITY)
    # A weight that is no number above 0 says nothing.
    weight = min(max(gauges.weight, _LEAST_WEIGHT), MAX_WEIGHT) if gauges.weight > 0 else 1.0
    return NodeBinding(NodeKind.ANODE, view.rack, weight, report.endpoint, capacity)


class InitialBindings:
    """When an attempt makes its first bindings.

    The first attempt makes them at once. A later one keeps the published bindings to running servers: it
    collects reports for `Settings.settle_s`, and then until the RM has listed all nodes and every server with
    a bound node has reported, but for `Settings.recall_s` at most. A server whose last report is so old that
    it would soon count as silent must report again: otherwise it could be lost at the moment at which all
    nodes are bound.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._expected: list[str] | None = None

    def step(self) -> None:
        """Make the first bindings if that is due."""
        cluster = self._cluster
        if cluster.bindings.is_open:
            return
        is_ending = cluster.life.stopping_s is not None and cluster.life.attempt > 0
        is_settled = cluster.now_s >= cluster.bind_from_s and cluster.is_listed
        if is_ending or cluster.now_s >= cluster.bind_by_s or (is_settled and not self._is_waiting()):
            published, cluster.published = cluster.published, {}
            cluster.bindings.open(cluster.now_s, published)

    def next_s(self) -> float:
        """When they are due at the latest."""
        cluster = self._cluster
        return cluster.bind_from_s if cluster.now_s < cluster.bind_from_s else cluster.bind_by_s

    def _is_waiting(self) -> bool:
        """Whether a server with bound nodes may yet report; one that was skipped stays so."""
        if self._expected is None:
            self._expected = sorted(set(self._cluster.published.values()))
        while self._expected and not self._may_report(self._expected[-1]):
            self._expected.pop()
        return bool(self._expected)

    def _may_report(self, host: str) -> bool:
        cluster = self._cluster
        node = cluster.nodes.get(host)
        instance = cluster.server_instance(node) if node is not None and node.is_usable else None
        if instance is None or cluster.lacks_server(host):
            return False
        report = instance.report
        if report is not None and cluster.now_s < report.at_s + cluster.settings.silence_s / 2:
            return False
        return any(record.was_launched for record in instance.live())
