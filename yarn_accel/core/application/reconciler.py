"""Takes the next step of one node from its observed to its desired state.

::

    node, by the RM         role, server          place        to the policy
    ─────────────────────   ───────────────────   ──────────   ─────────────────────────────────────────────
    unknown                 any                   left alone   nothing
    gone                    any                   given up     nothing
    usable                  fits                  KEEP         ANode while its server serves; NNode without an
                                                               accelerator, or without a server for a while
    usable, drained         server                HOLD, NONE   NNode
    leaving, or Stop        server                HOLD, NONE   NNode; on Stop nothing
                            others                HOLD until the server has ended, then NONE
                            chosen nodes          HOLD while chosen; on Stop NONE
    usable                  chosen nodes          NONE where not chosen; HOLD until the first `NodesChosen`
"""

from __future__ import annotations

from yarn_accel.core.application.bindings import NodeBinding, NodeKind
from yarn_accel.core.application.cluster_state import ClusterState
from yarn_accel.core.application.events import NodeView
from yarn_accel.core.application.role_instance import DesiredState, Node, RoleInstance
from yarn_accel.core.application.servers import drain_step, reason_not_serving, server_binding, serves
from yarn_accel.core.application.timers import NEVER


class Reconciler:
    """Reconciles one node at a time."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster

    def reconcile(self, node: Node) -> None:
        """Take the next step, and set the node's timer for the one after it."""
        cluster = self._cluster
        next_s = NEVER
        if node.view is not None and not node.view.is_usable and cluster.life.is_registered:
            self._release_all(node)
        if node.view is not None:
            for instance in node.instances.values():
                desired, desired_s = self._desired(node, node.view, instance)
                next_s = min(next_s, desired_s)
                if cluster.life.is_registered:
                    next_s = min(next_s, cluster.containers.keep(instance, desired, node, cluster.now_s))
        cluster.timers.set(node.host, min(next_s, self._serve(node)))

    def _release_all(self, node: Node) -> None:
        for instance in node.instances.values():
            self._cluster.containers.abandon(instance, "its node is gone", self._cluster.now_s)
        self._cluster.slots.forget(node.host)

    def _desired(self, node: Node, view: NodeView, instance: RoleInstance) -> tuple[DesiredState, float]:
        """The desired state of a role on the node, and when it changes by itself."""
        cluster, role = self._cluster, instance.role
        is_stopping = cluster.life.stopping_s is not None
        is_barred = is_stopping or view.is_leaving or (role.is_server and node.host in cluster.drained)
        if view.is_usable and cluster.fits(node, role) and not is_barred:
            instance.ending_s = None
            return DesiredState.RUNNING, NEVER
        if next(instance.live(), None) is None:
            instance.ending_s = None
            return DesiredState.ABSENT, NEVER
        if role.is_server:
            return drain_step(instance, cluster.settings, is_stopping, cluster.now_s)
        if view.is_usable and cluster.keeps(node, role):
            return DesiredState.RETAINED, NEVER
        server = cluster.server_instance(node)
        is_needed = server is not None and bool(server.records) and role.fits(view.is_accelerator)
        return (DesiredState.RETAINED if is_needed else DesiredState.ABSENT), NEVER

    def _serve(self, node: Node) -> float:
        """Update the node's role in the policy; returns when it changes by itself."""
        cluster = self._cluster
        instance = cluster.server_instance(node)
        report = serves(node, instance, cluster.now_s) if instance is not None else None
        if instance is not None and node.is_serving != (report is not None):
            node.is_serving = report is not None
            reason = "" if node.is_serving else reason_not_serving(node, instance, cluster.now_s)
            cluster.note(node.host, "server serves" if node.is_serving else "server serves no more", reason)
        if report is None or node.view is None:
            return self._without_server(node, instance)
        node.down_s = None
        cluster.bindings.set(node.host, server_binding(node.view, report), cluster.now_s)
        return report.silent_from_s

    def _without_server(self, node: Node, instance: RoleInstance | None) -> float:
        """A node without a serving server: an NNode, or nothing to the policy; returns when that changes."""
        cluster, view, now_s = self._cluster, node.view, self._cluster.now_s
        since_s, node.down_s = node.down_s, None
        if view is None or not view.is_usable or cluster.life.stopping_s is not None:
            cluster.bindings.set(node.host, None, now_s)
            return NEVER
        is_expected = instance is not None and cluster.fits(node, instance.role) and not view.is_leaving
        if is_expected and node.host not in cluster.drained:
            node.down_s = since_s if since_s is not None else now_s
            guest_s = node.down_s + cluster.settings.guest_after_s
            if now_s < guest_s:
                cluster.bindings.set(node.host, None, now_s)
                return guest_s
        cluster.bindings.set(node.host, NodeBinding(NodeKind.NNODE, view.rack), now_s)
        return NEVER
